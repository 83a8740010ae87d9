"""What uv says, and what an interpreter says, as the reason why there is no environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.plan import TorchBuild
from runner.environments import Download, classify, is_asked_for, masked_text

# As uv 0.13 writes it.
NO_WHEEL = """\
Using Python 3.13.0 environment at: venv
error: No solution found when resolving dependencies
  cause: Because torch==2.2.2 has no wheels with a matching Python ABI tag (e.g., `cp313`) and you require \
torch==2.2.2, we can conclude that your requirements are unsatisfiable.

hint: You require CPython 3.13 (`cp313`), but we only found wheels for `torch` (v2.2.2) with others
"""
# As uv 0.5 does.
NO_VERSION = """\
  × No solution found when resolving dependencies:
  ╰─▶ Because there is no version of torch==99.0 and you require torch==99.0, we can
      conclude that your requirements are unsatisfiable.
"""
NO_NETWORK = """\
error: Request failed after 3 retries in 9.7s
  cause: Failed to fetch: https://download.pytorch.org/whl/cpu/torch/
  cause: error sending request for url (https://download.pytorch.org/whl/cpu/torch/)
  cause: failed to lookup address information: Name or service not known
"""
NOT_LET_IN = """\
error: No solution found when resolving dependencies
  cause: Because torch was not found in the package registry and you require torch==2.2.2, we can conclude that your \
requirements are unsatisfiable.

hint: An index URL (https://example.org/simple) could not be queried due to a lack of valid authentication credentials
"""
DISK_FULL = """\
error: Failed to install: torch-2.2.2-cp311-cp311-manylinux1_x86_64.whl (torch==2.2.2)
  cause: failed to write to file `x`: No space left on device (os error 28)
"""
DOES_NOT_BUILD = """\
error: Failed to build `deepspeed==0.18.9`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)
"""


@pytest.mark.parametrize(
    ("output", "reason", "sentence"),
    [
        (
            NO_WHEEL,
            "unresolvable",
            "Because torch==2.2.2 has no wheels with a matching Python ABI tag (e.g., `cp313`) and you require "
            "torch==2.2.2, we can conclude that your requirements are unsatisfiable.",
        ),
        (
            NO_VERSION,
            "unresolvable",
            "Because there is no version of torch==99.0 and you require torch==99.0, we can conclude that your "
            "requirements are unsatisfiable.",
        ),
        (
            NO_NETWORK,
            "build",
            "the environment cannot be built: Request failed after 3 retries in 9.7s: Failed to fetch: "
            "https://download.pytorch.org/whl/cpu/torch/: failed to lookup address information: Name or service not "
            "known",
        ),
        (NOT_LET_IN, "build", None),
        (
            DISK_FULL,
            "machine",
            "this machine cannot build the environment: cause: failed to write to file `x`: No space left on device "
            "(os error 28)",
        ),
        (
            DOES_NOT_BUILD,
            "build",
            "the environment cannot be built: Failed to build `deepspeed==0.18.9`: The build backend returned an "
            "error: Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)",
        ),
        ("", "build", "the environment cannot be built: uv ended with 2"),
    ],
)
def test_the_reason_is_read_from_what_uv_says(output: str, reason: str, sentence: str | None) -> None:
    told = classify(output, 2)

    assert told[0] == reason
    assert sentence is None or told[1] == sentence


@pytest.mark.parametrize(
    ("version", "requirement", "found", "same"),
    [
        ("2.2.2", "torch==2.2.2", "2.2.2+cu121", True),
        ("2.2.2", "torch==2.2.2", "2.2.1+cu121", False),
        ("2.2.2", "torch==2.2.2+cu118", "2.2.2+cu121", False),
        ("2.2.2", "torch==2.2.2+cu118", "2.2.2+cu118", True),
        ("2.2.2", "torch @ file:///x/torch-2.2.2+mine-cp311-cp311-linux_x86_64.whl", "2.2.2", True),
        ("nightly", "torch", "2.16.0.dev20261130+cpu", True),
        ("nightly", "torch", "2.15.0", False),
        ("2.4.0", "torch==2.4.0", "2.4.0a0+07cecf4168.nv24.05", False),
        ("2.4.0", "torch==2.4.0", "not a version", False),
    ],
)
def test_what_was_asked_for(version: str, requirement: str, found: str, same: bool) -> None:
    assert is_asked_for(TorchBuild(version, requirement), found) is same


def test_a_download_is_followed_in_uvs_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    download = Download(log, log.stat().st_size)
    assert download.read() == (0, 0)

    with log.open("a") as file:
        file.write("Downloading torch (1.5GiB)\nDownloading numpy (16.0MiB)\n Downloaded numpy\n Downlo")
    assert download.read() == (16 * 2**20, 1.5 * 2**30 + 16 * 2**20)

    with log.open("a") as file:
        file.write("aded torch\n")
    assert download.read() == (1.5 * 2**30 + 16 * 2**20,) * 2


def test_credentials_are_masked_wherever_they_turn_up() -> None:
    text = "from https://user:s3cret@host/simple and https://token@host, with s3cret; see https://host/a@b"

    assert masked_text(text, {"s3cret"}) == (
        "from https://****@host/simple and https://****@host, with ****; see https://host/a@b"
    )
