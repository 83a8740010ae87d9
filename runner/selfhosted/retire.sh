#!/usr/bin/env bash
# After a runner has ended, however it ended: removes its registration, its directory with the workspace, and what its
# runs left; takes the machine out of service where a hook found it broken. Runs as root, never fails.
#
#   retire.sh INSTANCE
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

main() {
  read_settings
  [[ ${1:-} =~ ^[0-9]+$ ]] || refuse "usage: retire.sh INSTANCE"
  take_over_report "${setting[runtime]}/$1/unfit"
  timeout --kill-after=5 180 bash "$here/register.sh" remove "$1"
  timeout --kill-after=5 "${setting[hook_limit]}" bash "$here/clean.sh"
  # Nothing of it runs any more. It does not follow links, and leaves what is mounted there.
  rm --recursive --force --one-file-system -- "${setting[state]:?}/$1"
  return 0
}

# The report is the job's user's: only a file is read, as that user, for it may be a link to what only root can read, and
# within a limit, for it may be exchanged for a pipe that nobody writes to.
take_over_report() {
  [ -e "$1" ] || return 0
  local reason=''
  [ ! -f "$1" ] || [ -L "$1" ] ||
    reason=$(timeout --kill-after=1 5 setpriv --reuid="${setting[user]}" --regid="$(id -g "${setting[user]}")" \
      --clear-groups head --bytes=300 -- "$1")
  bash "$here/service.sh" out "${reason:-a hook found it broken}"
}

main "$@"
