#!/usr/bin/env bash
# Builds an image that extends the sandbox image once, in the cache:
#
#     extend.sh DIR [--print-path | --print-archive]
#
# DIR contains the list "packages" and, optionally, a setup.sh. The script installs the packages, copies DIR into the
# root, runs setup.sh in the copy and removes the copy. The image is named orchestrator/NAME:latest, where NAME is the
# name of DIR. No engine is needed. For the result and the environment variables, see build.sh. In addition,
# ORCHESTRATOR_IMAGE_SECURITY is the archive of security updates.
# shellcheck source-path=SCRIPTDIR/../../integration/scripts
source "$(dirname "${BASH_SOURCE[0]}")/../../integration/scripts/lib.sh"

SANDBOX=$ROOT/docker/sandbox
SECURITY=${ORCHESTRATOR_IMAGE_SECURITY:-http://deb.debian.org/debian-security}
[[ -r ${1:-}/packages ]] || die "usage: extend.sh DIR [--print-path | --print-archive]; DIR must contain a file \"packages\""
DIR=$(cd "$1" && pwd)
NAME=$(basename "$DIR")
# shellcheck source-path=SCRIPTDIR
source "$SANDBOX/image.sh"
case ${2:-} in
--print-path) print=rootfs ;;
--print-archive) print=archive ;;
'') ;;
*) die "unknown option $2: use --print-path or --print-archive" ;;
esac

# install_in ROOT runs apt and the scripts in the root, with the host's network, names and proxies.
install_in() {
    local root=$1 lib=/usr/local/lib/orchestrator file
    for file in /etc/resolv.conf /etc/hosts; do
        cp --remove-destination -L "$file" "$root$file"
    done
    mknod -m 0666 "$root/dev/null" c 1 3
    mknod -m 0666 "$root/dev/urandom" c 1 9
    cp -R "$DIR" "$root$lib/make"
    for file in "$SANDBOX/setup.sh" "$SANDBOX/security.sh"; do
        install -m 0755 "$file" "$root$lib/make.$(basename "$file")"
    done
    inside "$root" sh "$lib/make.security.sh" "$SECURITY"
    inside "$root" sh "$lib/make.setup.sh" "$lib/make/packages"
    [[ ! -r $DIR/setup.sh ]] || inside "$root" sh -c "cd $lib/make && exec sh setup.sh"
    install -m 0644 "$DIR/packages" "$root$lib/packages.$NAME"
    rm -r "$root$lib/make" "$root$lib/make.setup.sh" "$root$lib/make.security.sh"
}

inside() {
    local root=$1 log=$work/setup.log
    shift
    env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
        timeout --kill-after=10 900 chroot "$root" "$@" >>"$log" 2>&1 ||
        { tail -n 40 "$log" >&2; die "$* failed in the root of $NAME"; }
}

on_sandbox() {
    cp -a "$base" "$work/out/rootfs"
    install_in "$work/out/rootfs"
    printf '%s\n' "$(basename "$(dirname "$base")")" >"$work/out/source"
}

base=$("$SANDBOX/build.sh" --print-path)
key=$({
    (cd "$DIR" && find . -type f | sort | xargs cat)
    cat "$SANDBOX/extend.sh" "$SANDBOX/security.sh"
    printf '%s\n' "$(basename "$(dirname "$base")")" "$SECURITY"
} | sha256sum | cut -c1-16)
result=$CACHE/$NAME-$key
make_image on_sandbox
