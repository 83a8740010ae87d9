#!/usr/bin/env bash
# Runs GitHub's runner for one job, and stops it cleanly: a job in flight is given its time, then it is cancelled.
#
#   serve.sh INSTANCE GRACE      GRACE in seconds
#
# The configuration goes to the runner in ACTIONS_RUNNER_INPUT_JITCONFIG, which it takes out of its environment before
# it starts anything; --jitconfig would show it to every user of the machine, in the list of processes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

main() {
  read_settings
  [[ ${1:-} =~ ^[0-9]+$ && ${2:-} =~ ^[0-9]+$ ]] || refuse "usage: serve.sh INSTANCE GRACE"
  local grace=$2 file="${setting[runtime]}/$1/jitconfig" configuration
  [ -r "$file" ] || refuse "there is no $file; register.sh writes it before each start"
  configuration=$(<"$file")
  rm -- "$file"

  runner=
  stopping=
  trap 'stop "$grace"' TERM INT
  (
    trap - TERM INT
    cd "${setting[state]}/$1/runner"
    export ACTIONS_RUNNER_INPUT_JITCONFIG=$configuration RUNNER_MANUALLY_TRAP_SIG=1
    exec ./run.sh
  ) &
  runner=$!
  unset configuration
  [ -z "$stopping" ] || stop "$grace" # the signal came before there was anything to stop
  while kill -0 "$runner" 2>/dev/null; do
    wait "$runner" || true
  done
}

# A job that is taken in this very moment is cancelled: GitHub's runner offers nothing to prevent it.
stop() {
  stopping=yes
  [ -n "$runner" ] || return 0
  if job_in_flight; then
    tell notice "a job is in flight: it has $1 s to end"
    local until=$((SECONDS + $1))
    while kill -0 "$runner" 2>/dev/null && [ "$SECONDS" -lt "$until" ]; do
      sleep 1 || true
    done
  fi
  kill -TERM "$runner" 2>/dev/null || true
}

# The runner has a process of this name for exactly as long as it has a job.
job_in_flight() {
  local pid
  for pid in $(pgrep --exact Runner.Worker); do
    while [ "${pid:-0}" -gt 1 ]; do
      [ "$pid" != "$runner" ] || return 0
      pid=$(awk '$1 == "PPid:" {print $2}' "/proc/$pid/status" 2>/dev/null) || break
    done
  done
  return 1
}

main "$@"
