#!/usr/bin/env bash
# Installs what "make demo" and "make test" need and this machine has not, from the distribution's packages:
#
#     deps.sh [--check|--embedded]
#
# --check installs nothing and fails if something is missing; --embedded leaves out what only tests with a Docker
# Engine and the race detector need.
#
# For Debian and Ubuntu, as root. Where everything is there it does nothing and uses no network. It does not install
# Go: it says what is wrong with the one it finds.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# A file or command that must be there, and the package that brings it.
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
    "npm npm"
    "runsc runsc"
    "tmux tmux"
)

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

# check_go: the go command must be at least what go.mod asks for.
check_go() {
    local want have
    want=$(awk '$1 == "go" { print $2; exit }' "$ROOT/go.mod")
    command -v go >/dev/null 2>&1 || die "Go is not installed: version $want or newer is needed, see https://go.dev/doc/install"
    have=$(cd / && GOTOOLCHAIN=local go env GOVERSION) || die "$(command -v go) does not run"
    have=${have#go}
    have=${have%% *}
    printf '%s\n%s\n' "$want" "$have" | sort --check=quiet --version-sort && return 0
    # An older Go fetches the version that go.mod names, if it may and can.
    (cd "$ROOT" && go list -m >/dev/null 2>&1) && return 0
    die "Go $want or newer is needed; $(command -v go) is $have. See https://go.dev/doc/install"
}

# keep_services_down: packages start the services they bring. The engine of the tests is started by hand
# (engine.sh), and where there is no systemd nobody else would stop the service again.
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
    # Lists are often absent or too old in a fresh image; they are fetched only when needed.
    apt update || say "apt-get update had errors; trying with what it got"
    apt install -y --no-install-recommends "$@"
}

mapfile -t wanted < <(missing)
if ((${#wanted[@]} > 0)); then
    [[ ${1:-} != --check ]] || die "missing: ${wanted[*]}"
    command -v apt-get >/dev/null || die "this is not Debian or Ubuntu (no apt-get). Install by hand what these packages bring: ${wanted[*]}"
    ((EUID == 0)) || die "must be root to install: ${wanted[*]} (run: sudo apt-get install ${wanted[*]})"
    log=$(mktemp -t orchestrator-apt.XXXXXX)
    keep_services_down
    # docker-cli is a package of its own only in newer releases; in the others docker.io has it.
    mapfile -t first < <(printf '%s\n' "${wanted[@]}" | grep -vx docker-cli || printf '')
    say "installing: ${first[*]}"
    retry 3 install_packages "${first[@]}" || { tail -n 40 "$log" >&2; die "apt-get could not install: ${first[*]} (log: $log)"; }
    hash -r
    [[ ! " ${wanted[*]} " == *" docker-cli "* ]] || command -v docker >/dev/null || retry 3 install_packages docker-cli || { tail -n 40 "$log" >&2; die "apt-get could not install docker-cli (log: $log)"; }
    mapfile -t wanted < <(missing)
    ((${#wanted[@]} == 0)) || die "still missing after the installation: ${wanted[*]} (log: $log)"
    rm -f "$log"
fi
check_go
