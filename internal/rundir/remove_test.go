package rundir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

func TestRemoveAfterCrashInMake(t *testing.T) {
	t.Parallel()
	o := options(t)
	must(t, os.Mkdir(o.Dir, 0o700))
	for n := 0; ; n++ {
		c, err := newDir(o)
		must(t, err)
		must(t, os.Mkdir(c.root, 0o700))
		steps := c.steps(o)
		if n > len(steps) {
			must(t, Remove(soon(t), o))
			return
		}
		for _, step := range steps[:n] {
			must(t, step())
		}
		if c.ln != nil {
			must(t, c.ln.Close()) // as the end of the process would
		}
		if left, err := Leftovers(o.Dir); err != nil || !slices.Equal(left, []string{o.ID}) {
			t.Fatalf("Leftovers after %d steps = %v, %v; want only %s", n, left, err, o.ID)
		}
		if n < len(steps)-2 { // whole but for empty folders and the socket after that
			if _, err := Adopt(soon(t), o); !errors.Is(err, ErrIncomplete) {
				t.Fatalf("Adopt after %d steps = %v, want ErrIncomplete", n, err)
			}
		}
		must(t, Remove(soon(t), o))
		must(t, Remove(soon(t), o))
		wantGone(t, o)
	}
}

func TestRemoveAfterCrashInAttachOrRemove(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]func(t *testing.T, c *Dir, d *cgroup.Delegated){
		"cgroups delegated and recorded": func(t *testing.T, c *Dir, d *cgroup.Delegated) {
			must(t, c.record(d))
		},
		"record half written": func(t *testing.T, c *Dir, d *cgroup.Delegated) {
			must(t, c.record(d))
			must(t, os.WriteFile(c.recordPath()+".new", []byte(`{"mem`), 0o600))
		},
		"some cgroups bound": func(t *testing.T, c *Dir, d *cgroup.Delegated) {
			must(t, c.record(d))
			for name, dir := range d.Dirs {
				must(t, livemount.Bind(c.cgroupDir(name), dir, false))
				break
			}
		},
		"cgroups removed": func(t *testing.T, c *Dir, d *cgroup.Delegated) {
			must(t, c.record(d))
			must(t, d.Remove(soon(t)))
		},
		"mounts removed": func(t *testing.T, c *Dir, d *cgroup.Delegated) {
			must(t, c.record(d))
			must(t, livemount.Sweep(soon(t), c.root, 50*time.Millisecond))
		},
		"folder half removed": func(t *testing.T, c *Dir, d *cgroup.Delegated) {
			must(t, d.Remove(soon(t)))
			must(t, livemount.Sweep(soon(t), c.root, 50*time.Millisecond))
			must(t, os.Remove(c.RunDir()))
		},
		"workspace bound twice, and busy": func(t *testing.T, c *Dir, d *cgroup.Delegated) {
			must(t, c.record(d))
			ws := workspace(t, "alice")
			must(t, livemount.Bind(c.WorkspaceDir(), ws, false))
			f, err := os.Open(filepath.Join(c.WorkspaceDir(), "owner"))
			must(t, err)
			must(t, livemount.Bind(c.WorkspaceDir(), ws, true))
			t.Cleanup(func() {
				_ = f.Close()
				if b, err := os.ReadFile(filepath.Join(ws, "owner")); err != nil || string(b) != "alice" {
					t.Errorf("owner in the workspace = %q, %v; want alice", b, err)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			c := makeDir(t, o)
			s := startSandbox(t, c)
			d, err := cgroup.Delegate(s.pid(), share)
			must(t, err)
			t.Cleanup(func() { must(t, d.Remove(context.WithoutCancel(t.Context()))) })
			crash(t, c, d)
			must(t, c.Close())
			s.kill()
			must(t, Remove(soon(t), o))
			must(t, Remove(soon(t), o))
			wantGone(t, o)
		})
	}
}

func TestRemoveKeepsOtherFiles(t *testing.T) {
	t.Parallel()
	o := options(t)
	c := makeDir(t, o)
	foreign := filepath.Join(c.root, "keep")
	must(t, os.WriteFile(foreign, []byte("kept"), 0o600))
	if err := c.Remove(soon(t)); !errors.Is(err, unix.ENOTEMPTY) {
		t.Fatalf("Remove = %v, want ENOTEMPTY", err)
	}
	if b, err := os.ReadFile(foreign); err != nil || string(b) != "kept" {
		t.Fatalf("the other file = %q, %v; want kept", b, err)
	}
	must(t, os.Remove(foreign))
	must(t, c.Remove(soon(t)))
	wantGone(t, o)
}
