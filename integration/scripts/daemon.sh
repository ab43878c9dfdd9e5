# shellcheck shell=bash
# What the scripts that start a daemon for the tests share: its processes, found by their command lines, which name DAEMON_DIR, and not by pid
# files. It is sourced after lib.sh by a script that sets DAEMON_DIR, and starts nothing.

STOP_SECONDS=20

# pids_of NAME: processes of the daemon whose executable is NAME.
pids_of() {
    local proc exe args
    for proc in /proc/[0-9]*; do
        exe=$(readlink "$proc/exe" 2>/dev/null) || continue
        exe=${exe% (deleted)}
        [[ ${exe##*/} == "$1" ]] || continue
        args=$(tr '\0' '\n' <"$proc/cmdline" 2>/dev/null) || continue
        [[ $args == *"$DAEMON_DIR/"* ]] && printf '%s\n' "${proc#/proc/}"
    done
    return 0
}

children_of() { awk -v parent="$1" '{ pid = $1; sub(/^.*\) /, ""); if ($2 == parent) print pid }' /proc/[0-9]*/stat 2>/dev/null || :; }

# end NAME: TERM to all of that name, a while to go, then KILL.
end() {
    local name=$1 pid deadline
    while read -r pid; do kill -TERM "$pid" 2>/dev/null || :; done < <(pids_of "$name")
    deadline=$((SECONDS + STOP_SECONDS))
    while ((SECONDS < deadline)); do
        [[ -n $(pids_of "$name") ]] || return 0
        sleep 0.1
    done
    say "$name did not end in $STOP_SECONDS s; killing it"
    while read -r pid; do kill -KILL "$pid" 2>/dev/null || :; done < <(pids_of "$name")
    sleep 0.2
}

# end_shims: what is left of containers when their daemon is gone: the shim and, as its children, their PID 1.
end_shims() {
    local shim child name=containerd-shim-runc-v2 deadline=$((SECONDS + STOP_SECONDS))
    while ((SECONDS < deadline)); do
        [[ -n $(pids_of "$name") ]] || return 0
        while read -r shim; do
            while read -r child; do kill -KILL "$child" 2>/dev/null || :; done < <(children_of "$shim")
            kill -KILL "$shim" 2>/dev/null || :
        done < <(pids_of "$name")
        sleep 0.1
    done
    say "shims below $DAEMON_DIR do not end: $(pids_of "$name" | xargs)"
    return 1
}

# background LOG COMMAND...: a process of its own session that keeps nothing of ours open, no lock in particular.
background() {
    local log=$1
    shift
    setsid "$@" </dev/null >>"$log" 2>&1 7>&- 8>&- 9>&- &
}
