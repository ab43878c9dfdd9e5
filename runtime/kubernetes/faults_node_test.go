//go:build kubernetes

package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// patience bounds a single step of a test.
const patience = 2 * time.Minute

func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// opened returns a driver that is closed at the end of the test, after its sandboxes were removed.
func opened(t testing.TB, o Options) *Driver {
	t.Helper()
	d := open(t, o)
	t.Cleanup(func() { d.Close() })
	return d
}

// specOf returns a small sandbox of the sandbox image.
func specOf(t testing.TB) runtime.Spec {
	t.Helper()
	i := sandboxImage(t)
	return runtime.Spec{
		ID: "f" + strings.ReplaceAll(uuid.NewString(), "-", "")[:15], Owner: "owner-of-faults", Template: "faults", Build: "test",
		Image: runtime.Image{Ref: inNode(i), ID: i.ID}, Entrypoint: []string{entrypoint},
		Limits: runtime.Limits{MemoryBytes: 192 << 20, CPUs: 1, Pids: 256},
	}
}

// start creates a sandbox and removes it at the end of the test.
func start(t testing.TB, d *Driver, spec runtime.Spec) *Sandbox {
	t.Helper()
	s, err := d.Create(bounded(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := d.Remove(ctx, spec.ID); err != nil {
			t.Error(err)
		}
	})
	return s.(*Sandbox)
}

// hole is a proxy to the API server whose connections can be cut.
type hole struct {
	net.Listener
	to string

	mu     sync.Mutex
	conns  []net.Conn
	seen   int
	refuse int // how many connections are refused from now on
}

// newHole returns a proxy to the server and a kubeconfig that uses it.
func newHole(t *testing.T) (*hole, string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(given(t, "KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	cluster := config.Clusters["test"]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{Listener: l, to: strings.TrimPrefix(cluster.Server, "https://")}
	cluster.Server = "https://" + l.Addr().String()
	done := make(chan struct{})
	go func() { defer close(done); h.run() }()
	t.Cleanup(func() {
		l.Close()
		h.cut(0)
		<-done
	})
	return h, write(t, config)
}

func write(t *testing.T, config *clientcmdapi.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func (h *hole) run() {
	for {
		from, err := h.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", h.to)
		if err != nil {
			from.Close()
			continue
		}
		h.mu.Lock()
		refused := h.refuse > 0
		if refused {
			h.refuse--
		} else {
			h.conns = append(h.conns, from, to)
			h.seen++
		}
		h.mu.Unlock()
		if refused {
			from.Close()
			to.Close()
			continue
		}
		go func() { _, _ = io.Copy(to, from); to.Close() }()
		go func() { _, _ = io.Copy(from, to); from.Close() }()
	}
}

// cut ends all connections, and refuses so many later ones.
func (h *hole) cut(refuse int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = refuse
	for _, c := range h.conns {
		c.Close()
	}
	h.conns = nil
}

func (h *hole) connections() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen
}

func TestCutStreamLosesNothing(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{StreamWebSocket, StreamSPDY} {
		t.Run(protocol, func(t *testing.T) {
			h, kubeconfig := newHole(t)
			o := options(t, newNamespace(t, "baseline"))
			o.Kubeconfig, o.Stream = kubeconfig, protocol
			d := opened(t, o)
			s := start(t, d, specOf(t))
			c := guest.New(s)
			if d.Stream() != protocol {
				t.Errorf("stream = %s, want %s", d.Stream(), protocol)
			}
			if _, err := c.Start(bounded(t), wire.Command{ID: "shell", Argv: []string{"sleep", "1000"}}); err != nil {
				t.Fatal(err)
			}
			started := &signalWriter{wrote: make(chan struct{})}
			ended := make(chan error, 1)
			input, feed := io.Pipe()
			var output bytes.Buffer
			go func() {
				r, err := c.Exec(
					bounded(t),
					wire.Command{Argv: []string{"sh", "-c", "echo here; cat; echo end; exit 7"}, Stdin: true},
					guest.IO{Stdin: input, Stdout: io.MultiWriter(started, &output)},
				)
				if err == nil && (r.Ending != runtime.Exited || r.ExitCode != 7) {
					err = fmt.Errorf("ending %+v, want exit code 7", r)
				}
				ended <- err
			}()
			<-started.wrote
			whole := h.connections()
			said := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
			for refuse := range 4 { // the server is away for longer each time
				h.cut(refuse)
				if _, err := feed.Write(said[refuse*1<<20 : (refuse+1)*1<<20]); err != nil {
					t.Error(err)
				}
			}
			feed.Close()
			if err := <-ended; err != nil {
				t.Errorf("call on the cut stream: %v, want no error", err)
			}
			if want := "here\n" + string(said) + "end\n"; output.String() != want {
				t.Errorf("the output has %d bytes, want the %d bytes that were sent", output.Len(), len(want))
			}
			pong, err := c.Ping(bounded(t))
			if err != nil || pong.Shells != 1 {
				t.Errorf("Ping after the cut = %+v, %v; want one shell", pong, err)
			}
			// The stream and the watch each get a new connection. After that, calls cost none.
			wantNoConnectionPerCall(t, h, c, whole+2)
		})
	}
}

// wantNoConnectionPerCall waits until the hole has seen the given number of connections, and checks
// that calls make none.
func wantNoConnectionPerCall(t *testing.T, h *hole, c *guest.Client, connected int) {
	t.Helper()
	for end := time.Now().Add(patience); h.connections() < connected && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	before := h.connections()
	for range 20 {
		if r, err := c.Exec(bounded(t), wire.Command{Argv: []string{"true"}}, guest.IO{}); err != nil ||
			r.Ending != runtime.Exited {
			t.Fatalf("Exec after the cut = %+v, %v; want %s and no error", r, err, runtime.Exited)
		}
	}
	if after := h.connections(); after != before {
		t.Errorf("20 calls made %d connections, want 0", after-before)
	}
}

// signalWriter closes wrote at the first write.
type signalWriter struct {
	once  sync.Once
	wrote chan struct{}
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.wrote) })
	return len(p), nil
}

func TestDeletedPodEndsItsSandboxWithTheReason(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	d := opened(t, o)
	s := start(t, d, specOf(t))
	a := admin(t)
	a.namespace = o.Namespace
	grace := int64(1)
	if err := a.delete(bounded(t), s.name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatalf("the end of the pod was not reported in %s, want it reported", patience)
	}
	if _, err := s.Open(bounded(t)); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "the pod was deleted") {
		t.Errorf("Open after the deletion: %v, want Unavailable with the reason", err)
	}
	if _, err := d.Adopt(bounded(t), s.ID()); err == nil {
		t.Error("Adopt of a deleted pod succeeded, want an error")
	}
}

func TestImageThatCannotBePulledIsReportedWithinSeconds(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	for name, c := range map[string]struct {
		policy, ref, reason string
		is                  func(error) bool
	}{
		"unreachable registry": {"IfNotPresent", "127.0.0.1:1/none/image:1", "connection refused", errdefs.IsNotFound},
		"never pulled":         {"Never", "localhost/none:1", "ErrImageNeverPull", errdefs.IsNotFound},
		"invalid reference":    {"IfNotPresent", "Not A Reference", "", errdefs.IsFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.PullPolicy = c.policy
			d := opened(t, o)
			spec := specOf(t)
			spec.Image.Ref = c.ref
			good, beside := specOf(t), make(chan time.Duration, 1)
			began := time.Now()
			go func() {
				_, err := d.Create(bounded(t), good)
				if err = errors.Join(err, d.Remove(bounded(t), good.ID)); err != nil {
					t.Error(err)
				}
				beside <- time.Since(began)
			}()
			_, err := d.Create(bounded(t), spec)
			// On a busy machine, a pod that starts takes longer too.
			took, limit := time.Since(began), max(10*time.Second, 3*<-beside)
			if took > limit {
				t.Errorf("reported after %s, want at most %s", took, limit)
			}
			if !c.is(err) || !strings.Contains(err.Error(), c.ref) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("Create: %v, want %s with the reference", err, c.reason)
			}
			t.Logf("reported after %s, with the removal of the pod", took.Round(10*time.Millisecond))
			if found, err := d.List(bounded(t), spec.Owner); err != nil || len(found) > 0 {
				t.Errorf("List = %v, %v; want none", found, err)
			}
		})
	}
}

func TestMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	a := admin(t)
	post := func(resource, body string) {
		t.Helper()
		to := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + o.Namespace + "/" + resource
		if err := a.core.Post().AbsPath(to).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(bounded(t)).Error(); err != nil {
			t.Fatal(err)
		}
	}
	post("roles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"few"},"rules":[
		{"apiGroups":[""],"resources":["pods"],"verbs":["create","get","list","watch"]},{"apiGroups":[""],"resources":["pods/exec"],"verbs":["get"]}]}`)
	post("rolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"few"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"few"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"few"}]}`)
	config, err := clientcmd.LoadFromFile(given(t, "KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["admin"].Impersonate = "few"
	o.Kubeconfig = write(t, config)
	_, err = New(bounded(t), o)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "delete pods, create pods/exec") ||
		!strings.Contains(err.Error(), o.Namespace) {
		t.Errorf("New: %v, want the missing verbs with their resources", err)
	}
}

func TestQuotaAndFullNodesAreTypedErrors(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	a := admin(t)
	d := opened(t, o)
	spec := specOf(t)
	spec.Limits.CPUs = 1000
	d.opts.CPURequest = 0
	// The scheduler of a busy machine may not have looked at the pod in time.
	for limit := 3 * time.Second; ; limit *= 2 {
		short, cancel := context.WithTimeout(t.Context(), limit)
		_, err := d.Create(short, spec)
		cancel()
		if errdefs.IsUnavailable(err) && strings.Contains(err.Error(), "no node takes it") {
			break
		}
		if !errdefs.IsUnavailable(err) || limit > patience {
			t.Fatalf("Create with 1000 CPUs: %v, want Unavailable that says why", err)
		}
	}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("0")}},
	}
	if err := a.core.Post().Namespace(o.Namespace).Resource("resourcequotas").Body(quota).Do(bounded(t)).Error(); err != nil {
		t.Fatal(err)
	}
	// The quota counts only after the controller has seen it.
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		_, err := d.Create(bounded(t), specOf(t))
		if errdefs.IsResourceExhausted(err) && strings.Contains(err.Error(), "quota") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("Create over the quota: %v, want ResourceExhausted", err)
		}
		found, err := d.List(bounded(t), spec.Owner)
		for _, f := range found {
			err = fmt.Errorf("%w%v", err, d.Remove(bounded(t), f.ID))
		}
		t.Log(found, err)
	}
}

func TestNetworkOfThePodIsRefusedOrRemoved(t *testing.T) {
	t.Parallel()
	o := options(t, newBridgedNamespace(t, "privileged"))
	d := opened(t, o)
	_, err := d.Create(bounded(t), specOf(t))
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "network interface eth0") ||
		!strings.Contains(err.Error(), "strip") {
		t.Errorf(
			"Create of a pod with an interface: %v, want FailedPrecondition that names the interface and the setting",
			err,
		)
	}
	o.Network = NetworkStrip
	stripping := opened(t, o)
	var out strings.Builder
	c := guest.New(start(t, stripping, specOf(t)))
	if _, err := c.Exec(bounded(t), wire.Command{Argv: []string{"sh", "-c", "cat /proc/net/dev /proc/net/route"}}, guest.IO{Stdout: &out}); err != nil ||
		strings.Contains(out.String(), "eth0") ||
		!strings.Contains(out.String(), "lo:") {
		t.Errorf("interfaces and routes after strip = %s, %v; want lo only", out.String(), err)
	}
	o.Namespace = newBridgedNamespace(t, "baseline")
	forbidden := opened(t, o)
	if _, err := forbidden.Create(bounded(t), specOf(t)); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "NET_ADMIN") {
		t.Errorf("Create with strip in a baseline namespace: %v, want FailedPrecondition that names NET_ADMIN", err)
	}
}

func TestServerThatIsNotThereIsUnavailable(t *testing.T) {
	t.Parallel()
	o := options(t, "default")
	config, err := clientcmd.LoadFromFile(o.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Clusters["test"].Server = "https://127.0.0.1:1"
	o.Kubeconfig = write(t, config)
	if _, err := New(bounded(t), o); !errdefs.IsUnavailable(err) {
		t.Errorf("New: %v, want Unavailable", err)
	}
	o.Kubeconfig = filepath.Join(t.TempDir(), "none")
	if _, err := New(bounded(t), o); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), "kubernetes.kubeconfig") {
		t.Errorf("New without a kubeconfig: %v, want InvalidArgument", err)
	}
}
