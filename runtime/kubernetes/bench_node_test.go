//go:build kubernetes

package kubernetes

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// figures are the durations that a benchmark measured, by name.
type figures map[string][]time.Duration

// time runs do n times.
func (f figures) time(b *testing.B, name string, n int, do func() error) {
	b.Helper()
	for range n {
		began := time.Now()
		if err := do(); err != nil {
			b.Fatalf("measuring %s: %v", name, err)
		}
		f[name] = append(f[name], time.Since(began))
	}
}

// report reports each quantile in nanoseconds, by nearest rank.
func (f figures) report(b *testing.B) {
	b.Helper()
	b.ReportMetric(0, "ns/op") // of no interest
	for name, took := range f {
		slices.Sort(took)
		for unit, q := range map[string]float64{"p50-ns": 0.5, "p99-ns": 0.99} {
			i := max(0, int(math.Ceil(q*float64(len(took))))-1)
			b.ReportMetric(float64(took[i]), name+"-"+unit)
		}
	}
}

// BenchmarkCalls measures a call through the open stream, the same call to the same guest without
// an API server, and a new exec for each call. They alternate. integration/bench prints the
// figures.
func BenchmarkCalls(b *testing.B) {
	o := options(b, newNamespace(b, "baseline"))
	websocket := opened(b, o)
	s := start(b, websocket, specOf(b))
	o.Stream = StreamSPDY
	spdy := opened(b, o)
	spdySandbox := start(b, spdy, specOf(b))
	through := map[string]*guest.Client{
		"websocket": guest.New(s), "spdy": guest.New(spdySandbox), "direct": guest.New(withoutServer(b, s.name)),
	}
	call := func(c *guest.Client) error {
		r, err := c.Exec(b.Context(), wire.Command{Argv: []string{"/bin/true"}}, guest.IO{})
		if err == nil && (r.Ending != runtime.Exited || r.ExitCode != 0) {
			err = fmt.Errorf("true ended %s %d", r.Ending, r.ExitCode)
		}
		return err
	}
	f := figures{}
	for b.Loop() {
		for range 5 {
			for name, c := range through {
				f.time(b, name, 60, func() error { return call(c) })
			}
			f.time(b, "exec", 6, func() error {
				m, err := websocket.dialGuest(b.Context(), s.ctx, s.name, 0)
				if err != nil {
					return err
				}
				defer m.Close()
				return call(guest.New(m))
			})
		}
		before := podRequests(b)
		f.time(b, "counted", 200, func() error { return call(through["websocket"]) })
		b.ReportMetric((podRequests(b)-before)/200, "requests")
	}
	delete(f, "counted")
	f.report(b)
}

// BenchmarkCold measures a new sandbox up to the end of its first command, and beside it a pod of
// the same image up to the report that it is ready.
func BenchmarkCold(b *testing.B) {
	o := options(b, newNamespace(b, "baseline"))
	d := opened(b, o)
	a := admin(b)
	a.namespace = o.Namespace
	f := figures{}
	for b.Loop() {
		for i := range 8 {
			spec := specOf(b)
			f.time(b, "cold", 1, func() error {
				s, err := d.Create(bounded(b), spec)
				if err != nil {
					return err
				}
				_, err = guest.New(s).Exec(b.Context(), wire.Command{Argv: []string{"/bin/true"}}, guest.IO{})
				return err
			})
			err := d.Remove(bounded(b), spec.ID)
			if err != nil {
				b.Fatal(err)
			}
			pod := barePod("bare-"+strconv.Itoa(i), spec)
			f.time(b, "bare", 1, func() error {
				if pod, err = a.create(bounded(b), pod); err != nil {
					return err
				}
				return await(b, a, pod, ready)
			})
			grace := int64(graceSeconds)
			if err = a.delete(bounded(b), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err == nil {
				err = await(b, a, pod, func(e watch.Event) bool { return e.Type == watch.Deleted })
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	f.report(b)
}

// barePod is a pod with the image of a sandbox and nothing else.
func barePod(name string, spec runtime.Spec) *corev1.Pod {
	grace, no := int64(graceSeconds), false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: containerName, Image: spec.Image.Ref, ImagePullPolicy: corev1.PullNever,
				Command: []string{"/bin/sleep", "600"},
			}},
		},
	}
}

// await follows a pod from the given version on until an event is the one that is waited for.
func await(b *testing.B, a *api, pod *corev1.Pod, is func(watch.Event) bool) error {
	b.Helper()
	ctx := bounded(b)
	w, err := a.watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + pod.Name, ResourceVersion: pod.ResourceVersion,
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return fmt.Errorf("watch pod %s: %v", pod.Name, e.Object)
		}
		if is(e) {
			return nil
		}
	}
	return fmt.Errorf("watch of pod %s has ended: %w", pod.Name, context.Cause(ctx))
}

// ready reports whether an event is that of a ready pod.
func ready(e watch.Event) bool {
	pod, ok := e.Object.(*corev1.Pod)
	return ok && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// withoutServer connects to a pod's guest through its socket on this host, which is the node.
func withoutServer(b *testing.B, pod string) *guestconn.Mux {
	b.Helper()
	path := socketOf(b, pod)
	m, err := guestconn.DialMux(bounded(b), b.Context(), guestconn.Dialer{
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	return m
}

// socketOf finds the socket by which the bridges of a pod reach its guest.
func socketOf(b *testing.B, pod string) string {
	b.Helper()
	a := admin(b)
	found, err := filepath.Glob("/proc/[0-9]*/root" + wire.PrivateDir + "/bridge.sock")
	if err != nil {
		b.Fatal(err)
	}
	pods := new(corev1.PodList)
	err = a.core.Get().Resource("pods").Param("fieldSelector", "metadata.name="+pod).Do(b.Context()).Into(pods)
	if err != nil || len(pods.Items) != 1 {
		b.Fatalf("pods named %s: %d, %v; want one", pod, len(pods.Items), err)
	}
	for _, path := range found {
		groups, _ := os.ReadFile(filepath.Join("/proc", strings.Split(path, "/")[2], "cgroup")) // it may have ended
		if strings.Contains(string(groups), "pod"+string(pods.Items[0].UID)) {
			return path
		}
	}
	b.Fatalf("none of the sockets %q is of pod %s, want one", found, pod)
	return ""
}

// podRequests returns how many requests for pods the API server has answered, without watches:
// those are counted at their end.
func podRequests(b *testing.B) float64 {
	b.Helper()
	text, err := admin(b).core.Get().AbsPath("/metrics").Do(b.Context()).Raw()
	if err != nil {
		b.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || !strings.Contains(line, `resource="pods"`) ||
			strings.Contains(line, `verb="WATCH"`) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return sum
}
