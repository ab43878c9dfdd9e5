package engine

import (
	"errors"
	"slices"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
)

func TestFiguresShowOwnOrAllForOperators(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	defer s.stop()
	mine := s.lease(t)
	ann := s.as(t, v1.TokenRequest{Caller: "ann"})
	hers, err := s.Lease(t.Context(), ann, v1.SandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	used := runtime.Figures{
		CPU:         1500 * time.Millisecond,
		Memory:      50 << 20,
		MemoryLimit: 256 << 20,
		Pids:        3,
		PidsLimit:   160,
	}
	w.host.SetFigures(hers.ID, used)
	list, err := s.Figures(t.Context(), ann)
	if err != nil || len(list) != 1 {
		t.Fatalf("Figures = %+v, %v; want those of one sandbox", list, err)
	}
	got := list[0]
	if got.At.IsZero() {
		t.Error("At is zero, want the time of the figures")
	}
	got.At = time.Time{}
	want := v1.Figures{
		ID:               hers.ID,
		Template:         "default",
		Caller:           "ann",
		CPUMS:            1500,
		MemoryBytes:      50 << 20,
		MemoryLimitBytes: 256 << 20,
		Pids:             3,
		PidsLimit:        160,
	}
	if got != want {
		t.Errorf("Figures = %+v, want %+v", got, want)
	}
	list, err = s.Figures(t.Context(), caller.Local(""))
	ids := make([]string, 0, 2)
	for _, f := range list { // the order of creation is undefined
		ids = append(ids, f.ID)
	}
	slices.Sort(ids)
	both := []string{hers.ID, mine}
	slices.Sort(both)
	if err != nil || !slices.Equal(ids, both) {
		t.Errorf("Figures of an operator are of %v, %v; want %v", ids, err, both)
	}
	w.host.Kill(hers.ID)
	eventually(t, "one that has ended is left out", func() bool {
		list, err := s.Figures(t.Context(), ann)
		return err == nil && len(list) == 0
	})
}

// Missing figures are reported as missing, not as 0, and without details of the host.
func TestMissingFiguresAreExplained(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	defer s.stop()
	id := s.lease(t)
	w.host.SetHook(fake.Fail(errors.New("read /sys/fs/cgroup/secret: input/output error"), -1, fake.OpFigures))
	list, err := s.Figures(t.Context(), me)
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Missing != "could not be read" {
		t.Errorf("Figures = %+v, %v; want only %s, which could not be read", list, err, id)
	}
	w.host.SetHook(nil)
	s.stop()
	none := runtime.Capabilities{}
	for _, c := range runtime.AllCapabilities() {
		if c != runtime.CapUsage {
			none[c] = runtime.Yes
		}
	}
	s = w.startOptions(t, func(o *Options) {
		o.Driver = fake.New(fake.Options{Host: w.host, Serve: w.serve, Capabilities: none})
	})
	defer s.stop()
	eventually(t, "the lease is there again, without figures", func() bool {
		list, err := s.Figures(t.Context(), me)
		return err == nil && slices.ContainsFunc(list, func(f v1.Figures) bool {
			return f.ID == id && f.Missing == "not available for this runtime and class"
		})
	})
}
