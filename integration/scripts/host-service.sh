#!/bin/bash
# Runs in the virtual machine: the service as a unit of systemd keeps its sandboxes over a reload of systemd's
# configuration, restarts, a crash and a stop, on each driver, or on those that are named; with Docker also over a change
# of its cgroup driver.
set -Eeuo pipefail
trap 'echo "failed: line $LINENO: $BASH_COMMAND" >&2' ERR

export PATH=/usr/local/bin:$PATH

die() { printf '%s\n' "$*" >&2; exit 1; }

# answers waits until the service does. It takes seconds to start here.
answers() {
    local i
    for ((i = 0; i < 240; i++)); do
        ! orchestrator ps >/dev/null 2>&1 || return 0
        sleep 0.5
    done
    journalctl --unit orchestrator --lines 40 --no-pager
    die "the service does not answer"
}

# lives fails unless the sandbox is the same one, its background command runs, and its caps hold.
lives() {
    local before after status=0
    [[ $(orchestrator exec "$id" -- cat /tmp/mark) == kept ]] || die "$1: the sandbox is another one"
    before=$(orchestrator shell logs "$shell" | wc -l)
    for _ in {1..240}; do
        after=$(orchestrator shell logs "$shell" | wc -l)
        ((after <= before)) || break
        sleep 0.5
    done
    ((after > before)) || die "$1: its background command does not run"
    orchestrator exec "$id" -- python3 -c 'b = bytearray(2 << 30)' 2>/dev/null || status=$?
    ((status == 122)) || die "$1: a command over the memory cap exits with $status, want 122 (oom)"
    printf '%s: %s: the sandbox lives on\n' "$runtime" "$1"
}

install -m 0755 orchestrator /usr/local/bin/
install -m 0644 orchestrator.service /etc/systemd/system/
systemctl daemon-reload

(($# > 0)) || set -- oci docker containerd
for runtime in "$@"; do
    printf 'ORCHESTRATOR_RUNTIME=%s\n' "$runtime" >/etc/default/orchestrator
    export ORCHESTRATOR_RUNTIME=$runtime
    orchestrator image import sandbox.tar >/dev/null
    systemctl start orchestrator
    answers
    id=$(orchestrator sandbox create --when-empty cold --quiet)
    orchestrator exec "$id" -c 'echo kept >/tmp/mark'
    shell=$(orchestrator shell start -q "$id" -c 'while :; do echo x; sleep 0.2; done')
    systemctl status orchestrator --no-pager --lines 0
    lives start
    systemctl daemon-reload
    lives daemon-reload
    systemctl daemon-reexec
    lives daemon-reexec
    systemctl restart orchestrator
    answers
    lives restart
    systemctl kill --signal=KILL --kill-whom=main orchestrator
    answers
    lives 'a crash'
    systemctl stop orchestrator
    systemctl daemon-reload
    systemctl start orchestrator
    answers
    lives 'stop and start'
    if [[ $runtime == docker ]]; then
        mkdir -p /etc/docker
        printf '{"exec-opts": ["native.cgroupdriver=cgroupfs"]}\n' >/etc/docker/daemon.json
        systemctl restart docker
        systemctl restart orchestrator
        answers
        docker info --format 'docker cgroup driver {{.CgroupDriver}}'
        # Docker ended the sandbox; the lease ends, and new sandboxes work.
        status=0
        orchestrator exec "$id" -- true 2>/dev/null || status=$?
        ((status != 0)) || die "the sandbox outlived its engine"
        id=$(orchestrator sandbox create --when-empty cold --quiet)
        orchestrator exec "$id" -c 'echo kept >/tmp/mark'
        shell=$(orchestrator shell start -q "$id" -c 'while :; do echo x; sleep 0.2; done')
        lives 'another cgroup driver'
    fi
    orchestrator down
    ! systemctl is-active --quiet orchestrator || die "the unit is active after orchestrator down"
    [[ $(systemctl show --property=Result --value orchestrator) == success ]] || die "the unit failed"
    rm -rf --one-file-system /var/lib/orchestrator
done
rm -f /etc/docker/daemon.json /etc/default/orchestrator
systemctl restart docker
