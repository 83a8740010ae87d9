#!/usr/bin/env bash
# ACTIONS_RUNNER_HOOK_JOB_COMPLETED: removes what the job left, and takes a machine out of service that it broke.
#
# It never fails: the job's result is the job's own.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

main() {
  local reasons status=0
  bash "$here/clean.sh" || tell warning "what this job left on the machine was not removed"
  # Without --idle: processes that the job started in the background end after this hook. A disk that it filled is left
  # to ready.sh, which collects.
  reasons=$(bash "$here/check.sh") || status=$?
  [ "$status" != "$UNFIT" ] || report_unfit "${reasons//$'\n'/; }"
}

(read_settings) || exit 0
read_settings
if [ "${1:-}" = within-the-limit ]; then
  main
else
  status=0
  timeout --kill-after=5 "${setting[hook_limit]}" bash "$here/job-completed.sh" within-the-limit || status=$?
  case $status in
    0) ;;
    124 | 137) report_unfit "it could not be cleaned and checked within ${setting[hook_limit]} s" ;;
    *) tell warning "the hook after the job ended with status $status" ;;
  esac
fi
exit 0
