package kubernetes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func testDriver() *Driver {
	o := Options{Namespace: "sandboxes", GuestImage: "guest:1"}.withDefaults()
	return &Driver{opts: o}
}

func testSpec() runtime.Spec {
	return runtime.Spec{
		ID: "sandbox-1", Owner: "owner-of-1", Template: "default", Build: "v1.0.0+dirty",
		Image: runtime.Image{Ref: "image:1", ID: "reference:image:1"}, Limits: runtime.Limits{}.WithDefaults(),
	}
}

func TestPodIsConfined(t *testing.T) {
	t.Parallel()
	p := testDriver().podOf(testSpec())
	s := p.Spec
	if *s.AutomountServiceAccountToken || *s.EnableServiceLinks || s.DNSPolicy != corev1.DNSNone || s.HostNetwork ||
		s.RestartPolicy != corev1.RestartPolicyNever || *s.TerminationGracePeriodSeconds != 1 || s.ActiveDeadlineSeconds == nil {
		t.Errorf("pod = %+v, want it confined", s)
	}
	c := s.Containers[0]
	if !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation ||
		len(c.SecurityContext.Capabilities.Add) != 3 || c.SecurityContext.Capabilities.Drop[0] != "ALL" {
		t.Errorf("security context = %+v, want a read-only root and three capabilities", c.SecurityContext)
	}
	for name, limit := range c.Resources.Limits {
		if request := c.Resources.Requests[name]; request.Cmp(limit) != 0 {
			t.Errorf("request of %s = %v, want the limit %v", name, request, limit)
		}
	}
	if err := checkUnchanged(p, p); err != nil {
		t.Errorf("checkUnchanged of the same pod = %v, want nil", err)
	}
}

func TestOneInitContainerRemovesTheNetwork(t *testing.T) {
	t.Parallel()
	for network, want := range map[string]struct {
		isolate      bool
		capabilities int
	}{NetworkStrip: {true, 3}, NetworkNone: {false, 2}} {
		d := testDriver()
		d.opts.Network = network
		list := d.podOf(testSpec()).Spec.InitContainers
		if len(list) != 1 {
			t.Fatalf("init containers with network %s = %d, want 1", network, len(list))
		}
		got := list[0].SecurityContext.Capabilities.Add
		if slices.Contains(list[0].Command, "--isolate") != want.isolate || slices.Contains(got, "NET_ADMIN") != want.isolate ||
			len(got) != want.capabilities {
			t.Errorf("init container with network %s = %q with %v, want --isolate and NET_ADMIN: %t, and %d capabilities",
				network, list[0].Command, got, want.isolate, want.capabilities)
		}
	}
}

func TestChangedPodIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.PodSpec){
		"sidecar":    func(s *corev1.PodSpec) { s.Containers = append(s.Containers, corev1.Container{Name: "proxy"}) },
		"volume":     func(s *corev1.PodSpec) { s.Volumes = append(s.Volumes, corev1.Volume{Name: "token"}) },
		"network":    func(s *corev1.PodSpec) { s.HostNetwork = true },
		"capability": func(s *corev1.PodSpec) { s.Containers[0].SecurityContext = nil },
		"variable":   func(s *corev1.PodSpec) { s.Containers[0].Env = []corev1.EnvVar{{Name: "LD_PRELOAD"}} },
		"mount":      func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts = nil },
		"image":      func(s *corev1.PodSpec) { s.InitContainers[0].Image = "other" },
	} {
		asked := testDriver().podOf(testSpec())
		got := asked.DeepCopy()
		change(&got.Spec)
		if err := checkUnchanged(asked, got); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("checkUnchanged with a changed %s = %v, want FailedPrecondition", name, err)
		}
	}
}

func waiting(reason string) *corev1.Pod {
	return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
		{
			Name:  containerName,
			Image: "image:1",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		},
	}}}
}

func TestProgressOfAStartingPod(t *testing.T) {
	t.Parallel()
	failed := func(reason string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason}}
	}
	for name, c := range map[string]struct {
		pod *corev1.Pod
		is  func(error) bool
	}{
		"waits":               {waiting("ContainerCreating"), func(err error) bool { return err == nil }},
		"ErrImagePull":        {waiting("ErrImagePull"), errdefs.IsNotFound},
		"ImagePullBackOff":    {waiting("ImagePullBackOff"), errdefs.IsNotFound},
		"ErrImageNeverPull":   {waiting("ErrImageNeverPull"), errdefs.IsNotFound},
		"InvalidImageName":    {waiting("InvalidImageName"), errdefs.IsFailedPrecondition},
		"RunContainerError":   {waiting("RunContainerError"), errdefs.IsFailedPrecondition},
		"OutOfcpu":            {failed("OutOfcpu"), errdefs.IsResourceExhausted},
		"Evicted":             {failed("Evicted"), errdefs.IsResourceExhausted},
		"UnexpectedAdmission": {failed("UnexpectedAdmissionError"), errdefs.IsFailedPrecondition},
		"gone":                {nil, errdefs.IsUnavailable},
	} {
		if ready, err := progress(c.pod); ready || !c.is(err) {
			t.Errorf("progress(%s) = %v, %v; want false and an error of the right class", name, ready, err)
		}
	}
}

func TestEndingOfAPod(t *testing.T) {
	t.Parallel()
	ended := func(reason, why string) *corev1.Pod {
		return &corev1.Pod{
			Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, ContainerStatuses: []corev1.ContainerStatus{
				{Name: containerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: why}}},
			}},
		}
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want error
	}{
		"oom":      {ended("", "OOMKilled"), errOOM},
		"evicted":  {ended("Evicted", "Error"), errEvicted},
		"deadline": {ended("DeadlineExceeded", "Error"), errDeadline},
		"ended":    {ended("", "Completed"), errEnded},
		"gone":     {nil, errDeleted},
		"waits":    {waiting(""), nil},
	} {
		if got := ending(c.pod); !errors.Is(got, c.want) {
			t.Errorf("ending(%s) = %v, want %v", name, got, c.want)
		}
	}
}

func TestErrorsOfTheServerAreClassified(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	forbidden := func(text string) error { return apierrors.NewForbidden(pods, "p", errors.New(text)) }
	a := &api{host: "https://cluster", namespace: "sandboxes"}
	for name, c := range map[string]struct {
		err  error
		is   func(error) bool
		text string
	}{
		"quota":    {forbidden("exceeded quota: q"), errdefs.IsResourceExhausted, "quota of namespace sandboxes"},
		"security": {forbidden(`violates PodSecurity "baseline:latest"`), errdefs.IsFailedPrecondition, "privileged"},
		"rbac":     {forbidden(`User "u" cannot create resource "pods"`), errdefs.IsFailedPrecondition, "cannot create"},
		"webhook": {
			apierrors.NewInternalError(errors.New(`admission webhook "w" denied the request`)),
			errdefs.IsFailedPrecondition, `"w"`,
		},
		"login": {apierrors.NewUnauthorized("no"), errdefs.IsUnauthorized, "credentials"},
		"namespace": {
			apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "sandboxes"),
			errdefs.IsFailedPrecondition, "create it",
		},
		"exists":  {apierrors.NewAlreadyExists(pods, "p"), errdefs.IsAlreadyExists, ""},
		"gone":    {apierrors.NewNotFound(pods, "p"), errdefs.IsNotFound, ""},
		"refused": {errors.New("connection refused"), errdefs.IsUnavailable, "https://cluster"},
	} {
		if err := a.failed(context.Background(), "create pod p", c.err); !c.is(err) ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("failed(%s) = %v, want %q in it and the right class", name, err, c.text)
		}
	}
}

func TestPodCacheWaitsForTheRightPod(t *testing.T) {
	t.Parallel()
	c := &podCache{entries: map[string]*podEntry{}}
	pod := func(uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID("uid-" + uid)}}
	}
	c.add(pod("1"))
	seen := make(chan bool, 4)
	done := make(chan error)
	go func() {
		done <- c.wait(t.Context(), "p", "uid-1", func(p *corev1.Pod) bool { seen <- p != nil; return p == nil })
	}()
	if !<-seen {
		t.Error("wait saw no pod, want one")
	}
	c.mu.Lock()
	c.set("p", pod("2")) // another pod of the same name
	c.mu.Unlock()
	if err := <-done; err != nil || <-seen {
		t.Errorf("wait for a replaced pod = %v, want nil for the pod", err)
	}
	c.mu.Lock()
	c.set("p", nil)
	c.mu.Unlock()
	if len(c.entries) > 0 {
		t.Errorf("entries = %v, want none after the pod's end", c.entries)
	}
}
