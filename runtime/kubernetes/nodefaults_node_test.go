//go:build kubernetes

package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// The tests TestNode* kill and stop parts of the node, and make it healthy again. No other test may
// use the node at the same time: none of them is parallel, and test.sh runs them alone.

// nodeScript manages the node.
const nodeScript = "../../integration/scripts/kubernetes.sh"

// nodeName is the name of the node's object.
const nodeName = "127.0.0.1"

// node runs a command of nodeScript and returns its output.
func node(t *testing.T, args ...string) string {
	t.Helper()
	given(t, "KUBERNETES_DIR")
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, nodeScript, args...).Output()
	if err != nil {
		var stderr []byte
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			stderr = e.Stderr
		}
		t.Errorf("kubernetes.sh %q: %v: %s", args, err, stderr)
	}
	return strings.TrimSpace(string(out))
}

// work is a foreground call in the middle of its output, and a background shell that waits for
// input.
type work struct {
	c      *guest.Client
	output *gate
	ended  chan error // of the call
}

const (
	workLines = 1_000_000
	workShell = "shell"
)

// beginWork returns when the call has filled the buffers between it and the test.
func beginWork(t *testing.T, s *Sandbox) *work {
	t.Helper()
	w := &work{
		c: guest.New(s), ended: make(chan error, 1),
		output: &gate{full: make(chan struct{}), open: make(chan struct{})},
	}
	_, err := w.c.Start(bounded(t), wire.Command{
		ID: workShell, Stdin: true, Argv: []string{"sh", "-c", "echo before; read word; echo after $word; exit 3"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	t.Cleanup(cancel)
	t.Cleanup(w.output.release)
	go func() {
		argv := []string{"sh", "-c", fmt.Sprintf("seq 1 %d; exit 7", workLines)}
		r, err := w.c.Exec(ctx, wire.Command{Argv: argv}, guest.IO{Stdout: w.output})
		if err == nil && (r.Ending != runtime.Exited || r.ExitCode != 7) {
			err = fmt.Errorf("ending %+v, want exit code 7", r)
		}
		w.ended <- err
	}()
	select {
	case <-w.output.full:
	case err := <-w.ended:
		t.Fatalf("the call ended early: %v", err)
	}
	return w
}

// finish lets the call and the shell go on to their ends, and returns an error unless both have
// their whole output and their own endings.
func (w *work) finish(t *testing.T) error {
	t.Helper()
	w.output.release()
	if err := <-w.ended; err != nil {
		return fmt.Errorf("call: %w", err)
	}
	var want bytes.Buffer
	for i := range workLines {
		want.WriteString(strconv.Itoa(i + 1))
		want.WriteByte('\n')
	}
	if got := w.output.Bytes(); !bytes.Equal(got, want.Bytes()) {
		return fmt.Errorf("call: %d bytes of output, want %d others", len(got), want.Len())
	}
	if err := w.c.Input(bounded(t), workShell, strings.NewReader("word\n"), true); err != nil {
		return fmt.Errorf("input of the shell: %w", err)
	}
	var said bytes.Buffer
	end, err := w.c.Output(bounded(t), wire.Output{ID: workShell, Stream: wire.Stdout, Follow: true},
		func(_ int64, data []byte) error { said.Write(data); return nil })
	if err != nil || said.String() != "before\nafter word\n" {
		return fmt.Errorf("output of the shell = %q, %w", said.String(), err)
	}
	if r := end.Shell.Result; r == nil || r.Ending != runtime.Exited || r.ExitCode != 3 {
		return fmt.Errorf("ending of the shell = %+v, want exit code 3", r)
	}
	return nil
}

// gate keeps what is written to it. After 1 MiB, writers wait for release.
type gate struct {
	bytes.Buffer
	full, open           chan struct{}
	fullOnce, openedOnce sync.Once
}

func (g *gate) Write(p []byte) (int, error) {
	if g.Len() >= 1<<20 {
		g.fullOnce.Do(func() { close(g.full) })
		<-g.open
	}
	return g.Buffer.Write(p)
}

func (g *gate) release() { g.openedOnce.Do(func() { close(g.open) }) }

// checkHealthy checks that a new sandbox starts, and that the driver did not take the fault for a
// refusal of WebSockets.
func checkHealthy(t *testing.T, d *Driver) {
	t.Helper()
	if _, err := guest.New(start(t, d, specOf(t))).Ping(bounded(t)); err != nil {
		t.Errorf("Ping of a new sandbox: %v", err)
	}
	if got := d.Stream(); got != StreamWebSocket {
		t.Errorf("stream after the fault = %s, want %s", got, StreamWebSocket)
	}
}

// TestNodeRestartLosesNothing kills a part of the node under running work, and starts it again.
// Work survives outages of up to guestconn.ResumeTime. On a machine that is too busy to start the
// part in time, it tries again.
func TestNodeRestartLosesNothing(t *testing.T) {
	for _, part := range []string{"kube-apiserver", "etcd", "kubelet", "containerd"} {
		t.Run(part, func(t *testing.T) {
			d := opened(t, options(t, newNamespace(t, "baseline")))
			const tries = 3
			for try := 1; ; try++ {
				s := start(t, d, specOf(t))
				w := beginWork(t, s)
				t.Cleanup(func() { node(t, "start", part) })
				began := time.Now()
				node(t, "kill", part)
				node(t, "start", part)
				away := time.Since(began)
				err := w.finish(t)
				t.Logf("%s was away for %s", part, away.Round(10*time.Millisecond))
				if err == nil {
					break
				}
				if away < guestconn.ResumeTime/2 || try == tries {
					t.Fatalf("after %s was away for %s: %v", part, away, err)
				}
			}
			checkHealthy(t, d)
		})
	}
}

// TestNodeSlowStoreDelaysOnlyNewSandboxes pauses etcd. Calls need none of it. A new sandbox needs
// it, and fails with a class in bounded time.
func TestNodeSlowStoreDelaysOnlyNewSandboxes(t *testing.T) {
	d := opened(t, options(t, newNamespace(t, "baseline")))
	spec, late := specOf(t), specOf(t)
	w := beginWork(t, start(t, d, spec))
	t.Cleanup(func() { removeAll(t, d, late.Owner) })
	etcd, err := strconv.Atoi(node(t, "pid", "etcd"))
	if err != nil {
		t.Fatal(err)
	}
	resume := func() {
		if err := syscall.Kill(etcd, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(resume)
	if err := syscall.Kill(etcd, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		r, err := w.c.Exec(bounded(t), wire.Command{Argv: []string{"true"}}, guest.IO{})
		if err != nil || r.Ending != runtime.Exited {
			t.Fatalf("Exec without etcd = %+v, %v; want an exit", r, err)
		}
	}
	began := time.Now()
	_, err = d.Create(bounded(t), late)
	if took := time.Since(began); !errdefs.IsUnavailable(err) || took > 2*postTime {
		t.Errorf("Create without etcd = %v after %s, want Unavailable within %s", err, took, 2*postTime)
	}
	resume()
	if err := w.finish(t); err != nil {
		t.Error(err)
	}
	checkHealthy(t, d)
}

// removeAll removes all sandboxes of an owner, also those that a request made whose answer was
// lost.
func removeAll(t *testing.T, d *Driver, owner string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := d.List(ctx, owner)
	for _, f := range found {
		err = errors.Join(err, d.Remove(ctx, f.ID))
	}
	if err != nil {
		t.Error(err)
	}
}

// TestNodeLossEndsItsSandboxes cordons the node, stops its kubelet and deletes its object, as an
// administrator or a cloud does with a machine that is gone.
func TestNodeLossEndsItsSandboxes(t *testing.T) {
	d := opened(t, options(t, newNamespace(t, "baseline")))
	s := start(t, d, specOf(t))
	w := beginWork(t, s)
	a := admin(t)
	t.Cleanup(func() {
		node(t, "start", "kubelet")
		if err := cordon(context.Background(), a, false); err != nil {
			t.Error(err)
		}
	})
	if err := cordon(bounded(t), a, true); err != nil {
		t.Fatal(err)
	}
	if r, err := w.c.Exec(bounded(t), wire.Command{Argv: []string{"true"}}, guest.IO{}); err != nil || r.Ending != runtime.Exited {
		t.Errorf("Exec on a cordoned node = %+v, %v; want an exit", r, err)
	}
	// The scheduler of a busy machine may not have looked at the pod in time.
	for limit := 3 * time.Second; ; limit *= 2 {
		short, cancel := context.WithTimeout(t.Context(), limit)
		_, err := d.Create(short, specOf(t))
		cancel()
		if errdefs.IsUnavailable(err) && strings.Contains(err.Error(), "no node takes it") {
			break
		}
		if !errdefs.IsUnavailable(err) || limit > patience {
			t.Fatalf("Create on a cordoned node: %v, want Unavailable that says why", err)
		}
	}
	node(t, "kill", "kubelet")
	if err := a.core.Delete().Resource("nodes").Name(nodeName).Do(bounded(t)).Error(); err != nil {
		t.Fatal(err)
	}
	if got := awaitEnd(t, s); !strings.HasPrefix(got, errNodeLost.Error()) {
		t.Errorf("EndReason after the node was lost = %q, want %q", got, errNodeLost)
	}
	w.output.release()
	if err := <-w.ended; !errors.Is(err, guest.ErrLost) {
		t.Errorf("call on the lost node: %v, want %v", err, guest.ErrLost)
	}
	if _, err := w.c.Ping(bounded(t)); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), errNodeLost.Error()) {
		t.Errorf("Ping on the lost node: %v, want Unavailable with the reason", err)
	}
	if err := d.Remove(bounded(t), s.ID()); err != nil {
		t.Errorf("Remove of a sandbox of the lost node: %v", err)
	}
	node(t, "start", "kubelet")
	checkHealthy(t, d)
}

// cordon sets whether the scheduler may use the node.
func cordon(ctx context.Context, a *api, on bool) error {
	body := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on)
	err := a.core.Patch(types.MergePatchType).Resource("nodes").Name(nodeName).Body(body).Do(ctx).Error()
	if apierrors.IsNotFound(err) && !on {
		return nil
	}
	return err
}
