#!/usr/bin/env bash
# Manages a Kubernetes of one node for the tests, with its own containerd:
#
#     kubernetes.sh build          builds its programs unless the cache has them, and prints their directory
#     kubernetes.sh helm           builds Helm unless the cache has it, and prints its path
#     kubernetes.sh agent-sandbox  installs kubernetes-sigs/agent-sandbox into the node, and starts its controller; builds
#                                  it unless the cache has it
#     kubernetes.sh up [gvisor]    starts it unless it runs, and prints its kubeconfig; with gvisor it has a runtime handler
#                                  "runsc", and room for gVisor's threads in every pod
#     kubernetes.sh load ARCHIVE   imports a docker-archive into the node
#     kubernetes.sh env            prints the variables of the tests, for eval
#     kubernetes.sh status         prints the kubeconfig and exits 0 when the node is ready, else exits 1
#     kubernetes.sh pid PART       prints the PID of etcd, kube-apiserver, kubelet, containerd or agent-sandbox-controller
#     kubernetes.sh kill PART      kills that part, as a crash does, and waits for its end
#     kubernetes.sh start PART     starts that part unless it runs, and waits until it works
#     kubernetes.sh left           prints what a node has on the machine, one per line: nothing after "down"
#     kubernetes.sh down           stops it; removes processes, pods, mounts, cgroups, interfaces and files
#
# Pods have no interface but lo. Those in a namespace whose name begins with "bridge-" have one, to this host.
#
# Its files are in $ORCHESTRATOR_TEST_STATE/kubernetes (default /var/lib/orchestrator-test/kubernetes). The programs come
# from the Go module proxy (integration/k8snode): 5 to 17 minutes with an empty cache, and seconds after that. All
# servers listen on 127.0.0.1 at fixed ports, so a machine has one node at a time. etcd listens without TLS: use it on
# test machines only.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
DAEMON_DIR=$TEST_STATE/kubernetes
source "$(dirname "${BASH_SOURCE[0]}")/daemon.sh"

START_SECONDS=120
on_failure=give_up # what ends the script if a part does not start
KEEP_DAYS=14
VERSION=1.36.3
MODULE=$ROOT/integration/k8snode
DIR=$DAEMON_DIR
# An IP address as the node's name is also its address. The kubelet refuses a loopback address given any other way.
NODE=127.0.0.1
API=127.0.0.1:16443 ETCD=127.0.0.1:12379 ETCD_PEER=127.0.0.1:12380
KUBELET_PORT=20250 KUBELET_HEALTH=20248 MANAGER_PORT=20257 SCHEDULER_PORT=20259
# The parent of the pods' cgroups.
CGROUP=$(basename "$TEST_STATE")-kubernetes
BRIDGE=orch-k8s0 GATEWAY=10.244.0.1
POD_PIDS=160 GVISOR_PIDS=8192
# What the kubelet makes outside of its directory whatever it is told.
OUTSIDE=(/var/lib/kubelet /var/log/containers /usr/libexec/kubernetes)
SYSCTLS=(vm.overcommit_memory kernel.panic kernel.panic_on_oops net.ipv4.ip_forward)
# The image of the service and of the guest, as docker/orchestrator/Dockerfile makes it.
IMAGE=localhost/orchestrator:test
GVISOR_VERSION=$(awk '$1 == "gvisor.dev/gvisor" { print $2 }' "$ROOT/integration/gvisor/go.mod")
AGENT_VERSION=$(awk '$1 == "sigs.k8s.io/agent-sandbox" { print $2 }' "$ROOT/integration/agentsandbox/go.mod")
AGENT_HEALTH=127.0.0.1:18081
HELM_VERSION=$(awk '$1 == "helm.sh/helm/v3" { print $2 }' "$ROOT/integration/helm/go.mod")

key() {
    {
        go env GOVERSION
        uname -m
        cat "$MODULE/go.mod" "$MODULE/go.sum" "$MODULE/main.go" "$MODULE/pause/main.go"
    } | sha256sum | cut -c1-16
}

# lock_unless FILE waits for other builds, unless the cache has the file, which appears when it is complete.
lock_unless() {
    mkdir -p "$CACHE"
    [[ -x $1 ]] || { exec 8>"$CACHE/kubernetes.lock" && flock 8; }
}

# build makes the programs in the cache and prints their directory. Concurrent builds wait for each other.
build() {
    local out work flags=k8s.io/component-base/version
    out=$CACHE/kubernetes-$(key)
    lock_unless "$out/k8snode"
    if [[ ! -x $out/k8snode ]]; then
        say "building Kubernetes $VERSION; this takes 5 to 17 minutes"
        rm -rf "$CACHE"/tmp.kubernetes.* # of builds that were killed
        work=$(mktemp -d "$CACHE/tmp.kubernetes.XXXXXX")
        (
            cd "$MODULE"
            export CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' GOWORK=off
            retry 3 go mod download
            nice -n 19 go build -o "$work/k8snode" \
                -ldflags "-s -w -X $flags.gitVersion=v$VERSION -X $flags.gitMajor=1 -X $flags.gitMinor=${VERSION:2:2}" .
            go build -ldflags '-s -w' -o "$work/pause" ./pause
        ) || { rm -rf "$work"; die "cannot build Kubernetes"; }
        rm -rf "$out"
        mv "$work" "$out"
        find "$CACHE" -mindepth 1 -maxdepth 1 -type d -name 'kubernetes-*' -mtime "+$KEEP_DAYS" -exec rm -rf {} +
    fi
    touch "$out"
    exec 8>&-
    printf '%s\n' "$out"
}

# helm builds Helm in the cache and prints its path. It assumes the Kubernetes version of the node where it has none.
helm() {
    local out=$CACHE/tools/helm-$HELM_VERSION-$(go env GOVERSION)-$(go env GOARCH) flags=helm.sh/helm/v3/pkg/chartutil
    mkdir -p "$CACHE/tools"
    lock_unless "$out"
    if [[ ! -x $out ]]; then
        say "building Helm $HELM_VERSION"
        (
            cd "$ROOT/integration/helm"
            export CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' GOWORK=off
            retry 3 go mod download
            nice -n 19 go build -o "$out.tmp" -ldflags "-s -w -X $flags.k8sVersionMajor=1 -X $flags.k8sVersionMinor=${VERSION:2:2}" \
                helm.sh/helm/v3/cmd/helm
        ) || die "cannot build Helm"
        mv "$out.tmp" "$out"
    fi
    exec 8>&-
    printf '%s\n' "$out"
}

# gvisor builds gVisor's shim, which Debian's package lacks, in the cache and prints its path.
gvisor() {
    local work out=$CACHE/tools/containerd-shim-runsc-$GVISOR_VERSION-$(go env GOVERSION)-$(go env GOARCH)
    mkdir -p "$CACHE/tools"
    exec 8>"$CACHE/kubernetes.lock"
    flock 8
    if [[ ! -x $out ]]; then
        say "building gVisor's shim"
        work=$(mktemp -d "$CACHE/tmp.gvisor.XXXXXX")
        (
            cp "$ROOT"/integration/gvisor/go.* "$work"
            cd "$work"
            export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' GOWORK=off
            retry 3 go mod download
            go mod vendor
            # A root without CAP_SYS_RESOURCE cannot lower oom_score_adj, and the shim insists on it.
            sed -i 's/SetOOMScore(cmd.Process.Pid, oomScoreMaxKillable)/SetOOMScore(cmd.Process.Pid, 0)/' \
                vendor/gvisor.dev/gvisor/pkg/shim/service.go
            nice -n 19 go build -mod=vendor -o "$out" -ldflags '-s -w -checklinkname=0' gvisor.dev/gvisor/shim
        ) || { rm -rf "$work"; die "cannot build gVisor's shim"; }
        rm -rf "$work"
    fi
    exec 8>&-
    printf '%s\n' "$out"
}

# agent_build builds the controller of agent-sandbox in the cache, and prints the directory with it and its manifests.
agent_build() {
    local work out=$CACHE/tools/agent-sandbox-$AGENT_VERSION-$(go env GOVERSION)-$(go env GOARCH)
    mkdir -p "$CACHE/tools"
    lock_unless "$out/agent-sandbox-controller"
    if [[ ! -x $out/agent-sandbox-controller ]]; then
        say "building agent-sandbox $AGENT_VERSION"
        work=$(mktemp -d "$CACHE/tmp.kubernetes.XXXXXX")
        (
            cd "$ROOT/integration/agentsandbox"
            export CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' GOWORK=off
            retry 3 go mod download
            nice -n 19 go build -o "$work/" -ldflags '-s -w' sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller
            install -m 0644 -D -t "$work/manifests" \
                "$(go list -m -f '{{.Dir}}' sigs.k8s.io/agent-sandbox)"/k8s/{crds/*,rbac.generated,extensions-rbac.generated}.yaml
        ) || { rm -rf "$work"; die "cannot build agent-sandbox"; }
        rm -rf "$out"
        mv "$work" "$out"
    fi
    exec 8>&-
    printf '%s\n' "$out"
}

kubectl_() { "$DIR/kubectl" --kubeconfig "$DIR/pki/admin.kubeconfig" "$@"; }

# agent_sandbox installs agent-sandbox. Its controller runs as a process with the token of its service account.
agent_sandbox() {
    local out role account=agent-sandbox-controller space=agent-sandbox-system
    on_failure=die
    out=$(agent_build)
    [[ -z $(pids_of agent-sandbox-controller) ]] || return 0
    {
        kubectl_ apply --server-side --filename "$out/manifests"
        kubectl_ get namespace "$space" || kubectl_ create namespace "$space"
        kubectl_ --namespace "$space" get serviceaccount "$account" || kubectl_ --namespace "$space" create serviceaccount "$account"
        for role in "$account" "$account-extensions"; do
            kubectl_ get clusterrolebinding "$role" ||
                kubectl_ create clusterrolebinding "$role" --clusterrole="$role" --serviceaccount="$space:$account"
        done
        kubectl_ wait --for=condition=Established crd --all --timeout=30s
    } >>"$DIR/log/agent-sandbox-install.log" 2>&1 || die "cannot install agent-sandbox: see $DIR/log/agent-sandbox-install.log"
    (
        umask 077
        cat >"$DIR/pki/agent-sandbox.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$API", certificate-authority: "$DIR/pki/ca.crt"}}]
users: [{name: agent, user: {token: "$(kubectl_ --namespace "$space" create token "$account" --duration=24h)"}}]
contexts: [{name: test, context: {cluster: test, user: agent}}]
current-context: test
YAML
    )
    background "$DIR/log/agent-sandbox.log" "$out/agent-sandbox-controller" --kubeconfig="$DIR/pki/agent-sandbox.kubeconfig" \
        --extensions --leader-elect=false --metrics-bind-address=127.0.0.1:18080 --health-probe-bind-address="$AGENT_HEALTH"
    wait_for "the controller of agent-sandbox" curl -sf --max-time 5 "http://$AGENT_HEALTH/readyz"
}

ctr_() { timeout 300 ctr --address "$DIR/containerd.sock" --namespace k8s.io "$@"; }

get() { curl -sf --max-time 5 --cacert "$DIR/pki/ca.crt" --cert "$DIR/pki/admin.crt" --key "$DIR/pki/admin.key" "https://$API$1"; }

ready() { [[ -f $DIR/pki/admin.crt && $(get "/api/v1/nodes/$NODE" 2>/dev/null) == *'"reason": "KubeletReady"'* ]]; }

# hierarchies prints the mount points of the cgroup hierarchies that the kubelet uses.
hierarchies() {
    local name
    if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
        printf '/sys/fs/cgroup\n'
        return
    fi
    for name in cpu cpuacct cpuset memory devices freezer blkio pids hugetlb systemd unified; do
        [[ ! -d /sys/fs/cgroup/$name ]] || printf '/sys/fs/cgroup/%s\n' "$name"
    done
}

# make_cgroups makes the pods' parent. In version 1, a new cpuset has neither processors nor memory.
make_cgroups() {
    local top
    while read -r top; do
        mkdir -p "$top/$CGROUP"
        [[ ! -f /sys/fs/cgroup/cgroup.controllers && -f $top/cpuset.cpus ]] || continue
        cat "$top/cpuset.cpus" >"$top/$CGROUP/cpuset.cpus"
        cat "$top/cpuset.mems" >"$top/$CGROUP/cpuset.mems"
    done < <(hierarchies)
}

remove_cgroups() {
    local top round left
    for round in 1 2 3 4 5; do
        left=
        while read -r top; do
            [[ -d $top/$CGROUP ]] || continue
            left=yes
            end_cgroups "$top/$CGROUP"
        done < <(hierarchies)
        [[ -n $left ]] || return 0
        sleep "0.$round"
    done
    say "cannot remove the pods' cgroups"
    return 1
}

# certificate NAME SUBJECT USAGE [ALTNAME] makes a key and its certificate.
certificate() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    {
        printf 'basicConstraints=CA:FALSE\nextendedKeyUsage=%s\n' "$3"
        [[ -z ${4:-} ]] || printf 'subjectAltName=%s\n' "$4"
    } >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
    rm "$1.csr" "$1.ext"
}

make_keys() {
    local user
    mkdir -p "$DIR/pki"
    chmod 0700 "$DIR/pki"
    (
        cd "$DIR/pki"
        openssl ecparam -name prime256v1 -genkey -noout -out ca.key
        openssl req -x509 -new -key ca.key -subj /CN=orchestrator-test -days 30 -out ca.crt
        openssl ecparam -name prime256v1 -genkey -noout -out sa.key
        # Pods with an interface reach the API server through a forwarder of their test at the bridge's address.
        certificate apiserver /CN=kube-apiserver serverAuth "IP:127.0.0.1,IP:$GATEWAY,DNS:localhost"
        certificate kubelet "/CN=$NODE" serverAuth IP:127.0.0.1
        certificate apiserver-kubelet /O=system:masters/CN=apiserver-kubelet clientAuth
        certificate node "/O=system:nodes/CN=system:node:$NODE" clientAuth
        certificate admin /O=system:masters/CN=admin clientAuth
        certificate manager /CN=system:kube-controller-manager clientAuth
        certificate scheduler /CN=system:kube-scheduler clientAuth
        for user in node admin manager scheduler; do
            cat >"$user.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$API", certificate-authority: "$DIR/pki/ca.crt"}}]
users: [{name: $user, user: {client-certificate: "$DIR/pki/$user.crt", client-key: "$DIR/pki/$user.key"}}]
contexts: [{name: test, context: {cluster: test, user: $user}}]
current-context: test
YAML
        done
    )
}

# configure_network writes the CNI configuration. Its plugin makes no interface, but reports an address: containerd
# insists on one. For a namespace with a bridge, the plugin runs that one instead.
configure_network() {
    local plugin
    mkdir -p "$DIR/cni/bin" "$DIR/cni/conf"
    for plugin in /usr/lib/cni/*; do ln -sf "$plugin" "$DIR/cni/bin/"; done
    cat >"$DIR/cni/bin/none" <<'SH'
#!/bin/sh
case $CNI_ARGS in *K8S_POD_NAMESPACE=bridge-*) exec "${0%/*}/bridge" <"${0%/*}/../bridge.json" ;; esac
case $CNI_COMMAND in
ADD)
    cat >/dev/null
    n=$(printf %s "$CNI_CONTAINERID" | cksum | cut -d' ' -f1)
    printf '{"cniVersion":"0.4.0","interfaces":[{"name":"%s","sandbox":"%s"}],"ips":[{"version":"4","interface":0,"address":"10.255.%d.%d/32"}],"dns":{}}\n' \
        "$CNI_IFNAME" "$CNI_NETNS" $((n / 254 % 254 + 1)) $((n % 254 + 1))
    ;;
VERSION) printf '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}\n' ;;
*) cat >/dev/null ;;
esac
SH
    chmod 0755 "$DIR/cni/bin/none"
    printf '{"cniVersion":"0.4.0","name":"bridge","type":"bridge","bridge":"%s","isGateway":true,"ipMasq":false,"ipam":{"type":"host-local","dataDir":"%s/cni/ipam","ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}\n' \
        "$BRIDGE" "$DIR" >"$DIR/cni/bridge.json"
    printf '{"cniVersion":"0.4.0","name":"none","plugins":[{"type":"none"}]}\n' >"$DIR/cni/conf/10-net.conflist"
}

# configure_gvisor prints the runtime handler "runsc" of a node with gVisor.
configure_gvisor() {
    [[ -n $shim ]] || return 0
    mkdir -p "$DIR/bin"
    ln -sf "$shim" "$DIR/bin/containerd-shim-runsc-v1"
    cat >"$DIR/runsc.toml" <<TOML
binary_name = "$(command -v runsc)"
root = "$DIR/containerd/runsc"
[runsc_config]
  platform = "ptrace"
  network = "none"
  oci-seccomp = "true"
TOML
    cat <<TOML
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc]
      runtime_type = "io.containerd.runsc.v1"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc.options]
        TypeUrl = "io.containerd.runsc.v1.options"
        ConfigPath = "$DIR/runsc.toml"
TOML
}

configure_containerd() {
    cat >"$DIR/containerd.toml" <<TOML
version = 2
root = "$DIR/containerd/root"
state = "$DIR/containerd/state"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt"]
[grpc]
  address = "$DIR/containerd.sock"
[ttrpc]
  address = "$DIR/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  # A root without CAP_SYS_RESOURCE cannot lower oom_score_adj.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  # The VOLUME of an image would be a writable directory on the node.
  ignore_image_defined_volumes = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "$DIR/containerd/runc"
        SystemdCgroup = false
$(configure_gvisor)
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$DIR/cni/bin"
    conf_dir = "$DIR/cni/conf"
TOML
}

configure_kubelet() {
    cat >"$DIR/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: $KUBELET_PORT
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
healthzPort: $KUBELET_HEALTH
tlsCertFile: $DIR/pki/kubelet.crt
tlsPrivateKeyFile: $DIR/pki/kubelet.key
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $DIR/pki/ca.crt}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$DIR/containerd.sock
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failSwapOn: false
makeIPTablesUtilChains: false
podLogsDir: $DIR/kubelet/podlogs
volumePluginDir: $DIR/kubelet/volumeplugins
maxPods: 110
serializeImagePulls: false
podPidsLimit: $POD_PIDS
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: "200Mi", nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
YAML
}

# image REF OUT COMMAND FILE... writes a docker-archive with these files at the root.
image() {
    local ref=$1 out=$2 command=$3 work sum
    shift 3
    work=$(mktemp -d)
    mkdir "$work/root"
    install -m 0555 "$@" "$work/root/"
    tar --numeric-owner --owner 0 --group 0 --mtime @0 --sort name -C "$work/root" -cf "$work/layer.tar" .
    sum=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
    printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["%s"],"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$(go env GOARCH)" "$command" "$sum" >"$work/config.json"
    printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$ref" >"$work/manifest.json"
    tar -C "$work" -cf "$out" manifest.json config.json layer.tar
    rm -rf "$work"
}

# server NAME ARGUMENT... starts one component.
server() {
    local name=$1
    shift
    background "$DIR/log/$name.log" "$programs/k8snode" "$name" "$@"
}

# wait_for WHAT COMMAND... waits until the command succeeds.
wait_for() {
    local what=$1 deadline=$((SECONDS + START_SECONDS))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || "$on_failure" "$what did not start within $START_SECONDS s"
        sleep 0.1
    done
}

start_containerd() { background "$DIR/log/containerd.log" env PATH="$DIR/bin:$PATH" containerd --config "$DIR/containerd.toml"; }

start_etcd() {
    server etcd --name=test --data-dir="$DIR/etcd" --listen-client-urls="http://$ETCD" --advertise-client-urls="http://$ETCD" \
        --listen-peer-urls="http://$ETCD_PEER" --initial-advertise-peer-urls="http://$ETCD_PEER" \
        --initial-cluster="test=http://$ETCD_PEER" --unsafe-no-fsync --log-level=warn
}

start_kube-apiserver() {
    server kube-apiserver --etcd-servers="http://$ETCD" --bind-address=127.0.0.1 --secure-port="${API#*:}" \
        --advertise-address=127.0.0.1 --endpoint-reconciler-type=none \
        --tls-cert-file="$DIR/pki/apiserver.crt" --tls-private-key-file="$DIR/pki/apiserver.key" \
        --client-ca-file="$DIR/pki/ca.crt" --cert-dir="$DIR/run/apiserver" \
        --kubelet-certificate-authority="$DIR/pki/ca.crt" --kubelet-client-certificate="$DIR/pki/apiserver-kubelet.crt" \
        --kubelet-client-key="$DIR/pki/apiserver-kubelet.key" --kubelet-preferred-address-types=InternalIP \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$DIR/pki/sa.key" \
        --service-account-signing-key-file="$DIR/pki/sa.key" --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction --anonymous-auth=false --service-cluster-ip-range=10.96.0.0/24 --v=1
}

start_controllers() {
    server kube-controller-manager --kubeconfig="$DIR/pki/manager.kubeconfig" \
        --authentication-kubeconfig="$DIR/pki/manager.kubeconfig" --authorization-kubeconfig="$DIR/pki/manager.kubeconfig" \
        --use-service-account-credentials=true --leader-elect=false --bind-address=127.0.0.1 --secure-port="$MANAGER_PORT" \
        --cert-dir="$DIR/run/manager" --root-ca-file="$DIR/pki/ca.crt" --service-account-private-key-file="$DIR/pki/sa.key" --v=1
    server kube-scheduler --kubeconfig="$DIR/pki/scheduler.kubeconfig" \
        --authentication-kubeconfig="$DIR/pki/scheduler.kubeconfig" --authorization-kubeconfig="$DIR/pki/scheduler.kubeconfig" \
        --leader-elect=false --bind-address=127.0.0.1 --secure-port="$SCHEDULER_PORT" --cert-dir="$DIR/run/scheduler" --v=1
}

start_kubelet() {
    server kubelet --config="$DIR/kubelet.yaml" --kubeconfig="$DIR/pki/node.kubeconfig" --root-dir="$DIR/kubelet" \
        --cert-dir="$DIR/kubelet/pki" --hostname-override="$NODE" --v=2
}

# works PART succeeds if the part runs and answers.
works() {
    [[ -n $(pid_of "$1") ]] || return 1
    case $1 in
    etcd) curl -sf --max-time 5 "http://$ETCD/health" ;;
    kube-apiserver) get /readyz ;;
    kubelet) curl -sf --max-time 5 "http://127.0.0.1:$KUBELET_HEALTH/healthz" && ready ;;
    containerd) ctr_ version ;;
    esac
}

# pid_of PART prints the PID of a part of the node.
pid_of() {
    local pid args
    [[ $1 != containerd && $1 != agent-sandbox-controller ]] || { pids_of "$1"; return; }
    while read -r pid; do
        mapfile -d "" -t args 2>/dev/null <"/proc/$pid/cmdline" || continue
        [[ ${args[1]:-} != "$1" ]] || printf '%s\n' "$pid"
    done < <(pids_of k8snode)
}

kill_part() {
    local pid
    pid=$(pid_of "$1")
    [[ -z $pid ]] || kill -KILL "$pid"
    while [[ -n $(pid_of "$1") ]]; do sleep 0.05; done
}

start_part() {
    on_failure=die
    programs=$(build)
    [[ -n $(pid_of "$1") ]] || "start_$1"
    wait_for "$1" works "$1"
}

load_images() {
    local guest=$ROOT/internal/guestbin/bin
    [[ -x $ROOT/bin/orchestrator ]] || die "the program is missing: run make build"
    image localhost/pause:1 "$DIR/pause.tar" /pause "$programs/pause"
    image "$IMAGE" "$DIR/orchestrator.tar" /orchestrator "$ROOT/bin/orchestrator" "$guest/guest" "$guest/guest-web"
    ctr_ images import "$DIR/pause.tar" >/dev/null
    ctr_ images import "$DIR/orchestrator.tar" >/dev/null
}

up() {
    local tool path shim=
    [[ -z $1 || $1 == gvisor ]] || die "invalid kind of node \"$1\": use gvisor or nothing"
    if ready && [[ $(<"$DIR/kind") == "$1" ]]; then
        printf '%s\n' "$DIR/pki/admin.kubeconfig"
        return 0
    fi
    ((EUID == 0)) || die "must be root to start a node"
    for tool in containerd ctr runc openssl curl ip sysctl; do
        command -v "$tool" >/dev/null || die "$tool is missing: run integration/scripts/deps.sh --kubernetes"
    done
    [[ $1 != gvisor ]] || command -v runsc >/dev/null || die "runsc is missing: run integration/scripts/deps.sh"
    [[ -x /usr/lib/cni/loopback && -x /usr/lib/cni/bridge ]] || die "the CNI plugins are missing: run integration/scripts/deps.sh --kubernetes"
    programs=$(build)
    if [[ $1 == gvisor ]]; then
        shim=$(gvisor)
        POD_PIDS=$GVISOR_PIDS
    fi
    down || die "cannot clean up after an earlier node"
    if (exec 3<>"/dev/tcp/${API/://}") 2>/dev/null; then
        die "port $API is in use, perhaps by a node with another ORCHESTRATOR_TEST_STATE: stop it first"
    fi
    umask 022
    mkdir -p "$DIR"/{run,log,etcd,kubelet/seccomp,containerd/root,containerd/state}
    chmod 0700 "$DIR/etcd"
    printf '%s\n' "$1" >"$DIR/kind"
    ln -s "$programs/k8snode" "$DIR/kubectl" # the program's name selects the component
    sysctl "${SYSCTLS[@]}" >"$DIR/sysctl.saved"
    for path in "${OUTSIDE[@]}"; do [[ -e $path ]] || printf '%s\n' "$path"; done >"$DIR/outside.new"
    make_cgroups
    make_keys 2>"$DIR/log/openssl.log" || give_up "cannot make keys"
    configure_network
    configure_containerd
    configure_kubelet
    start_containerd
    start_etcd
    start_kube-apiserver
    wait_for containerd ctr_ version
    load_images
    wait_for kube-apiserver get /readyz
    start_controllers
    start_kubelet
    wait_for "the node" ready
    wait_for "the default service account" get /api/v1/namespaces/default/serviceaccounts/default
    printf '%s\n' "$DIR/pki/admin.kubeconfig"
}

# left prints the processes, cgroups, mounts, interfaces, links to logs and files of a node.
left() {
    local name top path
    for name in k8snode agent-sandbox-controller containerd containerd-shim-runc-v2 containerd-shim-runsc-v1 runsc; do pids_of "$name" | sed "s/^/kubernetes process $name /"; done
    while read -r top; do
        find "$top/$CGROUP" -type d -printf 'kubernetes cgroup %p\n' 2>/dev/null || :
    done < <(hierarchies)
    for path in "$DIR" "${OUTSIDE[@]}"; do
        mounts_under "$path" | sed 's/^/kubernetes mount /'
        [[ ! -e $path ]] || printf 'kubernetes file %s\n' "$path"
    done
    find /var/log/containers -lname "$DIR/*" -printf 'kubernetes log %p\n' 2>/dev/null || :
    # ip may not be installed yet.
    { ip -oneline link 2>/dev/null || :; } |
        awk -v bridge="$BRIDGE" '$2 == bridge ":" || index($0, " master " bridge " ") { print "kubernetes interface " $2 }'
}

# kill_servers kills all components at once. The node's state is thrown away, so none has to end well.
kill_servers() {
    local pid
    while read -r pid; do kill -KILL "$pid" 2>/dev/null || :; done < <(pids_of k8snode; pids_of agent-sandbox-controller)
    while [[ -n $(pids_of k8snode; pids_of agent-sandbox-controller) ]]; do sleep 0.05; done
}

down() {
    local status=0 path
    kill_servers
    end_shims || status=1
    end containerd
    end_shims || status=1
    [[ -z $(pids_of runsc) ]] || end runsc
    remove_cgroups || status=1
    unmount_under "$DIR" || { say "mounts left under $DIR"; status=1; }
    ip link delete "$BRIDGE" 2>/dev/null || :
    [[ ! -f $DIR/sysctl.saved ]] || sysctl -q -p "$DIR/sysctl.saved" || status=1
    [[ ! -d /var/log/containers ]] || find /var/log/containers -lname "$DIR/*" -delete
    while read -r path; do rm -rf --one-file-system "$path"; done < <(cat "$DIR/outside.new" 2>/dev/null)
    ((status != 0)) || rm -rf --one-file-system "$DIR"
    return "$status"
}

give_up() {
    local log
    for log in "$DIR"/log/*.log; do
        say "--- last lines of $log"
        tail -n 15 "$log" >&2 || :
    done
    down || :
    die "$1"
}

env_() {
    status >/dev/null || die "the node does not run: run kubernetes.sh up"
    printf 'export ORCHESTRATOR_TEST_KUBECONFIG="%s"\n' "$DIR/pki/admin.kubeconfig"
    printf 'export ORCHESTRATOR_TEST_KUBECTL="%s"\n' "$DIR/kubectl"
    printf 'export ORCHESTRATOR_TEST_KUBERNETES_DIR="%s"\n' "$DIR"
    printf 'export ORCHESTRATOR_TEST_KUBERNETES_IMAGE="%s"\n' "$IMAGE"
    printf 'export ORCHESTRATOR_TEST_KUBERNETES_GATEWAY="%s"\n' "$GATEWAY"
    if [[ $(<"$DIR/kind") == gvisor ]]; then
        POD_PIDS=$GVISOR_PIDS
        printf 'export ORCHESTRATOR_TEST_KUBERNETES_GVISOR=yes\n'
    fi
    [[ -z $(pids_of agent-sandbox-controller) ]] || printf 'export ORCHESTRATOR_TEST_KUBERNETES_AGENT_SANDBOX=yes\n'
    printf 'export ORCHESTRATOR_TEST_KUBERNETES_POD_PIDS="%s"\n' "$POD_PIDS"
}

status() { ready && printf '%s\n' "$DIR/pki/admin.kubeconfig"; }

lock() {
    mkdir -p "$TEST_STATE"
    exec 9>"$TEST_STATE/kubernetes.lock"
    flock --wait 1800 9 || die "another kubernetes.sh has held the lock for more than 30 minutes"
}

if [[ ${1:-} =~ ^(pid|kill|start)$ && "$1 ${2:-}" != "pid agent-sandbox-controller" && ! ${2:-} =~ ^(etcd|kube-apiserver|kubelet|containerd)$ ]]; then
    die "invalid part \"${2:-}\": use etcd, kube-apiserver, kubelet or containerd"
fi
case ${1:-} in
build) build ;;
helm) helm ;;
agent-sandbox) [[ -d $DIR ]] || die "the node does not run: run kubernetes.sh up"; lock; agent_sandbox ;;
up) lock; up "${2:-}" ;;
load) [[ -f ${2:-} ]] || die "archive not found: ${2:-}"; ctr_ images import "$2" >/dev/null ;;
env) env_ ;;
status) status ;;
pid) pid_of "$2" ;;
kill) lock; kill_part "$2" ;;
start) [[ -d $DIR ]] || die "the node does not run: run kubernetes.sh up"; lock; start_part "$2" ;;
left) left ;;
down) [[ -d $DIR ]] || exit 0; lock; down ;;
*) say "usage: kubernetes.sh build|helm|agent-sandbox|up [gvisor]|load ARCHIVE|env|status|pid PART|kill PART|start PART|left|down"; exit 64 ;;
esac
