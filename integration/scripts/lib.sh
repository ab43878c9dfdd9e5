# shellcheck shell=bash
# What the scripts of this repository share: places, messages, retries, and looking at and cleaning up mounts.
# It is sourced, starts nothing and changes nothing but PATH.
set -Eeuo pipefail

# Scripts are also run with an empty environment (CI, cron): Go and the sbin folders are looked for where
# they usually are. What the caller's PATH names comes first.
PATH="${PATH:-/usr/bin:/bin}:/usr/local/go/bin:/usr/lib/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export PATH
export HOME="${HOME:-/root}"
export LC_ALL=C.UTF-8

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# CACHE keeps what is costly to make again and the same for every checkout: root filesystems, the linter.
# TEST_STATE holds the engine of the tests; nothing outside of it belongs to that engine.
CACHE=/var/cache/orchestrator TEST_STATE=/var/lib/orchestrator-test
if ((EUID != 0)); then
    CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/orchestrator
    TEST_STATE=$CACHE/test
fi
CACHE=${ORCHESTRATOR_CACHE:-$CACHE}
TEST_STATE=${ORCHESTRATOR_TEST_STATE:-$TEST_STATE}
ENGINE_DIR=$TEST_STATE/engine
ENGINE_HOST=unix://$ENGINE_DIR/docker.sock
# ENGINE_CGROUP is the parent of every container of that engine, and of no other, so that what is left there is known to be its.
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

# retry N COMMAND...: up to N tries, for commands that use the network.
retry() {
    local tries=$1 try
    shift
    for ((try = 1; try <= tries; try++)); do
        "$@" && return 0
        ((try == tries)) && break
        say "try $try of $tries did not work: $1; again in $((try * 3)) s"
        sleep $((try * 3))
    done
    return 1
}

# mounts_under DIR: mount points at or below DIR, the deepest and latest first.
mounts_under() {
    awk -v dir="$1" '
        { at = $5; gsub(/\\040/, " ", at) }
        at == dir || index(at, dir "/") == 1 { found[++n] = at }
        END { for (; n > 0; n--) print found[n] }' /proc/self/mountinfo
}

# unmount_under DIR: nothing is mounted at or below DIR afterwards. A mount that is busy is detached as the last
# resort, and that is said; it is only used on folders whose processes have been ended before.
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

# end_cgroups TOP: kills what is in a tree of cgroups, and removes what it can of them.
end_cgroups() {
    local dir pid
    while read -r dir; do
        while read -r pid; do
            # A process of a namespace around ours is shown as 0, and to kill that would be to kill ourselves.
            [[ $pid == 0 ]] || kill -KILL "$pid" 2>/dev/null || :
        done < <(cat "$dir/cgroup.procs" 2>/dev/null)
        rmdir "$dir" 2>/dev/null || :
    done < <(find "$1" -depth -type d)
}
