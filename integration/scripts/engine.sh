#!/usr/bin/env bash
# A Docker Engine of our own for the tests, started by hand, apart from any other on the machine:
#
#     engine.sh up       starts it, or finds it running, and prints its DOCKER_HOST
#     engine.sh down     ends it with every container, and leaves no process, mount or cgroup; the images stay
#     engine.sh status   prints DOCKER_HOST and exits 0 when it answers, else exits 1
#
# Everything it has lies under $ORCHESTRATOR_TEST_STATE/engine (default /var/lib/orchestrator-test/engine) and it
# listens on a unix socket there. No bridge, no iptables rule, no forwarding: sandboxes have no network. Its containerd
# is started here too and named to it: by itself dockerd would use the machine's containerd if that runs, and share its
# containers with another engine. It is found by the command line of its processes and not by pid files, so it does not
# matter what a reboot or a kill -9 left behind.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
DAEMON_DIR=$ENGINE_DIR
source "$(dirname "${BASH_SOURCE[0]}")/daemon.sh"

START_SECONDS=60
# Longer paths do not fit into the address of a unix socket (108 bytes), and would fail in odd ways.
MAX_STATE_PATH=64

ITS_CONTAINERD=$ENGINE_DIR/containerd/containerd.sock

answers() { timeout 5 docker --host "$ENGINE_HOST" version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# remove_cgroups: kills what is still in the engine's cgroups (a container's PID 1 whose shim is gone) and removes them.
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
    say "cgroups of the engine could not be removed"
    return 1
}

# remove_containers asks the engine; what it cannot do in time is done to its processes.
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
    unmount_under "$ENGINE_DIR" || { say "mounts are left under $ENGINE_DIR"; status=1; }
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

# settings writes the engine's settings: a file of its own, so that those of the machine's engine are not read. Where runsc is, it is a runtime of the
# engine as docs/adr/0023 has it. Fails if they were as they are.
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

# refresh brings the settings of an engine that runs up to date.
refresh() {
    local pid deadline=$((SECONDS + START_SECONDS))
    settings || return 0
    while read -r pid; do kill -HUP "$pid"; done < <(pids_of dockerd)
    [[ $(<"$ENGINE_DIR/daemon.json") == *runsc* ]] || return 0
    while ((SECONDS < deadline)); do
        [[ $(docker --host "$ENGINE_HOST" info --format '{{json .Runtimes}}') != *runsc* ]] || return 0
        sleep 0.1
    done
    die "the engine does not take its settings; see $ENGINE_DIR/dockerd.log"
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
    down || die "what is left of an earlier engine is in the way"
    configure
    : >"$log"
    background "$log" containerd --config "$ENGINE_DIR/containerd.toml"
    until [[ -S $ITS_CONTAINERD ]]; do
        ((SECONDS < deadline)) || give_up "$log" "containerd did not start"
        sleep 0.1
    done
    # Lowering oom_score_adj is not allowed everywhere (it needs CAP_SYS_RESOURCE), so the engine keeps the one it has.
    background "$log" dockerd --config-file "$ENGINE_DIR/daemon.json" --containerd "$ITS_CONTAINERD" \
        --data-root "$ENGINE_DIR/data" --exec-root "$ENGINE_DIR/exec" --pidfile "$ENGINE_DIR/docker.pid" \
        --host "$ENGINE_HOST" --bridge none --iptables=false --ip-forward=false --ip-masq=false \
        --userland-proxy=false --oom-score-adjust 0 --exec-opt native.cgroupdriver=cgroupfs \
        --cgroup-parent "/$ENGINE_CGROUP"
    until answers; do
        ((SECONDS < deadline)) || give_up "$log" "the engine did not answer within $START_SECONDS s"
        [[ -n $(pids_of dockerd) ]] || { sleep 0.5; [[ -n $(pids_of dockerd) ]]; } || give_up "$log" "dockerd ended at once"
        sleep 0.2
    done
    # Containers of an engine that was killed are of no use to anybody, and would look like leftovers of the tests.
    remove_containers
    docker --host "$ENGINE_HOST" volume prune --force >/dev/null
    printf '%s\n' "$ENGINE_HOST"
}

give_up() {
    say "--- the end of $1"
    tail -n 40 "$1" >&2 || :
    down || :
    die "$2; see $1"
}

lock() {
    mkdir -p "$TEST_STATE"
    exec 9>"$TEST_STATE/engine.lock"
    flock --wait 180 9 || die "another engine.sh is at work for more than 3 minutes"
}

case ${1:-} in
up) lock; up ;;
down) [[ -d $ENGINE_DIR ]] || exit 0; lock; down ;;
status) answers && printf '%s\n' "$ENGINE_HOST" ;;
*) say "usage: engine.sh up|down|status"; exit 64 ;;
esac
