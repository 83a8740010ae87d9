#!/usr/bin/env bash
# Collects environments and images that were not used for `keep` days, and the least recently used beyond their budgets.
# Only what sp-compat made (by its label), and nothing that a container uses. What is built by a job of this hour stays.
#
#   collect.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

readonly YOUNG=3600 # seconds

main() {
  read_settings
  local status=0
  collect_cache || status=1
  collect_images || status=1
  return "$status"
}

collect_cache() {
  if [ -z "${setting[sp_compat]}" ]; then
    tell notice "no command is set as sp_compat: ${setting[cache]} is not collected"
    return 0
  fi
  SP_COMPAT_CACHE=${setting[cache]} bounded 1800 "${setting[sp_compat]}" env gc \
    --budget "${setting[cache_budget]}" --older-than "${setting[keep]}d" || {
    tell warning "the cache ${setting[cache]} was not collected"
    return 1
  }
}

collect_images() {
  local images used now budget id size when total=0
  if ! { images=$(own_images) && used=$(images_in_use); }; then
    tell warning "${setting[engine]} does not list its images: none was collected"
    return 1
  fi
  now=$(date +%s)
  budget=$(bytes "${setting[image_budget]}")
  # The most recently used first: what comes when the budget is used up goes. Layers that images share count in each.
  while read -r id size when; do
    [ -n "$id" ] || continue
    total=$((total + size))
    if ((now - when < YOUNG)) || ((total <= budget && now - when <= setting[keep] * 86400)); then
      continue
    elif grep --quiet --line-regexp --fixed-strings -- "$id" <<<"$used"; then
      echo "kept image $id: a container uses it"
    elif bounded 300 "${setting[engine]}" image rm --force "$id" >/dev/null; then
      total=$((total - size))
      echo "removed image $id, $(numfmt --to=iec "$size"), last used $(date --date="@$when" --iso-8601=minutes)"
    else
      tell warning "image $id cannot be removed"
    fi
  done <<<"$images"
}

# Id, size in bytes and time of last use of each of our images, the most recently used first. An image is tagged when it
# is used; an engine that does not keep that time has the time when it was made.
own_images() {
  local ids
  ids=$(bounded 60 "${setting[engine]}" image ls --quiet --no-trunc --filter "label=$IMAGE_LABEL") || return
  mapfile -t ids < <(sort --unique <<<"$ids" | grep .)
  [ ${#ids[@]} -gt 0 ] || return 0
  bounded 60 "${setting[engine]}" image inspect "${ids[@]}" | jq --raw-output '
    def seconds: sub("\\.[0-9]+"; "") | sub("[+-]00:00$"; "Z") | (fromdateiso8601? // 0);
    [.[] | {id: .Id, size: .Size, used: ([.Created, .Metadata.LastTagTime?] | map(select(. != null) | seconds) | max)}]
    | sort_by(-.used)[] | "\(.id) \(.size) \(.used)"'
}

images_in_use() {
  local ids
  ids=$(bounded 60 "${setting[engine]}" ps --all --quiet --no-trunc) || return
  mapfile -t ids < <(grep . <<<"$ids")
  [ ${#ids[@]} -eq 0 ] || bounded 60 "${setting[engine]}" inspect --format '{{.Image}}' "${ids[@]}"
}

main "$@"
