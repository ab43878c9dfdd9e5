//go:build integration

package docker

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// crowd is more processes than the ends that the shim of an engine can record at once.
const crowd = 250

// Processes of a gvisor sandbox become orphans of the shim. A busy shim needs a second for each
// (see seenDead), so a removal exceeded its time limit.
func TestGVisorSandboxWithManyProcessesIsRemovedQuickly(t *testing.T) {
	h := newHost(t)
	if h.guest = os.Getenv("ORCHESTRATOR_TEST_GUEST"); h.guest == "" {
		t.Skip("ORCHESTRATOR_TEST_GUEST is not set: make test sets it")
	}
	d := h.open(t, ModeLocal)
	for _, c := range []struct {
		name   string
		remove func(context.Context, *Driver, *Sandbox) error
	}{
		{"held", func(ctx context.Context, _ *Driver, box *Sandbox) error { return box.Destroy(ctx) }},
		{"not held", func(ctx context.Context, d *Driver, box *Sandbox) error {
			if err := box.Release(); err != nil {
				return err
			}
			return d.Remove(ctx, box.id)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := h.spec(t)
			s.Class = runtime.ClassGVisor
			s.Limits.Pids, s.Limits.MemoryBytes = runtime.GuestReservePids+crowd+20, 1<<30
			if err := d.Prepare(t.Context(), s.Image); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Create(t.Context(), s); errdefs.IsNotImplemented(err) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			box := d.holder(s.ID)
			t.Cleanup(func() {
				if err := d.Remove(context.WithoutCancel(t.Context()), s.ID); err != nil {
					t.Error(err)
				}
			})
			inside := guest.New(box)
			cmd := wire.Command{Argv: []string{"bash", "-c", "for i in $(seq " + strconv.Itoa(crowd) +
				"); do sleep 1000 & done; echo there; wait"}}
			cmd.ID = "crowd"
			if _, err := inside.Start(t.Context(), cmd); err != nil {
				t.Fatal(err)
			}
			for seen := 0; seen == 0; {
				_, err := inside.Output(t.Context(), wire.Output{ID: "crowd", Stream: wire.Stdout, Wait: time.Minute},
					func(_ int64, data []byte) error {
						seen += len(data)
						return nil
					})
				if err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			if err := c.remove(t.Context(), d, box); err != nil {
				t.Error(err)
			}
			t.Logf("removed in %s", time.Since(began).Round(time.Millisecond))
			nothingLeft(t, d, s)
		})
	}
}
