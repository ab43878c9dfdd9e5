package remains

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// engine is a driver that only lists and removes.
type engine struct {
	runtime.Driver
	name   string
	mu     sync.Mutex
	has    map[string][]string // owner → ids
	failed map[string]error    // by id
	purged bool
}

func (e *engine) Name() string { return e.name }
func (e *engine) Close() error { return nil }

func (e *engine) List(_ context.Context, owner string) ([]runtime.Found, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]runtime.Found, 0, len(e.has[owner]))
	for _, id := range e.has[owner] {
		out = append(out, runtime.Found{ID: id})
	}
	return out, nil
}

func (e *engine) Owners(context.Context) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for owner := range e.has {
		if owner != noOwner {
			out = append(out, owner)
		}
	}
	return out, nil
}

func (e *engine) Remove(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.failed[id]; err != nil {
		return err
	}
	for owner, ids := range e.has {
		e.has[owner] = slices.DeleteFunc(slices.Clone(ids), func(s string) bool { return s == id })
	}
	return nil
}

func (e *engine) Purge(context.Context) error { e.purged = true; return nil }

var errDown = errors.New("the engine is down")

func finder(t *testing.T, engines ...*engine) Finder {
	t.Helper()
	dir := t.TempDir()
	f := Finder{
		Runtimes: map[string]string{}, Workspaces: filepath.Join(dir, "workspaces"),
		AuditHead: filepath.Join(dir, "audit.head"),
		AuditLog:  filepath.Join(dir, "audit.db"), Log: slog.New(slog.DiscardHandler),
		Open: func(_ context.Context, name string) (runtime.Driver, error) {
			for _, e := range engines {
				if e.name == name && e.has != nil {
					return e, nil
				}
			}
			return nil, errDown
		},
	}
	for _, e := range engines {
		f.Runtimes[e.name] = filepath.Join(dir, e.name)
	}
	return f
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, f Finder, owner string) Found {
	t.Helper()
	found, err := f.Find(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestDestroyRemovesSandboxesOfAllOwners(t *testing.T) {
	a := &engine{name: "a", has: map[string][]string{"owner-one": {"s1", "s2"}, "owner-old": {"s3"}, noOwner: {"s4"}}}
	b := &engine{name: "b", has: map[string][]string{"owner-one": {"s5"}}}
	f := finder(t, a, b)
	found := find(t, f, "owner-one")
	if got, want := found.String(), "3 sandboxes of a (s1, s2, s3), 1 sandbox of b (s5)"; got != want {
		t.Errorf("Find() = %q, want %q", got, want)
	}
	if err := f.Destroy(t.Context(), found); err != nil {
		t.Fatal(err)
	}
	if left := find(t, f, "owner-one"); !left.None(true) {
		t.Errorf("Find after Destroy = %s, want none", left)
	}
	if err := f.Purge(t.Context(), found); err != nil || !a.purged || !b.purged {
		t.Errorf("Purge() = %v, of a %v, of b %v; want nil and both", err, a.purged, b.purged)
	}
}

func TestFindReportsOwnersThatDriversNoted(t *testing.T) {
	f := finder(t, &engine{name: "a", has: map[string][]string{"owner-one": {"s1"}, noOwner: {"s2"}}})
	found := find(t, f, "")
	if found.Owner != "owner-one" || found.String() != "2 sandboxes of a (s1, s2)" {
		t.Errorf("Find() = owner %q, %s; want owner-one with s1 and s2", found.Owner, found)
	}
}

func TestUnavailableRuntimeIsReportedByItsNotes(t *testing.T) {
	const id = "0192f0c4-0000-7000-8000-000000000000"
	f := finder(t, &engine{name: "down"}, &engine{name: "unused"})
	put(t, filepath.Join(f.Runtimes["down"], id), "")
	put(t, filepath.Join(f.Runtimes["down"], ".skeleton"), "")
	found := find(t, f, "owner-one")
	want := "1 sandbox of down (" + id + "), which cannot be listed (" + errDown.Error() + ")"
	if got := found.String(); got != want {
		t.Errorf("Find() = %q, want %q", got, want)
	}
	if len(found.Asked) != 0 {
		t.Errorf("Asked is %v, want none", found.Asked)
	}
	if err := f.Destroy(t.Context(), found); !errors.Is(err, errDown) {
		t.Errorf("Destroy() = %v, want %v", err, errDown)
	}
}

func TestDestroyContinuesAfterErrors(t *testing.T) {
	busy := errors.New("busy")
	e := &engine{name: "a", has: map[string][]string{"owner-one": {"s1", "s2", "s3", "s4"}},
		failed: map[string]error{"s2": busy}}
	f := finder(t, e)
	found := find(t, f, "owner-one")
	if !strings.Contains(found.String(), "4 sandboxes of a (s1, s2, s3, …)") {
		t.Errorf("Find() = %q, want the first three of four", found)
	}
	if err := f.Destroy(t.Context(), found); !errors.Is(err, busy) {
		t.Errorf("Destroy() = %v, want %v", err, busy)
	}
	if left := e.has["owner-one"]; !slices.Equal(left, []string{"s2"}) {
		t.Errorf("after Destroy there are %v, want s2", left)
	}
}

func workspaceFile(name string) func(Finder) map[string]string {
	return func(f Finder) map[string]string { return map[string]string{filepath.Join(f.Workspaces, name): ""} }
}

func head(text string) func(Finder) map[string]string {
	return func(f Finder) map[string]string { return map[string]string{f.AuditHead: text} }
}

func auditLog(text string) func(Finder) map[string]string {
	return func(f Finder) map[string]string { return map[string]string{f.AuditLog: text} }
}

func headAndLog(head, log string) func(Finder) map[string]string {
	return func(f Finder) map[string]string { return map[string]string{f.AuditHead: head, f.AuditLog: log} }
}

func TestNoneReportsForgottenSandboxes(t *testing.T) {
	for name, c := range map[string]struct {
		files     func(f Finder) map[string]string // path → text
		says      string
		none, new bool // None(true), None(false)
	}{
		"nothing":             {func(Finder) map[string]string { return nil }, "", true, true},
		"workspaces":          {workspaceFile("x/workspace.json"), "1 workspace", false, true},
		"no workspaces":       {workspaceFile(".disk-1/disk.img"), "", true, true},
		"records":             {head("12:aa:bb\n"), "12 audit records", false, false},
		"one record":          {head("1:aa:bb\n"), "1 audit record", false, false},
		"an empty log":        {headAndLog("0:aa:bb\n", "x"), "", true, true},
		"a damaged head":      {head("x"), "an audit log", false, false},
		"a log without head":  {auditLog("x"), "an audit log", false, false},
		"an empty file alone": {auditLog(""), "", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := finder(t)
			for path, text := range c.files(f) {
				put(t, path, text)
			}
			found := find(t, f, "owner-one")
			if found.String() != c.says || found.None(true) != c.none || found.None(false) != c.new {
				t.Errorf("found %q, None(true) %v, None(false) %v; want %q, %v, %v", found, found.None(true),
					found.None(false), c.says, c.none, c.new)
			}
		})
	}
}
