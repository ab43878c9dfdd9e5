//go:build integration

package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// half makes parts of a sandbox as a process does that dies on the way.
type half struct {
	b    bench
	spec runtime.Spec
	rec  record
	cell *rundir.Dir
}

func (h *half) folder(tb testing.TB) {
	if err := os.Mkdir(h.b.bundle(h.spec.ID), 0o700); err != nil {
		tb.Fatal(err)
	}
}

func (h *half) record(tb testing.TB) {
	h.folder(tb)
	h.rec = record{ID: h.spec.ID, Owner: owner, Template: "base", Limits: h.spec.Limits, BootID: h.b.bootID}
	if err := h.b.write(h.rec); err != nil {
		tb.Fatal(err)
	}
}

func (h *half) withCell(tb testing.TB) {
	h.record(tb)
	c, err := rundir.Make(tb.Context(), h.b.cellOptions(h.spec.ID, h.spec.Limits))
	if err != nil {
		tb.Fatal(err)
	}
	h.cell = c
	tb.Cleanup(func() { _ = c.Close() })
}

func (h *half) withRoot(tb testing.TB) {
	h.withCell(tb)
	if err := h.b.makeBundle(h.spec, h.cell); err != nil {
		tb.Fatal(err)
	}
}

func (h *half) runc(tb testing.TB, args ...string) {
	cmd := exec.Command(h.b.runtime.Command, append([]string{"--root", h.b.runtime.Root}, args...)...)
	if err := cmd.Run(); err != nil {
		tb.Fatalf("runc %v: %v", args, err)
	}
}

func (h *half) created(tb testing.TB) {
	h.withRoot(tb)
	h.runc(tb, "create", "--bundle", h.b.bundle(h.spec.ID), h.spec.ID)
}

func (h *half) running(tb testing.TB) {
	h.withRoot(tb)
	h.runc(tb, "run", "--detach", "--bundle", h.b.bundle(h.spec.ID), "--pid-file",
		filepath.Join(h.b.bundle(h.spec.ID), pidName), h.spec.ID)
}

func (h *half) recorded(tb testing.TB) {
	h.running(tb)
	h.rec.Pid = pidIn(tb, filepath.Join(h.b.bundle(h.spec.ID), pidName))
	p, err := ocidriver.Open(h.rec.Pid)
	if err != nil {
		tb.Fatal(err)
	}
	defer p.Close()
	h.rec.Started = p.Started
	if err := h.b.write(h.rec); err != nil {
		tb.Fatal(err)
	}
}

// killed: init dead, everything else as it was.
func (h *half) killed(tb testing.TB) {
	h.recorded(tb)
	p, err := ocidriver.Open(h.rec.Pid)
	if err != nil {
		tb.Fatal(err)
	}
	defer p.Close()
	if err := p.Kill(); err != nil {
		tb.Fatal(err)
	}
	if err := p.Wait(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

func TestRemoveFromAnyState(t *testing.T) {
	for what, make := range map[string]func(*half, testing.TB){
		"an empty folder": (*half).folder,
		"a torn record": func(h *half, t testing.TB) {
			h.record(t)
			if err := os.WriteFile(filepath.Join(h.b.bundle(h.spec.ID), recordName), []byte(`{"id":`), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"intent":                 (*half).record,
		"a cell":                 (*half).withCell,
		"a root":                 (*half).withRoot,
		"created, never started": (*half).created,
		"running, not recorded":  (*half).running,
		"running and recorded":   (*half).recorded,
		"first process dead":     (*half).killed,
		"the runtime's state gone": func(h *half, t testing.TB) {
			h.recorded(t)
			remove(t, filepath.Join(h.b.runtime.Root, h.spec.ID))
		},
		"the runtime has let it go": func(h *half, t testing.TB) { h.killed(t); h.runc(t, "delete", h.spec.ID) },
		"the record gone": func(h *half, t testing.TB) {
			h.recorded(t)
			remove(t, filepath.Join(h.b.bundle(h.spec.ID), recordName))
		},
		"paused": func(h *half, t testing.TB) { h.recorded(t); h.runc(t, "pause", h.spec.ID) },
		"the root unmounted": func(h *half, t testing.TB) {
			h.killed(t)
			if err := unix.Unmount(filepath.Join(h.b.bundle(h.spec.ID), overlayName), 0); err != nil {
				t.Fatal(err)
			}
		},
		"the root mounted twice": func(h *half, t testing.TB) {
			h.withRoot(t)
			root := filepath.Join(h.b.bundle(h.spec.ID), overlayName)
			if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		},
		"of an earlier boot": func(h *half, t testing.TB) {
			h.recorded(t)
			h.rec.BootID = "another"
			if err := h.b.write(h.rec); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := half{b: newBench(t), spec: specFor(t)}
			h.spec.Limits = h.spec.Limits.WithDefaults()
			make(&h, t)
			if h.cell != nil { // who made it is dead
				if err := h.cell.Close(); err != nil {
					t.Error(err)
				}
			}
			found, err := h.b.List(t.Context(), owner)
			if err != nil || len(found) != 1 || found[0].ID != h.spec.ID {
				t.Errorf("list: %+v, %v", found, err)
			}
			for range 2 {
				if err := h.b.Remove(t.Context(), h.spec.ID); err != nil {
					t.Fatal(err)
				}
			}
			wantNoCgroup(t, h.spec.ID)
			h.b.wantNothingLeft(t)
			if found, err := h.b.List(t.Context(), owner); err != nil || len(found) != 0 {
				t.Errorf("list afterwards: %+v, %v", found, err)
			}
		})
	}
}

func remove(tb testing.TB, path string) {
	tb.Helper()
	if err := os.RemoveAll(path); err != nil {
		tb.Fatal(err)
	}
}

// A pid that another process got is not that of the sandbox, and is left alone.
func TestAnotherProcessWithTheRecordedPid(t *testing.T) {
	h := half{b: newBench(t), spec: specFor(t)}
	h.spec.Limits = h.spec.Limits.WithDefaults()
	h.record(t)
	h.rec.Pid, h.rec.Started = os.Getpid(), 1
	if err := h.b.write(h.rec); err != nil {
		t.Fatal(err)
	}
	if found, err := h.b.List(t.Context(), owner); err != nil || len(found) != 1 || found[0].Running {
		t.Errorf("list: %+v, %v", found, err)
	}
	if _, err := h.b.Adopt(t.Context(), h.spec.ID); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("adopt: %v", err)
	}
	if err := h.b.Remove(t.Context(), h.spec.ID); err != nil { // and we live to see it
		t.Error(err)
	}
}
