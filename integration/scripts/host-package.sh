#!/bin/bash
# Runs in the virtual machine: the Debian package is installed and starts; the watchdog and a reload work; a crash and an
# upgrade keep leases and background commands; remove ends the sandboxes, and purge leaves no files.
set -Eeuo pipefail
trap 'echo "failed: line $LINENO: $BASH_COMMAND" >&2' ERR

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

# lives fails unless the sandbox is the same one and its background command runs.
lives() {
    [[ $(orchestrator exec "$id" -- cat /tmp/mark) == kept ]] || die "$1: the sandbox is another one"
    orchestrator shell ls | grep -q "$shell" || die "$1: its background command is gone"
    printf '%s: the sandbox lives on\n' "$1"
}

config=/etc/orchestrator/orchestrator.yaml
dpkg --install ./*.deb
[[ $(stat -c %a /var/lib/orchestrator) == 700 ]] || die "the state directory is open to others"
getent group orchestrator >/dev/null || die "there is no group orchestrator"
[[ $(systemctl is-active orchestrator || :) == inactive ]] || die "the service runs before it was enabled"
printf 'runtime: oci\n' >>$config
orchestrator image import sandbox.tar >/dev/null
systemctl enable --now orchestrator # with Type=notify it returns when the service is ready
orchestrator ps >/dev/null || die "the service does not answer when systemd says that it is ready"
[[ $(systemctl show --value --property WatchdogUSec orchestrator) == 30s ]] || die "the unit has no watchdog"
orchestrator run -c 'echo $((6*7))' | grep -qx 42

id=$(orchestrator sandbox create --when-empty cold --quiet)
orchestrator exec "$id" -c 'echo kept >/tmp/mark'
shell=$(orchestrator shell start -q "$id" -c 'while :; do echo x; sleep 0.2; done')
pid=$(systemctl show --value --property MainPID orchestrator)
printf 'log: {level: debug}\n' >>$config
systemctl reload orchestrator
for _ in {1..60}; do
    ! journalctl --unit orchestrator --no-pager | grep -q 'changed=\[log.level\]' || break
    sleep 0.5
done
journalctl --unit orchestrator --no-pager | grep -q 'changed=\[log.level\]' || die "the reload is not in the journal"
[[ $(systemctl show --value --property MainPID orchestrator) == "$pid" ]] || die "the reload restarted the service"
lives reload

systemctl kill --signal=KILL --kill-whom=main orchestrator
answers
lives 'a crash'
# A stopped process confirms nothing, so the watchdog ends it, and the next one adopts the sandbox.
pid=$(systemctl show --value --property MainPID orchestrator)
kill -STOP "$pid"
for _ in {1..240}; do
    [[ $(systemctl show --value --property MainPID orchestrator) == "$pid" ]] || break
    sleep 0.5
done
answers
[[ $(systemctl show --value --property MainPID orchestrator) != "$pid" ]] || die "the watchdog did not act"
lives 'the watchdog'
pid=$(systemctl show --value --property MainPID orchestrator)
dpkg --install --force-confold ./*.deb
answers
[[ $(systemctl show --value --property MainPID orchestrator) != "$pid" ]] || die "the upgrade did not restart the service"
lives 'an upgrade'

dpkg --remove orchestrator
[[ -z $(find /sys/fs/cgroup -path "*$id*" -print -quit) ]] || die "remove left the sandbox"
dpkg --purge orchestrator
for left in /var/lib/orchestrator /etc/orchestrator /usr/bin/orchestrator /run/orchestrator.sock; do
    [[ ! -e $left ]] || die "purge left $left"
done
