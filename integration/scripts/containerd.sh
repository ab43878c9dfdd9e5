#!/usr/bin/env bash
# Manages a containerd for the tests, separate from any other on the machine and from the test engine's:
#
#     containerd.sh up       starts it unless it runs, and prints its socket
#     containerd.sh kill     kills it as a crash would: shims and containers survive, and the next "up" finds them
#     containerd.sh down     stops it and every container; removes processes, mounts and cgroups; keeps images
#     containerd.sh containers    lists its containers and tasks
#     containerd.sh status   prints the socket and exits 0 when it answers, else exits 1
#
# Its files are in $ORCHESTRATOR_TEST_STATE/containerd (default /var/lib/orchestrator-test/containerd). It
# listens on a Unix socket there.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
DAEMON_DIR=$CONTAINERD_DIR
source "$(dirname "${BASH_SOURCE[0]}")/daemon.sh"

START_SECONDS=60
# Longer paths do not fit into the address of a Unix socket (108 bytes).
MAX_STATE_PATH=64

BUNDLES=$CONTAINERD_DIR/state/io.containerd.runtime.v2.task

ask() { timeout 20 ctr --address "$CONTAINERD_SOCKET" --timeout 5s "$@"; }

answers() { ask version >/dev/null 2>&1; }

# containers lists the containers and tasks of every namespace, one per line.
containers() {
    local namespace
    while read -r namespace; do
        ask --namespace "$namespace" containers list --quiet | sed "s/^/containerd $namespace container /"
        ask --namespace "$namespace" tasks list --quiet | sed "s/^/containerd $namespace task /"
    done < <(ask namespaces list --quiet)
}

# remove_containers asks the daemon to remove all containers. down kills what is left.
remove_containers() {
    local namespace id
    while read -r namespace; do
        while read -r id; do
            ask --namespace "$namespace" tasks delete --force "$id" >/dev/null 2>&1 || :
            ask --namespace "$namespace" containers delete --keep-snapshot "$id" >/dev/null 2>&1 || :
        done < <(ask --namespace "$namespace" containers list --quiet 2>/dev/null)
    done < <(ask namespaces list --quiet 2>/dev/null)
}

# remove_cgroups ID... kills what is left in the cgroups of sandboxes and removes the cgroups.
remove_cgroups() {
    local id top round left
    for round in 1 2 3 4 5; do
        left=
        for id in "$@"; do
            for top in /sys/fs/cgroup/orchestrator/"$id" /sys/fs/cgroup/*/orchestrator/"$id"; do
                [[ -d $top ]] || continue
                left=yes
                end_cgroups "$top"
            done
        done
        [[ -n $left ]] || return 0
        sleep "0.$round"
    done
    say "cannot remove cgroups of sandboxes: $*"
    return 1
}

down() {
    local status=0 ids=()
    mapfile -t ids < <(find "$BUNDLES" -mindepth 2 -maxdepth 2 -type d -printf '%f\n' 2>/dev/null)
    if answers; then remove_containers; fi
    end containerd
    end_shims || status=1
    remove_cgroups "${ids[@]}" || status=1
    unmount_under "$CONTAINERD_DIR" || { say "mounts left under $CONTAINERD_DIR"; status=1; }
    rm -rf "$CONTAINERD_DIR/state" "$CONTAINERD_SOCKET"*
    return "$status"
}

configure() {
    mkdir -p "$CONTAINERD_DIR"
    chmod 0711 "$TEST_STATE" "$CONTAINERD_DIR"
    cat >"$CONTAINERD_DIR/config.toml" <<TOML
version = 2
root = "$CONTAINERD_DIR/root"
state = "$CONTAINERD_DIR/state"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "$CONTAINERD_SOCKET"
TOML
}

up() {
    local log=$CONTAINERD_DIR/containerd.log deadline=$((SECONDS + START_SECONDS))
    if answers; then
        printf '%s\n' "$CONTAINERD_SOCKET"
        return 0
    fi
    ((EUID == 0)) || die "must be root to start containerd"
    command -v containerd >/dev/null || die "containerd is missing: run integration/scripts/deps.sh"
    ((${#CONTAINERD_DIR} <= MAX_STATE_PATH)) || die "ORCHESTRATOR_TEST_STATE is too long for unix sockets: $TEST_STATE"
    end containerd # stop a hanging one
    configure
    : >"$log"
    background "$log" containerd --config "$CONTAINERD_DIR/config.toml"
    until answers; do
        ((SECONDS < deadline)) || give_up "$log" "containerd did not answer within $START_SECONDS s"
        [[ -n $(pids_of containerd) ]] || { sleep 0.5; [[ -n $(pids_of containerd) ]]; } || give_up "$log" "containerd exited at startup"
        sleep 0.1
    done
    printf '%s\n' "$CONTAINERD_SOCKET"
}

# kill_daemon kills containerd only: shims and containers keep running.
kill_daemon() {
    local pid
    while read -r pid; do kill -KILL "$pid" 2>/dev/null || :; done < <(pids_of containerd)
    while [[ -n $(pids_of containerd) ]]; do sleep 0.05; done
}

give_up() {
    say "--- last lines of $1"
    tail -n 40 "$1" >&2 || :
    down || :
    die "$2; see $1"
}

lock() {
    mkdir -p "$TEST_STATE"
    exec 9>"$TEST_STATE/containerd.lock"
    flock --wait 180 9 || die "another containerd.sh has held the lock for more than 3 minutes"
}

case ${1:-} in
up) lock; up ;;
kill) lock; kill_daemon ;;
down) [[ -d $CONTAINERD_DIR ]] || exit 0; lock; down ;;
containers) containers ;;
status) answers && printf '%s\n' "$CONTAINERD_SOCKET" ;;
*) say "usage: containerd.sh up|kill|down|containers|status"; exit 64 ;;
esac
