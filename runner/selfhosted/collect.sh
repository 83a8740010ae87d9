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
  if [ -n "${setting[sp_compat]}" ]; then
    collect_all || status=1
  else
    tell notice "no command is set as sp_compat: of ${setting[cache]} nothing is collected"
    collect_images || status=1
  fi
  return "$status"
}

# The program knows better than an engine which images are being built or used, and when they were.
collect_all() {
  SP_COMPAT_CACHE=${setting[cache]} SP_COMPAT_ENGINE=${setting[engine]} bounded 1800 "${setting[sp_compat]}" env gc \
    --budget "${setting[cache_budget]}" --image-budget "${setting[image_budget]}" --older-than "${setting[keep]}d" || {
    tell warning "${setting[sp_compat]} did not collect ${setting[cache]} and the images"
    return 1
  }
}

collect_images() {
  [ -n "${setting[engine]}" ] || return 0
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

# Id, size in bytes and time of last use of each of our images, the most recently used first. An engine does not know when
# an image was used: a run touches the file images/KEY in the cache. Without that file it is when the image was made.
own_images() {
  local ids id size made key used
  ids=$(bounded 60 "${setting[engine]}" image ls --quiet --no-trunc --filter "label=$IMAGE_LABEL") || return
  mapfile -t ids < <(sort --unique <<<"$ids" | grep .)
  [ ${#ids[@]} -gt 0 ] || return 0
  bounded 60 "${setting[engine]}" image inspect "${ids[@]}" | jq --raw-output --arg name "$IMAGE_LABEL" '
    def seconds: sub("\\.[0-9]+"; "") | sub("[+-]00:00$"; "Z") | (fromdateiso8601? // 0);
    .[] | "\(.Id) \(.Size) \(.Created // "" | seconds) \(.Config.Labels[$name])"' |
    while read -r id size made key; do
      used=$made
      [[ ! $key =~ ^[A-Za-z0-9._-]+$ ]] || used=$(stat --format=%Y -- "${setting[cache]}/images/$key" 2>/dev/null) || used=$made
      echo "$id $size $((used > made ? used : made))"
    done | sort --key=3,3 --numeric-sort --reverse
}

images_in_use() {
  local ids
  ids=$(bounded 60 "${setting[engine]}" ps --all --quiet --no-trunc) || return
  mapfile -t ids < <(grep . <<<"$ids")
  [ ${#ids[@]} -eq 0 ] || bounded 60 "${setting[engine]}" inspect --format '{{.Image}}' "${ids[@]}"
}

main "$@"
