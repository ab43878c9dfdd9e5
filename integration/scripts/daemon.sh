# shellcheck shell=bash
# Functions shared by scripts that start a daemon for the tests. They find its processes by command lines that contain
# DAEMON_DIR, not by PID files. Source it after lib.sh and set DAEMON_DIR. Sourcing starts nothing.

STOP_SECONDS=20

# pids_of NAME prints the PIDs of the daemon's processes whose executable is NAME.
pids_of() {
    local proc exe args
    while read -r proc exe; do
        exe=${exe% (deleted)}
        [[ ${exe##*/} == "$1" ]] || continue
        args=$(tr '\0' '\n' <"$proc/cmdline" 2>/dev/null) || continue
        [[ $args == *"$DAEMON_DIR/"* ]] && printf '%s\n' "${proc#/proc/}"
    done < <(executables)
    return 0
}

children_of() { awk -v parent="$1" '{ pid = $1; sub(/^.*\) /, ""); if ($2 == parent) print pid }' /proc/[0-9]*/stat 2>/dev/null || :; }

# end NAME sends TERM to all processes of that name, waits STOP_SECONDS, then sends KILL.
end() {
    local name=$1 pid deadline
    while read -r pid; do kill -TERM "$pid" 2>/dev/null || :; done < <(pids_of "$name")
    deadline=$((SECONDS + STOP_SECONDS))
    while ((SECONDS < deadline)); do
        [[ -n $(pids_of "$name") ]] || return 0
        sleep 0.1
    done
    say "$name did not exit in $STOP_SECONDS s: killing it"
    while read -r pid; do kill -KILL "$pid" 2>/dev/null || :; done < <(pids_of "$name")
    sleep 0.2
}

# end_shims kills what outlives the daemon: the shims and, as their children, PID 1 of each container.
end_shims() {
    local name status=0
    for name in containerd-shim-runc-v2 containerd-shim-runsc-v1; do end_shims_of "$name" || status=1; done
    return "$status"
}

end_shims_of() {
    local shim child name=$1 deadline=$((SECONDS + STOP_SECONDS))
    while ((SECONDS < deadline)); do
        [[ -n $(pids_of "$name") ]] || return 0
        while read -r shim; do
            while read -r child; do kill -KILL "$child" 2>/dev/null || :; done < <(children_of "$shim")
            kill -KILL "$shim" 2>/dev/null || :
        done < <(pids_of "$name")
        sleep 0.1
    done
    say "shims of $DAEMON_DIR did not exit: $(pids_of "$name" | xargs)"
    return 1
}

# background LOG COMMAND... starts a process in a new session that inherits no descriptor, in particular no lock.
background() {
    local log=$1 fd
    shift
    (
        for fd in /proc/self/fd/*; do
            fd=${fd##*/}
            ((fd <= 2)) || eval "exec $fd>&-"
        done
        exec setsid "$@" </dev/null >>"$log" 2>&1
    ) &
}
