#!/usr/bin/env bash
# ACTIONS_RUNNER_HOOK_JOB_STARTED: removes what earlier jobs left, and fails the job on a machine that is broken.
#
# The runner sets no limit to a hook, so it sets its own. The job fails only where it could not run well: GPUs lost or
# held, no room, or a check that does not end. What goes wrong in cleaning is a warning.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

main() {
  local reasons status=0 mark
  mark=$(out_of_service_mark)
  if [ -e "$mark" ]; then
    tell error "this machine is out of service: $(head --bytes=300 "$mark")"
    return 1
  fi
  bash "$here/clean.sh" --workspace "${GITHUB_WORKSPACE:-/nowhere}" ||
    tell warning "what earlier jobs left on this machine was not removed"
  reasons=$(bash "$here/check.sh" --idle) || status=$?
  case $status in
    "$UNFIT") report_unfit "${reasons//$'\n'/; }" ;;
    # No reason to take the machine out of service: ready.sh collects before the next start.
    "$FULL") tell error "there is no room for a job: ${reasons//$'\n'/; }" ;;
    *) return 0 ;;
  esac
  return 1
}

# What goes wrong with the hook itself is told, and no reason to fail a job.
(read_settings) || exit 0
read_settings
if [ "${1:-}" = within-the-limit ]; then
  main
else
  status=0
  timeout --kill-after=5 "${setting[hook_limit]}" bash "$here/job-started.sh" within-the-limit || status=$?
  case $status in
    0 | 1) exit "$status" ;;
    124 | 137) report_unfit "it could not be checked within ${setting[hook_limit]} s" && exit 1 ;;
    *) tell warning "the hook before the job ended with status $status" ;;
  esac
fi
