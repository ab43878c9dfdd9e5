#!/usr/bin/env bash
# Installs, checks, upgrades, removes and purges build/package/*.deb in a copy of the sandbox image's Debian root, and
# checks what the .rpm has. Run "make package" first. It needs root. Nothing is left: the copy is an overlay on a tmpfs in
# a mount namespace of this script.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

((EUID == 0)) || die "must be root: packages are installed in a chroot"
if [[ ${1:-} != --inside ]]; then
    rootfs=$(docker/sandbox/build.sh --print-path)
    exec unshare --mount --propagation private "${BASH_SOURCE[0]}" --inside "$rootfs"
fi
cd "$ROOT"
debs=(build/package/*.deb)
rpms=(build/package/*.rpm)
[[ -f ${debs[0]} && ${#debs[@]} == 1 && -f ${rpms[0]} && ${#rpms[@]} == 1 ]] || die "run make package first"

work=/mnt
mount -t tmpfs -o size=1g,mode=0755 package-test $work
mkdir $work/{upper,work,root}
mount -t overlay -o "lowerdir=$2,upperdir=$work/upper,workdir=$work/work" package-test $work/root
root=$work/root
cp "${debs[0]}" $root/package.deb

inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot $root "$@"; }

# files lists everything that a package could leave. dpkg itself writes the excluded ones.
files() {
    (cd $root && find . -xdev ! -path './var/lib/dpkg*' ! -path './var/log/*' ! -path './var/cache/*' ! -path './tmp/*' \
        ! -name '.pwd.lock' | sort)
}

# has fails unless a path has the mode and owner.
has() {
    local got
    got=$(stat -c '%a %U:%G' "$root$1") || die "$1 is missing"
    [[ $got == "$2" ]] || die "$1 is $got, want $2"
}

files >$work/before
cp $root/etc/group $work/group
inside dpkg --install /package.deb
has /usr/bin/orchestrator '755 root:root'
has /usr/lib/systemd/system/orchestrator.service '644 root:root'
has /usr/lib/sysusers.d/orchestrator.conf '644 root:root'
has /usr/lib/tmpfiles.d/orchestrator.conf '644 root:root'
has /etc/orchestrator/orchestrator.yaml '644 root:root'
has /usr/share/bash-completion/completions/orchestrator '644 root:root'
has /usr/share/zsh/vendor-completions/_orchestrator '644 root:root'
has /usr/share/fish/vendor_completions.d/orchestrator.fish '644 root:root'
has /usr/share/doc/orchestrator/copyright '644 root:root'
has /usr/share/man/man1/orchestrator-sandbox-create.1.gz '644 root:root'
gzip --test $root/usr/share/man/man1/orchestrator*.1.gz
inside orchestrator version >/dev/null
inside orchestrator config check /etc/orchestrator/orchestrator.yaml
cmp <(inside orchestrator config) $root/etc/orchestrator/orchestrator.yaml
[[ -z $(inside dpkg --verify orchestrator) ]] || die "dpkg --verify finds changed files"
grep -q '^ExecStart=/usr/bin/orchestrator serve$' $root/usr/lib/systemd/system/orchestrator.service
grep -q '^Environment=ORCHESTRATOR_CONFIG=/etc/orchestrator/orchestrator.yaml$' \
    $root/usr/lib/systemd/system/orchestrator.service
if command -v systemd-analyze >/dev/null; then
    complaints=$(systemd-analyze verify --root=$root --man=no orchestrator.service 2>&1 | grep "orchestrator.service:[0-9]" || :)
    [[ -z $complaints ]] || die "$complaints"
fi

# An upgrade keeps what an administrator changed, and the state.
printf 'log: {level: warn}\n' >>$root/etc/orchestrator/orchestrator.yaml
mkdir -p $root/var/lib/orchestrator
printf 'kept\n' >$root/var/lib/orchestrator/state
inside dpkg --install --force-confold /package.deb
grep -q 'level: warn' $root/etc/orchestrator/orchestrator.yaml || die "the upgrade replaced the configuration"
[[ -e $root/var/lib/orchestrator/state ]] || die "the upgrade removed the state"

inside dpkg --remove orchestrator
[[ ! -e $root/usr/bin/orchestrator ]] || die "remove left the program"
[[ -e $root/etc/orchestrator/orchestrator.yaml && -e $root/var/lib/orchestrator/state ]] ||
    die "remove deleted the configuration or the state"
printf 'X=1\n' >$root/etc/default/orchestrator
inside dpkg --purge orchestrator
files >$work/after
diff $work/before $work/after || die "purge left the files above"
say "deb: ok"

# rpm: names and modes.
(cd deploy/package && GOFLAGS='' go run ./rpmlist "$ROOT/${rpms[0]}") >$work/rpm
for line in '0755 /usr/bin/orchestrator' '0644 /usr/lib/systemd/system/orchestrator.service' \
    '0644 /etc/orchestrator/orchestrator.yaml config,noreplace' '0644 /usr/lib/sysusers.d/orchestrator.conf' \
    '0644 /usr/lib/tmpfiles.d/orchestrator.conf' '0644 /usr/share/man/man1/orchestrator-serve.1.gz'; do
    grep -qxF -- "$line" $work/rpm || { cat $work/rpm >&2; die "the rpm lacks: $line"; }
done
say "rpm: ok"
