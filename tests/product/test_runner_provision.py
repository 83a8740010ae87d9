"""Provisioning, for real: in a copy of this machine's file system that is thrown away, with the packages as stand-ins.

The copy is an overlay in a mount namespace of its own, so users, files and links are real and nothing outside changes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.product.runner_machine import SCRIPTS, SYSTEM_PATH
from tests.product.test_runner_hooks import needs_root

VERSION = "2.330.0"
KEY_SUM = hashlib.sha256(b"the key\n").hexdigest()

# What is installed is what apt-get has been asked for; what is enabled and active, what systemctl has.
STAND_INS = {
    "dpkg-query": 'grep -qx "${@: -1}" /db/packages && printf "install ok installed"',
    "dpkg": "echo amd64",
    "apt-cache": """[ -e /var/lib/apt/lists/x_Packages ] || exit 0
case $* in *libicu*) echo "libicu72 - x"; echo "libicu67 - x" ;; *buildx*) echo "docker-buildx - x" ;; esac""",
    "apt-get": """[ "$1" != update ] || [ -e /db/offline ] || touch /var/lib/apt/lists/x_Packages
[ "$1" = install ] || exit 0
shift; for word; do case $word in
  -*) ;;
  *) echo "$word" >>/db/packages ;;
esac; done
for word; do case $word in docker.io) groupadd -f docker; cp /stand-ins/dpkg /stand-ins/docker ;; esac; done""",
    "systemctl": """case $1 in
  is-enabled) grep -qx "enable --quiet $3" /db/systemctl ;;
  is-active) grep -qx "start $3" /db/systemctl ;;
esac""",
    "nvidia-smi": "",
    "nvidia-ctk": "mkdir -p /etc/docker; echo nvidia-container-runtime >/etc/docker/daemon.json",
    "curl": """while [ $# -gt 1 ]; do [ "$1" != --output ] || out=$2; shift; done
case $1 in *gpgkey) echo 'the key' >"$out" ;; *) cp /db/runner.tar.gz "$out" ;; esac""",
}

OVERLAY = """set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
rm -rf "$1/root/usr/bin/docker" "$1/root/usr/local/bin/docker" "$1/root/etc/docker"
mkdir -p "$1/root/db" "$1/root/stand-ins" "$1/root/run/systemd/system"
cp -r "$2/scripts" "$2/bin" "$1/root/stand-ins"
mv "$1"/root/stand-ins/bin/* "$1/root/stand-ins"
cp "$2/runner.tar.gz" "$1/root/db"
touch "$1/root/db/packages" "$1/root/db/systemctl"
rm -rf "$1/root/var/lib/apt/lists" "$1/root/snap"
mkdir -p "$1/root/var/lib/apt/lists"
touch "$1/root/var/lib/apt/lists/x_Packages"
PATH="/stand-ins:$PATH" exec chroot "$1/root" bash -c "$3"
"""


class Machine:
    """A bare machine. Each `run` is a machine of its own; what has to follow on something is one script."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "overlay").mkdir()
        (directory / "bin").mkdir()
        shutil.copytree(SCRIPTS, directory / "scripts")
        for name, script in STAND_INS.items():
            path = directory / "bin" / name
            path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>/db/{name}\n{script}\n')
            path.chmod(0o755)
        (directory / "run.sh").write_text("#!/bin/bash\n")
        with tarfile.open(directory / "runner.tar.gz", "w:gz") as archive:
            archive.add(directory / "run.sh", "run.sh")
        self.sum = hashlib.sha256((directory / "runner.tar.gz").read_bytes()).hexdigest()

    def provision(self, *more: str) -> str:
        words = ["--url", "https://github.com/org", "--runner-version", VERSION, "--runner-sha256", self.sum]
        return " ".join(["/stand-ins/scripts/provision.sh", *words, "--toolkit-key-sha256", KEY_SUM, *more])

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "--mount", "bash", "-c", OVERLAY, "-", self.directory / "overlay", self.directory, script],
            env={"PATH": SYSTEM_PATH},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    possible = machine.run("true")
    if possible.returncode != 0:
        pytest.skip(f"no overlay of the file system can be mounted here: {possible.stderr.strip()}")
    yield machine
    assert subprocess.run(["id", "sp-compat-runner"], capture_output=True, check=False).returncode != 0


@needs_root
def test_a_bare_machine_becomes_a_runner_and_a_second_run_changes_nothing(machine: Machine) -> None:
    done = machine.run(
        f"""set -e
        {machine.provision("--dry-run")} >/db/dry; ls -d /var/lib/sp-compat-runner 2>/dev/null && exit 7
        id sp-compat-runner 2>/dev/null && exit 8
        {machine.provision()} >/db/first; {machine.provision()} >/db/second; {machine.provision("--dry-run")} >/db/third
        echo '%% dry'; cat /db/dry; echo '%% first'; cat /db/first; echo '%% second'; cat /db/second; cat /db/third
        echo '%% facts'; id -nG sp-compat-runner; getent passwd sp-compat-runner
        cd /usr/local/lib/sp-compat-runner; stat -c '%n %U %a' $PWD $PWD/*.sh /etc/sp-compat-runner/config \
          /var/cache/sp-compat-runner /var/lib/sp-compat-runner /var/lib/sp-compat-runner/actions-runner/run.sh
        echo '%% calls'; cat /db/apt-get; cat /db/systemctl; cat /etc/sp-compat-runner/config
        SP_COMPAT_RUNNER_CONFIG= /usr/local/sbin/sp-compat-runner status"""
    )
    assert done.returncode == 0, done.stderr + done.stdout
    dry, first, second, facts, calls = (part.splitlines()[1:] for part in done.stdout.split("\n%%"))
    changes = [line for line in first if line.startswith("+ ")]
    assert [line for line in dry if line.startswith("+ ")] == changes
    assert len(changes) > 25
    assert f"{len(changes)} changes would be made" in dry
    assert second[0] == "nothing to change"
    assert second.count("nothing to change") == 2
    assert facts[0] == "sp-compat-runner docker"
    assert facts[1].endswith(":/nonexistent:/usr/sbin/nologin")
    modes = dict(line.split(" ", 1) for line in facts[2:])
    assert modes["/var/cache/sp-compat-runner"] == "sp-compat-runner 755"
    assert all(mode.startswith("root ") for path, mode in modes.items() if "/cache/" not in path)
    assert all(int(mode.split()[1], 8) & 0o022 == 0 for mode in modes.values())
    assert any("install --yes --no-install-recommends ca-certificates curl git jq" in call for call in calls)
    assert any("libicu72" in call and "docker.io" in call and "docker-buildx" in call for call in calls)
    assert "enable --quiet sp-compat-runner@1.service" in calls
    assert "start sp-compat-runner.target" not in calls  # there is no token yet
    assert {"url=https://github.com/org", "labels=self-hosted,linux,sp-compat,gpu-4", "gpus=4"} <= set(calls)
    assert calls[-1] == "in service"


@needs_root
def test_a_bare_image_without_lists_of_packages(machine: Machine) -> None:
    bare = "rm /var/lib/apt/lists/*;"
    done = machine.run(
        f"""{bare} {machine.provision("--dry-run")} >/db/dry; ls /var/lib/apt/lists; head -n 2 /db/dry; echo %%
        {machine.provision()} >/db/first; head -n 2 /db/first; {machine.provision()}"""
    )
    assert done.returncode == 0, done.stderr
    dry, real = done.stdout.split("%%\n")
    fetch = "+ fetch the lists of packages; libicu and docker-buildx are looked for in them"
    assert [line.partition(" curl")[0] for line in dry.splitlines()] == [fetch, "+ install ca-certificates"]
    first, second, third, *_ = real.splitlines()
    assert first == fetch
    assert "libicu72" in second
    assert "docker-buildx" in second
    assert third == "nothing to change"

    done = machine.run(f"{bare} touch /db/offline; {machine.provision()}; echo $?; cat /db/packages")
    assert "apt offers no package libicu, which GitHub's runner needs" in done.stderr
    assert done.stdout.splitlines() == [fetch, "2"]


@needs_root
def test_a_docker_without_buildx_gets_it(machine: Machine) -> None:
    docker = "printf '#!/bin/sh\\n[ \"$1\" != buildx ]\\n' >/stand-ins/docker; chmod +x /stand-ins/docker"
    done = machine.run(f"{docker}; groupadd -f docker; {machine.provision('--dry-run')}")
    install = next(line for line in done.stdout.splitlines() if line.startswith("+ install ca-certificates"))
    assert install.endswith(" docker-buildx")


@needs_root
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            "mkdir -p /snap/bin; cp /stand-ins/dpkg /bin/snap; ln -s /bin/snap /snap/bin/docker; PATH+=:/snap/bin",
            "/snap/bin/docker is a snap",
        ),
        (
            "mkdir -p /snap/bin; cp /stand-ins/dpkg /snap/bin/docker; ln -s /snap/bin/docker /usr/bin",
            "docker is a snap",
        ),
        (
            "printf '#!/bin/sh\\necho podman version 4.3.1\\n' >/usr/bin/docker; chmod +x /usr/bin/docker",
            "/usr/bin/docker is podman under the name of docker",
        ),
    ],
)
def test_what_is_no_docker_of_this_machine_is_refused(machine: Machine, make: str, sentence: str) -> None:
    done = machine.run(f"{make}; {machine.provision()}; echo $?; cat /db/apt-get")
    assert sentence in done.stderr
    assert done.stdout == "2\n"


@needs_root
def test_what_the_operator_has_set_stays_and_what_has_changed_is_changed(machine: Machine) -> None:
    done = machine.run(
        f"""set -e
        {machine.provision()} >/dev/null
        echo disk_free=90G >>/etc/sp-compat-runner/config; echo secret >/etc/sp-compat-runner/token
        echo '# touched' >>/usr/local/lib/sp-compat-runner/clean.sh
        {machine.provision("--labels", "gpu-4")}; cat /etc/sp-compat-runner/config; cat /db/systemctl"""
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("+ ")] == [
        "+ write /usr/local/lib/sp-compat-runner/clean.sh",
        "+ set labels=gpu-4",
        "+ start sp-compat-runner.target",
    ]
    assert {"disk_free=90G", "labels=gpu-4", "url=https://github.com/org"} <= set(lines)
    assert "secret" not in done.stdout


@needs_root
@pytest.mark.parametrize(
    ("option", "what"),
    [("--runner-sha256", "actions-runner-linux-x64-2.330.0.tar.gz"), ("--toolkit-key-sha256", "gpgkey")],
)
def test_what_has_another_checksum_is_not_used(machine: Machine, option: str, what: str) -> None:
    done = machine.run(
        f"{machine.provision(option, '0' * 64)}; echo $?; ls /var/lib/sp-compat-runner /etc/apt/keyrings"
    )
    assert f"{what} has the checksum " in done.stderr
    assert "nothing of it is used" in done.stderr
    assert "\n1\n" in done.stdout
    assert "actions-runner\n" not in done.stdout


@needs_root
def test_a_user_who_is_root_by_a_group_is_refused(machine: Machine) -> None:
    done = machine.run(f"useradd --groups sudo sp-compat-runner; {machine.provision()}; echo $?")
    assert "sp-compat-runner is in the group sudo; a job would be root" in done.stderr
    assert done.stdout.endswith("\n2\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "--url is ''"),
        (("--url", "github.com/org"), "--url is 'github.com/org'; see --help for its form"),
        (("--ulr", "x"), "there is no option '--ulr'; see --help"),
        (("--url",), "--url needs a value"),
        (("--url", "https://github.com/o", "--gpus", "four"), "--gpus is 'four'"),
        (("--url", "https://github.com/o", "--labels", "a b"), "--labels is 'a b'"),
        (("--url", "https://github.com/o", "--runners", "2"), "would have jobs share the GPUs"),
        (
            ("--url", "https://github.com/o", "--gpus", "0", "--dry-run"),
            "--runner-version and --runner-sha256 are needed",
        ),
        (("--url", "https://github.com/o", "--dry-run"), "there is no NVIDIA driver; install one, or name its package"),
    ],
)
def test_a_mistake_is_one_sentence_and_changes_nothing(words: tuple[str, ...], sentence: str) -> None:
    if shutil.which("nvidia-smi", path=SYSTEM_PATH) and "NVIDIA driver" in sentence:
        pytest.skip("this machine has a driver")
    done = subprocess.run(
        ["bash", SCRIPTS / "provision.sh", *words], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("provision.sh: ")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_help_names_every_option() -> None:
    text = (SCRIPTS / "provision.sh").read_text("utf-8")
    shown = subprocess.run(
        ["bash", SCRIPTS / "provision.sh", "--help"], capture_output=True, text=True, timeout=20, check=True
    ).stdout
    names = text.partition("declare -gA option=(")[2].partition(")\n")[0].replace("\n", " ").split()
    for name in names:
        assert f"  --{name.partition(']')[0].lstrip('[').replace('_', '-')} " in shown
