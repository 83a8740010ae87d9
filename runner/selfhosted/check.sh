#!/usr/bin/env bash
# Whether this machine can run a job: its GPUs answer, nobody holds their memory, its disks have room.
#
#   check.sh [--idle]
#
# --idle: no job is running, so that a GPU whose memory is in use is in the hands of somebody else.
# One reason a line on standard output, and exit status 3, when it cannot.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

main() {
  read_settings
  local reasons
  reasons=$(
    gpus_answer && { [ "${1:-}" != --idle ] || gpus_idle; }
    disks_have_room
  )
  [ -n "$reasons" ] || return 0
  printf '%s\n' "$reasons"
  return "$UNFIT"
}

# Prints what is wrong with the GPUs; its status is whether they can be asked further.
gpus_answer() {
  [ "${setting[gpus]}" -gt 0 ] || return 1
  local answer status=0 line count=0
  answer=$(used_memory) || status=$?
  case $status in
    0) ;;
    124) echo "nvidia-smi gave no answer within ${setting[answer_limit]} s" && return 1 ;;
    127) echo "there is no nvidia-smi: the NVIDIA driver is not installed" && return 1 ;;
    *) echo "nvidia-smi failed: $(one_line "$answer")" && return 1 ;;
  esac
  while IFS= read -r line; do
    if [[ $line =~ ^[0-9]+,\ *[0-9]+$ ]]; then
      count=$((count + 1))
    elif [ -n "$line" ]; then
      echo "a GPU is lost: nvidia-smi says '$(one_line "$line")'"
      return 1
    fi
  done <<<"$answer"
  [ "$count" -ge "${setting[gpus]}" ] || {
    echo "$count of ${setting[gpus]} GPUs answer"
    return 1
  }
}

used_memory() {
  bounded "${setting[answer_limit]}" nvidia-smi --query-gpu=index,memory.used --format=csv,noheader,nounits
}

# The driver takes a moment to give back what a process held that has just ended.
gpus_idle() {
  local busy until=$((SECONDS + setting[settle_limit]))
  while busy=$(busy_gpus) && [ -n "$busy" ]; do
    if [ "$SECONDS" -ge "$until" ]; then
      echo "memory is held without a job, on GPU $busy, by $(holders)"
      return
    fi
    sleep 1
  done
}

busy_gpus() {
  used_memory | awk -F ', *' -v most="${setting[gpu_memory]}" \
    '$2 > most {printf "%s%s (%s MiB)", sep, $1, $2; sep = ", "}'
}

holders() {
  local found
  found=$(bounded "${setting[answer_limit]}" nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader) ||
    found=''
  one_line "${found:-a process that nvidia-smi does not show}"
}

disks_have_room() {
  local place free least
  least=$(bytes "${setting[disk_free]}")
  while IFS= read -r place; do
    [ -d "$place" ] || continue
    if ! free=$(bounded "${setting[answer_limit]}" df --output=avail --block-size=1 -- "$place"); then
      echo "the disk of $(one_line "$place") does not answer"
    elif free=$(tail -n 1 <<<"${free%$'\n'}") && [ "${free// /}" -lt "$least" ]; then
      echo "the disk of $(one_line "$place") has $(numfmt --to=iec "${free// /}") left, less than ${setting[disk_free]}"
    fi
  done < <(printf '%s\n' "${setting[state]}" "${setting[cache]}" "$(engine_root)") | sort -u
}

engine_root() {
  [ -n "${setting[engine]}" ] || return 0
  local form='{{.DockerRootDir}}' found
  [ "${setting[engine]}" != podman ] || form='{{.Store.GraphRoot}}'
  found=$(bounded "${setting[answer_limit]}" "${setting[engine]}" info --format "$form") || found=''
  head -n 1 <<<"$found"
}

main "$@"
