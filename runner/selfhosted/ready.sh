#!/usr/bin/env bash
# Before a runner is registered: waits until the engine and the GPUs answer, and lays out a fresh directory for it.
#
#   ready.sh INSTANCE
#
# A machine that does not become fit within `ready_limit` seconds is taken out of service.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

main() {
  read_settings
  [[ ${1:-} =~ ^[0-9]+$ ]] || refuse "usage: ready.sh INSTANCE"
  instance=$1
  until=$((SECONDS + setting[ready_limit]))
  make_devices
  wait_for_engine
  bash "$here/clean.sh" || tell warning "what earlier jobs left on this machine was not removed"
  wait_until_fit
  lay_out "${setting[state]}/$instance"
}

# Before the first use after a boot there may be no /dev/nvidia-uvm, and no job can make it: its unit forbids setuid.
make_devices() {
  [[ ${setting[gpus]} != 0 && -n $(command -v nvidia-modprobe) ]] || return 0
  bounded "${setting[answer_limit]}" nvidia-modprobe -u -c 0 >/dev/null || tell warning "nvidia-modprobe makes no /dev/nvidia-uvm"
}

# An engine that is being restarted is no reason to take the machine out of service; systemd tries again.
wait_for_engine() {
  [ -n "${setting[engine]}" ] || return 0
  local said
  while ! said=$(bounded "${setting[answer_limit]}" "${setting[engine]}" info --format '{{.}}'); do
    if [ "$SECONDS" -ge "$until" ]; then
      tell error "${setting[engine]} does not answer: $(one_line "$(tail -n 1 <<<"$said")"); systemctl status ${setting[engine]}"
      exit 1
    fi
    sleep 2
  done
}

wait_until_fit() {
  local reasons status collected=
  while true; do
    status=0
    reasons=$(bash "$here/check.sh" --idle) || status=$?
    [ "$status" != 0 ] || return 0
    [[ $status == "$UNFIT" || $status == "$FULL" ]] || exit "$status"
    if [ -z "$collected" ] && [ "$status" = "$FULL" ]; then
      collected=yes
      bash "$here/collect.sh" || true
    elif [ "$SECONDS" -ge "$until" ]; then
      bash "$here/service.sh" out "${reasons//$'\n'/; }"
      exit 1
    else
      sleep 2
    fi
  done
}

# Links to files of root in directories of the user: the runner can write beside them, and no job can change for the
# next one what the runner is. Made where only root can go, so that nobody moves a directory meanwhile.
lay_out() {
  local new="${setting[state]}/new-$instance"
  rm --recursive --force --one-file-system -- "$1" "$new"
  mkdir --mode=0700 -- "$new"
  mkdir -- "$new/$instance"
  cp --archive --link -- "${setting[state]}/actions-runner" "$new/$instance/runner"
  mkdir -- "$new/$instance/home" "$new/$instance/tmp"
  find "$new/$instance" -type d -exec chown "${setting[user]}:" -- {} +
  mv --no-target-directory -- "$new/$instance" "$1"
  rmdir -- "$new"
}

main "$@"
