"""What an engine is given to build an environment's image from: the Dockerfile, its arguments, context and secrets."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from matrix.plan import LegPlan
from runner.engine import Build, Builder
from runner.environments import BESIDE_DEEPSPEED, LEFT_OUT, torch_of
from runner.loopback import Served
from runner.package_index import IndexSettings

DOCKERFILE = Path(__file__).with_name("Dockerfile")
STEPS = Path(__file__).with_name("image_steps.sh")
SECRETS = "/run/secrets"
CERTIFICATE = "/context/tools/certificate.pem"
COPIED_SOURCE = "file:///tmp/deepspeed"  # where the steps copy a checkout to

# What uv would look for on this machine; the build is given the files in their place.
OF_THIS_MACHINE = (
    "NETRC",
    "SSL_CERT_DIR",
    "SSL_CLIENT_CERT",
    "UV_KEYRING_PROVIDER",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
)


@dataclass(frozen=True)
class Recipe:
    """`own_torch`: the base has the torch that is wanted. `torch_arguments` say to uv which build of it.

    `source` writes a checkout of DeepSpeed into a directory; None where a release is installed. `build_string` is what
    the checkout calls itself behind its version.
    """

    leg: LegPlan
    base: str
    own_torch: bool
    torch_arguments: Sequence[str]
    index: Served
    places: str  # tells apart what the index settings find
    day: str
    accelerator: str
    source: Callable[[Path], None] | None = None
    build_string: str = ""

    def build(
        self, directory: Path, labels: Mapping[str, str], builder: Builder, uv: str, caller: Mapping[str, str]
    ) -> Build:
        """Everything in `directory`, which is ours alone and empty."""
        context = directory / "context"
        private = directory / "secrets"
        private.mkdir(mode=0o700)
        self._write_tools(context / "tools", uv)
        self._write_torch(context / "torch")
        self._write_deepspeed(context / "deepspeed")
        self._write_beside(context / "beside")
        dockerfile = directory / "Dockerfile"
        text = DOCKERFILE.read_text("utf-8")
        settings = _settings(self.index.index)
        if builder == "legacy":
            (context / "tools/index").write_text(settings, "utf-8")
            dockerfile.write_text(without_mounts(text), "utf-8")
            return Build(context, dockerfile, self._arguments(), labels)
        (private / "index").write_text(settings, "utf-8")
        dockerfile.write_text(text, "utf-8")
        files = {"index": private / "index", **_secret_files(self.index.index, caller)}
        return Build(context, dockerfile, self._arguments(), labels, files)

    def _arguments(self) -> dict[str, str]:
        torch = torch_of(self.leg).requirement
        name, at, url = torch.partition(" @ ")
        if at and urlsplit(url).scheme == "file" and self.index.address:
            torch = f"{name} @ {self.index.address}{urlsplit(url).path}"
        deepspeed = self.leg.deepspeed or ""
        if self.source:
            deepspeed = f"deepspeed @ {COPIED_SOURCE}"
        return {
            "BASE": self.base,
            "SITE": "--system-site-packages" if self.own_torch else "",
            "INDEX": self.places,
            "TORCH": "" if self.own_torch else torch,
            "TORCH_ARGUMENTS": " ".join(self.torch_arguments),
            "WHICH": self.day,
            "DEEPSPEED": deepspeed,
            "DS_ACCELERATOR": self.accelerator if deepspeed else "",
            "DS_BUILD_STRING": self.build_string,
        }

    def _write_tools(self, tools: Path, uv: str) -> None:
        tools.mkdir(parents=True)
        shutil.copyfile(STEPS, tools / "begin")
        shutil.copyfile(uv, tools / "uv")
        (tools / "uv").chmod(0o755)
        if certificate := _certificate(self.index.index):
            shutil.copyfile(certificate, tools / "certificate.pem")

    def _write_torch(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "constraints.txt").write_text("".join(f"{line}\n" for line in self.leg.constraints), "utf-8")

    def _write_deepspeed(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "overrides.txt").write_text(LEFT_OUT + self._of_the_base(), "utf-8")
        (directory / "beside.txt").write_text("\n".join(BESIDE_DEEPSPEED), "utf-8")
        if self.source:
            self.source(directory / "source")

    def _write_beside(self, directory: Path) -> None:
        """What own tests need, with the DeepSpeed that is there, which they must not change."""
        directory.mkdir()
        there = [self.leg.deepspeed] if self.leg.deepspeed and " @ " not in self.leg.deepspeed else []
        needed = [*there, *self.leg.beside] if self.leg.beside else []
        (directory / "requirements.txt").write_text("".join(f"{line}\n" for line in needed), "utf-8")
        (directory / "overrides.txt").write_text(self._of_the_base(), "utf-8")

    def _of_the_base(self) -> str:
        """uv does not see what the base has: without this it would install another torch beside it."""
        return "".join(f"{name} ; python_version < '3'\n" for name in ("torch", "numpy")) if self.own_torch else ""


def without_mounts(dockerfile: str) -> str:
    """The same for a builder that has no mounts: what a step would be given of the context is copied before it.

    What is copied stays in the image, so nothing that is secret may be in the context.
    """
    steps = []
    copied: set[str] = set()
    for step in re.split(r"(?m)^(?=RUN )", dockerfile):
        sources = re.findall(r"--mount=type=bind,source=(\w+),target=(\S+)", step)
        steps += [f"COPY {source} {target}\n" for source, target in sources if source not in copied]
        copied |= {source for source, _ in sources}
        steps.append(re.sub(r"--mount=\S+ +(\\\n +)?", "", step))
    return "".join(steps)


def has_credentials(index: IndexSettings, caller: Mapping[str, str]) -> bool:
    """Whether a build that is given the settings is given something that nobody else may read."""
    values = [value for text in index.uv_environment().values() for value in text.split()]
    named = any(name.endswith("_PASSWORD") for name in index.uv_environment())
    return (
        named or any("@" in urlsplit(_unnamed(value)).netloc for value in values) or bool(_secret_files(index, caller))
    )


def _unnamed(value: str) -> str:
    return value.partition("=")[2] if re.match(r"[\w.-]+=", value) else value


def _settings(index: IndexSettings) -> str:
    """A piece of shell: the variables, and `uv_install`."""
    variables = {name: value for name, value in index.uv_environment().items() if name not in OF_THIS_MACHINE}
    variables.pop("SSL_CERT_FILE", None)
    if _certificate(index):
        variables["SSL_CERT_FILE"] = CERTIFICATE
    if index.client_certificate:
        variables["SSL_CLIENT_CERT"] = f"{SECRETS}/client-certificate"
    variables["NETRC"] = f"{SECRETS}/netrc"
    for name in ("NO_PROXY", "no_proxy"):  # what is served to the build is on this machine
        variables[name] = ",".join(filter(None, [variables.get(name), "127.0.0.1"]))
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    lines.append(f'uv_install() {{ "$UV" pip install {shlex.join(index.uv_arguments())} "$@"; }}')
    return "\n".join(lines) + "\n"


def _certificate(index: IndexSettings) -> Path | None:
    """The machine's authorities, where it has its own."""
    if index.certificate:
        return Path(index.certificate)
    settings = dict(index.passed_on)
    if any(name in settings for name in ("UV_NATIVE_TLS", "UV_SYSTEM_CERTS")):
        file = ssl.get_default_verify_paths().cafile
        return Path(file) if file else None
    return None


def _secret_files(index: IndexSettings, caller: Mapping[str, str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    netrc = Path(dict(index.passed_on).get("NETRC") or Path(caller.get("HOME") or Path.home()) / ".netrc")
    if os.access(netrc, os.R_OK) and netrc.is_file():
        files["netrc"] = netrc
    if index.client_certificate:
        files["client-certificate"] = Path(index.client_certificate)
    return files
