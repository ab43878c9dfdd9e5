#!/usr/bin/env bash
# Installs the packages that "make demo" and "make test" need and that are missing:
#
#     deps.sh [--check|--embedded|--kubernetes|--host]
#
# --check installs nothing and fails if something is missing. --embedded skips what only tests with a Docker
# Engine and the race detector need. --kubernetes adds what kubernetes.sh needs, and --host what host.sh needs.
#
# Works on Debian and Ubuntu, as root. If nothing is missing, it does nothing and uses no network. It does not install
# Go; it fails if Go is missing or too old.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# A required file or command, and the package that provides it.
NEEDS=(
    "runc runc"
    "debootstrap debootstrap"
    "/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring"
    "/etc/ssl/certs/ca-certificates.crt ca-certificates"
    "ip iproute2"
    "ps procps"
    "make make"
    "git git"
    "xz xz-utils"
    "tar tar"
    "curl curl"
    "flock util-linux"
    "mount mount"
    "mkfs.ext4 e2fsprogs"
    "awk mawk"
    "find findutils"
)
[[ ${1:-} == --embedded ]] || NEEDS+=(
    "dockerd docker.io"
    "docker-registry docker-registry"
    "docker docker-cli"
    "containerd containerd"
    "ctr containerd"
    "gcc gcc"
    "/usr/include/stdlib.h libc6-dev"
    "nginx nginx-light"
    "caddy caddy"
    "node nodejs"
    "npm npm"
    "runsc runsc"
    "tmux tmux"
    "promtool prometheus"
    "chromium chromium"
)
[[ ${1:-} != --kubernetes ]] || NEEDS+=(
    "/usr/lib/cni/bridge containernetworking-plugins"
    "openssl openssl"
    "sysctl procps"
)
[[ ${1:-} != --host ]] || NEEDS+=("qemu-system-x86_64 qemu-system-x86")

missing() {
    local need what
    for need in "${NEEDS[@]}"; do
        what=${need%% *}
        if [[ $what == /* ]]; then
            [[ -e $what ]] || printf '%s\n' "${need#* }"
        else
            command -v "$what" >/dev/null 2>&1 || printf '%s\n' "${need#* }"
        fi
    done
}

# check_go fails unless the go command has at least the version in go.mod.
check_go() {
    local want have
    want=$(awk '$1 == "go" { print $2; exit }' "$ROOT/go.mod")
    command -v go >/dev/null 2>&1 || die "Go is not installed: install version $want or newer, see https://go.dev/doc/install"
    have=$(cd / && GOTOOLCHAIN=local go env GOVERSION) || die "$(command -v go) does not run"
    have=${have#go}
    have=${have%% *}
    printf '%s\n%s\n' "$want" "$have" | sort --check=quiet --version-sort && return 0
    # An older Go downloads the version in go.mod, if it is allowed to and can.
    (cd "$ROOT" && go list -m >/dev/null 2>&1) && return 0
    die "$(command -v go) is version $have: install $want or newer, see https://go.dev/doc/install"
}

# keep_services_down keeps packages from starting their services. engine.sh starts the test engine, and without
# systemd nothing would stop a service again.
keep_services_down() {
    [[ ! -d /run/systemd/system && ! -e /usr/sbin/policy-rc.d ]] || return 0
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 0755 /usr/sbin/policy-rc.d
}

apt() {
    DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Options::=--force-confold "$@" </dev/null >>"$log" 2>&1
}

install_packages() {
    apt install -y --no-install-recommends "$@" && return 0
    # Package lists are often absent or too old in a fresh image. Fetch them only when needed.
    apt update || say "apt-get update failed: trying with the lists it fetched"
    apt install -y --no-install-recommends "$@"
}

mapfile -t wanted < <(missing)
if ((${#wanted[@]} > 0)); then
    [[ ${1:-} != --check ]] || die "missing: ${wanted[*]}"
    command -v apt-get >/dev/null || die "apt-get not found: install by hand what these Debian packages provide: ${wanted[*]}"
    ((EUID == 0)) || die "must be root to install: ${wanted[*]} (run: sudo apt-get install ${wanted[*]})"
    log=$(mktemp -t orchestrator-apt.XXXXXX)
    keep_services_down
    # docker-cli is a separate package only in newer releases; in older ones docker.io contains it.
    mapfile -t first < <(printf '%s\n' "${wanted[@]}" | grep -vx docker-cli || printf '')
    say "installing: ${first[*]}"
    retry 3 install_packages "${first[@]}" || { tail -n 40 "$log" >&2; die "apt-get failed to install ${first[*]}; see $log"; }
    hash -r
    [[ ! " ${wanted[*]} " == *" docker-cli "* ]] || command -v docker >/dev/null || retry 3 install_packages docker-cli || { tail -n 40 "$log" >&2; die "apt-get failed to install docker-cli; see $log"; }
    mapfile -t wanted < <(missing)
    ((${#wanted[@]} == 0)) || die "still missing after the installation: ${wanted[*]}; see $log"
    rm -f "$log"
fi
check_go
