#!/usr/bin/env bash
# Runs the product and its tests in the virtual machine of host.sh:
#
#     host-test.sh smoke    the demo, and on each driver kills, caps, adoption and leftovers (default)
#     host-test.sh full     the whole driver suite, the fault points of the embedded driver, scenarios, systemd,
#                           the Debian package, refusals
#     host-test.sh PART...  these parts of host-job.sh
#
# The last line is "N passed, N failed". Complete output is in build/logs/host.full.log. It needs root.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-smoke} in
smoke | full) (($# < 2)) || die "$1 takes no further parts: name the single parts instead" ;;
esac
case ${1:-smoke} in
smoke) parts=(demo some-oci-runc some-oci-crun some-docker some-containerd kills) ;;
full)
    parts=(demo oci-runc oci-crun oci-userns docker-local docker-stdio containerd oci-faults scenarios systemd package
        refusals)
    export ORCHESTRATOR_HOST_SECONDS="${ORCHESTRATOR_HOST_SECONDS:-14400}" # the processor is emulated
    ;;
*) parts=("$@") ;;
esac
((EUID == 0)) || die "must be root: the disk of the machine is made with chroot (sudo make test-host)"
LOG=$ROOT/build/logs/host.full.log

export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath -buildvcs=false"
cd "$ROOT"
"$ROOT/integration/scripts/deps.sh" --host
make --no-print-directory package build-faults
image=$(docker/sandbox/build.sh)
mkdir -p "$(dirname "$LOG")"
job=$(mktemp -d "${TMPDIR:-/tmp}/job.XXXXXX")
trap 'rm -rf --one-file-system "$job"' EXIT
cp bin/orchestrator bin/orchestrator-faults bin/guest "$job"
cp "$image/sandbox.tar" "$job"
cp -a "$image/rootfs" "$job/rootfs"
go build -o "$job/demo" ./integration/demo
for package in integration/conformance runtime/oci integration/scenarios; do
    go test -c -vet=off -ldflags='-s -w' -tags integration,faults -o "$job/${package//\//-}.test" "./$package"
    mkdir -p "$job/src/$package"
    [[ ! -d $package/testdata ]] || cp -a "$package/testdata" "$job/src/$package/"
done
install -m 0755 integration/scripts/host-job.sh "$job/run"
install -m 0755 integration/scripts/host-service.sh "$job/service.sh"
install -m 0755 integration/scripts/host-package.sh "$job/package.sh"
cp build/package/*.deb "$job"
install -m 0755 integration/scripts/host-refusals.sh "$job/refusals.sh"
cp deploy/systemd/orchestrator.service "$job"
printf '%s\n' "${parts[*]}" >"$job/parts"

status=0
integration/scripts/host.sh run "$job" 2>&1 | tee "$LOG" | awk '
    /^=== / { print; fflush() }
    / *--- PASS: / { passed++ }
    / *--- (FAIL|SKIP): / { print; fflush() }
    / *--- FAIL: / { failed++ }
    / *--- SKIP: / { skipped++ }
    /^phase .*: failed|^the machine (failed|did not end in time)/ { print; broken++ }
    END {
        if (broken > 0 && failed == 0) failed = broken
        if (passed == 0) { print "no tests ran"; failed++ }
        printf "%d skipped\n%d passed, %d failed\n", skipped, passed, failed
        exit failed > 0
    }' || status=$?
((status == 0)) || { say "last lines of $LOG:"; tail -n 60 "$LOG" >&2; }
exit "$status"
