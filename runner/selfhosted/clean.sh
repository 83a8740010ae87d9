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
  # As root, what the runner's user has left; never what others run.
  [ "$user" != 0 ] || user=$(id -u "${setting[user]}" 2>/dev/null) || user=0
  clean_containers
  clean_ranks
  [ "${1:-}" != --workspace ] || clean_workspace "$2"
  clean_temporary
}

clean_containers() {
  local list id mark
  list=$(bounded "${setting[answer_limit]}" "${setting[engine]}" ps --all --no-trunc \
    --filter "label=$CONTAINER_LABEL" --format "{{.ID}} {{.Label \"$CONTAINER_LABEL\"}}") || {
    tell warning "${setting[engine]} does not list its containers: $(one_line "$list")"
    return 0
  }
  while read -r id mark; do
    if [[ $id =~ ^[0-9a-f]{12,64}$ ]] && ! lives "$mark"; then
      if bounded "${setting[answer_limit]}" "${setting[engine]}" rm --force --volumes "$id" >/dev/null; then
        echo "removed container ${id:0:12} of a run that was killed"
      else
        tell warning "container ${id:0:12} of a run that was killed cannot be removed"
      fi
    fi
  done <<<"$list"
}

# A rank holds GPU memory for as long as it lives.
clean_ranks() {
  local pid killed=()
  for pid in $(orphaned_ranks); do
    kill -KILL "$pid" 2>/dev/null && killed+=("$pid")
  done
  [ ${#killed[@]} -gt 0 ] || return 0
  echo "killed ${#killed[@]} processes of a run that is gone: ${killed[*]}"
  local until=$((SECONDS + 5))
  while kill -0 "${killed[@]}" 2>/dev/null && [ "$SECONDS" -lt "$until" ]; do
    sleep 0.2
  done
}

orphaned_ranks() {
  local file pid mark
  # One reading of /proc by one process; the environment of others' processes cannot be read.
  grep --files-with-matches --null-data --no-messages "^$OWNER_VARIABLE=" /proc/[0-9]*/environ | while IFS= read -r file; do
    pid=${file#/proc/}
    pid=${pid%/environ}
    # In a container the mark names a process that is not seen from here; with its container it goes.
    [ "/proc/$pid/ns/pid" -ef /proc/self/ns/pid ] || continue
    [ "$(stat --format=%u "/proc/$pid" 2>/dev/null)" = "$user" ] || continue
    mark=$(grep --null-data --no-messages "^$OWNER_VARIABLE=" "$file" | head --zero-terminated --lines=1 | tr -d '\0') || true
    lives "${mark#*=}" || echo "$pid"
  done || true
}

# What is not ours in a directory of ours can be removed; a directory that is not ours, with files in it, cannot. Then
# the whole workspace is put aside, where it disturbs no checkout; retire.sh, which is root, removes it.
clean_workspace() {
  local workspace aside
  workspace=$(realpath --canonicalize-existing -- "$1" 2>/dev/null) || return 0
  case $workspace in
    "$(realpath "${setting[state]}")"/*/*) ;;
    *) tell warning "$(one_line "$workspace") is no workspace below ${setting[state]} and is left as it is" && return 0 ;;
  esac
  foreign "$workspace" || return 0
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
  printf '%s\0' /tmp /var/tmp "${TMPDIR:-/tmp}" "${RUNNER_TEMP:-/tmp}" | sort --zero-terminated --unique |
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
