# shellcheck shell=bash
# What the scripts of a runner share: the settings of the machine, commands that are bounded in time, and how
# something is said to the job's log and to the journal. Sourced, never run.

# The settings and their defaults. A size is in bytes, with K, M, G or T; a limit in seconds; `keep` in days.
declare -A setting=(
  [url]='' [labels]='self-hosted,linux,sp-compat' [group]=1
  [user]=sp-compat-runner [state]=/var/lib/sp-compat-runner [runtime]=/run/sp-compat-runner
  [engine]=docker [gpus]=4 [temporary]=/tmp:/var/tmp
  [gpu_memory]=1024 # MiB that a GPU may hold without a job
  [disk_free]=20G [cache]=/var/cache/sp-compat-runner [cache_budget]=100G [image_budget]=200G [keep]=30
  [sp_compat]='' # the command that collects the cache
  [path]=''      # where commands are looked for; empty: as the caller has it
  [answer_limit]=10 [settle_limit]=15 [ready_limit]=120 [hook_limit]=120
)

# The labels of what is ours at an engine: runner/containers.py.
# shellcheck disable=SC2034
readonly IMAGE_LABEL=sp-compat.key OWNER_LABEL=sp-compat.owner

# The exit status of a check that found the machine broken, and of one that found it well but short of room on a disk,
# which collection may mend.
# shellcheck disable=SC2034
readonly UNFIT=3 FULL=4

# Nothing in the file is evaluated. Without the file all are the defaults; one that is named has to be there.
read_settings() {
  local file=${SP_COMPAT_RUNNER_CONFIG:-/etc/sp-compat-runner/config} line key number=0
  if [ ! -e "$file" ] && [ -z "${SP_COMPAT_RUNNER_CONFIG:-}" ]; then
    return 0
  fi
  [ -r "$file" ] || refuse "there is no $file that can be read; provision.sh writes one"
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    case $line in
      '' | '#'*) continue ;;
      *=*) key=${line%%=*} ;;
      *) refuse "$file, line $number: found '$(one_line "$line")'; write a setting as name=value" ;;
    esac
    [ -n "${setting[$key]+known}" ] ||
      refuse "$file, line $number: there is no setting '$(one_line "$key")'; there are $(printf '%s\n' "${!setting[@]}" | sort | paste -sd ' ')"
    setting[$key]=${line#*=}
  done <"$file"
  for key in group gpus gpu_memory keep answer_limit settle_limit ready_limit hook_limit; do
    [[ ${setting[$key]} =~ ^[0-9]{1,9}$ ]] || refuse "$file: $key is '$(one_line "${setting[$key]}")'; write a whole number"
  done
  for key in disk_free cache_budget image_budget; do
    [[ ${setting[$key]} =~ ^[0-9]+[KMGT]?$ ]] || refuse "$file: $key is '$(one_line "${setting[$key]}")'; write a size, as 20G"
  done
  # What a job has put on its PATH does not count on a machine that provision.sh has made.
  PATH=${setting[path]:-$PATH}
}

bytes() {
  numfmt --from=iec "$1"
}

# Text from outside as one line that fits into a sentence.
one_line() {
  local text=${1//[[:cntrl:]]/ }
  printf '%s' "${text:0:300}"
}

refuse() {
  tell error "$1"
  exit 2
}

# tell error|warning|notice SENTENCE: to the log of the job as an annotation, and to the journal.
tell() {
  local text
  text=$(one_line "$2")
  if [ "${GITHUB_ACTIONS:-}" = true ]; then
    printf '::%s title=sp-compat runner::%s\n' "$1" "${text//%/%25}"
    # What the unit's own scripts print is in the journal already.
    logger --tag sp-compat-runner -- "${GITHUB_REPOSITORY:-} ${GITHUB_RUN_ID:-}: $text" 2>/dev/null || true
  else
    printf 'sp-compat runner: %s\n' "$text" >&2
  fi
}

# bounded SECONDS COMMAND...: its output and its status; 124 when it did not end in time. What it says on standard error
# is printed too when it fails, and else dropped: engines warn there. It is not waited for longer than that: a process
# that hangs in the driver does not even end by SIGKILL, and it must not keep our streams open.
bounded() {
  local seconds=$1 text errors='' status stream
  shift
  exec {stream}< <(
    exec 3>&1 2>/dev/null </dev/null
    errors=$({
      timeout --kill-after=1 "$seconds" "$@" 3>&-
      printf '\nstatus=%s\0' "$?" >&3
    } 2>&1 >&3)
    printf '%s\0' "$errors"
  )
  IFS= read -r -d '' -t "$((seconds + 3))" -u "$stream" text || true
  case $text in
    *$'\nstatus='*) status=${text##*$'\nstatus='} ;;
    *) status=124 ;;
  esac
  [ "$status" != 137 ] || status=124
  [[ $status == 0 || $status == 124 ]] || IFS= read -r -d '' -t 1 -u "$stream" errors || true
  exec {stream}<&-
  text=${text%$'\nstatus='*}
  printf '%s\n' "$text${errors:+${text:+$'\n'}$errors}"
  return "$status"
}

# report_unfit REASON: for a hook, which is not root. retire.sh makes of it that no further job is taken; where no
# `runtime` is set, in a pod, there is nobody to read it.
report_unfit() {
  local report="${setting[runtime]}/${SP_COMPAT_RUNNER_INSTANCE:-1}/unfit"
  tell error "this machine is broken and is taken out of service: $1"
  [ -n "${setting[runtime]}" ] || return 0
  { one_line "$1" >"$report"; } 2>/dev/null ||
    tell warning "$report cannot be written: take the runner out of service by hand"
}

out_of_service_mark() {
  printf '%s/out-of-service' "${setting[state]}"
}
