#!/bin/bash
# Runs in the virtual machine: on a host whose cgroups the service cannot use, "doctor" names the reason, and a command
# is refused with exit code 78 (failed_precondition) and the same reason.
set -Eeuo pipefail
trap 'echo "failed: line $LINENO: $BASH_COMMAND" >&2' ERR

state=$(mktemp -d /var/tmp/refusals.XXXXXX)
trap 'rm -rf "$state"' EXIT
export state ORCHESTRATOR_RUNTIME=oci
./orchestrator image import sandbox.tar --state-dir "$state" >/dev/null

# refused NAME TEXT SCRIPT runs SCRIPT, which changes the host for the rest of its mount namespace and then executes "$@".
refused() {
    local name=$1 text=$2 status=0 out
    out=$(unshare --mount --propagation private bash -ec "$3" change \
        ./orchestrator run --no-server --state-dir "$state" -- true 2>&1) || status=$?
    printf '%s: exit %d: %s\n' "$name" "$status" "$out"
    [[ $status == 78 && $out == *"$text"* ]] || { echo "$name: want exit 78 and \"$text\""; exit 1; }
    out=$(unshare --mount --propagation private bash -ec "$3" change ./orchestrator doctor --state-dir "$state" 2>&1) || :
    grep -F -- "$text" <<<"$out" || { printf '%s\n%s: doctor does not say "%s"\n' "$out" "$name" "$text"; exit 1; }
}

refused 'read-only cgroups' '/sys/fs/cgroup mounted read-write' 'mount -o remount,bind,ro /sys/fs/cgroup; exec "$@"'
refused 'no cgroups' 'none is mounted' 'umount --recursive --lazy /sys/fs/cgroup; exec "$@"'
for delegate in no yes; do
    # The service sees only the cgroup of its unit, as in a container with a cgroup namespace.
    refused "cgroup namespace, Delegate=$delegate" 'a cgroup of its own' "exec systemd-run --quiet --pipe --wait --collect \
        --working-directory=/job --setenv=ORCHESTRATOR_RUNTIME --property=Delegate=$delegate unshare --cgroup --mount \
        bash -ec 'umount --recursive --lazy /sys/fs/cgroup; mount -t cgroup2 -o nsdelegate none /sys/fs/cgroup; exec \"\$@\"' in \"\$@\""
done
