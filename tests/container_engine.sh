#!/usr/bin/env bash
# A real container engine for tests, on a bare Debian machine without a registry.
#
#   container_engine.sh start DIR [FROM]   prints the DOCKER_HOST of an engine whose everything is below DIR
#   container_engine.sh stop DIR
#
# FROM is the directory of another such engine, whose base image is taken over.
#
# Needs root. Installs docker.io and debootstrap where they are missing. No registry can be reached, so the base image
# is made here, under the name that it would have there.
set -euo pipefail

BASE=python:3.11-slim-bookworm
ROOT_CERTIFICATES=/etc/ssl/certs/ca-certificates.crt
PATH=$PATH:/usr/sbin:/sbin # where dockerd is, and not on the PATH of everybody

start() {
    install_missing
    mkdir -p "$1"
    export DOCKER_HOST="unix://$1/docker.sock"
    if ! docker version >/dev/null 2>&1; then
        # No bridge and no rules for packets: those of another engine on this machine stay as they are. A session of its
        # own, for what ends the tests' process group must not end the engine before its containers.
        rm -f "$1/pid"
        end "$1/exec/containerd/containerd.pid" # outlives an engine that was killed
        setsid dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" --host "$DOCKER_HOST" \
            --bridge none --iptables=false >"$1/log" 2>&1 </dev/null &
    fi
    for _ in $(seq 300); do
        docker version >/dev/null 2>&1 && break
        sleep 0.1
    done
    docker version >/dev/null || {
        tail -5 "$1/log" >&2
        exit 1
    }
    docker image inspect "$BASE" >/dev/null 2>&1 || make_base "$1" "${2:-}"
    echo "$DOCKER_HOST"
}

install_missing() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v docker-init >/dev/null || missing+=(tini)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    if [ "${#missing[@]}" -gt 0 ]; then
        apt-get update -qq
        # Its own service would be a second engine, started by the installation where there is an init system.
        RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
    fi >&2
}

make_base() {
    if [ -n "$2" ]; then
        docker --host "unix://$2/docker.sock" save "$BASE" | docker load >&2
        return
    fi
    debootstrap --variant=minbase --include=python3,ca-certificates bookworm "$1/root" >"$1/debootstrap.log" 2>&1
    cp "$ROOT_CERTIFICATES" "$1/root$ROOT_CERTIFICATES" # a proxy that has its own
    rm -rf "$1/root/var/cache/apt/archives" "$1/root/usr/share/doc" "$1/root/usr/share/locale"
    tar -C "$1/root" -c . | docker import - "$BASE" >&2
    rm -rf "$1/root"
}

# The process that a file names.
end() {
    local pid
    [ -f "$1" ] || return 0
    pid=$(cat "$1")
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 200); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
}

stop() {
    end "$1/pid"
    end "$1/exec/containerd/containerd.pid"
    # What an engine that was killed has left mounted would keep its directory.
    awk -v below="$1/" 'index($2, below) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount -l
    rm -rf "$1"
}

"$1" "${2%/}" "${3:-}"
