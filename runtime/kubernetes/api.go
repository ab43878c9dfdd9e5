package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// api is a typed client for the few resources that the driver uses. The library's own clients
// contain all groups of Kubernetes, which is more than half of this program's size.
type api struct {
	core, auth    *rest.RESTClient
	leases, batch *rest.RESTClient
	params        k8sruntime.ParameterCodec
	host          string
	namespace     string
}

// loadConfig reads a kubeconfig as kubectl does. Without one it uses the pod's service account.
func loadConfig(file, name string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: name}).
		ClientConfig()
	if err != nil {
		return nil, fmt.Errorf(
			"kubernetes: kubeconfig: %w: set kubernetes.kubeconfig and kubernetes.context: %w",
			err,
			errdefs.ErrInvalidArgument,
		)
	}
	if file := config.BearerTokenFile; file != "" {
		config.BearerToken, config.BearerTokenFile = "", ""
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return tokenFile{file, next} })
	}
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	config.UserAgent = "orchestrator"
	return config, nil
}

// tokenFile adds the token in a file to each request. The library would use a token for up to a
// minute after it was replaced, even if the server refuses it.
type tokenFile struct {
	name string
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f tokenFile) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := os.ReadFile(f.name)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	text := strings.TrimSpace(string(token))
	if text == "" { // it is being written; without a token, the request would be that of an anonymous user
		return nil, fmt.Errorf("read the token: %s is empty", f.name)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+text)
	return f.next.RoundTrip(r)
}

// WrappedRoundTripper lets the library find the connections below.
func (f tokenFile) WrappedRoundTripper() http.RoundTripper { return f.next }

func newAPI(config *rest.Config, namespace string) (*api, error) {
	known := k8sruntime.NewScheme()
	err := errors.Join(corev1.AddToScheme(known), authorizationv1.AddToScheme(known), coordinationv1.AddToScheme(known),
		batchv1.AddToScheme(known))
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	codecs := serializer.NewCodecFactory(known)
	open := func(path string, group schema.GroupVersion) (*rest.RESTClient, error) {
		c := rest.CopyConfig(config)
		c.APIPath, c.GroupVersion = path, &group
		c.NegotiatedSerializer = codecs.WithoutConversion()
		got, err := rest.RESTClientFor(c)
		if err != nil {
			return nil, fmt.Errorf("kubernetes: kubeconfig: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		return got, nil
	}
	core, err := open("/api", corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	auth, err := open("/apis", authorizationv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	leases, err := open("/apis", coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	batch, err := open("/apis", batchv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &api{
		core:      core,
		auth:      auth,
		leases:    leases,
		batch:     batch,
		params:    k8sruntime.NewParameterCodec(known),
		host:      config.Host,
		namespace: namespace,
	}, nil
}

func (a *api) serverVersion(ctx context.Context) (string, error) {
	text, err := a.core.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var v version.Info
	if err := json.Unmarshal(text, &v); err != nil {
		return "", fmt.Errorf("the server does not answer as Kubernetes does: %w", err)
	}
	return v.GitVersion, nil
}

// permissions returns what the driver needs in its namespace. Servers ask for get on pods/exec for
// WebSockets, and for create for SPDY and, since 1.35, for both.
func (o Options) permissions() []authorizationv1.ResourceAttributes {
	needed := []authorizationv1.ResourceAttributes{
		{Verb: "create", Resource: "pods"},
		{Verb: "get", Resource: "pods"},
		{Verb: "list", Resource: "pods"},
		{Verb: "watch", Resource: "pods"},
		{Verb: "delete", Resource: "pods"},
		{Verb: "create", Resource: "pods", Subresource: "exec"},
		{Verb: "get", Resource: "pods", Subresource: "exec"},
	}
	if o.Election {
		needed = append(needed, authorizationv1.ResourceAttributes{Verb: "patch", Resource: "pods"})
		needed = append(needed, leasePermissions()...)
	}
	needed = append(needed, o.agentPermissions()...)
	if o.hasClaims() {
		for _, verb := range []string{"create", "get", "delete"} {
			needed = append(needed, authorizationv1.ResourceAttributes{Verb: verb, Resource: claims})
		}
	}
	return needed
}

// checkPermissions returns an error that names every missing verb with its resource.
func (a *api) checkPermissions(ctx context.Context, needed []authorizationv1.ResourceAttributes) error {
	var missing []string
	for _, p := range needed {
		p.Namespace = a.namespace
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &p},
		}
		var answer authorizationv1.SelfSubjectAccessReview
		if err := a.auth.Post().Resource("selfsubjectaccessreviews").Body(review).Do(ctx).Into(&answer); err != nil {
			return a.failed(ctx, "ask for permissions", err)
		}
		if !answer.Status.Allowed {
			missing = append(missing, p.Verb+" "+strings.TrimSuffix(p.Resource+"/"+p.Subresource, "/"))
		}
	}
	if len(missing) > 0 {
		return refused(
			"permission missing in namespace %s: %s: add it to the role of this user",
			a.namespace,
			strings.Join(missing, ", "),
		)
	}
	return nil
}

func (a *api) create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	got := new(corev1.Pod)
	return got, a.core.Post().Namespace(a.namespace).Resource("pods").Body(pod).Do(ctx).Into(got)
}

func (a *api) get(ctx context.Context, name string) (*corev1.Pod, error) {
	got := new(corev1.Pod)
	return got, a.core.Get().Namespace(a.namespace).Resource("pods").Name(name).Do(ctx).Into(got)
}

func (a *api) list(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	got := new(corev1.PodList)
	return got, a.core.Get().Namespace(a.namespace).Resource("pods").VersionedParams(&o, a.params).Do(ctx).Into(got)
}

func (a *api) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return a.core.Get().Namespace(a.namespace).Resource("pods").VersionedParams(&o, a.params).Watch(ctx)
}

func (a *api) getLease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	got := new(coordinationv1.Lease)
	return got, a.leases.Get().Namespace(a.namespace).Resource("leases").Name(name).Do(ctx).Into(got)
}

func (a *api) createLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	got := new(coordinationv1.Lease)
	return got, a.leases.Post().Namespace(a.namespace).Resource("leases").Body(lease).Do(ctx).Into(got)
}

// updateLease fails with a conflict if the Lease has changed.
func (a *api) updateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	got := new(coordinationv1.Lease)
	return got, a.leases.Put().Namespace(a.namespace).Resource("leases").Name(lease.Name).Body(lease).Do(ctx).Into(got)
}

func (a *api) delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return a.core.Delete().Namespace(a.namespace).Resource("pods").Name(name).Body(&o).Do(ctx).Error()
}

// execURL is the address of an exec of "guest bridge".
func (a *api) execURL(name string, argv []string) *url.URL {
	return a.core.Post().Namespace(a.namespace).Resource("pods").Name(name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: containerName, Command: argv, Stdin: true, Stdout: true, Stderr: true}, a.params).
		URL()
}

// refused returns an error about what this cluster cannot do or does not allow.
func refused(format string, args ...any) error {
	return fmt.Errorf("kubernetes: "+format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
}

// failed classifies the error of a request. It returns nil for nil.
func (a *api) failed(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	var class error = errdefs.ErrUnavailable
	text := err.Error()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf(
			"kubernetes: %s at %s: %w: %w",
			what,
			a.host,
			errdefs.ErrUnavailable,
			cmp.Or(context.Cause(ctx), err),
		)
	case apierrors.IsForbidden(err) && strings.Contains(text, "exceeded quota"),
		apierrors.IsForbidden(err) && strings.Contains(text, "failed quota"):
		class, text = errdefs.ErrResourceExhausted, "a quota of namespace "+a.namespace+" refuses it: "+text
	case apierrors.IsForbidden(err) && strings.Contains(text, "violates PodSecurity"):
		class = errdefs.ErrFailedPrecondition
		text += ": use a namespace with pod security baseline, or privileged for kubernetes.network: strip"
	case apierrors.IsForbidden(err), strings.Contains(text, "admission webhook"):
		class = errdefs.ErrFailedPrecondition // the text names user, verb and resource, or the webhook
	case apierrors.IsUnauthorized(err):
		class, text = errdefs.ErrUnauthenticated, "the server does not accept the credentials of the kubeconfig"
	case apierrors.IsNotFound(err) && strings.Contains(text, "namespaces"):
		class, text = errdefs.ErrFailedPrecondition, "namespace "+a.namespace+" not found: create it"
	case apierrors.IsNotFound(err):
		class = errdefs.ErrNotFound
	case apierrors.IsAlreadyExists(err):
		class = errdefs.ErrAlreadyExists
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		class = errdefs.ErrFailedPrecondition
	}
	return fmt.Errorf("kubernetes: %s at %s: %s: %w", what, a.host, text, class)
}
