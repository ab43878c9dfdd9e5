#!/usr/bin/env bash
# Runs the tests of the Kubernetes driver on a node of their own: the suite of all drivers, faults and the service on a
# node whose pods have no interface, and the tests of the network on one whose pods have. Run it by "make
# test-kubernetes", which builds the program first.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

NODE=$ROOT/integration/scripts/kubernetes.sh

# tests PATTERN PACKAGE... runs tests on the node as it is.
tests() {
    local pattern=$1 variables
    shift
    variables=$("$NODE" env)
    eval "$variables"
    go test -tags kubernetes -count=1 -timeout 30m -v -run "$pattern" "$@" || failed=yes
}

"$ROOT/integration/scripts/deps.sh" --kubernetes
cd "$ROOT"
ORCHESTRATOR_TEST_ROOTFS=$(docker/sandbox/build.sh --print-path)
ORCHESTRATOR_TEST_IMAGE_ARCHIVE=$(docker/sandbox/build.sh --print-archive)
ORCHESTRATOR_TEST_HELM=$("$NODE" helm)
export ORCHESTRATOR_TEST_ROOTFS ORCHESTRATOR_TEST_IMAGE_ARCHIVE ORCHESTRATOR_TEST_HELM
export ORCHESTRATOR_TEST_BIN=$ROOT/bin/orchestrator CGO_ENABLED=0
# Keep it short: tests put Unix sockets below it.
TMPDIR=$(mktemp -d /tmp/k.XXXX)
export TMPDIR
trap '"$NODE" down; rm -rf "$TMPDIR"' EXIT
failed=
"$NODE" down
"$NODE" up none >/dev/null
tests . ./runtime/kubernetes ./integration/kubernetes
"$NODE" down
"$NODE" up bridge >/dev/null
tests TestNetworkOfThePod ./runtime/kubernetes
[[ -z $failed ]]
