package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"orchestrator/internal/store"
	"orchestrator/runtime/fake"
	"orchestrator/volumes"
)

// A lease can be seen, and removed, before it is handed out.
func TestEndWhileTheWorkspaceIsBound(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding, goOn := make(chan string, 1), make(chan struct{})
	w.host.Before(func(_ context.Context, op fake.Op, id string) error {
		if op == fake.OpBind {
			binding <- id
			<-goOn
		}
		return nil
	})
	got := make(chan error, 1)
	go func() {
		_, err := s.tryAcquire(context.Background(), func(r *Request) { r.Lease.Workspace = "w" })
		got <- err
	}()
	l := s.Live(<-binding)
	if _, err := l.Enter(t.Context()); !errdefs.IsUnavailable(err) {
		t.Fatalf("entered before it was handed out: %v", err)
	}
	if err := s.End(t.Context(), l, Removed, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is marked", func() bool { return s.row(t, l.ID).State == store.Stopping })
	select {
	case <-l.Gone():
		t.Error("it was destroyed while a mount was made in it")
	case <-time.After(100 * time.Millisecond):
	}
	close(goOn)
	if err := <-got; !errdefs.IsNotFound(err) {
		t.Errorf("a lease that was removed was handed out: %v", err)
	}
	eventually(t, "the workspace is free", func() bool {
		got, err := s.volumes.Get("w")
		return err == nil && len(got.Leases) == 0 && len(s.all()) == 0
	})
	if st := s.Pools()[0]; st.Leased != 0 {
		t.Errorf("%+v", st)
	}
}
