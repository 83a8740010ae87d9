#!/usr/bin/env bash
# Installs sp-compat for one step of a workflow and runs the action: in a virtual environment of its own, on any
# Python from 3.10 on, without changing anything of the job's environment. The inputs are in SP_COMPAT_INPUT_*.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
temporary=${RUNNER_TEMP:?sp-compat: RUNNER_TEMP is not set; this script is for a step of a workflow}
# Several versions of the action in one job do not share an installation.
venv="$temporary/sp-compat-$(printf '%s' "$here" | cksum | cut -d ' ' -f 1)"
log="$venv.log"

refuse() {
  echo "::error title=sp-compat::$1"
  exit 4
}

# Whether this Python can install into a virtual environment: with its own pip, which is quicker, or with a fresh one.
own_pip() {
  "$1" -I -c 'import pip, sys; sys.exit(tuple(int(part) for part in pip.__version__.split(".")[:2]) < (22, 3))'
}
fresh_pip() {
  "$1" -I -c 'import ensurepip'
}

if [ ! -e "$venv/complete" ]; then
  python=
  found=
  for name in python3 python python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
    version=$("$name" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if ! "$name" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
      found="$found $name is $version;"
    elif ! "$name" -I -c 'import venv' 2>/dev/null || ! { own_pip "$name" || fresh_pip "$name"; } 2>/dev/null; then
      found="$found $name ($version) has no venv or no pip;"
    else
      python=$name
      break
    fi
  done
  [ -n "$python" ] || refuse "sp-compat needs Python 3.10 or newer with venv and pip:${found:- there is no python3;} \
install it (apt-get install python3 python3-venv), or put actions/setup-python before this step"

  rm -rf "$venv"
  # What the job sets for its own installations is not for this one; where packages come from is.
  if ! (
    unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PIP_TARGET PIP_PREFIX PIP_ROOT PIP_PYTHON PIP_REQUIREMENT \
      PIP_CONSTRAINT PIP_BUILD_CONSTRAINT PIP_REQUIRE_HASHES PIP_NO_DEPS PIP_NO_BUILD_ISOLATION
    export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_REQUIRE_VIRTUALENV=0
    "$python" -I -m venv --without-pip "$venv" &&
      if own_pip "$python"; then
        "$python" -I -m pip --python "$venv/bin/python" install --quiet --no-compile "$here"
      else
        "$venv/bin/python" -I -m ensurepip && "$venv/bin/python" -I -m pip install --quiet --no-compile "$here"
      fi
  ) >"$log" 2>&1; then
    # Not at the beginning of a line, where the runner would take it for a command.
    sed -e 's/^/  | /' -e 's/##\[/# #[/g' "$log" >&2
    refuse "sp-compat cannot be installed with Python $version; the reason is above"
  fi
  touch "$venv/complete"
fi

# With arguments it is a command that is run: for steps of the project's own workflows.
[ $# -eq 0 ] || exec "$venv/bin/python" -I -m runner "$@"
exec "$venv/bin/python" -I -m runner.action
