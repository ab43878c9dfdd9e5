#!/usr/bin/env bash
# Demonstrates tool calls in warm containers on the embedded runtime: installs what is missing, builds, makes the
# sandbox image, runs the calls and prints each result. Needs root, Go, and Debian or Ubuntu. Ctrl-C cleans up too.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

((EUID == 0)) || die "must be root: sandboxes need mounts, namespaces and cgroups (sudo make demo)"
cd "$ROOT"

# Ignore the configuration of a service installed on this machine.
while read -r name; do
    [[ $name == ORCHESTRATOR_CACHE || $name == ORCHESTRATOR_IMAGE_* ]] || unset "$name"
done < <(compgen -e ORCHESTRATOR_ || :)

integration/scripts/deps.sh --embedded
make --no-print-directory --silent build
archive=$(docker/sandbox/build.sh --print-archive)
CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/demo ./integration/demo
exec bin/demo -bin "$ROOT/bin/orchestrator" -image "$archive"
