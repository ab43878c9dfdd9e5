package config

import (
	"slices"
	"time"
)

// Kubernetes configures the kubernetes runtime.
type Kubernetes struct {
	// Kubeconfig is a file (default: KUBECONFIG, ~/.kube/config, or the pod's service account), and
	// Context one of its contexts.
	Kubeconfig string `json:"kubeconfig"`
	Context    string `json:"context"`
	// Namespace contains the sandboxes and nothing else. GuestImage contains the guest.
	Namespace  string `json:"namespace"`
	GuestImage string `json:"guest_image"`
	// Stream is "websocket" or "spdy". Network is "strip" or "none".
	Stream  string `json:"stream"`
	Network string `json:"network"`
	// SeccompProfile is a file in the seccomp directory of the kubelets (default: the container
	// runtime's filter).
	SeccompProfile string `json:"seccomp_profile"`
	// GVisorSeccompProfile is the same for class gvisor (default: gVisor loads no filter).
	GVisorSeccompProfile string `json:"gvisor_seccomp_profile"`
	// Classes maps "gvisor" and "vm" to RuntimeClasses of the cluster.
	Classes map[string]string `json:"classes"`
	// PodPids is the podPidsLimit of the kubelets; 0 means unknown.
	PodPids int64 `json:"pod_pids"`
	// CPURequest is what a sandbox reserves of its CPU limit; 0 reserves all of it.
	CPURequest float64 `json:"cpu_request"`
	// PullPolicy is "IfNotPresent", "Always" or "Never".
	PullPolicy string `json:"pull_policy"`
	// Deadline is when the cluster ends a pod that nobody has ended.
	Deadline Duration `json:"deadline"`
	// Election makes the service take part in the election of the one active service for its state
	// directory. The others wait as standbys.
	Election bool `json:"election"`
	// LeaseSeconds is how long the Lease of the election lasts after the last renewal.
	LeaseSeconds int `json:"lease_seconds"`
	// Pod says where pods run, and Pods the same for single templates.
	Pod  KubernetesPod            `json:"pod"`
	Pods map[string]KubernetesPod `json:"pods"`
}

// KubernetesPod says where pods run.
type KubernetesPod struct {
	// NodeSelector, Tolerations, RuntimeClass, PriorityClass and ImagePullSecrets are as in a pod.
	NodeSelector     map[string]string      `json:"node_selector"`
	Tolerations      []KubernetesToleration `json:"tolerations"`
	RuntimeClass     string                 `json:"runtime_class"`
	PriorityClass    string                 `json:"priority_class"`
	ImagePullSecrets []string               `json:"image_pull_secrets"`
	// UserNamespaces makes root in the pod an ordinary user of the node.
	UserNamespaces bool                `json:"user_namespaces"`
	Workspace      KubernetesWorkspace `json:"workspace"`
	// Provider makes the pods: "agent-sandbox", or "" for the service itself.
	Provider string `json:"provider"`
	// WarmPool is the number of pods that agent-sandbox keeps ready.
	WarmPool int32 `json:"warm_pool"`
}

// KubernetesWorkspace configures volume claims for workspaces.
type KubernetesWorkspace struct {
	// StorageClass is a StorageClass of the cluster (default: the cluster's default).
	StorageClass string `json:"storage_class"`
	// Size is the size of a claim; 0 means no claims.
	Size Size `json:"size"`
	// AccessMode is "ReadWriteOncePod" or "ReadWriteOnce" (default: ReadWriteOncePod).
	AccessMode string `json:"access_mode"`
}

// KubernetesToleration is a toleration of a pod, as Kubernetes defines it.
type KubernetesToleration struct {
	// Key, Operator, Value and Effect are as in a pod.
	Key      string `json:"key"`
	Operator string `json:"operator"`
	Value    string `json:"value"`
	Effect   string `json:"effect"`
}

func defaultKubernetes() Kubernetes {
	return Kubernetes{
		Namespace: "orchestrator", Stream: "websocket", Network: "strip", PullPolicy: "IfNotPresent", Deadline: Duration(7 * 24 * time.Hour),
		Election: true, LeaseSeconds: 10,
		Pod: KubernetesPod{
			NodeSelector:     map[string]string{},
			Tolerations:      []KubernetesToleration{},
			ImagePullSecrets: []string{},
		},
		Pods: map[string]KubernetesPod{}, Classes: map[string]string{},
	}
}

// validateKubernetes checks what must be set for the runtime; the driver checks the rest.
func (c Config) validateKubernetes() error {
	k := c.Kubernetes
	switch {
	case !slices.Contains([]string{"websocket", "spdy"}, k.Stream):
		return bad("kubernetes.stream", k.Stream, "must be websocket or spdy")
	case !slices.Contains([]string{"strip", "none"}, k.Network):
		return bad("kubernetes.network", k.Network, "must be strip or none")
	case !slices.Contains([]string{"IfNotPresent", "Always", "Never"}, k.PullPolicy):
		return bad("kubernetes.pull_policy", k.PullPolicy, "must be IfNotPresent, Always or Never")
	case k.PodPids < 0 || k.CPURequest < 0:
		return bad("kubernetes.pod_pids and kubernetes.cpu_request", "negative", "must not be")
	case k.Deadline < Duration(time.Minute):
		return bad("kubernetes.deadline", k.Deadline, "must be at least 1m")
	case k.LeaseSeconds < 10 || k.LeaseSeconds > 600:
		return bad("kubernetes.lease_seconds", k.LeaseSeconds, "must be 10 to 600")
	case c.Runtime != "kubernetes":
		return nil
	case k.GuestImage == "":
		return bad(
			"kubernetes.guest_image",
			"empty",
			"must be the reference of an image with the guest: see docs/kubernetes.md",
		)
	case c.Admission.MaxMemory == 0:
		return bad("admission.max_memory", 0, "must be set with runtime kubernetes: this host's memory is not the cluster's")
	}
	return nil
}
