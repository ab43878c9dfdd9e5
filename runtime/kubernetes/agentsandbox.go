package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// ProviderAgentSandbox is the value of PodOptions.Provider for pods that the controller of
// kubernetes-sigs/agent-sandbox makes.
const ProviderAgentSandbox = "agent-sandbox"

const (
	// agentGroup is the API group of the controller's extensions.
	agentGroup = "extensions.agents.x-k8s.io"
	// The resources of agentGroup.
	agentTemplates = "sandboxtemplates"
	agentPools     = "sandboxwarmpools"
	agentClaims    = "sandboxclaims"
	// labelClaim is on the pod of a SandboxClaim, with the claim's UID.
	labelClaim = "agents.x-k8s.io/claim-uid"
	// annotationProvider is on pods that agent-sandbox has made from a template of this driver.
	annotationProvider = "orchestrator.provider"
	// A claim names a template in version v1alpha1, and a pool in version v1beta1.
	agentAlpha = "v1alpha1"
	agentBeta  = "v1beta1"
)

// agentVersions are the versions of agentGroup that the driver knows, the preferred one first.
func agentVersions() []string { return []string{agentBeta, agentAlpha} }

func agentResources() []string { return []string{agentTemplates, agentPools, agentClaims} }

// agentSandboxes uses agent-sandbox in one namespace, by the version that the cluster serves. Its
// API differs between versions, and its module has the types of one of them only.
type agentSandboxes struct {
	d       *Driver
	version string
	client  dynamic.Interface

	turn chan struct{}       // held while making a template
	made map[string]struct{} // names of templates that were made; guarded by turn
}

// agents keeps the agentSandboxes of a driver, which it looks for when they are first needed.
type agents struct {
	mu   sync.Mutex
	used *agentSandboxes // guarded by mu
}

// usesAgents reports whether a template's pods are from agent-sandbox.
func (o Options) usesAgents() bool {
	for _, p := range o.allPods() {
		if p.Provider == ProviderAgentSandbox {
			return true
		}
	}
	return false
}

// allPods returns the options of pods by their key of the configuration.
func (o Options) allPods() map[string]PodOptions {
	out := map[string]PodOptions{"kubernetes.pod": o.Pod}
	for name, p := range o.Pods {
		out["kubernetes.pods."+name] = p
	}
	return out
}

func (o Options) validateProviders() error {
	for key, p := range o.allPods() {
		switch {
		case p.Provider != "" && p.Provider != ProviderAgentSandbox:
			return fmt.Errorf("%s.provider is %q: use %s or nothing: %w", key, p.Provider, ProviderAgentSandbox, errdefs.ErrInvalidArgument)
		case p.WarmPool < 0, p.WarmPool > 0 && p.Provider == "":
			return fmt.Errorf("%s.warm_pool is %d: must not be negative, and needs provider: %s: %w",
				key, p.WarmPool, ProviderAgentSandbox, errdefs.ErrInvalidArgument)
		case p.Provider != "" && p.Workspace != WorkspaceOptions{}:
			return fmt.Errorf("%s: provider %s has no volume claims: leave out workspace, or use a template without provider: %w",
				key, p.Provider, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// agentPermissions returns what agent-sandbox needs in the namespace.
func (o Options) agentPermissions() []authorizationv1.ResourceAttributes {
	if !o.usesAgents() {
		return nil
	}
	var needed []authorizationv1.ResourceAttributes
	if !o.Election { // which needs it, too
		needed = append(needed, authorizationv1.ResourceAttributes{Verb: "patch", Resource: "pods"})
	}
	for _, r := range []struct {
		resource string
		verbs    []string
	}{
		{agentTemplates, []string{"create", "list", "delete"}},
		{agentPools, []string{"create", "list", "patch", "delete"}},
		{agentClaims, []string{"create", "get", "list", "patch", "delete"}},
	} {
		for _, verb := range r.verbs {
			needed = append(needed, authorizationv1.ResourceAttributes{Verb: verb, Group: agentGroup, Resource: r.resource})
		}
	}
	return needed
}

// agents returns the client for agent-sandbox. FailedPrecondition: the cluster does not have it.
func (d *Driver) agents(ctx context.Context) (*agentSandboxes, error) {
	d.agent.mu.Lock()
	used := d.agent.used
	d.agent.mu.Unlock()
	if used != nil {
		return used, nil
	}
	version, err := d.api.agentVersion(ctx)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(d.config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: kubeconfig: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	d.agent.mu.Lock()
	defer d.agent.mu.Unlock()
	if d.agent.used == nil {
		d.agent.used = &agentSandboxes{
			d: d, version: version, client: client, turn: make(chan struct{}, 1), made: map[string]struct{}{},
		}
	}
	return d.agent.used, nil
}

// agentVersion returns the version of agentGroup to use.
func (a *api) agentVersion(ctx context.Context) (string, error) {
	const install = "install kubernetes-sigs/agent-sandbox with its extensions, or leave out kubernetes.pods.*.provider"
	var group metav1.APIGroup
	err := a.getRaw(ctx, "/apis/"+agentGroup, &group)
	if apierrors.IsNotFound(err) {
		return "", refused("the cluster has no resources of %s: %s", agentGroup, install)
	}
	if err != nil {
		return "", a.failed(ctx, "look for "+agentGroup, err)
	}
	var served []string
	for _, v := range group.Versions {
		served = append(served, v.Version)
	}
	for _, version := range agentVersions() {
		if !slices.Contains(served, version) {
			continue
		}
		var list metav1.APIResourceList
		if err := a.getRaw(ctx, "/apis/"+agentGroup+"/"+version, &list); err != nil {
			return "", a.failed(ctx, "look for "+agentGroup+"/"+version, err)
		}
		missing := slices.DeleteFunc(agentResources(), func(name string) bool {
			return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
		})
		if len(missing) > 0 {
			return "", refused("the cluster has no %s of %s/%s: %s", strings.Join(missing, ", "), agentGroup, version, install)
		}
		return version, nil
	}
	return "", refused("the cluster serves %s in version %s, and this service knows %s: install another version of agent-sandbox",
		agentGroup, strings.Join(served, ", "), strings.Join(agentVersions(), ", "))
}

// getRaw decodes the answer to a GET.
func (a *api) getRaw(ctx context.Context, path string, v any) error {
	text, err := a.core.Get().AbsPath(path).Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// of returns the client of a resource.
func (s *agentSandboxes) of(resource string) dynamic.ResourceInterface {
	return s.client.Resource(schema.GroupVersionResource{Group: agentGroup, Version: s.version, Resource: resource}).
		Namespace(s.d.opts.Namespace)
}

// object returns an object of agentGroup without a status.
func (s *agentSandboxes) object(kind string, meta metav1.ObjectMeta, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetAPIVersion(agentGroup + "/" + s.version)
	o.SetKind(kind)
	o.SetName(meta.Name)
	o.SetLabels(meta.Labels)
	o.SetAnnotations(meta.Annotations)
	return o
}

// agentPodOf returns the pod of a sandbox as agent-sandbox makes it: without what differs between
// the sandboxes of a template.
func (d *Driver) agentPodOf(spec runtime.Spec) *corev1.Pod {
	p := d.podOf(spec)
	p.Annotations = map[string]string{
		annotationTemplate: spec.Template, annotationBuild: spec.Build, annotationProvider: ProviderAgentSandbox,
	}
	if d.podOptions(spec.Template).WarmPool > 0 {
		c := &p.Spec.Containers[0]
		c.Command = append(c.Command, "--pooled")
	}
	return p
}

// templateOf returns the SandboxTemplate for the pods of a template. Its name has a digest of its
// content, so that a template never changes.
func (s *agentSandboxes) templateOf(spec runtime.Spec) (*unstructured.Unstructured, error) {
	p := s.d.agentPodOf(spec)
	pod, err := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(&p.Spec)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: template of %s: %w", spec.Template, err)
	}
	annotations := map[string]any{}
	for key, value := range p.Annotations {
		annotations[key] = value
	}
	content := map[string]any{
		"podTemplate":             map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": pod},
		"networkPolicyManagement": "Managed",
		"networkPolicy":           map[string]any{"ingress": []any{}, "egress": []any{}}, // allows nothing
	}
	if s.version != agentAlpha {
		content["service"] = false
	}
	text, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: template of %s: %w", spec.Template, err)
	}
	digest := sha256.Sum256(append(text, spec.Owner...))
	return s.object("SandboxTemplate", metav1.ObjectMeta{
		Name: "orchestrator-template-" + hex.EncodeToString(digest[:8]), Labels: map[string]string{labelOwner: spec.Owner},
		Annotations: map[string]string{annotationTemplate: spec.Template},
	}, content), nil
}

// ensureTemplate makes the SandboxTemplate of a template, and its SandboxWarmPool if one is needed,
// and returns their name. It deletes those that an earlier process has made for the template.
func (s *agentSandboxes) ensureTemplate(ctx context.Context, spec runtime.Spec) (string, error) {
	want, err := s.templateOf(spec)
	if err != nil {
		return "", err
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", s.d.api.failed(ctx, "make SandboxTemplate "+want.GetName(), ctx.Err())
	}
	name, replicas := want.GetName(), s.d.podOptions(spec.Template).WarmPool
	if _, ok := s.made[name]; ok {
		return name, nil
	}
	if _, err := s.of(agentTemplates).Create(ctx, want, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", s.d.api.failed(ctx, "create SandboxTemplate "+name, err)
	}
	if replicas > 0 || s.version != agentAlpha {
		pool := s.object("SandboxWarmPool", metav1.ObjectMeta{
			Name: name, Labels: want.GetLabels(), Annotations: want.GetAnnotations(),
		}, map[string]any{"replicas": int64(replicas), "sandboxTemplateRef": map[string]any{"name": name}})
		_, err := s.of(agentPools).Create(ctx, pool, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
			_, err = s.of(agentPools).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			return "", s.d.api.failed(ctx, "create SandboxWarmPool "+name, err)
		}
	}
	if err := s.removeTemplates(ctx, spec.Owner, func(o *unstructured.Unstructured) bool {
		_, ours := s.made[o.GetName()]
		return o.GetAnnotations()[annotationTemplate] == spec.Template && o.GetName() != name && !ours
	}); err != nil {
		s.d.log.Warn("failed to delete the agent-sandbox template of an earlier configuration", "template", spec.Template, "error", err)
	}
	s.made[name] = struct{}{}
	return name, nil
}

// forgetTemplate makes the next sandbox of a template make its SandboxTemplate again.
func (s *agentSandboxes) forgetTemplate(name string) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	delete(s.made, name)
}

// removeTemplates asks for the deletion of the pools and templates of an owner that chosen selects.
func (s *agentSandboxes) removeTemplates(ctx context.Context, owner string, chosen func(*unstructured.Unstructured) bool) error {
	background := metav1.DeletePropagationBackground
	for _, resource := range []string{agentPools, agentTemplates} {
		list, err := s.of(resource).List(ctx, metav1.ListOptions{LabelSelector: labelOwner + "=" + owner})
		if err != nil {
			return s.d.api.failed(ctx, "list "+resource, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if !chosen(o) {
				continue
			}
			err := s.of(resource).Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
			if err != nil && !apierrors.IsNotFound(err) {
				return s.d.api.failed(ctx, "delete "+resource+" "+o.GetName(), err)
			}
		}
	}
	return nil
}

// RemoveTemplates implements runtime.TemplateKeeper. The cluster deletes the pods of pools after
// that.
func (d *Driver) RemoveTemplates(ctx context.Context, owner string) error {
	if !d.opts.usesAgents() || !runtime.ValidID(owner) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	s, err := d.agents(ctx)
	if err != nil {
		return err
	}
	return s.removeTemplates(ctx, owner, func(*unstructured.Unstructured) bool { return true })
}
