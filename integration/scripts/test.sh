#!/usr/bin/env bash
# Runs the tests: without arguments all steps, otherwise the named steps and the steps they need.
#
#     test.sh [check | deps | lint | build | image | engine | containerd | unit | fuzz | conformance | integration | kubernetes | host | left | bench | soak]...
#     test.sh env      starts the engine, makes the image, prints the tests' variables for "eval", and keeps the engine running
#
# Complete logs are in build/logs/. The script repeats failures at the end, and the last line is
# "N passed, N failed". A run of all steps stops the engine at the end. A run of some steps keeps an engine that
# was already running. A second run waits for the first. A run of all steps builds the Kubernetes node in the background,
# and tests on it beside other steps. It leaves these tests out if the build takes too long, and says so at the end. With
# CI=true it waits for the build.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ALL=(deps build image lint engine containerd unit fuzz conformance integration kubernetes left)
# Steps that the step kubernetes can run beside: they change nothing that it uses, and it nothing of theirs. The linter's
# mount namespace holds mounts of the tests. A soak in step integration counts what is on the host.
BESIDE=" engine containerd unit fuzz conformance "
GOLANGCI_VERSION=v2.12.2
FUZZ_TIME=2s
LEFT_SECONDS=60 # time for processes that end after their test
BUILD_SECONDS=2100 # from the start of the run
TAIL=80

LOGS=$ROOT/build/logs
SCRIPTS=$ROOT/integration/scripts
NODE=$SCRIPTS/kubernetes.sh
NODE_MARK=$TEST_STATE/kubernetes.run # exists while the node is of a run of this script
BUILD_SANDBOX=$ROOT/docker/sandbox/build.sh
EXTEND_SANDBOX=$ROOT/docker/sandbox/extend.sh

cd "$ROOT"
# Every step compiles with the flags of the Makefile, so that each package is compiled once, and once for
# all checkouts: without -trimpath, its directory is part of the cache key. Only the race detector needs cgo.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath -buildvcs=false"

declare -A result=() # step → ok, failed or "not run"

# needs STEP prints the steps that must succeed before it.
needs() {
    case $1 in
    engine | containerd | lint | build | image) echo deps ;;
    unit | fuzz | kubernetes) echo deps build ;;
    conformance | integration | bench | soak) echo deps build image engine containerd ;;
    check) echo build ;;
    esac
}

step_deps() { "$SCRIPTS/deps.sh" --kubernetes; }

step_build() {
    make --no-print-directory build build-faults
    "$ROOT/bin/orchestrator" version
}

# step_image makes the image and checks with the engine that the Dockerfile produces the same one.
step_image() {
    local rootfs other
    rootfs=$("$BUILD_SANDBOX" --print-path)
    say "$rootfs"
    "$SCRIPTS/engine.sh" up >/dev/null
    other=$("$BUILD_SANDBOX" --docker "$ENGINE_HOST" --print-path)
    if [[ $(<"${other%/rootfs}/source") == orchestrator/sandbox-base:* ]]; then
        diff <(listing "$rootfs") <(listing "$other") || die "the Dockerfile and debootstrap produce different images"
    fi
    "$EXTEND_SANDBOX" docker/browser
    "$EXTEND_SANDBOX" integration/images/clients
}

listing() { (cd "$1" && find . -printf '%p %y %m %U %G %l\n' | sort); }

step_engine() {
    local archive have key
    "$SCRIPTS/engine.sh" up
    archive=$("$BUILD_SANDBOX" --print-archive)
    key=$(basename "$(dirname "$archive")")
    have=$(docker --host "$ENGINE_HOST" image inspect --format '{{index .Config.Labels "orchestrator.sandbox.key"}}' \
        orchestrator/sandbox:latest 2>/dev/null || :)
    [[ sandbox-$have == "$key" ]] || docker --host "$ENGINE_HOST" load --input "$archive"
}

step_containerd() { "$SCRIPTS/containerd.sh" up; }

step_lint() {
    local unformatted tags script
    unformatted=$(gofmt -l .)
    [[ -z $unformatted ]] || { printf 'gofmt would change:\n%s\n' "$unformatted"; return 1; }
    go mod verify
    for tags in '' integration faults integration,faults kubernetes; do
        say "go vet -tags '$tags'"
        go vet -tags "$tags" ./...
    done
    say "other systems"
    other_systems
    say "dashboard"
    "$ROOT/internal/ui/web/build.sh" --check
    while read -r script; do
        bash -n "$script"
    done < <(find . -path ./.git -prune -o -path ./build -prune -o \( -name '*.sh' -o -path './.ci/*' \) -type f -print)
    say "readability"
    go run ./integration/scripts/readability
    say "golangci-lint $GOLANGCI_VERSION"
    golangci ./...
}

# golangci PACKAGE... runs golangci-lint. Its cache holds paths of files, and entries of another checkout fail a run.
# So root gives every checkout the same path in a mount namespace, and all checkouts share one cache.
golangci() {
    local program place=$CACHE/lint/checkout command
    program=$(linter)
    command=("$program" run --allow-parallel-runners --timeout 15m --build-tags integration,faults "$@")
    if ((EUID == 0)) && mkdir -p "$place" && unshare --mount mount --bind "$ROOT" "$place" 2>/dev/null; then
        # shellcheck disable=SC2016 # expanded by the inner shell
        GOLANGCI_LINT_CACHE=$CACHE/lint/cache unshare --mount bash -c \
            'mount --bind "$1" "$2" && cd "$2" && shift 2 && exec "$@"' bash "$ROOT" "$place" "${command[@]}"
        return
    fi
    GOLANGCI_LINT_CACHE=$ROOT/build/lint-cache "${command[@]}"
}

# other_systems compiles the client for macOS and Windows, and everything for Linux on arm64. It links nothing. Go caches
# the results: this takes seconds if little has changed, and minutes the first time.
other_systems() {
    GOOS=darwin GOARCH=arm64 go list -export -deps ./cmd/orchestrator >/dev/null
    GOOS=windows GOARCH=amd64 go list -export -deps ./cmd/orchestrator >/dev/null
    GOOS=linux GOARCH=arm64 go list -export -deps ./cmd/... >/dev/null
}

# linter prints the path of golangci-lint. If the cache has none, it builds one from the module proxy.
linter() {
    local path new
    path=$CACHE/tools/golangci-lint-$GOLANGCI_VERSION-$(cd / && go env GOVERSION GOARCH | xargs | tr ' ' '-')
    if [[ ! -x $path ]]; then
        say "building golangci-lint (once; about two minutes)"
        mkdir -p "$CACHE/tools"
        new=$(mktemp -d "$CACHE/tools/tmp.XXXXXX")
        if ! (cd / && retry 3 env GOFLAGS= CGO_ENABLED=0 GOBIN="$new" timeout 900 \
            go install -ldflags '-s -w' "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$GOLANGCI_VERSION" \
            >"$LOGS/golangci-build.log" 2>&1); then
            rm -rf "$new"
            tail -n 20 "$LOGS/golangci-build.log" >&2
            die "cannot build golangci-lint from the Go module proxy ($(cd / && go env GOPROXY)): check the network or put a $GOLANGCI_VERSION binary at $path"
        fi
        mv -T "$new/golangci-lint" "$path"
        rm -rf "$new"
    fi
    printf '%s\n' "$path"
}

# go_test STEP ARGUMENT... runs go test, formats its output and counts the results. It fails if no test ran. It skips vet,
# which step lint runs, and debug information, which takes half of the link time.
go_test() {
    local name=$1 status passed failed
    shift
    set +e
    go test -json -vet=off -ldflags='-s -w' "$@" 2>&1 | awk -v LOG="$LOGS/$name.full.log" -v COUNTS="$LOGS/$name.counts" -f "$SCRIPTS/testjson.awk"
    status=${PIPESTATUS[0]}
    set -e
    read -r passed failed _ <"$LOGS/$name.counts"
    ((status == 0 && failed == 0)) || { say "go test $*: $passed passed, $failed failed"; return 1; }
    ((passed > 0)) || die "go test $*: no tests ran"
}

# packages TAGS PATTERN... prints the matching packages. It fails for a pattern that matches none.
packages() {
    local tags=$1 pattern found
    shift
    for pattern in "$@"; do
        found=$(go list -tags "$tags" "$pattern")
        [[ -n $found ]] || die "no packages match $pattern"
        printf '%s\n' "$found"
    done
}

# step_check is the quick development loop: it checks format, vet and lint of what changed since main,
# and runs the unit tests without the race detector. Go caches the results of unchanged tests.
step_check() {
    local base changed packages=()
    [[ -z $(gofmt -l .) ]] || { gofmt -d . | head -n 40; return 1; }
    base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
    changed=$( (git diff --name-only --diff-filter=d "$base" -- '*.go'; git ls-files --others --exclude-standard -- '*.go') |
        { grep -v /testdata/ || :; } | xargs -r -n1 dirname | sort -u)
    while read -r dir; do [[ -z $dir ]] || packages+=("./$dir"); done <<<"$changed"
    go run ./integration/scripts/readability
    if ((${#packages[@]} > 0)); then
        go vet -tags integration,faults "${packages[@]}"
        golangci "${packages[@]}"
    fi
    go test -vet=off ./...
}

# step_unit tests more packages at once than there are cores, because tests wait a third of the time. By default, a
# program with the race detector sleeps for a second at exit, and so do its children.
step_unit() { CGO_ENABLED=1 GORACE=atexit_sleep_ms=100 go_test unit -race -count=1 -p 3 -timeout 20m ./...; }

step_conformance() {
    local list
    list=$(packages integration,faults ./integration/conformance/... ./runtime/...)
    # shellcheck disable=SC2086 # a list
    go_test conformance -tags integration,faults -count=1 -p 1 -timeout 40m $list
}

# step_integration tests ./integration without the conformance suite, and every other package with a tagged test, so that
# none is forgotten. Parallel tests mostly wait. Packages run one at a time, because a soak counts what is on the host,
# which another package would change.
step_integration() {
    local list
    list=$(
        packages integration,faults ./integration/... | grep -v '/integration/conformance'
        grep -rlE --include='*_test.go' '^//go:build .*(integration|faults)' . | xargs -r -n1 dirname | sort -u |
            { grep -vE '^\./(integration|runtime)(/|$)' || :; } | xargs -r go list -tags integration,faults
    )
    [[ -n $list ]] || die "no integration tests found"
    # shellcheck disable=SC2046,SC2086 # a list
    go_test integration -tags integration,faults -count=1 -p 1 -parallel 4 -timeout 40m $(sort -u <<<"$list")
}

# step_kubernetes tests the driver, the service and the chart on a node. Docker and containerd keep running: they are
# idle, and step left asks them.
step_kubernetes() {
    local status=0
    while [[ -n $builder ]] && kill -0 "$builder" 2>/dev/null; do
        sleep 1
        [[ ${CI:-} != true ]] && ((SECONDS > BUILD_SECONDS)) || continue
        echo "left out: the Kubernetes tests, because the node was not built in $((BUILD_SECONDS / 60)) minutes: run make test-kubernetes" |
            tee "$LOGS/kubernetes.left-out"
        echo 0 0 0 >"$LOGS/kubernetes.counts"
        return 0
    done
    [[ ! -s $LOGS/kubernetes-build.log ]] || cat "$LOGS/kubernetes-build.log"
    # These repeat a build that failed, which is quick, and print its error.
    "$NODE" build >/dev/null
    sandbox_environment
    refuse_other_node
    : >"$NODE_MARK"
    (kubernetes_tests) || status=1
    "$NODE" down
    rm "$NODE_MARK"
    return "$status"
}

# kubernetes_tests runs on a new node. The tests mostly wait for pods, so more of them run at once than there are cores.
kubernetes_tests() {
    local variables status=0 name && export ORCHESTRATOR_TEST_HELM
    ORCHESTRATOR_TEST_HELM=$("$NODE" helm) && "$NODE" up && "$NODE" load "$ORCHESTRATOR_TEST_IMAGE_ARCHIVE" &&
        "$NODE" agent-sandbox &&
        variables=$("$NODE" env) || return 1
    eval "$variables"
    # Class gvisor needs a node of its own: kubernetes.sh up gvisor.
    go_test kubernetes -tags kubernetes -count=1 -p 2 -parallel 4 -timeout 15m \
        -skip '^(TestNode.*|TestGVisorSuite|TestRuntimeClassThatIsNotGVisorIsRefused)$' \
        ./runtime/kubernetes ./integration/kubernetes || status=1
    # These kill and stop parts of the node, so nothing else runs at the same time.
    name=kubernetes-faults
    go_test "$name" -tags kubernetes -count=1 -timeout 15m -run '^TestNode' ./runtime/kubernetes || status=1
    awk '{ passed += $1; failed += $2; skipped += $3 } END { print passed, failed, skipped }' \
        "$LOGS/kubernetes.counts" "$LOGS/$name.counts" >"$LOGS/kubernetes.sum"
    mv "$LOGS/kubernetes.sum" "$LOGS/kubernetes.counts"
    rm "$LOGS/$name.counts"
    return "$status"
}

# build_node builds the node's programs and Helm in the background, in a process group that finish can kill.
build_node() {
    setsid nice -n 19 bash -c '"$0" build && "$0" helm' "$NODE" </dev/null >"$LOGS/kubernetes-build.log" 2>&1 7>&- &
    builder=$!
}

# refuse_other_node fails if a node runs that no run of this script has started.
refuse_other_node() {
    [[ -e $NODE_MARK || $("$NODE" left) != *"process k8snode"* ]] ||
        die "a Kubernetes node runs that was started by hand: stop it with integration/scripts/kubernetes.sh down"
}

# step_bench measures Kubernetes too if a node is up.
step_bench() {
    local variables
    if "$NODE" status >/dev/null; then
        "$NODE" load "$ORCHESTRATOR_TEST_IMAGE_ARCHIVE"
        variables=$("$NODE" env)
        eval "$variables"
    fi
    go run -tags integration ./integration/bench
}

# step_host runs the smoke test of a virtual machine with Debian 13. It is no part of a run of all steps, which it would
# make longer than intended.
step_host() {
    local status=0
    "$SCRIPTS/host-test.sh" smoke | tee "$LOGS/host-counts.log" || status=1
    sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2 0/p' "$LOGS/host-counts.log" | tail -n 1 >"$LOGS/host.counts"
    return "$status"
}

step_soak() {
    go test -tags integration -count=1 -timeout 90m -v ./integration/soak -args -calls 2000 -leases 200 -write "$ROOT/docs/soak.md"
}

step_fuzz() {
    local dirs
    dirs=$(grep -rlE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | xargs -r -n1 dirname | sort -u)
    [[ -n $dirs ]] || die "no fuzz targets found"
    rm -f "$LOGS"/fuzz-*.log
    # Two packages at once with one worker each: much of a target's time is spent starting its program.
    export LOGS FUZZ_TIME
    export -f say fuzz_package fuzz only_deadline
    xargs -n1 -P2 bash -c 'fuzz_package "$0"' <<<"$dirs"
    printf '%d 0 0\n' "$(find "$LOGS" -name 'fuzz-*.log' | wc -l)" >"$LOGS/fuzz.counts"
}

# fuzz_package DIR fuzzes the package's targets with one test binary: one per target took longer to link than to fuzz.
fuzz_package() {
    local program target
    set -Eeuo pipefail
    program=$(mktemp "$TMPDIR/fuzz.XXXXXX")
    go test -c -vet=off -ldflags='-s -w' -fuzz . -o "$program" "$1"
    for target in $(grep -ohE '^func Fuzz[A-Za-z0-9_]+' "$1"/*_test.go | sed 's/func //' | sort); do
        fuzz "$1" "$program" "$target" || { rm -f "$program"; exit 1; }
    done
    rm -f "$program"
}

# fuzz DIR PROGRAM TARGET fuzzes one target for FUZZ_TIME. Go sometimes reports a worker interrupted at the deadline as
# a failure, with only "context deadline exceeded" and no failing input. Only that failure is retried.
fuzz() {
    local out try
    out=$LOGS/fuzz-$(basename "$1")-$3.log
    for try in 1 2; do
        if (cd "$1" && "$2" -test.run '^$' -test.fuzz "^$3\$" -test.fuzztime "$FUZZ_TIME" -test.fuzzminimizetime 1s -test.parallel 1 \
            -test.timeout 5m -test.fuzzcachedir "$(go env GOCACHE)/fuzz/${1#./}") >"$out" 2>&1; then
            say "fuzz $1 $3: $(tail -n 1 "$out")"
            return 0
        fi
        if ((try == 2)) || ! only_deadline "$out"; then break; fi
        say "fuzz $1 $3: worker interrupted at the deadline; retrying"
    done
    say "fuzz $1 $3 failed"
    cat "$out"
    return 1
}

only_deadline() {
    ! grep -qE 'Failing input written|panic:|DATA RACE|fatal error:' "$1" &&
        [[ $(sed -n '/^--- FAIL: Fuzz/,/^FAIL$/{/^--- FAIL/d;/^FAIL$/d;s/^ *//;/^$/d;p}' "$1") == 'context deadline exceeded' ]]
}

# left_now prints the mounts, cgroups, processes, files and containers that may be the tests', one per line.
left_now() {
    local proc exe start at
    for at in "$TMPDIR" "$TEST_STATE"; do
        mounts_under "$at" | { grep -vE "^($ENGINE_DIR|$CONTAINERD_DIR)/" || :; } | sed 's/^/mount /'
    done
    find /sys/fs/cgroup -type d \( -name 'orchestrator-*' -o -path '*/orchestrator/*' -o -path "*/$ENGINE_CGROUP/*" \) \
        ! -name "$ENGINE_CGROUP" -printf 'cgroup %p\n' 2>/dev/null || :
    while read -r proc exe; do
        case ${exe% (deleted)} in
        "$ROOT/bin/"* | "$TMPDIR"/* | */run/orchestrator/guest | */guest/*/guest | /guest) ;;
        *) continue ;;
        esac
        start=$(sed 's/^.*) //' "$proc/stat" 2>/dev/null | cut -d' ' -f20) || continue
        printf 'process %s started %s %s\n' "${proc#/proc/}" "$start" "$exe"
    done < <(executables)
    find "$TMPDIR" -mindepth 1 -maxdepth 1 ! -name 'go-build*' -printf 'file %p\n'
    find /run /var/lib /dev/shm /tmp -mindepth 1 -maxdepth 1 -name 'orchestrator*' ! -path "$TEST_STATE" -printf 'file %p\n'
    if docker_is_up; then
        docker --host "$ENGINE_HOST" ps --all --format 'container {{.ID}} {{.Names}} {{.Image}} {{.Labels}}'
        # The guest's volume is deliberately kept between sandboxes, like an image.
        docker --host "$ENGINE_HOST" volume ls --format 'volume {{.Name}}' | { grep -v '^volume orchestrator-guest' || :; }
    fi
    if containerd_is_up; then
        # The root filesystems of images are deliberately kept, too.
        "$SCRIPTS/containerd.sh" containers
    fi
    "$NODE" left
}

containerd_is_up() { "$SCRIPTS/containerd.sh" status >/dev/null 2>&1; }

docker_is_up() { "$SCRIPTS/engine.sh" status >/dev/null 2>&1; }

step_left() {
    local deadline=$((SECONDS + LEFT_SECONDS)) left
    while :; do
        left=$(left_now | sort | comm -13 "$LOGS/before" -)
        [[ -n $left ]] || break
        if ((SECONDS >= deadline)); then
            printf 'left on the machine by the tests:\n%s\n' "$left"
            return 1
        fi
        sleep 1
    done
    say "nothing left behind"
}

# sandbox_environment exports the variables of the program and of the sandbox image.
sandbox_environment() {
    local dir
    dir=$("$BUILD_SANDBOX")
    export ORCHESTRATOR_TEST_ROOTFS=$dir/rootfs
    export ORCHESTRATOR_TEST_IMAGE_ARCHIVE=$dir/sandbox.tar
    export ORCHESTRATOR_TEST_BIN=$ROOT/bin/orchestrator
    export ORCHESTRATOR_TEST_BIN_FAULTS=$ROOT/bin/orchestrator-faults
}

# environment exports the variables that the tests read. The images must exist.
environment() {
    sandbox_environment
    ORCHESTRATOR_TEST_BROWSER_ARCHIVE=$("$EXTEND_SANDBOX" docker/browser --print-archive)
    ORCHESTRATOR_TEST_CLIENTS_ARCHIVE=$("$EXTEND_SANDBOX" integration/images/clients --print-archive)
    export ORCHESTRATOR_TEST_BROWSER_ARCHIVE ORCHESTRATOR_TEST_CLIENTS_ARCHIVE
    export ORCHESTRATOR_TEST_DOCKER=$ENGINE_HOST
    export ORCHESTRATOR_TEST_CONTAINERD=$CONTAINERD_SOCKET
    export ORCHESTRATOR_TEST_GUEST=$ROOT/bin/guest
}

# run STEP runs a step once, after the steps it needs. It records failures and always returns 0.
run() {
    local name=$1 need status started before
    [[ -z ${result[$name]:-} ]] || return 0
    for need in $(needs "$name"); do
        run "$need"
        [[ ${result[$need]} == ok ]] && continue
        result[$name]="not run"
        order+=("$name")
        printf '\n=== %s: not run, because it needs %s\n' "$name" "$need"
        return 0
    done
    printf '\n=== %s\n' "$name"
    started=$SECONDS
    before=$(processors)
    # Not in a condition: bash would ignore errors inside.
    set +e
    step "$name" | tee "$LOGS/$name.log"
    status=${PIPESTATUS[0]}
    set -e
    result[$name]=ok
    ((status == 0)) || result[$name]=failed
    order+=("$name")
    [[ $name != image || $status != 0 ]] || environment
    printf -- '--- %s: %s, %d s, %s\n' "$name" "${result[$name]}" $((SECONDS - started)) \
        "$(processors | awk -v BEFORE="$before" -f "$SCRIPTS/processors.awk")"
}

# step NAME runs a step. It closes the lock so that programs of the tests do not inherit it.
step() (
    set -Eeuo pipefail
    trap - EXIT INT TERM HUP
    "step_$1"
) 7>&- 2>&1 </dev/null

# start_beside starts the step kubernetes in the background, in a process group that finish can end. It does nothing
# until the node is built, and after the first time.
start_beside() {
    [[ -z ${result[kubernetes]:-} && ${result[build]:-}${result[image]:-} == okok ]] || return 0
    [[ -z $builder ]] || ! kill -0 "$builder" 2>/dev/null || return 0
    set -m
    step kubernetes >"$LOGS/kubernetes.log" &
    set +m
    beside=$! beside_started=$SECONDS
    result[kubernetes]=running
}

# join waits for the step that start_beside started.
join() {
    local status=0
    [[ -n $beside ]] || return 0
    printf '\n=== kubernetes, beside the steps before\n'
    wait "$beside" || status=$?
    beside=
    cat "$LOGS/kubernetes.log"
    result[kubernetes]=ok
    ((status == 0)) || result[kubernetes]=failed
    order+=(kubernetes)
    printf -- '--- kubernetes: %s, %d s\n' "${result[kubernetes]}" $((SECONDS - beside_started))
}

# processors prints the processors' time since the boot: the first line of /proc/stat.
processors() { head -n 1 /proc/stat; }

# totals prints the counts of all tests. A step that failed without a failed test counts as one failure.
totals() {
    local name passed=0 failed=0 p f
    for name in "${order[@]}"; do
        p=0 f=0
        [[ ! -s $LOGS/$name.counts ]] || read -r p f _ <"$LOGS/$name.counts"
        if [[ ! -e $LOGS/$name.counts && ${result[$name]} == ok ]]; then p=1; fi
        if [[ ${result[$name]} != ok ]] && ((f == 0)); then f=1; fi
        passed=$((passed + p)) failed=$((failed + f))
    done
    printf '%d passed, %d failed\n' "$passed" "$failed"
}

# finish stops the engines and the node, repeats the failures, and prints the counts as the last line.
finish() {
    local status=$? name bad=0
    trap - EXIT INT TERM HUP
    set +e
    [[ -z $beside ]] || { kill -TERM -- "-$beside" && wait "$beside"; } 2>/dev/null
    if [[ -z $keep_containerd ]] && ! "$SCRIPTS/containerd.sh" down >"$LOGS/down-containerd.log" 2>&1 7>&-; then
        order+=(down-containerd)
        result[down-containerd]=failed
    fi
    if [[ -z $keep_engine ]] && ! "$SCRIPTS/engine.sh" down >"$LOGS/down.log" 2>&1 7>&-; then
        order+=(down)
        result[down]=failed
    fi
    [[ -z $builder ]] || kill -TERM -- "-$builder" 2>/dev/null
    if [[ -e $NODE_MARK ]] && ! { "$NODE" down >"$LOGS/down-kubernetes.log" 2>&1 7>&- && rm "$NODE_MARK"; }; then
        order+=(down-kubernetes)
        result[down-kubernetes]=failed
    fi
    for name in "${order[@]}"; do
        [[ ${result[$name]} != ok ]] || continue
        bad=1
        printf '\n=== FAILED: %s (%s); last lines of %s:\n' "$name" "${result[$name]}" "$LOGS/$name.log"
        [[ -s $LOGS/$name.log ]] || continue
        tail -n "+$((TAIL + 1))" "$LOGS/$name.log" | grep -q . && head -n "-$TAIL" "$LOGS/$name.log" | grep '^FAIL  '
        tail -n "$TAIL" "$LOGS/$name.log"
    done
    unmount_under "$TMPDIR" && rm -rf --one-file-system "$TMPDIR" "$TEST_STATE/tmpdir"
    printf '\nlogs: %s\n' "$LOGS"
    ((status == 0)) || printf 'the run was interrupted (status %d)\n' "$status"
    [[ ! -s $LOGS/kubernetes.left-out ]] || cat "$LOGS/kubernetes.left-out"
    totals
    ((bad == 0)) || exit 1
    exit "$status"
}

if [[ ${1:-} == env ]]; then
    mkdir -p "$LOGS"
    { step_deps && "$BUILD_SANDBOX" && step_engine && step_containerd; } >&2
    environment
    export -p | grep -o 'ORCHESTRATOR_TEST_.*' | sed 's/^/export /'
    exit 0
fi

steps=("$@")
((${#steps[@]} > 0)) || steps=("${ALL[@]}")
for step in "${steps[@]}"; do
    declare -F "step_$step" >/dev/null || die "unknown step $step: use ${ALL[*]} check host bench soak env"
    case $step in
    deps | lint | build | check) ;;
    *) ((EUID == 0)) || die "must be root: the tests create containers, mounts and cgroups (sudo make test)" ;;
    esac
done

mkdir -p "$TEST_STATE"
exec 7>"$TEST_STATE/test.lock"
flock --nonblock 7 || { say "another test run is in progress; waiting for it"; flock 7; }
SECONDS=0
rm -rf "$LOGS"
mkdir -p "$LOGS"
# Clean up after a killed run: its temporary directory and, before a run of all steps, its daemons.
if [[ -s $TEST_STATE/tmpdir ]]; then
    stale=$(<"$TEST_STATE/tmpdir")
    unmount_under "$stale" && rm -rf --one-file-system "$stale"
fi
(($# > 0)) || "$SCRIPTS/engine.sh" down 7>&- || die "cannot stop the engine of an earlier run"
(($# > 0)) || "$SCRIPTS/containerd.sh" down 7>&- || die "cannot stop the containerd of an earlier run"
if [[ -e $NODE_MARK ]]; then
    "$NODE" down 7>&- || die "cannot stop the Kubernetes node of an earlier run"
    rm "$NODE_MARK"
fi
if [[ " ${steps[*]} " == *" kubernetes "* ]]; then refuse_other_node; fi
# Keep it short: tests put Unix sockets below it, and their paths are limited to 107 bytes.
TMPDIR=$(mktemp -d /tmp/o.XXXX)
export TMPDIR
printf '%s\n' "$TMPDIR" >"$TEST_STATE/tmpdir"
unset DOCKER_HOST DOCKER_CONTEXT DOCKER_TLS_VERIFY
order=() builder='' beside='' beside_started=0
keep_engine='' keep_containerd=''
if (($# > 0)) && docker_is_up; then keep_engine=yes; fi
if (($# > 0)) && containerd_is_up; then keep_containerd=yes; fi
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
left_now | sort >"$LOGS/before"
for step in "${steps[@]}"; do
    if (($# == 0)) && [[ $BESIDE == *" $step "* ]]; then start_beside; else join; fi
    run "$step"
    if (($# == 0)) && [[ $step == deps && ${result[deps]} == ok ]]; then build_node; fi
done
