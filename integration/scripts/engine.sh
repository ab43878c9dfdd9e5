#!/usr/bin/env bash
# Manages a Docker Engine for the tests, separate from any other on the machine:
#
#     engine.sh up       starts it unless it runs, and prints its DOCKER_HOST
#     engine.sh down     stops it and every container; removes processes, mounts and cgroups; keeps images
#     engine.sh status   prints DOCKER_HOST and exits 0 when it answers, else exits 1
#
# Its files are in $ORCHESTRATOR_TEST_STATE/engine (default /var/lib/orchestrator-test/engine). It
# listens on a Unix socket there. It has no bridge, iptables rules or forwarding: sandboxes have no network. The script
# also starts the engine's containerd: by default, dockerd would use the machine's containerd if it runs, and share its
# containers with another engine. Processes are found by their command lines, not by PID files, so a reboot or a
# kill -9 does no harm.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
DAEMON_DIR=$ENGINE_DIR
source "$(dirname "${BASH_SOURCE[0]}")/daemon.sh"

START_SECONDS=60
# Longer paths do not fit into the address of a Unix socket (108 bytes).
MAX_STATE_PATH=64

ITS_CONTAINERD=$ENGINE_DIR/containerd/containerd.sock

answers() { timeout 5 docker --host "$ENGINE_HOST" version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# remove_cgroups kills what is left in the engine's cgroups, such as PID 1 of a container without a shim, and removes them.
remove_cgroups() {
    local top round
    for round in 1 2 3 4 5; do
        for top in /sys/fs/cgroup/"$ENGINE_CGROUP" /sys/fs/cgroup/*/"$ENGINE_CGROUP"; do
            [[ -d $top ]] || continue
            end_cgroups "$top"
        done
        compgen -G "/sys/fs/cgroup/$ENGINE_CGROUP" >/dev/null || compgen -G "/sys/fs/cgroup/*/$ENGINE_CGROUP" >/dev/null || return 0
        sleep "0.$round"
    done
    say "cannot remove the engine's cgroups"
    return 1
}

# remove_containers asks the engine to remove all containers. down kills what is left.
remove_containers() {
    local ids
    mapfile -t ids < <(timeout 20 docker --host "$ENGINE_HOST" ps --all --quiet 2>/dev/null)
    ((${#ids[@]} == 0)) || timeout 60 docker --host "$ENGINE_HOST" rm --force --volumes "${ids[@]}" >/dev/null 2>&1 || :
}

down() {
    local status=0
    if answers; then remove_containers; fi
    end dockerd
    end_shims || status=1
    end containerd
    end_shims || status=1
    remove_cgroups || status=1
    unmount_under "$ENGINE_DIR" || { say "mounts left under $ENGINE_DIR"; status=1; }
    rm -rf "$ENGINE_DIR/exec" "$ENGINE_DIR/containerd/state" "$ENGINE_DIR"/*.pid "$ENGINE_DIR"/*.sock "$ITS_CONTAINERD"*
    return "$status"
}

configure() {
    mkdir -p "$ENGINE_DIR/containerd" "$ENGINE_DIR/data"
    chmod 0711 "$TEST_STATE" "$ENGINE_DIR"
    cat >"$ENGINE_DIR/containerd.toml" <<TOML
version = 2
root = "$ENGINE_DIR/containerd/root"
state = "$ENGINE_DIR/containerd/state"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "$ITS_CONTAINERD"
TOML
    settings || :
}

# settings writes the engine's configuration file, so that the engine does not read the machine's. If runsc is installed,
# it becomes a runtime of the engine, as docs/adr/0023 describes. Fails if the file did not change.
settings() {
    local text='{}' launcher=$ENGINE_DIR/runsc
    if command -v runsc >/dev/null; then
        install -m 0700 "$(dirname "${BASH_SOURCE[0]}")/../../runtime/docker/runsc.sh" "$launcher.new"
        mv "$launcher.new" "$launcher"
        text='{"runtimes": {"runsc": {"path": "'$launcher'", "runtimeArgs": ["--network=none", "--host-uds=open", "--oci-seccomp", "--overlay2=none"]}}}'
    fi
    [[ $(cat "$ENGINE_DIR/daemon.json" 2>/dev/null) != "$text" ]] || return 1
    printf '%s\n' "$text" >"$ENGINE_DIR/daemon.json"
}

# refresh updates the configuration of a running engine.
refresh() {
    local pid deadline=$((SECONDS + START_SECONDS))
    settings || return 0
    while read -r pid; do kill -HUP "$pid"; done < <(pids_of dockerd)
    [[ $(<"$ENGINE_DIR/daemon.json") == *runsc* ]] || return 0
    while ((SECONDS < deadline)); do
        [[ $(docker --host "$ENGINE_HOST" info --format '{{json .Runtimes}}') != *runsc* ]] || return 0
        sleep 0.1
    done
    die "the engine did not load its configuration; see $ENGINE_DIR/dockerd.log"
}

up() {
    local log=$ENGINE_DIR/dockerd.log deadline=$((SECONDS + START_SECONDS))
    if answers; then
        refresh
        printf '%s\n' "$ENGINE_HOST"
        return 0
    fi
    ((EUID == 0)) || die "must be root to start a Docker Engine"
    command -v dockerd >/dev/null || die "dockerd is missing: run integration/scripts/deps.sh"
    command -v containerd >/dev/null || die "containerd is missing: run integration/scripts/deps.sh"
    ((${#ENGINE_DIR} <= MAX_STATE_PATH)) || die "ORCHESTRATOR_TEST_STATE is too long for unix sockets: $TEST_STATE"
    down || die "cannot clean up after an earlier engine"
    configure
    : >"$log"
    background "$log" containerd --config "$ENGINE_DIR/containerd.toml"
    until [[ -S $ITS_CONTAINERD ]]; do
        ((SECONDS < deadline)) || give_up "$log" "containerd did not start"
        sleep 0.1
    done
    # Keep oom_score_adj: lowering it needs CAP_SYS_RESOURCE, which is not available everywhere.
    background "$log" dockerd --config-file "$ENGINE_DIR/daemon.json" --containerd "$ITS_CONTAINERD" \
        --data-root "$ENGINE_DIR/data" --exec-root "$ENGINE_DIR/exec" --pidfile "$ENGINE_DIR/docker.pid" \
        --host "$ENGINE_HOST" --bridge none --iptables=false --ip-forward=false --ip-masq=false \
        --userland-proxy=false --oom-score-adjust 0 --exec-opt native.cgroupdriver=cgroupfs \
        --cgroup-parent "/$ENGINE_CGROUP"
    until answers; do
        ((SECONDS < deadline)) || give_up "$log" "the engine did not answer within $START_SECONDS s"
        [[ -n $(pids_of dockerd) ]] || { sleep 0.5; [[ -n $(pids_of dockerd) ]]; } || give_up "$log" "dockerd exited at startup"
        sleep 0.2
    done
    # Remove the containers of a killed engine: they would look like leftovers of the tests.
    remove_containers
    docker --host "$ENGINE_HOST" volume prune --force >/dev/null
    printf '%s\n' "$ENGINE_HOST"
}

give_up() {
    say "--- last lines of $1"
    tail -n 40 "$1" >&2 || :
    down || :
    die "$2; see $1"
}

lock() {
    mkdir -p "$TEST_STATE"
    exec 9>"$TEST_STATE/engine.lock"
    flock --wait 180 9 || die "another engine.sh has held the lock for more than 3 minutes"
}

case ${1:-} in
up) lock; up ;;
down) [[ -d $ENGINE_DIR ]] || exit 0; lock; down ;;
status) answers && printf '%s\n' "$ENGINE_HOST" ;;
*) say "usage: engine.sh up|down|status"; exit 64 ;;
esac
