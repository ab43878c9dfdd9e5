package kubernetes

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

func agentDriver(pool int32) *Driver {
	d := testDriver()
	d.opts.Pod = PodOptions{Provider: ProviderAgentSandbox, WarmPool: pool}
	return d
}

// discovery answers as an API server that serves resources of agentGroup in some versions.
type discovery map[string][]string

// RoundTrip implements http.RoundTripper.
func (d discovery) RoundTrip(r *http.Request) (*http.Response, error) {
	const root = "/apis/" + agentGroup
	version, inside := strings.CutPrefix(r.URL.Path, root+"/")
	switch resources, ok := d[version]; {
	case r.URL.Path == root && len(d) > 0:
		var group metav1.APIGroup
		for version := range d {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{Version: version})
		}
		return answer(http.StatusOK, group), nil
	case inside && ok:
		var list metav1.APIResourceList
		for _, name := range resources {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
		}
		return answer(http.StatusOK, list), nil
	}
	return answer(http.StatusNotFound, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
	}), nil
}

func TestAgentSandboxVersionIsThatOfTheCluster(t *testing.T) {
	t.Parallel()
	all := agentResources()
	for name, c := range map[string]struct {
		served    discovery
		want, why string
	}{
		"0.2":                {discovery{"v1alpha1": all}, "v1alpha1", ""},
		"both":               {discovery{"v1alpha1": all, "v1beta1": all}, "v1beta1", ""},
		"1.0":                {discovery{"v1beta1": all}, "v1beta1", ""},
		"unknown":            {discovery{"v7": all}, "", "in version v7, and this service knows v1beta1, v1alpha1"},
		"without claims":     {discovery{"v1alpha1": all[:2]}, "", "no sandboxclaims of"},
		"without extensions": {discovery{}, "", "install kubernetes-sigs/agent-sandbox"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := newAPI(&rest.Config{Host: "http://cluster", Transport: c.served}, "sandboxes")
			if err != nil {
				t.Fatal(err)
			}
			got, err := a.agentVersion(t.Context())
			if got != c.want || (c.why != "") != errdefs.IsFailedPrecondition(err) || c.why != "" && !strings.Contains(err.Error(), c.why) {
				t.Errorf("agentVersion = %q, %v; want %q and %q", got, err, c.want, c.why)
			}
		})
	}
}

func TestAgentSandboxClaimNamesTemplateOrPool(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{agentAlpha: "sandboxTemplateRef", agentBeta: "warmPoolRef"} {
		a := &agentSandboxes{d: agentDriver(0), version: version}
		c := a.claimOf(testSpec(), "of-default")
		if got, _, _ := unstructured.NestedString(c.Object, "spec", want, "name"); got != "of-default" {
			t.Errorf("claim of version %s = %v, want a name in spec.%s", version, c.Object, want)
		}
		if c.GetAPIVersion() != agentGroup+"/"+version || c.GetName() != podName(testSpec().ID) || c.GetLabels()[labelID] != testSpec().ID {
			t.Errorf("claim of version %s = %v, want one with the name and labels of the sandbox", version, c.Object)
		}
	}
}

func TestAgentSandboxTemplateHasNothingOfOneSandbox(t *testing.T) {
	t.Parallel()
	a := &agentSandboxes{d: agentDriver(0), version: agentAlpha}
	name := func(change func(d *Driver, id *string, memory *int64)) string {
		b := &agentSandboxes{d: agentDriver(0), version: agentAlpha}
		spec := testSpec()
		change(b.d, &spec.ID, &spec.Limits.MemoryBytes)
		o, err := b.templateOf(spec)
		if err != nil {
			t.Fatal(err)
		}
		return o.GetName()
	}
	first, err := a.templateOf(testSpec())
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(first.Object); strings.Contains(text, testSpec().ID) {
		t.Errorf("template = %s, want nothing of sandbox %s", text, testSpec().ID)
	}
	if got := name(func(_ *Driver, id *string, _ *int64) { *id = "sandbox-2" }); got != first.GetName() {
		t.Errorf("template of another sandbox = %s, want the same %s", got, first.GetName())
	}
	if got := name(func(_ *Driver, _ *string, memory *int64) { *memory *= 2 }); got == first.GetName() {
		t.Errorf("template with another limit = %s, want another name", got)
	}
	if got := name(func(d *Driver, _ *string, _ *int64) { d.opts.Pod.WarmPool = 1 }); got == first.GetName() {
		t.Errorf("template of a pool, whose guests wait for a host = %s, want another name", got)
	}
}

func TestAgentSandboxClaimStateIsTyped(t *testing.T) {
	t.Parallel()
	claim := func(reason, message string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{
			map[string]any{"type": "Ready", "status": "False", "reason": reason, "message": message},
		}}}}
	}
	silent := &unstructured.Unstructured{Object: map[string]any{}}
	for name, c := range map[string]struct {
		claim *unstructured.Unstructured
		age   time.Duration
		class func(error) bool
		final bool
	}{
		"silent":        {silent, agentPatience, errdefs.IsUnavailable, false},
		"long silent":   {silent, agentSilence, errdefs.IsUnavailable, true},
		"starting":      {claim("DependenciesNotReady", "Pod does not exist"), time.Minute, errdefs.IsUnavailable, false},
		"new error":     {claim("ReconcilerError", "x"), 0, errdefs.IsUnavailable, false},
		"quota":         {claim("ReconcilerError", "pods is forbidden: exceeded quota: none"), agentPatience, errdefs.IsResourceExhausted, true},
		"webhook":       {claim("ReconcilerError", `admission webhook "w" denied`), agentPatience, errdefs.IsFailedPrecondition, true},
		"no template":   {claim("TemplateNotFound", `SandboxTemplate "t" not found`), agentPatience, errdefs.IsFailedPrecondition, true},
		"expired claim": {claim("ClaimExpired", "Claim expired"), 0, errdefs.IsUnavailable, true},
	} {
		err, final := claimState(c.claim, c.age)
		if !c.class(err) || final != c.final {
			t.Errorf("claimState of %s after %v = %v, %t; want another class or %t", name, c.age, err, final, c.final)
		}
	}
}

func TestAgentSandboxOptionsAreValidated(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]PodOptions{
		"kubernetes.pods.a.provider":  {Provider: "knative"},
		"kubernetes.pods.a.warm_pool": {WarmPool: 2},
		"leave out workspace":         {Provider: ProviderAgentSandbox, Workspace: WorkspaceOptions{Bytes: 1 << 30}},
	} {
		o := testDriver().opts
		o.Pods = map[string]PodOptions{"a": p}
		if err := o.validate(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("validate with %+v = %v, want InvalidArgument with %q", p, err, want)
		}
	}
}
