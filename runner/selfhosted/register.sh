#!/usr/bin/env bash
# Asks GitHub for a runner that takes one job (a just-in-time configuration), and removes one that took none.
#
#   register.sh add INSTANCE [--token-file FILE | --token-fd N]
#   register.sh remove INSTANCE [--token-file FILE | --token-fd N]
#
# The token (default: the file /etc/sp-compat-runner/token, which only root can read) may create runners: of an
# organisation, a repository or an enterprise, as the URL in the settings says. It is read from a file or a descriptor
# and goes to curl through a pipe: it is in no argument, no variable of a child, no log. What GitHub answers is a
# credential too, good for one job; serve.sh finds it in a file in memory that only its user can read, and removes that.
#
# A refusal that another attempt would meet as well takes the machine out of service.
{ set +x; } 2>/dev/null # a trace would show the token
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=machine.sh
source "$here/machine.sh"

readonly NAME='[A-Za-z0-9._-]+'

main() {
  read_settings
  [[ ${1:-} =~ ^(add|remove)$ && ${2:-} =~ ^[0-9]+$ ]] ||
    refuse "usage: register.sh add|remove INSTANCE [--token-file FILE | --token-fd N]"
  instance=$2
  runners=$(runners_url "${setting[url]}")
  identity="${setting[runtime]}/$instance.id"
  read_token "${@:3}"
  "$1"
}

add() {
  local name answer status
  name="$(tr --complement --delete 'A-Za-z0-9-' </proc/sys/kernel/hostname | head --bytes=40)"
  name+="-$instance-$(head --bytes=8 /proc/sys/kernel/random/uuid)"
  answer=$(jq --null-input --compact-output --arg name "$name" --arg labels "${setting[labels]}" \
    --argjson group "${setting[group]}" \
    '{name: $name, runner_group_id: $group, labels: ($labels | split(",")), work_folder: "_work"}' |
    request POST "$runners/generate-jitconfig" --data @- --header 'Content-Type: application/json') || {
    tell error "$runners cannot be reached (curl ended with status $?)"
    exit 1
  }
  status=${answer##*$'\n'}
  answer=${answer%$'\n'*}
  if [ "$status" != 201 ]; then
    refused "$status" "$(jq --raw-output '.message // empty' <<<"$answer" 2>/dev/null)"
  fi
  jq --raw-output '.runner.id' <<<"$answer" >"$identity"
  # It gets its mode and its owner before its content, and only then its place, in a directory of that owner.
  install --mode=0600 --owner="${setting[user]}" /dev/null "$identity.jitconfig"
  jq --raw-output '.encoded_jit_config' <<<"$answer" >"$identity.jitconfig"
  mv --no-target-directory -- "$identity.jitconfig" "${setting[runtime]}/$instance/jitconfig"
  echo "registered $name for one job at ${setting[url]}"
}

refused() {
  local sentence
  sentence="GitHub refuses to make a runner for ${setting[url]} (HTTP $1: $(one_line "$2"))"
  case "$1 ${2,,}" in
    429\ * | 403*'rate limit'*)
      tell warning "$sentence; GitHub is asked again in a minute"
      sleep 60
      exit 1
      ;;
    401* | 403* | 404* | 422*)
      bash "$here/service.sh" out "$sentence; see to the token, the URL and the group" && exit 1
      ;;
  esac
  tell error "$sentence"
  exit 1
}

# A runner that had its job is gone already.
remove() {
  local id answer
  id=$(cat "$identity" 2>/dev/null) || return 0
  rm --force "$identity" "$identity.jitconfig"
  [[ $id =~ ^[0-9]+$ ]] || return 0
  answer=$(request DELETE "$runners/$id") || return 0
  [ "${answer##*$'\n'}" != 204 ] || echo "removed the runner that took no job"
}

# Its answer, and the HTTP status as a last line. Without --location: the token goes to no other host.
request() {
  curl --disable --silent --show-error --request "$1" --max-time 30 \
    --retry 4 --retry-connrefused --retry-max-time 60 --header @<(printf 'Authorization: Bearer %s\n' "$token") \
    --header 'Accept: application/vnd.github+json' --header 'X-GitHub-Api-Version: 2022-11-28' \
    --write-out '\n%{http_code}' "${@:3}" "$2"
}

# The address of the API for the page of an organisation, a repository or an enterprise: on github.com, on a subdomain
# of ghe.com, or on an Enterprise Server.
runners_url() {
  local host path api
  [[ $1 =~ ^(https://$NAME(:[0-9]+)?|http://(localhost|127\.0\.0\.1)(:[0-9]+)?)/(.+)$ ]] ||
    refuse "url is '$(one_line "$1")'; write https://github.com/ORGANISATION or the page of a repository or an enterprise"
  host=${BASH_REMATCH[1]}
  path=${BASH_REMATCH[5]%/}
  case $host in
    https://github.com) api=https://api.github.com ;;
    https://*.ghe.com) api=https://api.${host#https://} ;;
    *) api=$host/api/v3 ;;
  esac
  if [[ $path =~ ^enterprises/$NAME$ ]]; then
    echo "$api/$path/actions/runners"
  elif [[ $path =~ ^$NAME$ ]]; then
    echo "$api/orgs/$path/actions/runners"
  elif [[ $path =~ ^$NAME/$NAME$ ]]; then
    echo "$api/repos/${path%.git}/actions/runners"
  else
    refuse "url is '$(one_line "$1")': $(one_line "$path") is no organisation, repository or enterprise"
  fi
}

read_token() {
  local file
  case ${1:-} in
    --token-fd)
      [[ ${2:-} =~ ^[0-9]+$ ]] || refuse "--token-fd: write the number of a descriptor, as 0 for standard input"
      read -r token <&"$2" || true
      ;;
    --token-file | '')
      file=${2:-/etc/sp-compat-runner/token}
      [ -r "$file" ] || refuse "there is no token in $file; put one there that may create runners, for root only"
      [[ $(stat --dereference --format='%u %a' -- "$file") =~ ^$(id -u)\ [0-7]00$ ]] ||
        refuse "$file can be read by others; chown root $file && chmod 600 $file, and have GitHub replace the token"
      read -r token <"$file" || true
      ;;
    *) refuse "usage: register.sh add|remove INSTANCE [--token-file FILE | --token-fd N]" ;;
  esac
  [[ $token =~ ^[!-~]+$ ]] || refuse "the token is empty, or not one word"
}

main "$@"
