// Package kubernetes is the runtime driver for a Kubernetes cluster: one pod per sandbox.
//
// The driver uses the API server only. An init container copies the guest into the pod, and one
// exec of "guest bridge" per sandbox carries all requests, so that a request costs no call of the
// API server. One watch follows all pods of the namespace. Nothing can be mounted into a running
// pod: files travel over the stream, unless the pod was created with the volume claim of a
// workspace.
//
// A cluster may not enforce what a pod asks for. The guest therefore checks from inside that it has
// no network and no writable mount that nobody asked for, and Create returns a sandbox only after
// its guest has answered. Errors are of the classes of github.com/containerd/errdefs and name the
// permission, the field or the setting to change. A Driver may be used concurrently. It starts one
// goroutine for its watch and three for each sandbox that it holds.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Values of Options.Stream.
const (
	// StreamWebSocket uses WebSockets, and SPDY if the server or a proxy refuses them.
	StreamWebSocket = "websocket"
	// StreamSPDY uses SPDY only.
	StreamSPDY = "spdy"
)

// Values of Options.Network.
const (
	// NetworkStrip deletes the pod's interfaces in an init container, which needs NET_ADMIN.
	NetworkStrip = "strip"
	// NetworkNone expects a cluster that gives pods no interface.
	NetworkNone = "none"
)

// Labels and annotations of every pod that the driver creates.
const (
	labelOwner         = "orchestrator.owner"
	labelID            = "orchestrator.id"
	annotationTemplate = "orchestrator.template"
	annotationBuild    = "orchestrator.build"
)

// askTime bounds one request that needs no work of a node.
const askTime = 30 * time.Second

// DefaultDeadline is the default of Options.Deadline.
const DefaultDeadline = 7 * 24 * time.Hour

// Requests per second of this driver to the API server, and how many may come at once. The
// library's default of 5 would delay the first pods of a warm pool.
const (
	requestsPerSecond = 50
	requestBurst      = 100
)

// Options select the cluster and configure the pods.
type Options struct {
	// Kubeconfig is a file. Empty: KUBECONFIG, ~/.kube/config, or the pod's own service account.
	// Context is one of the file's contexts; empty means its current one.
	Kubeconfig, Context string
	// Namespace contains the pods. It must exist.
	Namespace string
	// GuestImage contains the guest as /guest. Nodes must be able to pull it.
	GuestImage string
	// Stream is StreamWebSocket or StreamSPDY. Empty means StreamWebSocket.
	Stream string
	// Network is NetworkStrip or NetworkNone. Empty means NetworkStrip.
	Network string
	// SeccompProfile is the file of our filter, relative to the seccomp directory of every kubelet.
	// Empty: the container runtime's default filter applies.
	SeccompProfile string
	// GVisorSeccompProfile is the same for class gvisor, whose kernel needs a filter of its own.
	// Empty: gVisor loads no filter.
	GVisorSeccompProfile string
	// Classes maps ClassGVisor and ClassVM to the names of RuntimeClasses of the cluster.
	Classes map[runtime.Class]string
	// PodPids is the podPidsLimit of every kubelet. Zero: unknown.
	PodPids int64
	// CPURequest is what a pod reserves of its CPU limit, in cores. Zero reserves the limit.
	CPURequest float64
	// PullPolicy is "IfNotPresent", "Always" or "Never". Empty means "IfNotPresent".
	PullPolicy string
	// Deadline is when the cluster ends a pod that nobody has ended. Zero means DefaultDeadline.
	Deadline time.Duration
	// Pod applies to pods of all templates that Pods does not name.
	Pod  PodOptions
	Pods map[string]PodOptions
	// Election says that one process per owner is active, which a Candidate decides. The driver then
	// checks the permissions for it.
	Election bool
	// Epoch is the one of Candidate.Acquire. Pods and guests refuse the driver once a driver with a
	// higher one has used them. Zero: without an election.
	Epoch int64
	// Superseded, if not nil, is called when a pod or a guest has refused this driver's epoch. It must
	// check that: guests are not trusted.
	Superseded func(error)
	// Log may be nil.
	Log *slog.Logger
}

// PodOptions say where pods run.
type PodOptions struct {
	NodeSelector                map[string]string
	Tolerations                 []Toleration
	RuntimeClass, PriorityClass string
	ImagePullSecrets            []string
	// UserNamespaces runs the pod in a user namespace: root inside is an ordinary user of the node.
	UserNamespaces bool
	// Workspace configures volume claims for workspaces.
	Workspace WorkspaceOptions
	// Provider is what makes the pods: ProviderAgentSandbox, or "" for the driver itself.
	Provider string
	// WarmPool is how many pods agent-sandbox keeps ready, besides the sandboxes of this driver.
	WarmPool int32
}

// Toleration is a toleration of a pod, as Kubernetes defines it.
type Toleration struct{ Key, Operator, Value, Effect string }

// Driver is the runtime.Driver for one namespace of a cluster.
type Driver struct {
	opts    Options
	config  *rest.Config
	api     *api
	pods    *podCache
	jobs    jobList
	agent   agents
	version string
	log     *slog.Logger

	// spdy is set when the server refused WebSockets.
	spdy atomic.Bool

	mu   sync.Mutex
	held map[string]*Sandbox // those that this process holds; guarded by mu
}

// New connects to the cluster and checks the permissions that are needed. Errors: InvalidArgument
// for invalid options, Unavailable for a server that does not answer, FailedPrecondition for a
// missing permission, which it names.
func New(ctx context.Context, o Options) (*Driver, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	quietLibrary()
	config, err := loadConfig(o.Kubeconfig, o.Context)
	if err != nil {
		return nil, err
	}
	api, err := newAPI(config, o.Namespace)
	if err != nil {
		return nil, err
	}
	d := newDriver(o, config, api)
	askCtx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	if d.version, err = api.serverVersion(askCtx); err != nil {
		return nil, api.failed(askCtx, "ask for the server's version", err)
	}
	if o.usesAgents() {
		if _, err := d.agents(askCtx); err != nil {
			return nil, err
		}
	}
	if err := api.checkPermissions(askCtx, o.permissions()); err != nil {
		return nil, err
	}
	if err := d.checkClasses(askCtx); err != nil {
		return nil, err
	}
	if err := d.checkStorageClasses(askCtx); err != nil {
		return nil, err
	}
	if d.pods, err = openPodCache(askCtx, api, d.log); err != nil {
		return nil, err
	}
	return d, nil
}

// newDriver returns a driver that follows no pods yet.
func newDriver(o Options, config *rest.Config, a *api) *Driver {
	return &Driver{
		opts: o, config: config, api: a, jobs: jobList{turn: make(chan struct{}, 1)},
		log: o.Log.With("driver", "kubernetes"), held: map[string]*Sandbox{},
	}
}

// quietLibrary discards the library's own log, once for the process: it reports a closed stream as
// an unhandled error. What matters comes back as an error.
//
//nolint:gochecknoglobals // the library's log is global, too
var quietLibrary = sync.OnceFunc(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })

// errSlow is the cause of a context that ended because the API server did not answer.
var errSlow = errors.New("the API server does not answer in time")

func (o Options) withDefaults() Options {
	if o.Stream == "" {
		o.Stream = StreamWebSocket
	}
	if o.Network == "" {
		o.Network = NetworkStrip
	}
	if o.PullPolicy == "" {
		o.PullPolicy = string(corev1.PullIfNotPresent)
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

var namespacePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (o Options) validate() error {
	bad := func(field string, got any, want string) error {
		return fmt.Errorf("kubernetes.%s is %q: %s: %w", field, got, want, errdefs.ErrInvalidArgument)
	}
	switch {
	case !namespacePattern.MatchString(o.Namespace):
		return bad("namespace", o.Namespace, "use the name of a namespace for sandboxes only")
	case o.GuestImage == "":
		return bad("guest_image", o.GuestImage, "use the reference of an image with the guest, see docs/kubernetes.md")
	case o.Stream != StreamWebSocket && o.Stream != StreamSPDY:
		return bad("stream", o.Stream, "use websocket or spdy")
	case o.Network != NetworkStrip && o.Network != NetworkNone:
		return bad("network", o.Network, "use strip or none")
	case o.PullPolicy != string(corev1.PullIfNotPresent) && o.PullPolicy != string(corev1.PullAlways) &&
		o.PullPolicy != string(corev1.PullNever):
		return bad("pull_policy", o.PullPolicy, "use IfNotPresent, Always or Never")
	case o.PodPids < 0 || o.CPURequest < 0 || o.Deadline < time.Minute:
		return fmt.Errorf(
			"kubernetes: pod_pids and cpu_request must not be negative, and deadline must be at least a minute: %w",
			errdefs.ErrInvalidArgument,
		)
	}
	return errors.Join(o.validateClasses(), o.validateWorkspaces(), o.validateProviders())
}

// Name returns "kubernetes".
func (d *Driver) Name() string { return "kubernetes" }

// NeedsUnpackedRoot returns false.
func (d *Driver) NeedsUnpackedRoot() bool { return false }

// Info describes the cluster for people.
func (d *Driver) Info() string {
	return fmt.Sprintf("Kubernetes %s at %s, namespace %s", d.version, d.config.Host, d.opts.Namespace)
}

// Stream returns the protocol of new streams: StreamWebSocket, or StreamSPDY if that is configured
// or the server has refused WebSockets.
func (d *Driver) Stream() string {
	if d.spdy.Load() {
		return StreamSPDY
	}
	return d.opts.Stream
}

// Ping asks the API server whether it is ready.
func (d *Driver) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	_, err := d.api.serverVersion(ctx)
	return d.api.failed(ctx, "ask for the server's version", err)
}

// Prepare does nothing: the nodes pull images.
func (d *Driver) Prepare(context.Context, runtime.Image) error { return nil }

// ResolveImage returns an image that the nodes pull by this reference.
func (d *Driver) ResolveImage(_ context.Context, ref string) (runtime.Image, error) {
	if ref == "" {
		return runtime.Image{}, fmt.Errorf("kubernetes: the image reference is empty: %w", errdefs.ErrInvalidArgument)
	}
	return runtime.Image{Ref: ref, ID: "reference:" + ref}, nil
}

// List returns the pods of owner in any state, and its Jobs and SandboxClaims without a pod.
func (d *Driver) List(ctx context.Context, owner string) ([]runtime.Found, error) {
	if !runtime.ValidID(owner) {
		return nil, nil // no label has this value
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	list, err := d.api.list(ctx, metav1.ListOptions{LabelSelector: labelOwner + "=" + owner})
	if err != nil {
		return nil, d.api.failed(ctx, "list pods", err)
	}
	jobs, err := d.api.listJobs(ctx, owner)
	if err != nil {
		return nil, err
	}
	claims, err := d.listAgentClaims(ctx, owner)
	if err != nil {
		return nil, err
	}
	byID := map[string]runtime.Found{}
	add := func(object metav1.Object, running bool) {
		id, notes := object.GetLabels()[labelID], object.GetAnnotations()
		byID[id] = runtime.Found{
			ID: id, Template: notes[annotationTemplate], Build: notes[annotationBuild], Running: running || byID[id].Running,
		}
	}
	for i := range list.Items {
		if p := &list.Items[i]; entryName(p) == podName(p.Labels[labelID]) {
			add(p, running(p))
		}
	}
	for i := range jobs {
		if j := &jobs[i]; j.Name == podName(j.Labels[labelID]) {
			add(j, false)
		}
	}
	for i := range claims {
		if c := &claims[i]; c.GetName() == podName(c.GetLabels()[labelID]) {
			add(c, false)
		}
	}
	return slices.Collect(maps.Values(byID)), nil
}

// Close ends the watch. Pods keep running.
func (d *Driver) Close() error {
	d.pods.close()
	return nil
}

func podName(id string) string { return "orchestrator-" + id }
