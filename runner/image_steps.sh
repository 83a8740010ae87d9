# shellcheck shell=sh disable=SC1090
# What the steps of the Dockerfile do; sourced by each of them. `uv_install` and the index settings come from the file
# `index`, a secret of the build where the engine has such.
set -eu

ENVIRONMENT=/opt/sp-compat
UV=/context/tools/uv
export UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never NO_COLOR=1 HOME=/root DS_BUILD_OPS=0
if [ -d /context/cache ]; then
    export UV_CACHE_DIR=/context/cache
else
    export UV_NO_CACHE=1 # it would stay in the image
fi

for settings in /run/secrets/index /context/tools/index; do
    if [ -f "$settings" ]; then
        . "$settings"
    fi
done

make_environment() {
    python=$(command -v python || command -v python3)
    "$UV" venv --no-config --no-project --python "$python" "$@" "$ENVIRONMENT"
}

install() {
    uv_install --python "$ENVIRONMENT/bin/python" "$@"
}

# TORCH, and what says which build of it. None: the base's own.
install_torch() {
    torch=$1
    shift
    if [ -n "$torch" ]; then
        install "$@" --constraints /context/torch/constraints.txt "$torch" numpy
    elif ! "$ENVIRONMENT/bin/python" -c 'import numpy'; then
        install --constraints /context/torch/constraints.txt numpy
    fi
}

# Built against the torch that is there. The source is copied, for setuptools writes into what it builds.
install_deepspeed() {
    deepspeed=$1
    shift
    if [ -z "$deepspeed" ]; then
        return
    fi
    if [ -d /context/deepspeed/source ]; then
        cp -R /context/deepspeed/source /tmp/deepspeed
    fi
    if [ -z "${DS_BUILD_STRING:-}" ]; then
        unset DS_BUILD_STRING
    fi
    if [ -z "${DS_ACCELERATOR:-}" ]; then
        unset DS_ACCELERATOR
    fi
    install "$@" --constraints /context/torch/constraints.txt ${TORCH:+"$TORCH"} setuptools wheel
    # shellcheck disable=SC2046 # what is beside it is several words
    install "$@" --constraints /context/torch/constraints.txt ${TORCH:+"$TORCH"} \
        --no-build-isolation-package deepspeed --refresh-package deepspeed \
        --overrides /context/deepspeed/overrides.txt "$deepspeed" $(cat /context/deepspeed/beside.txt)
    rm -rf /tmp/deepspeed
}

# What own tests need beside torch and DeepSpeed.
install_beside() {
    if [ -s /context/beside/requirements.txt ]; then
        install "$@" --constraints /context/torch/constraints.txt ${TORCH:+"$TORCH"} \
            --overrides /context/beside/overrides.txt --requirements /context/beside/requirements.txt
    fi
}
