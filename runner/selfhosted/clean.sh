#!/usr/bin/env bash
# Removes what runs of sp-compat left behind that were killed: containers, ranks, temporary directories; and files of
# root in the workspace. Only what is ours, and only what has no living owner: others work on this machine too.
#
#   clean.sh [--workspace DIRECTORY]
#
# The workspace is given before its job begins, when nothing in it is needed. Says what it removed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

readonly STALE_MINUTES=5 # a directory that nobody uses may have been made a moment ago

main() {
  read_settings
  user=$(id -u)
  # As root, what the runner's user has left; never what others run. Without that user there is no machine of ours.
  if [ "$user" = 0 ] && ! user=$(id -u "${setting[user]}" 2>/dev/null); then
    tell warning "there is no user ${setting[user]}: nothing is cleaned as root"
    return 0
  fi
  clean_containers
  clean_ranks
  [ "${1:-}" != --workspace ] || clean_workspace "$2"
  clean_temporary
}

clean_containers() {
  [ -n "${setting[engine]}" ] || return 0
  local list id state owner
  list=$(bounded "${setting[answer_limit]}" "${setting[engine]}" ps --all --no-trunc \
    --filter "label=$OWNER_LABEL" --format "{{.ID}} {{.State}} {{.Label \"$OWNER_LABEL\"}}") || {
    tell warning "${setting[engine]} does not list its containers: $(one_line "$list")"
    return 0
  }
  while read -r id state owner; do
    if [[ $id =~ ^[0-9a-f]{12,64}$ ]] && is_gone "$state" "$owner"; then
      if bounded "${setting[answer_limit]}" "${setting[engine]}" rm --force --volumes "$id" >/dev/null; then
        echo "removed container ${id:0:12} of a run that was killed"
      else
        tell warning "container ${id:0:12} of a run that was killed cannot be removed"
      fi
    fi
  done <<<"$list"
}

# is_gone STATE OWNER: whether nobody waits for a container any more, as runner/owner.py has it. The owner is a process,
# its start, the boot since which it counts, and who numbers it; one that is numbered elsewhere cannot be looked for.
is_gone() {
  local words fields text
  read -r -a words <<<"$2"
  [[ ${#words[@]} -eq 4 && ${words[0]} =~ ^[0-9]+$ ]] || return 1
  if [ "${words[2]} ${words[3]}" != "$(</proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/pid)" ]; then
    [[ $1 != running && $1 != paused ]]
    return
  fi
  if ! text=$(cat "/proc/${words[0]}/stat" 2>/dev/null); then
    # A /proc with hidepid, as the unit has it, hides the processes of other users: the kernel is asked.
    [[ $(LC_ALL=C kill -0 "${words[0]}" 2>&1) == *'No such process' ]]
    return
  fi
  # The command's name stands in parentheses and may contain anything.
  read -r -a fields <<<"${text##*)}"
  [[ ${fields[0]} == [ZX] || ${fields[19]} != "${words[1]}" ]]
}

# A rank holds GPU memory for as long as it lives.
clean_ranks() {
  local pid killed=()
  for pid in $(orphaned_ranks); do
    kill -KILL "$pid" 2>/dev/null && killed+=("$pid")
  done
  [ ${#killed[@]} -gt 0 ] || return 0
  echo "killed processes of a run that is gone: ${killed[*]}"
  local until=$((SECONDS + 5))
  while kill -0 "${killed[@]}" 2>/dev/null && [ "$SECONDS" -lt "$until" ]; do
    sleep 0.2
  done
}

# Processes of the suite, by its own option in their command line. A living run has its tether above them, and a suite
# that somebody started by hand their shell: only what nobody is above any more has been left.
orphaned_ranks() {
  local file pid above
  local -A ours=()
  while IFS= read -r file; do
    pid=${file//[!0-9]/}
    # What runs in a container goes with its container.
    if [ "/proc/$pid/ns/pid" -ef /proc/self/ns/pid ] && [ "$(stat --format=%u "/proc/$pid" 2>/dev/null)" = "$user" ]; then
      ours[$pid]=yes
    fi
  done < <(grep --files-with-matches --null-data --no-messages '^--sp-observations=' /proc/[0-9]*/cmdline)
  for pid in "${!ours[@]}"; do
    above=$pid
    while [ -n "${ours[$above]:-}" ]; do
      above=$(awk '$1 == "PPid:" {print $2}' "/proc/$above/status" 2>/dev/null) || above=
      above=${above:-none}
    done
    [ "$above" != 1 ] || echo "$pid"
  done
}

# What is not ours in a directory of ours can be removed; a directory that is not ours, with files in it, cannot. Then
# the whole workspace is put aside, where it disturbs no checkout; retire.sh, which is root, removes it.
clean_workspace() {
  local workspace aside
  workspace=$(realpath --canonicalize-existing -- "$1" 2>/dev/null) || return 0
  foreign "$workspace" || return 0
  case $workspace in
    "$(realpath --canonicalize-missing -- "${setting[state]}")"/*/*) ;;
    *) tell warning "files of another user are left in $(one_line "$workspace"), which is not below ${setting[state]}" && return 0 ;;
  esac
  find "$workspace" -xdev -mindepth 1 ! -user "$user" -delete 2>/dev/null || true
  if foreign "$workspace"; then
    aside="$workspace.aside-$(date +%s)-$$"
    mv --no-target-directory -- "$workspace" "$aside"
    mkdir -- "$workspace"
    echo "put aside the workspace of an earlier job, with files of another user in it: $aside"
  else
    echo "removed files of another user from $workspace"
  fi
}

foreign() {
  [ -n "$(find "$1" -xdev ! -user "$user" -print -quit 2>/dev/null)" ]
}

clean_temporary() {
  local used directory
  used=$(
    find /proc/[0-9]*/cwd /proc/[0-9]*/fd -maxdepth 1 -type l -printf '%l\n' 2>/dev/null
    cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n'
  ) || true
  tr ':' '\0' <<<"${setting[temporary]}:${TMPDIR:-}:${RUNNER_TEMP:-}:" | sort --zero-terminated --unique |
    while IFS= read -r -d '' directory; do
      [ ! -d "$directory" ] || find -P "$directory" -xdev -mindepth 1 -maxdepth 1 -name 'sp-compat-*' -type d -user "$user" \
        -mmin "+$STALE_MINUTES" -print0
    done | while IFS= read -r -d '' directory; do
    if ! grep --quiet --fixed-strings -- "$directory" <<<"$used" && rm --recursive --force --one-file-system -- "$directory"; then
      echo "removed $(one_line "$directory") of a run that was killed"
    fi
  done
}

main "$@"
