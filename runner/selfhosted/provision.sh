#!/usr/bin/env bash
# Makes a runner of a bare Debian or Ubuntu machine. What is as it should be is left; a second run changes nothing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HELP='usage: provision.sh --url URL [options]

Makes a runner for the jobs of sp-compat of a bare Debian or Ubuntu machine: packages, the engine, NVIDIA'\''s container
toolkit, a user without sudo, GitHub'\''s runner, hooks, units and the timer that collects. Prints each change.

  --url URL                page of the organisation, repository or enterprise that the runner is for
  --labels A,B             its labels (default: self-hosted,linux,sp-compat, and gpu-N with N GPUs)
  --group N                number of the runner group (default: 1)
  --gpus N                 GPUs the machine has to have (default: 4)
  --runners N              runners beside one another, on a machine with --gpus 0 (default: 1)
  --runner-version V       release of GitHub'\''s runner, as 2.330.0; needed the first time
  --runner-sha256 SUM      its checksum, from the notes of that release
  --runner-url URL         where it is (default: the release at github.com)
  --driver-package NAME    package of the NVIDIA driver, where it is not installed yet
  --toolkit-key-sha256 SUM checksum of the key that signs NVIDIA'\''s packages, where the toolkit is not installed yet
  --sp-compat COMMAND      the command that collects the cache, as /opt/sp-compat/bin/sp-compat
  --dry-run                print each change, make none; needs no root

  sudo ./provision.sh --url https://github.com/my-org --runner-version 2.330.0 --runner-sha256 SUM --dry-run

The token is not for this script: put it into /etc/sp-compat-runner/token yourself, owned by root, mode 600.
Exit status: 0 done, or nothing to do; 1 a change failed; 2 a mistake in usage, or a machine that it cannot provision.'

readonly TOOLKIT=https://nvidia.github.io/libnvidia-container
readonly USER_NAME=sp-compat-runner
readonly LIBRARY=/usr/local/lib/sp-compat-runner
readonly STATE=/var/lib/sp-compat-runner
readonly SETTINGS=/etc/sp-compat-runner/config

main() {
  read_arguments "$@"
  check_machine
  install_packages
  install_toolkit
  make_user
  make_directories
  install_files
  write_settings
  install_runner
  enable_units
  conclude
}

refuse() {
  printf 'provision.sh: %s\n' "$1" >&2
  exit 2
}

read_arguments() {
  declare -gA option=([url]='' [labels]='' [group]=1 [gpus]=4 [runners]=1 [runner_version]='' [runner_sha256]=''
    [runner_url]='' [driver_package]='' [toolkit_key_sha256]='' [sp_compat]='')
  dry_run=
  changes=0
  local name form
  while [ $# -gt 0 ]; do
    case $1 in
      --help | -h) echo "$HELP" && exit 0 ;;
      --dry-run) dry_run=yes && shift && continue ;;
    esac
    name=${1#--}
    name=${name//-/_}
    [[ $1 == --* && $1 != *_* && -n "${option[$name]+known}" ]] || refuse "there is no option '$1'; see --help"
    [ $# -gt 1 ] || refuse "$1 needs a value"
    option[$name]=$2
    shift 2
  done
  for form in url='https://[A-Za-z0-9./_:-]+' labels='([A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*)?' group='[0-9]+' gpus='[0-9]+' \
    runners='[1-9][0-9]*' runner_version='([0-9]+(\.[0-9]+)*)?' runner_sha256='([0-9a-f]{64})?' \
    toolkit_key_sha256='([0-9a-f]{64})?' driver_package='([a-z0-9][a-z0-9.+-]*)?' sp_compat='(/.*)?'; do
    name=${form%%=*}
    [[ ${option[$name]} =~ ^${form#*=}$ ]] || refuse "--${name//_/-} is '${option[$name]}'; see --help for its form"
  done
  [ "${option[gpus]}" = 0 ] || [ "${option[runners]}" = 1 ] ||
    refuse "--runners ${option[runners]} would have jobs share the GPUs; one runner for a machine with GPUs"
  [ -n "${option[labels]}" ] || option[labels]=self-hosted,linux,sp-compat$([ "${option[gpus]}" = 0 ] || echo ",gpu-${option[gpus]}")
}

# Before the first change: what cannot be done here is refused as a whole.
check_machine() {
  local kind
  # shellcheck source=/dev/null
  kind=$(. /etc/os-release && echo " $ID ${ID_LIKE:-} ")
  [[ $kind == *' debian '* || $kind == *' ubuntu '* ]] || refuse "this is '${kind// /}'; Debian or Ubuntu is needed"
  has systemctl || refuse "there is no systemd, which is needed"
  [ -n "$dry_run" ] || [ "$(id -u)" = 0 ] || refuse "root is needed; --dry-run does without"
  refuse_other_docker
  if [ "${option[gpus]}" != 0 ]; then
    has nvidia-smi || [ -n "${option[driver_package]}" ] ||
      refuse "there is no NVIDIA driver; install one, or name its package by --driver-package (Ubuntu: ubuntu-drivers list --gpgpu)"
    is_installed nvidia-container-toolkit || [ -n "${option[toolkit_key_sha256]}" ] ||
      refuse "--toolkit-key-sha256 is needed: the SHA-256 of $TOOLKIT/gpgkey, from a machine you trust"
  fi
  if [ ! -e "$STATE/actions-runner/.release" ] || [ -n "${option[runner_version]}${option[runner_sha256]}" ]; then
    [[ -n ${option[runner_version]} && -n ${option[runner_sha256]} ]] ||
      refuse "--runner-version and --runner-sha256 are needed: see https://github.com/actions/runner/releases"
  fi
}

refuse_other_docker() {
  local found
  found=$(command -v docker) || return 0
  [[ "$found/ $(readlink --canonicalize "$found")/" != */snap/* ]] ||
    refuse "$found is a snap, which reads neither /etc/docker nor what a job mounts; remove it: snap remove docker"
  [[ $(docker --version 2>/dev/null) != *[Pp]odman* ]] ||
    refuse "$found is podman under the name of docker, which takes none of Docker's settings; remove it: apt-get remove podman-docker"
}

# change SENTENCE COMMAND...: the only way in which anything is changed.
change() {
  changes=$((changes + 1))
  printf '+ %s\n' "$1"
  if [ -z "$dry_run" ]; then
    "${@:2}"
  fi
}

has() {
  command -v "$1" >/dev/null
}

is_installed() {
  [[ $(dpkg-query --show --showformat='${Status}' "$1" 2>/dev/null) == *' installed' ]]
}

install_packages() {
  local name libicu missing=()
  local wanted=(ca-certificates curl git jq procps python3 python3-venv)
  # On a bare image apt knows of no packages.
  knows_packages || change "fetch the lists of packages; libicu and docker-buildx are looked for in them" apt-get update
  # .NET, in which GitHub's runner is written, needs it; its name changes with each release of the distribution.
  libicu=$(available 'libicu[0-9]+' | sort --version-sort | tail -n 1)
  [ -n "$libicu" ] || { [ -n "$dry_run" ] && ! knows_packages; } ||
    refuse "apt offers no package libicu, which GitHub's runner needs; see /etc/apt/sources.list.d"
  wanted+=(${libicu:+"$libicu"})
  has docker || wanted+=(docker.io)
  # BuildKit: a plugin where docker is 23 or newer, a part of it before.
  [ -z "$(available docker-buildx)" ] || docker buildx version >/dev/null 2>&1 || wanted+=(docker-buildx)
  [ -z "${option[driver_package]}" ] || has nvidia-smi || wanted+=("${option[driver_package]}")
  for name in "${wanted[@]}"; do
    is_installed "$name" || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] || change "install ${missing[*]}" apt_install "${missing[@]}"
}

apt_install() {
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"
}

knows_packages() {
  compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null
}

available() {
  apt-cache --names-only search "^$1\$" | cut -d ' ' -f 1
}

install_toolkit() {
  [ "${option[gpus]}" != 0 ] || return 0
  local key=/etc/apt/keyrings/nvidia-container-toolkit.asc
  local list=/etc/apt/sources.list.d/nvidia-container-toolkit.list
  if ! is_installed nvidia-container-toolkit; then
    local source="deb [signed-by=$key] $TOOLKIT/stable/deb/\$(ARCH) /"
    [ -e "$key" ] || change "fetch the key of NVIDIA's packages to $key, if its checksum is the one given" \
      fetch "$TOOLKIT/gpgkey" "${option[toolkit_key_sha256]}" "$key"
    [ "$(cat "$list" 2>/dev/null)" = "$source" ] || change "add NVIDIA's packages to $list" write "$list" "$source"
    change "install nvidia-container-toolkit" apt_install nvidia-container-toolkit
  fi
  grep --quiet nvidia-container-runtime /etc/docker/daemon.json 2>/dev/null ||
    change "have docker hand out GPUs, and restart it" configure_docker
}

configure_docker() {
  nvidia-ctk runtime configure --runtime=docker
  systemctl restart docker.service
}

# fetch URL SHA256 FILE: nothing is used whose checksum the operator has not given.
fetch() {
  local temporary
  temporary=$(mktemp)
  # shellcheck disable=SC2064
  trap "rm -f '$temporary'" EXIT
  curl --disable --fail --silent --show-error --location --proto '=https,file' --max-time 1800 --retry 3 --output "$temporary" "$1"
  sha256sum --check --quiet <<<"$2  $temporary" 2>/dev/null || {
    printf 'provision.sh: %s has the checksum %s, not %s; nothing of it is used\n' \
      "$1" "$(sha256sum "$temporary" | cut -d ' ' -f 1)" "$2" >&2
    exit 1
  }
  install -D --mode=0644 "$temporary" "$3"
  rm -f "$temporary"
}

write() {
  mkdir --parents "$(dirname "$1")"
  printf '%s\n' "$2" >"$1"
}

make_user() {
  getent passwd "$USER_NAME" >/dev/null ||
    change "make the user $USER_NAME, who cannot log in" \
      useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$USER_NAME"
  local groups
  groups=" $(id --name --groups "$USER_NAME" 2>/dev/null || true) "
  [[ ! $groups =~ \ (root|sudo|admin|wheel)\  ]] || refuse "$USER_NAME is in the group ${BASH_REMATCH[1]}; a job would be root"
  [[ $groups == *' docker '* ]] || change "put $USER_NAME into the group docker" usermod --append --groups docker "$USER_NAME"
}

make_directories() {
  ensure_directory "$LIBRARY" root 755
  ensure_directory "${SETTINGS%/*}" root 755
  ensure_directory "$STATE" root 755
  ensure_directory "/var/cache/sp-compat-runner" "$USER_NAME" 755
}

ensure_directory() {
  [ "$(stat --format='%U %a' "$1" 2>/dev/null)" = "$2 $3" ] ||
    change "make $1, of $2" install --directory --owner="$2" --group="$2" --mode="$3" "$1"
}

install_files() {
  local file before
  for file in "$here"/*.sh "$here"/*.md; do
    [ "$file" = "$here/provision.sh" ] || ensure_file "$file" "$LIBRARY/${file##*/}" "$(stat --format=%a "$file")"
  done
  [ "$(readlink "/usr/local/sbin/sp-compat-runner")" = "$LIBRARY/service.sh" ] ||
    change "make the command sp-compat-runner" link "$LIBRARY/service.sh" "/usr/local/sbin/sp-compat-runner"
  before=$changes
  for file in "$here"/systemd/*; do
    ensure_file "$file" "/etc/systemd/system/${file##*/}" 644
  done
  [ "$changes" = "$before" ] || change "have systemd read its units again" systemctl daemon-reload
}

ensure_file() {
  { cmp --silent "$1" "$2" && [ "$(stat --format=%a "$2")" = "$3" ]; } ||
    change "write $2" install -D --mode="$3" "$1" "$2"
}

link() {
  mkdir --parents "${2%/*}"
  ln --symbolic --force --no-dereference "$1" "$2"
}

# What the operator has set beside these stays.
write_settings() {
  [ -e "$SETTINGS" ] || change "write $SETTINGS" write "$SETTINGS" '# Settings of this runner; README.md lists them.'
  ensure_setting url "${option[url]%/}"
  ensure_setting labels "${option[labels]}"
  ensure_setting group "${option[group]}"
  ensure_setting gpus "${option[gpus]}"
  ensure_setting path /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  [ -z "${option[sp_compat]}" ] || ensure_setting sp_compat "${option[sp_compat]}"
}

ensure_setting() {
  grep --quiet --line-regexp --fixed-strings -- "$1=$2" "$SETTINGS" 2>/dev/null ||
    change "set $1=$2" set_line "$SETTINGS" "$1" "$2"
}

set_line() {
  local others
  others=$(grep --invert-match "^$2=" "$1" || true)
  printf '%s\n%s=%s\n' "$others" "$2" "$3" >"$1.new"
  mv "$1.new" "$1"
}

install_runner() {
  local release="${option[runner_version]} ${option[runner_sha256]}" directory=$STATE/actions-runner
  [[ -z ${option[runner_version]} || $(cat "$directory/.release" 2>/dev/null) == "$release" ]] ||
    change "install GitHub's runner ${option[runner_version]}, if its checksum is the one given" unpack_runner "$release" "$directory"
}

unpack_runner() {
  local architecture=x64 archive url=${option[runner_url]}
  [ "$(dpkg --print-architecture)" != arm64 ] || architecture=arm64
  [ -n "$url" ] || url=https://github.com/actions/runner/releases/download/v${option[runner_version]}/actions-runner-linux-$architecture-${option[runner_version]}.tar.gz
  archive=$STATE/actions-runner.tar.gz
  fetch "$url" "${option[runner_sha256]}" "$archive"
  rm --recursive --force "$2.new"
  mkdir "$2.new"
  tar --extract --gzip --no-same-owner --file "$archive" --directory "$2.new"
  rm "$archive"
  echo "$1" >"$2.new/.release"
  rm --recursive --force "$2"
  mv "$2.new" "$2"
}

enable_units() {
  local number unit units=(sp-compat-runner.target sp-compat-runner-collect.timer)
  for number in $(seq "${option[runners]}"); do
    units+=("sp-compat-runner@$number.service")
  done
  for unit in "${units[@]}"; do
    systemctl is-enabled --quiet "$unit" 2>/dev/null || change "enable $unit" systemctl enable --quiet "$unit"
  done
  ensure_active sp-compat-runner-collect.timer
  if [ -e "/etc/sp-compat-runner/token" ]; then
    ensure_active sp-compat-runner.target
  fi
}

# Where systemd does not run, in an image that is being made, what is enabled starts with the machine.
ensure_active() {
  [ ! -d /run/systemd/system ] || systemctl is-active --quiet "$1" 2>/dev/null || change "start $1" systemctl start "$1"
}

conclude() {
  case $changes/$dry_run in
    0/*) echo "nothing to change" ;;
    */yes) echo "$changes changes would be made" ;;
    *) echo "$changes changes made" ;;
  esac
  if [ ! -e "/etc/sp-compat-runner/token" ]; then
    echo "next: put a token that may create runners into /etc/sp-compat-runner/token (README.md, Register), then"
    echo "  systemctl start sp-compat-runner.target"
  fi
}

main "$@"
