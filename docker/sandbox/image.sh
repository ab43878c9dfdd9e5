# shellcheck shell=bash
# Functions shared by build.sh, which builds the sandbox image, and extend.sh, which builds images that extend it.
# Source it after lib.sh and set NAME to the image's name. Sourcing starts nothing.
KEEP_DAYS=14 # results of other versions that were unused for this time are removed
print=dir

architecture() { dpkg --print-architecture; }

clean_up() {
    local status=$?
    trap - EXIT
    [[ -z ${container:-} ]] || docker_ rm --force "$container" >/dev/null 2>&1 || :
    if [[ -n ${work:-} && -d $work ]]; then
        unmount_under "$work" && rm -rf --one-file-system "$work"
    fi
    exit "$status"
}

# remove_stale removes what a killed run left, and old results. The caller holds the lock.
remove_stale() {
    local left
    for left in "$CACHE"/tmp."$NAME".*; do
        [[ -d $left ]] || continue
        unmount_under "$left" && rm -rf --one-file-system "$left"
    done
    find "$CACHE" -mindepth 1 -maxdepth 1 -type d -name "$NAME-*" -mtime "+$KEEP_DAYS" \
        -exec rm -rf --one-file-system {} +
}

# tidy ROOT removes what depends on the build machine, and what a runtime covers with mounts.
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

# archive OUT packs rootfs/ as a docker-archive with one layer.
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
    printf '{"architecture":"%s","os":"linux","created":"1970-01-01T00:00:00Z","config":{"Env":["PATH=%s","LANG=C.UTF-8"],"Cmd":["/bin/bash"],"WorkingDir":"/workspace","Labels":{"orchestrator.%s.key":"%s"}},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"1970-01-01T00:00:00Z","created_by":"%s"}]}' \
        "$arch" /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$NAME" "$key" "$diff" "$(basename "$0")" >"$tree/config.json"
    config=$(sha256sum "$tree/config.json" | cut -d' ' -f1)
    mkdir "$tree/$diff"
    mv "$tree/layer.tar" "$tree/$diff/layer.tar"
    mv "$tree/config.json" "$tree/$config.json"
    printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":["%s/layer.tar"]}]' "$config" "orchestrator/$NAME:latest" "$diff" >"$tree/manifest.json"
    tar --numeric-owner --owner=0 --group=0 -C "$tree" -cf "$out/$NAME.tar" manifest.json "$config.json" "$diff"
    rm -rf "$tree"
}

show() {
    touch "$result"
    case $print in
    rootfs) printf '%s\n' "$result/rootfs" ;;
    archive) printf '%s\n' "$result/$NAME.tar" ;;
    *) printf '%s\n' "$result" ;;
    esac
}

# make_image HOW prints $result. If it does not exist, it first runs HOW, which must put the root into
# $work/out/rootfs and the name of its base into $work/out/source. One run at a time for each name.
make_image() {
    local started=$SECONDS
    if [[ -d $result ]]; then
        show
        return
    fi
    ((EUID == 0)) || die "must be root, because a root filesystem has files of several users (sudo $0)"
    mkdir -p "$CACHE"
    exec 8>"$CACHE/$NAME.lock"
    flock --nonblock 8 || { say "another build of the $NAME image is running; waiting for it"; flock 8; }
    if [[ ! -d $result ]]; then
        trap clean_up EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        remove_stale
        work=$(mktemp -d "$CACHE/tmp.$NAME.XXXXXX")
        chmod 0755 "$work"
        mkdir -m 0755 "$work/out"
        "$1"
        tidy "$work/out/rootfs"
        archive "$work/out"
        mv -T "$work/out" "$result"
        say "$NAME image made in $((SECONDS - started)) s: $result ($(cat "$result/source"))"
    fi
    show
}
