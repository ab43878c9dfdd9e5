# shellcheck shell=bash
# Shared by the scripts of this repository: paths, messages, retries, and functions that list and clean up mounts.
# Sourcing it starts nothing.
set -Eeuo pipefail

# Scripts also run with an empty environment (CI, cron), so add the usual directories of Go and sbin.
# The caller's PATH comes first.
PATH="${PATH:-/usr/bin:/bin}:/usr/local/go/bin:/usr/lib/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export PATH
export HOME="${HOME:-/root}"
export LC_ALL=C.UTF-8

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# CACHE keeps what is costly to rebuild and the same for every checkout: root filesystems, the linter.
# TEST_STATE holds all files of the test engine.
CACHE=/var/cache/orchestrator TEST_STATE=/var/lib/orchestrator-test
if ((EUID != 0)); then
    CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/orchestrator
    TEST_STATE=$CACHE/test
fi
CACHE=${ORCHESTRATOR_CACHE:-$CACHE}
TEST_STATE=${ORCHESTRATOR_TEST_STATE:-$TEST_STATE}
ENGINE_DIR=$TEST_STATE/engine
ENGINE_HOST=unix://$ENGINE_DIR/docker.sock
# ENGINE_CGROUP is the parent cgroup of that engine's containers only, which identifies what they leave behind.
ENGINE_CGROUP=$(basename "$TEST_STATE")-engine
CONTAINERD_DIR=$TEST_STATE/containerd
CONTAINERD_SOCKET=$CONTAINERD_DIR/containerd.sock
# shellcheck disable=SC2034 # used by the scripts that source this file
readonly ROOT CACHE TEST_STATE ENGINE_DIR ENGINE_HOST ENGINE_CGROUP CONTAINERD_DIR CONTAINERD_SOCKET

say() { printf '%s\n' "$*" >&2; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# retry N COMMAND... runs a command up to N times. Use it for commands that need the network.
retry() {
    local tries=$1 try
    shift
    for ((try = 1; try <= tries; try++)); do
        "$@" && return 0
        ((try == tries)) && break
        say "attempt $try of $tries failed: $1; retrying in $((try * 3)) s"
        sleep $((try * 3))
    done
    return 1
}

# executables prints the directory below /proc and the executable of every process: one program for all of them, because
# a program for each took seconds on a busy machine.
executables() { find /proc/[0-9]*/exe -maxdepth 0 -printf '%h %l\n' 2>/dev/null || :; }

# mounts_under DIR prints the mount points at or below DIR, the latest first.
mounts_under() {
    awk -v dir="$1" '
        { at = $5; gsub(/\\040/, " ", at) }
        at == dir || index(at, dir "/") == 1 { found[++n] = at }
        END { for (; n > 0; n--) print found[n] }' /proc/self/mountinfo
}

# unmount_under DIR unmounts everything at or below DIR. As a last resort it detaches a busy mount and reports
# that. Use it only on directories whose processes have ended.
unmount_under() {
    local dir=$1 round at
    for round in 1 2 3; do
        [[ -n $(mounts_under "$dir") ]] || return 0
        while read -r at; do
            umount "$at" 2>/dev/null && continue
            ((round < 3)) && continue
            say "busy, detaching: $at"
            umount -l "$at" || return 1
        done < <(mounts_under "$dir")
        ((round == 2)) && sleep 1
    done
    [[ -z $(mounts_under "$dir") ]]
}

# end_cgroups TOP kills the processes in a tree of cgroups and removes the cgroups it can.
end_cgroups() {
    local dir pid
    while read -r dir; do
        while read -r pid; do
            # A process outside our PID namespace appears as 0, and kill 0 would signal ourselves.
            [[ $pid == 0 ]] || kill -KILL "$pid" 2>/dev/null || :
        done < <(cat "$dir/cgroup.procs" 2>/dev/null)
        rmdir "$dir" 2>/dev/null || :
    done < <(find "$1" -depth -type d)
}
