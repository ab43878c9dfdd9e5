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

// half creates parts of a sandbox, like a process that dies during a Create.
type half struct {
	tb   testing.TB
	b    bench
	spec runtime.Spec
	rec  record
	cell *rundir.Dir
}

func (h *half) folder() {
	h.tb.Helper()
	if err := os.Mkdir(h.b.bundle(h.spec.ID), 0o700); err != nil {
		h.tb.Fatal(err)
	}
}

func (h *half) record() {
	h.tb.Helper()
	h.folder()
	h.rec = record{ID: h.spec.ID, Owner: owner, Template: "base", Limits: h.spec.Limits, BootID: h.b.bootID}
	if err := h.b.write(h.rec); err != nil {
		h.tb.Fatal(err)
	}
}

func (h *half) withCell() {
	h.tb.Helper()
	h.record()
	c, err := rundir.Make(h.tb.Context(), h.b.RunDirOptions(h.spec.ID, h.spec.Limits))
	if err != nil {
		h.tb.Fatal(err)
	}
	h.cell = c
	h.tb.Cleanup(func() { _ = c.Close() })
}

func (h *half) withRoot() {
	h.tb.Helper()
	h.withCell()
	if err := h.b.makeBundle(h.spec, h.cell); err != nil {
		h.tb.Fatal(err)
	}
}

func (h *half) runc(args ...string) {
	h.tb.Helper()
	cmd := exec.Command(h.b.runtime.Command, append([]string{"--root", h.b.runtime.Root}, args...)...)
	if err := cmd.Run(); err != nil {
		h.tb.Fatalf("runc %v: %v", args, err)
	}
}

func (h *half) created() {
	h.tb.Helper()
	h.withRoot()
	h.runc("create", "--bundle", h.b.bundle(h.spec.ID), h.spec.ID)
}

func (h *half) running() {
	h.tb.Helper()
	h.withRoot()
	h.runc("run", "--detach", "--bundle", h.b.bundle(h.spec.ID), "--pid-file",
		filepath.Join(h.b.bundle(h.spec.ID), pidName), h.spec.ID)
}

func (h *half) recorded() {
	h.tb.Helper()
	h.running()
	h.rec.Pid = pidIn(h.tb, filepath.Join(h.b.bundle(h.spec.ID), pidName))
	p, err := ocidriver.Open(h.rec.Pid)
	if err != nil {
		h.tb.Fatal(err)
	}
	defer p.Close()
	h.rec.Started = p.Started
	if err := h.b.write(h.rec); err != nil {
		h.tb.Fatal(err)
	}
}

// killed creates a sandbox whose init is dead, with all other parts intact.
func (h *half) killed() {
	h.tb.Helper()
	h.recorded()
	p, err := ocidriver.Open(h.rec.Pid)
	if err != nil {
		h.tb.Fatal(err)
	}
	defer p.Close()
	if err := p.Kill(); err != nil {
		h.tb.Fatal(err)
	}
	if err := p.Wait(h.tb.Context()); err != nil {
		h.tb.Fatal(err)
	}
}

func TestRemoveFromAnyState(t *testing.T) {
	for what, make := range map[string]func(*half){
		"an empty folder": (*half).folder,
		"a torn record": func(h *half) {
			h.record()
			if err := os.WriteFile(filepath.Join(h.b.bundle(h.spec.ID), recordName), []byte(`{"id":`), 0o600); err != nil {
				h.tb.Fatal(err)
			}
		},
		"intent":                 (*half).record,
		"a cell":                 (*half).withCell,
		"a root":                 (*half).withRoot,
		"created, never started": (*half).created,
		"running, not recorded":  (*half).running,
		"running and recorded":   (*half).recorded,
		"first process dead":     (*half).killed,
		"the runtime's state gone": func(h *half) {
			h.recorded()
			remove(h.tb, filepath.Join(h.b.runtime.Root, h.spec.ID))
		},
		"the runtime has let it go": func(h *half) { h.killed(); h.runc("delete", h.spec.ID) },
		"the record gone": func(h *half) {
			h.recorded()
			remove(h.tb, filepath.Join(h.b.bundle(h.spec.ID), recordName))
		},
		"paused": func(h *half) { h.recorded(); h.runc("pause", h.spec.ID) },
		"the root unmounted": func(h *half) {
			h.killed()
			if err := unix.Unmount(filepath.Join(h.b.bundle(h.spec.ID), overlayName), 0); err != nil {
				h.tb.Fatal(err)
			}
		},
		"the root mounted twice": func(h *half) {
			h.withRoot()
			root := filepath.Join(h.b.bundle(h.spec.ID), overlayName)
			if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
				h.tb.Fatal(err)
			}
		},
		"of an earlier boot": func(h *half) {
			h.recorded()
			h.rec.BootID = "another"
			if err := h.b.write(h.rec); err != nil {
				h.tb.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := half{tb: t, b: newBench(t), spec: specFor(t)}
			h.spec.Limits = h.spec.Limits.WithDefaults()
			make(&h)
			if h.cell != nil { // its process is dead
				if err := h.cell.Close(); err != nil {
					t.Error(err)
				}
			}
			found, err := h.b.List(t.Context(), owner)
			if err != nil || len(found) != 1 || found[0].ID != h.spec.ID {
				t.Errorf("List = %+v, %v; want only %s and no error", found, err, h.spec.ID)
			}
			for range 2 {
				if err := h.b.Remove(t.Context(), h.spec.ID); err != nil {
					t.Fatal(err)
				}
			}
			wantNoCgroup(t, h.spec.ID)
			h.b.wantNothingLeft(t)
			if found, err := h.b.List(t.Context(), owner); err != nil || len(found) != 0 {
				t.Errorf("List after Remove = %+v, %v; want none and no error", found, err)
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

// If another process has the recorded pid, it is not killed.
func TestAnotherProcessWithTheRecordedPid(t *testing.T) {
	h := half{tb: t, b: newBench(t), spec: specFor(t)}
	h.spec.Limits = h.spec.Limits.WithDefaults()
	h.record()
	h.rec.Pid, h.rec.Started = os.Getpid(), 1
	if err := h.b.write(h.rec); err != nil {
		t.Fatal(err)
	}
	if found, err := h.b.List(t.Context(), owner); err != nil || len(found) != 1 || found[0].Running {
		t.Errorf("List = %+v, %v; want one, not running, and no error", found, err)
	}
	if _, err := h.b.Adopt(t.Context(), h.spec.ID); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("Adopt: %v, want an error with %q", err, "has ended")
	}
	if err := h.b.Remove(t.Context(), h.spec.ID); err != nil { // this process survives it
		t.Error(err)
	}
}
