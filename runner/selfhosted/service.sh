#!/usr/bin/env bash
# Takes this machine out of service, or back into it.
#
#   sp-compat-runner status          whether it is in service, and why not; exit status 3 when it is not
#   sp-compat-runner out REASON      no further job is taken; one in flight goes on
#   sp-compat-runner return          checks the machine, and takes jobs again when it is well
set -euo pipefail
here=$(cd "$(dirname "$(readlink --canonicalize "${BASH_SOURCE[0]}")")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

main() {
  read_settings
  mark=$(out_of_service_mark)
  [[ ${1:-status} == status || -w ${setting[state]} ]] || refuse "root is needed for that"
  case ${1:-status} in
    status) status ;;
    out) out "${2:-by hand}" ;;
    return) back ;;
    *) refuse "found '$(one_line "$1")'; write status, out REASON or return" ;;
  esac
}

status() {
  if [ -e "$mark" ]; then
    echo "out of service since $(date --reference="$mark" --iso-8601=seconds): $(cat "$mark")"
    return "$UNFIT"
  fi
  echo "in service"
}

# The first reason is kept: what follows is often its consequence.
out() {
  local reason
  reason=$(one_line "$1")
  tell error "out of service: $reason. To return: sp-compat-runner return"
  [ -e "$mark" ] || printf '%s\n' "$reason" >"$mark"
  # A runner that waits for a job ends at once. One that has a job ends with it.
  systemctl --no-block stop sp-compat-runner.target || tell warning "systemctl cannot stop the runners"
}

back() {
  local reasons
  reasons=$(bash "$here/check.sh" --idle) || refuse "this machine stays out of service: ${reasons//$'\n'/; }"
  rm --force -- "$mark"
  systemctl --no-block start sp-compat-runner.target
  echo "in service"
}

main "$@"
