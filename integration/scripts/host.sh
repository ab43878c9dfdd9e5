#!/usr/bin/env bash
# Boots a virtual machine like the hosts of most users: Debian 13 with systemd, cgroup v2 only, its own kernel, and
# Docker, containerd, runc and crun from its packages.
#
#     host.sh build      makes the machine's disk in the cache unless it is there, and prints its directory
#     host.sh run DIR    boots the machine with a copy of DIR at /job, runs /job/run, prints its output, and exits with
#                        its status; 124 after $ORCHESTRATOR_HOST_SECONDS (default 2400), 125 if the machine fails
#
# QEMU emulates the processor, because nested virtualization is often missing: a program takes 5 to 20 times as long.
# The disks are copies that vanish with the machine. The machine has no network. Making the disk takes 3 minutes.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SUITE=trixie
PACKAGES=(systemd systemd-sysv dbus udev kmod linux-image-cloud-amd64 docker.io docker-cli containerd runc crun
    iproute2 iptables procps ca-certificates e2fsprogs util-linux mount tar xz-utils)
DISK=6G
JOB_SPARE=2048 # MiB that the job may write beside its files
MEMORY=4096    # MiB
KEEP_DAYS=14

key() {
    { cat "${BASH_SOURCE[0]}"; uname -m; } | sha256sum | cut -c1-16
}

# build makes the disk in the cache and prints its directory. Concurrent builds wait for each other.
build() {
    local out work root
    out=$CACHE/host-$(key)
    mkdir -p "$CACHE/debs"
    exec 8>"$CACHE/host.lock"
    flock 8
    if [[ ! -e $out/disk ]]; then
        ((EUID == 0)) || die "must be root to make a disk"
        say "making a disk with Debian $SUITE; this takes 3 minutes"
        find "$CACHE" -mindepth 1 -maxdepth 1 -name 'tmp.host.*' -exec rm -rf --one-file-system {} +
        work=$(mktemp -d "$CACHE/tmp.host.XXXXXX")
        root=$work/root
        if ! debootstrap --variant=minbase --cache-dir="$CACHE/debs" --include="$(IFS=,; printf '%s' "${PACKAGES[*]}")" \
            "$SUITE" "$root" >"$work/log" 2>&1; then
            tail -n 20 "$work/log" >&2
            unmount_under "$root" && rm -rf --one-file-system "$work"
            die "cannot make a root with Debian $SUITE: check the network"
        fi
        unmount_under "$root"
        configure "$root"
        cp "$root"/boot/vmlinuz-* "$work/kernel"
        cp "$root"/boot/initrd.img-* "$work/initrd"
        mkfs.ext4 -q -F -d "$root" "$work/disk" "$DISK" >/dev/null
        rm -rf --one-file-system "$root"
        rm -rf "$out"
        mv "$work" "$out"
        find "$CACHE" -mindepth 1 -maxdepth 1 -type d -name 'host-*' -mtime "+$KEEP_DAYS" -exec rm -rf {} +
    fi
    touch "$out"
    exec 8>&-
    printf '%s\n' "$out"
}

# configure makes the machine run /job/run at its start, with its output on the second serial line, and its status on
# the third. Docker starts when it is first asked.
configure() {
    printf '/dev/vda / ext4 defaults 0 1\n/dev/vdb /job ext4 defaults 0 2\n' >"$1/etc/fstab"
    printf 'host\n' >"$1/etc/hostname"
    mkdir -p "$1/job"
    cat >"$1/etc/systemd/system/job.service" <<'UNIT'
[Unit]
Description=Run the job and power off
After=multi-user.target
[Service]
Type=oneshot
Environment=HOME=/root
ExecStart=/bin/bash -c '/job/run >/dev/ttyS1 2>&1 </dev/null; echo "$?" >/dev/ttyS2'
ExecStopPost=/usr/bin/systemctl --no-block poweroff
UNIT
    mkdir -p "$1/etc/systemd/system/default.target.wants"
    ln -s ../job.service "$1/etc/systemd/system/default.target.wants/job.service"
    ln -sf /dev/null "$1/etc/systemd/system/serial-getty@ttyS0.service"
    rm -f "$1"/etc/systemd/system/*.wants/{docker,containerd}.service
}

run() {
    local dir work size machine status=0
    [[ -x ${1:-}/run ]] || die "$1/run is missing or not executable"
    command -v qemu-system-x86_64 >/dev/null || die "qemu-system-x86_64 is missing: run integration/scripts/deps.sh --host"
    dir=$(build)
    work=$(mktemp -d "${TMPDIR:-/tmp}/host.XXXXXX")
    # shellcheck disable=SC2064 # the values of now
    trap "kill %1 2>/dev/null || :; rm -rf '$work'" EXIT
    size=$(($(du --summarize --block-size=1M "$1" | cut -f1) * 11 / 10 + JOB_SPARE))
    mkfs.ext4 -q -F -d "$1" "$work/job" "${size}M" >/dev/null
    : >"$work/output" >"$work/status"
    TMPDIR=$work timeout "${ORCHESTRATOR_HOST_SECONDS:-2400}" \
        qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$(nproc)" -m "$MEMORY" \
        -display none -monitor none -no-reboot -nic none \
        -kernel "$dir/kernel" -initrd "$dir/initrd" -append 'root=/dev/vda rw console=ttyS0 quiet mitigations=off' \
        -drive "file=$dir/disk,if=virtio,format=raw,snapshot=on" -drive "file=$work/job,if=virtio,format=raw,snapshot=on" \
        -serial "file:$work/console" -serial "file:$work/output" -serial "file:$work/status" </dev/null &
    machine=$!
    tail --follow --bytes=+1 --pid="$machine" "$work/output" | sed --unbuffered 's/\r//'
    wait "$machine" || status=$?
    ((status != 124)) || { say "the machine did not end in time"; return 124; }
    if [[ ! -s $work/status ]]; then
        say "the machine failed; last lines of its console:"
        tail -n 30 "$work/console" >&2
        return 125
    fi
    return "$(tr -dc '0-9' <"$work/status")"
}

case ${1:-} in
build) build ;;
run) run "${2:?host.sh run DIR}" ;;
*) say "usage: host.sh build | run DIR"; exit 64 ;;
esac
