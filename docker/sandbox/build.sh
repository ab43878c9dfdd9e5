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
NAME=sandbox
source "$HERE/image.sh"
REGISTRY_BASE=debian:bookworm-slim
SUITE=${ORCHESTRATOR_IMAGE_SUITE:-bookworm}
MIRROR=${ORCHESTRATOR_IMAGE_MIRROR:-}

engine=

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

# key: the hash of all that decides about the content.
key() {
    {
        cat "$HERE/packages" "$HERE/setup.sh" "$HERE/entrypoint.sh" "$HERE/Dockerfile" "$HERE/build.sh" "$HERE/image.sh"
        printf '%s\n' "$SUITE" "$MIRROR" "$(architecture)"
    } | sha256sum | cut -c1-16
}

docker_() { DOCKER_BUILDKIT=0 docker --host "$engine" "$@"; }

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

key=$(key)
result=$CACHE/$NAME-$key${engine:+-docker}
if [[ -n $engine ]]; then make_image by_docker; else make_image by_debootstrap; fi
