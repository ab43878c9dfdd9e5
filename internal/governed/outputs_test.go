package governed

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
)

func TestOutputsAreSeparatePerCaller(t *testing.T) {
	o, err := openOutputs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.Must(uuid.NewV7()).String()
	k := o.newOutput("ann", id, "stdout", 4)
	for _, part := range []string{"ab", "cd", "ef", "gh"} {
		k.Write([]byte(part))
	}
	if have, err := k.done(true); !have || err != nil {
		t.Fatalf("done of a cut output = %t, %v; want true", have, err)
	}
	got, err := o.read("ann", id, core.OutputRequest{Offset: 2, Limit: 3})
	if err != nil || got.Data != "cde" || got.NextOffset != 5 || got.EOF {
		t.Errorf("read = %+v, %v; want cde, next offset 5, not the end", got, err)
	}
	if got, err := o.read("ann", id, core.OutputRequest{Stream: "stderr"}); err != nil || !got.EOF {
		t.Errorf("read of a stream that was not cut = %+v, %v; want the end", got, err)
	}
	for caller, of := range map[string]string{"bob": id, "ann": "../" + id} {
		if _, err := o.read(caller, of, core.OutputRequest{}); !errdefs.IsNotFound(err) {
			t.Errorf("read of %s by %s: %v, want NotFound", of, caller, err)
		}
	}
}

func TestOutputThatFitsIsNotKept(t *testing.T) {
	o, err := openOutputs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	k := o.newOutput("ann", uuid.Must(uuid.NewV7()).String(), "stdout", 4)
	k.Write([]byte("abcd"))
	if have, err := k.done(false); have || err != nil {
		t.Errorf("done of an output that fits = %t, %v; want false", have, err)
	}
}

func TestOutputsAreBoundedAndExpire(t *testing.T) {
	o, err := openOutputs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for range 3 {
		id := uuid.Must(uuid.NewV7()).String()
		k := o.newOutput("ann", id, "stdout", 0)
		k.Write([]byte(strings.Repeat("x", 1000)))
		if _, err := k.done(true); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	o.mu.Lock()
	o.each[o.callerDir("ann")] = keptCaller - 10
	o.mu.Unlock()
	k := o.newOutput("ann", uuid.Must(uuid.NewV7()).String(), "stdout", 0)
	k.Write([]byte(strings.Repeat("x", 1000)))
	if _, err := k.done(true); !errdefs.IsResourceExhausted(err) {
		t.Errorf("done beyond the caller's bound: %v, want ResourceExhausted", err)
	}
	other := o.newOutput("bob", ids[0], "stdout", 0)
	other.Write([]byte("y"))
	if _, err := other.done(true); err != nil {
		t.Errorf("done for another caller: %v", err)
	}
	old := time.Now().Add(-2 * keptTime)
	if err := os.Chtimes(o.path("ann", ids[0], "stdout"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := o.sweep(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := o.read("ann", ids[0], core.OutputRequest{}); !errdefs.IsNotFound(err) {
		t.Errorf("read of an old output: %v, want NotFound", err)
	}
	if _, err := o.read("ann", ids[1], core.OutputRequest{}); err != nil {
		t.Errorf("read of a new output: %v", err)
	}
}

// TestOutputsSweepFailureIsRetried checks that a failed sweep does not end the service.
func TestOutputsSweepFailureIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		o := &outputs{dir: "\x00"} // no file system has this name
		ctx, stop := context.WithTimeout(t.Context(), 2*keptSweep+time.Second)
		defer stop()
		o.run(ctx, slog.New(slog.NewTextHandler(&text, nil)))
		if n := strings.Count(text.String(), "failed to remove old outputs; will retry"); n != 2 {
			t.Errorf("%d failures are logged, want 2: %s", n, text.String())
		}
	})
}
