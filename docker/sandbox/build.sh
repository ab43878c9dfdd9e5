#!/usr/bin/env bash
# Makes the sandbox image, once, in the cache:
#
#     build.sh [--docker HOST] [--print-path | --print-archive]
#
# Without --docker no engine is needed: debootstrap makes the base from the distribution's archive. With it the
# engine at HOST (unix:///path or tcp://...) builds the Dockerfile; the base comes from a registry if one answers
# within seconds, and is the same debootstrap root, imported, if none does.
#
# Both ways end in a folder with
#     rootfs/       the unpacked root filesystem             (--print-path prints this path)
#     sandbox.tar   the same as a docker-archive for "docker load" and "orchestrator image import", named
#                   orchestrator/sandbox:latest              (--print-archive prints this path)
#     source        what the base was
# whose name carries a hash of everything it was made from; when it exists nothing is done. Everything else goes to
# stderr. ORCHESTRATOR_CACHE (default /var/cache/orchestrator), ORCHESTRATOR_IMAGE_SUITE (bookworm) and
# ORCHESTRATOR_IMAGE_MIRROR (the distribution's own archive, as debootstrap knows it) change where from and where to.
#
# Concurrent runs wait for each other. A run that is interrupted or fails leaves no mount and no half-made result.
# shellcheck source-path=SCRIPTDIR/../../integration/scripts
source "$(dirname "${BASH_SOURCE[0]}")/../../integration/scripts/lib.sh"

HERE=$ROOT/docker/sandbox
IMAGE=orchestrator/sandbox:latest
REGISTRY_BASE=debian:bookworm-slim
SUITE=${ORCHESTRATOR_IMAGE_SUITE:-bookworm}
MIRROR=${ORCHESTRATOR_IMAGE_MIRROR:-}
KEEP_DAYS=14 # results of other versions that nobody asked for in this time are removed

engine=
print=folder

usage() {
    sed -n '2,/^#$/s/^# \{0,1\}//p' "$0" >&2
    exit 64
}

while (($# > 0)); do
    case $1 in
    --docker) engine=${2:-}; [[ -n $engine ]] || usage; shift ;;
    --print-path) print=rootfs ;;
    --print-archive) print=archive ;;
    *) usage ;;
    esac
    shift
done

packages() { sed -e 's/#.*//' "$HERE/packages" | xargs; }

architecture() { dpkg --print-architecture; }

# key: the hash of all that decides about the content.
key() {
    {
        cat "$HERE/packages" "$HERE/setup.sh" "$HERE/entrypoint.sh" "$HERE/Dockerfile" "$HERE/build.sh"
        printf '%s\n' "$SUITE" "$MIRROR" "$(architecture)"
    } | sha256sum | cut -c1-16
}

docker_() { DOCKER_BUILDKIT=0 docker --host "$engine" "$@"; }

clean_up() {
    local status=$?
    trap - EXIT
    [[ -z ${container:-} ]] || docker_ rm --force "$container" >/dev/null 2>&1 || :
    if [[ -n ${work:-} && -d $work ]]; then
        unmount_under "$work" && rm -rf --one-file-system "$work"
    fi
    exit "$status"
}

# remove_stale: what a killed run has left; the lock says that no other one is at work.
remove_stale() {
    local left
    for left in "$CACHE"/tmp.sandbox.*; do
        [[ -d $left ]] || continue
        unmount_under "$left" && rm -rf --one-file-system "$left"
    done
    find "$CACHE" -mindepth 1 -maxdepth 1 -type d -name 'sandbox-*' -mtime "+$KEEP_DAYS" \
        -exec rm -rf --one-file-system {} +
}

debootstrap_base() {
    local root=$work/base keyring=/usr/share/keyrings/debian-archive-keyring.gpg include
    command -v debootstrap >/dev/null || die "debootstrap is missing: run integration/scripts/deps.sh, or apt-get install debootstrap"
    [[ -n $MIRROR || -r $keyring ]] || die "$keyring is missing: apt-get install debian-archive-keyring"
    include=$(packages | tr ' ' ',')
    mkdir -p "$CACHE/debs"
    unmount_under "$root" && rm -rf --one-file-system "$root"
    mkdir -m 0755 "$root"
    say "debootstrap: $SUITE from ${MIRROR:-the distribution}"
    if ! timeout --kill-after=10 600 debootstrap --variant=minbase --cache-dir="$CACHE/debs" --include="$include" \
        "$SUITE" "$root" ${MIRROR:+"$MIRROR"} >"$work/debootstrap.log" 2>&1; then
        tail -n 20 "$work/debootstrap.log" >&2
        [[ ! -f $root/debootstrap/debootstrap.log ]] || tail -n 20 "$root/debootstrap/debootstrap.log" >&2
        return 1
    fi
    unmount_under "$root"
}

# tidy ROOT: what depends on the machine the root was made on, and what a runtime mounts over anyway.
tidy() {
    local root=$1
    find "$root/dev" "$root/proc" "$root/sys" "$root/tmp" "$root/var/tmp" -mindepth 1 -delete
    find "$root/run" -mindepth 1 ! -path "$root/run/orchestrator" -delete
    rm -f "$root/.dockerenv" "$root/etc/resolv.conf" "$root/etc/hostname" "$root/etc/mtab"
    : >"$root/etc/resolv.conf"
    printf 'sandbox\n' >"$root/etc/hostname"
    printf '127.0.0.1 localhost sandbox\n::1 localhost\n' >"$root/etc/hosts"
    chmod 0644 "$root/etc/resolv.conf" "$root/etc/hostname" "$root/etc/hosts"
    rm -f "$root/etc/machine-id" "$root/var/lib/dbus/machine-id" "$root/var/cache/ldconfig/aux-cache"
    chmod 1777 "$root/tmp" "$root/var/tmp"
}

# by_debootstrap does by hand what the Dockerfile says.
by_debootstrap() {
    local root=$work/out/rootfs lib=/usr/local/lib/orchestrator
    retry 3 debootstrap_base || die "debootstrap did not work three times; is ${MIRROR:-the distribution} in reach? (ORCHESTRATOR_IMAGE_MIRROR names another)"
    mv "$work/base" "$root"
    mkdir -p "$root$lib"
    install -m 0644 "$HERE/packages" "$root$lib/packages"
    install -m 0755 "$HERE/setup.sh" "$root$lib/setup.sh"
    env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 chroot "$root" sh "$lib/setup.sh" "$lib/packages"
    rm "$root$lib/setup.sh"
    install -m 0755 "$HERE/entrypoint.sh" "$root$lib/entrypoint.sh"
    printf 'debootstrap %s\n' "$SUITE" >"$work/out/source"
}

# by_docker builds the Dockerfile and takes the root out again, so that both ways give the same kind of archive.
by_docker() {
    local base tag=orchestrator/sandbox:build-$key
    timeout 20 docker --host "$engine" version >/dev/null 2>&1 || die "the engine at $engine does not answer"
    if timeout 10 docker --host "$engine" pull --quiet "$REGISTRY_BASE" >/dev/null 2>&1; then
        base=$REGISTRY_BASE
    else
        base=orchestrator/sandbox-base:$key
        say "no registry answers; the base is the root that debootstrap makes"
        if [[ -d $CACHE/sandbox-$key/rootfs ]]; then
            tar --numeric-owner -C "$CACHE/sandbox-$key/rootfs" -c . | docker_ import - "$base" >/dev/null
        else
            retry 3 debootstrap_base || die "debootstrap did not work three times; is ${MIRROR:-the distribution} in reach?"
            tar --numeric-owner -C "$work/base" -c . | docker_ import - "$base" >/dev/null
        fi
    fi
    # The engine of the tests has no bridge; with the packages there already nothing is fetched.
    docker_ build --network host --build-arg "BASE=$base" --tag "$tag" "$HERE" >"$work/build.log" 2>&1 ||
        { tail -n 40 "$work/build.log" >&2; die "docker build did not work"; }
    container=$(docker_ create --network none "$tag" true)
    mkdir -p "$work/out/rootfs"
    docker_ export "$container" | tar --numeric-owner -C "$work/out/rootfs" -x
    docker_ rm --force "$container" >/dev/null
    container=
    docker_ rmi --force "$tag" >/dev/null
    [[ $base == "$REGISTRY_BASE" ]] || docker_ rmi --force "$base" >/dev/null
    printf '%s\n' "$base" >"$work/out/source"
}

# archive OUT: rootfs/ as a docker-archive with one layer.
archive() {
    local out=$1 tree=$work/archive diff config arch
    arch=$(architecture)
    case $arch in
    armhf) arch=arm ;;
    ppc64el) arch=ppc64le ;;
    i386) arch=386 ;;
    esac
    mkdir "$tree"
    tar --numeric-owner --sort=name --format=pax --pax-option=delete=atime,delete=ctime \
        -C "$out/rootfs" -cf "$tree/layer.tar" .
    diff=$(sha256sum "$tree/layer.tar" | cut -d' ' -f1)
    printf '{"architecture":"%s","os":"linux","created":"1970-01-01T00:00:00Z","config":{"Env":["PATH=%s","LANG=C.UTF-8"],"Cmd":["/bin/bash"],"WorkingDir":"/workspace","Labels":{"orchestrator.sandbox.key":"%s"}},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"1970-01-01T00:00:00Z","created_by":"docker/sandbox/build.sh"}]}' \
        "$arch" /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$key" "$diff" >"$tree/config.json"
    config=$(sha256sum "$tree/config.json" | cut -d' ' -f1)
    mkdir "$tree/$diff"
    mv "$tree/layer.tar" "$tree/$diff/layer.tar"
    mv "$tree/config.json" "$tree/$config.json"
    printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":["%s/layer.tar"]}]' "$config" "$IMAGE" "$diff" >"$tree/manifest.json"
    tar --numeric-owner --owner=0 --group=0 -C "$tree" -cf "$out/sandbox.tar" manifest.json "$config.json" "$diff"
    rm -rf "$tree"
}

show() {
    touch "$result"
    case $print in
    rootfs) printf '%s\n' "$result/rootfs" ;;
    archive) printf '%s\n' "$result/sandbox.tar" ;;
    *) printf '%s\n' "$result" ;;
    esac
}

key=$(key)
result=$CACHE/sandbox-$key${engine:+-docker}
if [[ -d $result ]]; then
    show
    exit 0
fi

((EUID == 0)) || die "must be root: a root filesystem has files of several users (sudo $0)"
mkdir -p "$CACHE"
exec 8>"$CACHE/sandbox.lock"
flock --nonblock 8 || { say "another build of the sandbox image is running; waiting for it"; flock 8; }
if [[ ! -d $result ]]; then
    started=$SECONDS
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    remove_stale
    work=$(mktemp -d "$CACHE/tmp.sandbox.XXXXXX")
    chmod 0755 "$work"
    mkdir -m 0755 "$work/out"
    if [[ -n $engine ]]; then by_docker; else by_debootstrap; fi
    tidy "$work/out/rootfs"
    archive "$work/out"
    mv -T "$work/out" "$result"
    say "sandbox image made in $((SECONDS - started)) s: $result ($(cat "$result/source"))"
fi
show
