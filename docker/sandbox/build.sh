#!/usr/bin/env bash
# Builds the sandbox image once, in the cache:
#
#     build.sh [--docker HOST] [--print-path | --print-archive]
#
# Without --docker, debootstrap makes the image from the distribution's archive, and no engine is needed. With it, the
# engine at HOST (unix:///path or tcp://...) builds the Dockerfile. Its base comes from a registry if one responds
# within seconds. Otherwise it is the root that debootstrap makes, imported.
#
# The result is a directory with
#     rootfs/       the unpacked root filesystem             (--print-path prints this path)
#     sandbox.tar   the same as a docker-archive for "docker load" and "orchestrator image import", named
#                   orchestrator/sandbox:latest              (--print-archive prints this path)
#     source        the base of the image
# Its name contains a hash of all inputs. If it exists, the script does nothing. Messages go to stderr.
#
#     ORCHESTRATOR_CACHE           directory of the results (default: /var/cache/orchestrator)
#     ORCHESTRATOR_IMAGE_SUITE     suite of the distribution (default: bookworm)
#     ORCHESTRATOR_IMAGE_MIRROR    archive of the distribution (default: debootstrap's)
#
# Concurrent runs wait for each other. An interrupted or failed run leaves no mount and no partial result.
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

# key prints the hash of all inputs.
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

# by_debootstrap runs the steps of the Dockerfile without an engine.
by_debootstrap() {
    local root=$work/out/rootfs lib=/usr/local/lib/orchestrator
    retry 3 debootstrap_base || die "debootstrap failed three times: check that ${MIRROR:-the distribution} is reachable, or set ORCHESTRATOR_IMAGE_MIRROR"
    mv "$work/base" "$root"
    mkdir -p "$root$lib"
    install -m 0644 "$HERE/packages" "$root$lib/packages"
    install -m 0755 "$HERE/setup.sh" "$root$lib/setup.sh"
    env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 chroot "$root" sh "$lib/setup.sh" "$lib/packages"
    rm "$root$lib/setup.sh"
    install -m 0755 "$HERE/entrypoint.sh" "$root$lib/entrypoint.sh"
    printf 'debootstrap %s\n' "$SUITE" >"$work/out/source"
}

# by_docker builds the Dockerfile and exports the root, so that both ways produce the same kind of archive.
by_docker() {
    local base tag=orchestrator/sandbox:build-$key
    timeout 20 docker --host "$engine" version >/dev/null 2>&1 || die "the engine at $engine does not respond"
    if timeout 10 docker --host "$engine" pull --quiet "$REGISTRY_BASE" >/dev/null 2>&1; then
        base=$REGISTRY_BASE
    else
        base=orchestrator/sandbox-base:$key
        say "no registry responds: using the root that debootstrap makes"
        if [[ -d $CACHE/sandbox-$key/rootfs ]]; then
            tar --numeric-owner -C "$CACHE/sandbox-$key/rootfs" -c . | docker_ import - "$base" >/dev/null
        else
            retry 3 debootstrap_base || die "debootstrap failed three times: check that ${MIRROR:-the distribution} is reachable"
            tar --numeric-owner -C "$work/base" -c . | docker_ import - "$base" >/dev/null
        fi
    fi
    # The tests' engine has no bridge. If the base has all packages, the build fetches nothing.
    docker_ build --network host --build-arg "BASE=$base" --tag "$tag" "$HERE" >"$work/build.log" 2>&1 ||
        { tail -n 40 "$work/build.log" >&2; die "docker build failed"; }
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
