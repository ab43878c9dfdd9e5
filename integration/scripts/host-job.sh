#!/bin/bash
# Runs in the virtual machine of host.sh as /job/run: /job has what host-test.sh put there. The file "parts" names the
# parts to run.
set -u
cd /job || exit 1
read -r -a parts <parts
export TMPDIR=/tmp
export ORCHESTRATOR_TEST_BIN=/job/orchestrator ORCHESTRATOR_TEST_BIN_FAULTS=/job/orchestrator-faults
export ORCHESTRATOR_TEST_GUEST=/job/guest ORCHESTRATOR_TEST_ROOTFS=/job/rootfs
export ORCHESTRATOR_TEST_IMAGE_ARCHIVE=/job/sandbox.tar
export ORCHESTRATOR_TEST_DOCKER=unix:///var/run/docker.sock
export ORCHESTRATOR_TEST_CONTAINERD=/run/containerd/containerd.sock
# The processor is emulated.
export ORCHESTRATOR_TEST_TIME_FACTOR=5
failed=0

# phase NAME COMMAND... runs one part of the job.
phase() {
    local name=$1 began=$SECONDS
    shift
    printf '=== %s\n' "$name"
    if "$@"; then
        printf 'phase %s: ok, %d s\n' "$name" $((SECONDS - began))
    else
        printf 'phase %s: failed, %d s\n' "$name" $((SECONDS - began))
        failed=1
    fi
}

# checks PACKAGE PATTERN runs tests of a package.
checks() { (cd "/job/src/$1" && "/job/${1//\//-}.test" -test.v -test.timeout 60m -test.parallel 2 -test.run "$2"); }

# suite COLUMN [PATTERN] runs the checks of a driver that match.
suite() { checks integration/conformance "^TestDrivers\$/^$1\$${2:+/$2}"; }

# passes NAME COMMAND... makes a test of a command.
passes() {
    local name=$1
    shift
    if "$@"; then printf -- '--- PASS: %s\n' "$name"; else printf -- '--- FAIL: %s\n' "$name"; return 1; fi
}

versions() {
    uname -r
    stat --file-system --format 'cgroup file system %T' /sys/fs/cgroup
    grep ' - cgroup2 ' /proc/self/mountinfo
    systemctl --version | head -n 1
    docker version --format 'docker {{.Server.Version}}'
    docker info --format 'docker cgroup driver {{.CgroupDriver}}, version {{.CgroupVersion}}'
    containerd --version
    runc --version | head -n 1
    crun --version | head -n 1
}

# left fails if something of ours is on the machine.
left() {
    local found
    found=$(
        # The parent of all sandboxes' cgroups stays.
        find /sys/fs/cgroup -type d \( -name 'orchestrator-*' -o -path '*/orchestrator/*' \)
        grep orchestrator /proc/mounts
        docker ps --all --quiet
        find /run /tmp -maxdepth 1 -name 'orchestrator*'
    )
    [[ -z $found ]] || { printf 'left on the machine:\n%s\n' "$found"; return 1; }
}

# part NAME runs one part of the tests.
part() {
    local some='^(table|network-none|ending-oom|ending-pids|adopt|nothing-left)$'
    case $1 in
    demo) passes demo/runc ./demo -bin /job/orchestrator -image /job/sandbox.tar ;;
    some-oci-runc) suite oci "$some" ;;
    some-oci-crun) ORCHESTRATOR_TEST_RUNTIME=crun suite oci "$some" ;;
    some-docker) suite docker-local "$some" ;;
    some-containerd) suite containerd "^suite\$/$some" ;;
    some-oci-userns) suite oci-userns "$some" && ORCHESTRATOR_TEST_RUNTIME=crun suite oci-userns "$some" ;;
    some-containerd-userns) suite containerd-userns "^suite\$/$some" ;;
    kills) suite oci '^kill$' ;;
    oci-runc) suite oci ;;
    oci-userns) suite oci-userns ;;
    oci-crun) ORCHESTRATOR_TEST_RUNTIME=crun suite oci ;;
    docker-local | docker-stdio | containerd) suite "$1" ;;
    oci-faults) checks runtime/oci . ;;
    scenarios)
        checks integration/scenarios '^Test(ShellsSurviveRestart|OutputSurvivesFiveKills|SandboxLost|LostState|KilledStart)' &&
            checks integration/scenarios '^TestOnOneServer$/./^endings$'
        ;;
    systemd) passes systemd ./service.sh ;;
    package) passes package ./package.sh ;;
    refusals) passes refusals ./refusals.sh ;;
    *) printf 'unknown part %s\n' "$1"; return 1 ;;
    esac
}

systemctl start containerd docker
phase versions versions
docker load --quiet --input sandbox.tar
for name in "${parts[@]}"; do phase "$name" part "$name"; done
phase left passes nothing-left left
exit "$failed"
