#!/usr/bin/env bash
# Whether this machine can run a job: its GPUs answer, nobody holds their memory, its disks have room.
#
#   check.sh [--idle]
#
# --idle: no job is running, so that a GPU whose memory is in use is in the hands of somebody else.
# When it cannot: one reason a line on standard output, and exit status 3; 4 when all that is wrong is a disk short of room.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

# The words with which nvidia-smi gives up a GPU, as runner/nvidia_smi.py has them.
readonly LOST='GPU is lost|Unable to determine the device handle|fallen off the bus|requires? reset|reset required'
readonly ROW='^[0-9]+,' # index, MiB

main() {
  read_settings
  local broken=() full=() found
  found=$(gpus_answer && { [ "${1:-}" != --idle ] || gpus_idle; }) || true
  [ -z "$found" ] || broken+=("$found")
  look_at_disks
  [ $((${#broken[@]} + ${#full[@]})) -gt 0 ] || return 0
  printf '%s\n' "${broken[@]}" "${full[@]}"
  [ ${#broken[@]} -eq 0 ] || return "$UNFIT"
  return "$FULL"
}

# Prints what is wrong with the GPUs; its status is whether they can be asked further.
gpus_answer() {
  [ "${setting[gpus]}" -gt 0 ] || return 1
  local answer status=0 line count
  answer=$(used_memory) || status=$?
  case $status in
    0) ;;
    124) echo "nvidia-smi gave no answer within ${setting[answer_limit]} s" && return 1 ;;
    127) echo "there is no nvidia-smi: the NVIDIA driver is not installed" && return 1 ;;
    *) echo "nvidia-smi failed: $(one_line "$answer")" && return 1 ;;
  esac
  if line=$(grep --extended-regexp --ignore-case --max-count=1 "$LOST|$ROW.*(ERR!|Unknown Error)" <<<"$answer"); then
    echo "a GPU is lost: nvidia-smi says '$(one_line "$line")'"
    return 1
  fi
  count=$(grep --extended-regexp --count "$ROW" <<<"$answer") || true
  [ "$count" -ge "${setting[gpus]}" ] || {
    echo "$count of ${setting[gpus]} GPUs answer"
    return 1
  }
  # Standard output is for reasons.
  while IFS= read -r line; do
    tell warning "nvidia-smi says '$(one_line "$line")'" >&2
  done < <(grep --extended-regexp --invert-match "$ROW|^$" <<<"$answer")
}

# Where it says a row its status is no matter: it fails for a corrupted infoROM too, which does no harm to a job.
used_memory() {
  local answer status=0
  answer=$(bounded "${setting[answer_limit]}" nvidia-smi --query-gpu=index,memory.used --format=csv,noheader,nounits) ||
    status=$?
  printf '%s\n' "$answer"
  [ "$status" != 124 ] || return "$status"
  grep --extended-regexp --quiet "$ROW" <<<"$answer" || return "$status"
}

# The driver takes a moment to give back what a process held that has just ended.
gpus_idle() {
  local busy until=$((SECONDS + setting[settle_limit]))
  while true; do
    busy=$(busy_gpus) || { echo "nvidia-smi failed when it was asked a second time" && return; }
    [ -n "$busy" ] || return 0
    [ "$SECONDS" -lt "$until" ] || { echo "memory is held without a job, on GPU $busy, by $(holders)" && return; }
    sleep 1
  done
}

busy_gpus() {
  used_memory | awk -F ', *' -v most="${setting[gpu_memory]}" \
    '$2 ~ /^[0-9]+$/ && $2 > most {printf "%s%s (%s MiB)", sep, $1, $2; sep = ", "}'
}

holders() {
  local found
  found=$(bounded "${setting[answer_limit]}" nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader) ||
    found=''
  one_line "${found:-a process that nvidia-smi does not show}"
}

# Adds to `broken` and `full`.
look_at_disks() {
  local place free least
  least=$(bytes "${setting[disk_free]}")
  while IFS= read -r place; do
    [ -d "$place" ] || continue
    if ! free=$(bounded "${setting[answer_limit]}" df --output=avail --block-size=1 -- "$place"); then
      broken+=("the disk of $(one_line "$place") does not answer")
    elif free=$(tail -n 1 <<<"${free%$'\n'}") && [ "${free// /}" -lt "$least" ]; then
      full+=("the disk of $(one_line "$place") has $(numfmt --to=iec "${free// /}") left, less than ${setting[disk_free]}")
    fi
  done < <(printf '%s\n' "${setting[state]}" "${setting[cache]}" "$(engine_root)" | sort -u)
}

engine_root() {
  [ -n "${setting[engine]}" ] || return 0
  local form='{{.DockerRootDir}}' found
  [ "${setting[engine]}" != podman ] || form='{{.Store.GraphRoot}}'
  found=$(bounded "${setting[answer_limit]}" "${setting[engine]}" info --format "$form") || found=''
  head -n 1 <<<"$found"
}

main "$@"
