package wrap_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/runtime/wrap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func spec(id string) runtime.Spec {
	return runtime.Spec{ID: id, Owner: "owner-0001", Template: "default", Image: runtime.Image{ID: "sha256:1"}}
}

func TestTimeoutBoundsEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &fake.Host{}
		d := wrap.Timeout(fake.New(fake.Options{Host: host}), wrap.Timeouts{})
		s, err := d.Create(t.Context(), spec("sandbox-a"))
		if err != nil {
			t.Fatal(err)
		}
		host.SetHook(func(ctx context.Context, _ fake.Op, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		calls := map[string]struct {
			limit time.Duration
			do    func(context.Context) error
		}{
			wrap.Prepare: {wrap.DefaultPrepare,
				func(ctx context.Context) error { return d.Prepare(ctx, runtime.Image{ID: "i"}) }},
			wrap.Create: {wrap.DefaultCreate,
				func(ctx context.Context) error { _, err := d.Create(ctx, spec("sandbox-b")); return err }},
			wrap.Adopt: {wrap.DefaultAdopt,
				func(ctx context.Context) error { _, err := d.Adopt(ctx, "sandbox-a"); return err }},
			wrap.List: {wrap.DefaultList,
				func(ctx context.Context) error { _, err := d.List(ctx, "owner-0001"); return err }},
			wrap.Remove: {wrap.DefaultRemove, func(ctx context.Context) error { return d.Remove(ctx, "sandbox-a") }},
			wrap.Open:   {wrap.DefaultOpen, func(ctx context.Context) error { _, err := s.Open(ctx); return err }},
			wrap.Bind: {wrap.DefaultBind,
				func(ctx context.Context) error { return s.Bind(ctx, runtime.Binding{Source: "/w"}) }},
			wrap.Unbind:  {wrap.DefaultBind, s.Unbind},
			wrap.Destroy: {wrap.DefaultRemove, s.Destroy},
			wrap.Figures: {wrap.DefaultFigures,
				func(ctx context.Context) error { _, err := runtime.FiguresOf(ctx, s); return err }},
		}
		for op, call := range calls {
			began := time.Now()
			err := call.do(t.Context())
			if !errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) ||
				!strings.HasPrefix(err.Error(), op+" ") {
				t.Errorf("%s: %v", op, err)
			}
			if took := time.Since(began); took != call.limit {
				t.Errorf("%s took %v, want %v", op, took, call.limit)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call.do(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s past the caller's deadline: %v", op, err)
			}
			cancel()
		}
		host.SetHook(nil)
		for range 2 {
			if err := s.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestLogTellsOfEachCallOnce(t *testing.T) {
	var out bytes.Buffer
	var seen []string
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	d := wrap.Log(fake.New(fake.Options{}), log, func(driver, op string, _ time.Duration, err error) {
		seen = append(seen, fmt.Sprint(driver, " ", op, " ", err == nil))
	})
	s, err := d.Create(t.Context(), spec("sandbox-a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Adopt(t.Context(), "sandbox-b"); !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, ", "); got != "fake create true, fake adopt false, fake destroy true" {
		t.Errorf("observed: %s", got)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for i, want := range []string{"op=create subject=sandbox-a duration=", "op=adopt subject=sandbox-b duration=",
		"op=destroy subject=sandbox-a"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %q in it", i, lines[i], want)
		}
	}
	if !strings.Contains(lines[1], "error=") || strings.Contains(lines[0], "error=") {
		t.Errorf("errors: %q", lines)
	}
}

func TestLimitBoundsParallelCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &fake.Host{}
		d := wrap.Limit(fake.New(fake.Options{Host: host}), 2)
		host.SetHook(fake.Delay(time.Second, fake.OpCreate))
		began := time.Now()
		var group sync.WaitGroup
		for i := range 6 {
			group.Go(func() {
				if _, err := d.Create(t.Context(), spec(fmt.Sprintf("sandbox-%d", i))); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := d.Create(ctx, spec("sandbox-late")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("create without a turn: %v", err)
		}
		if _, err := d.List(t.Context(), "owner-0001"); err != nil {
			t.Errorf("list while creates run: %v", err)
		}
		group.Wait()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("6 creates, 2 at once, a second each: %v", took)
		}
		for _, id := range host.IDs() {
			if err := d.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	})
}
