// Package remains finds what a state directory still contains after its database was lost, and
// removes its sandboxes.
//
// A Finder asks the drivers for the sandboxes of an owner id, and of the owners that drivers have
// recorded. It removes sandboxes with all their resources, but never workspaces or audit records.
// It starts goroutines only while a method runs. Errors have the classes of containerd/errdefs.
package remains

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// noOwner replaces an unknown owner. Drivers then list the sandboxes whose records name no owner.
const noOwner = "unknown-owner"

// parallel bounds concurrent removals.
const parallel = 8

// Finder finds and removes what is left. All fields are required. Its methods may be called
// concurrently.
type Finder struct {
	// Runtimes maps the names of the runtimes to the directory in which each keeps an entry for
	// every sandbox, from before its creation until after its removal.
	Runtimes map[string]string
	// Open returns the driver with this name.
	Open func(ctx context.Context, name string) (runtime.Driver, error)
	// Workspaces is the directory of workspaces. AuditHead and AuditLog are the files of the audit
	// log.
	Workspaces, AuditHead, AuditLog string
	Log                             *slog.Logger
}

// Found is the result of Finder.Find.
type Found struct {
	// Owner is the owner id of the sandboxes, or "" if it is unknown.
	Owner     string
	Sandboxes []Sandboxes
	// Workspaces is the number of workspaces. Audit describes the audit log, or is "" if it has no
	// records.
	Workspaces int
	Audit      string
	// Asked are the runtimes that answered.
	Asked []string
}

// Sandboxes are the sandboxes of one runtime.
type Sandboxes struct {
	Runtime string
	IDs     []string
	// Err says why the runtime did not answer. IDs are then those of its entries.
	Err error
}

// Find returns what belongs to owner, or to any owner that drivers have recorded. A runtime that
// does not answer is not an error: see Sandboxes.Err.
func (f Finder) Find(ctx context.Context, owner string) (Found, error) {
	found := Found{Owner: owner, Workspaces: f.workspaces(), Audit: f.audit()}
	for _, name := range f.names() {
		s := Sandboxes{Runtime: name}
		s.Err = f.eachOwner(ctx, name, owner, func(_ runtime.Driver, whose string, ids []string) error {
			s.IDs = append(s.IDs, ids...)
			if found.Owner == "" && whose != noOwner {
				found.Owner = whose
			}
			return nil
		})
		if ctx.Err() != nil {
			return found, context.Cause(ctx)
		}
		if s.Err != nil {
			f.Log.Warn("failed to list the sandboxes of a runtime", "runtime", name, "error", s.Err)
			s.IDs = recordedIDs(f.Runtimes[name])
		} else {
			found.Asked = append(found.Asked, name)
		}
		slices.Sort(s.IDs)
		s.IDs = slices.Compact(s.IDs)
		if len(s.IDs) > 0 {
			found.Sandboxes = append(found.Sandboxes, s)
		}
	}
	return found, nil
}

func (f Finder) names() []string {
	return slices.Sorted(maps.Keys(f.Runtimes))
}

// ownerLister is a driver that records the owners of its sandboxes.
type ownerLister interface {
	Owners(ctx context.Context) ([]string, error)
}

// eachOwner calls do with the sandboxes of each owner that a runtime knows.
func (f Finder) eachOwner(
	ctx context.Context, name, owner string, do func(d runtime.Driver, owner string, ids []string) error,
) (err error) {
	driver, err := f.Open(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, driver.Close()) }()
	owners := []string{cmp.Or(owner, noOwner)}
	if o, ok := driver.(ownerLister); ok {
		more, err := o.Owners(ctx)
		if err != nil {
			return err
		}
		owners = append(owners, more...)
	}
	slices.Sort(owners)
	for _, whose := range slices.Compact(owners) {
		list, err := driver.List(ctx, whose)
		if err != nil {
			return err
		}
		var ids []string
		for _, s := range list {
			ids = append(ids, s.ID)
		}
		if err := do(driver, whose, ids); err != nil {
			return err
		}
	}
	return nil
}

// recordedIDs returns the ids of the sandboxes with an entry in dir.
func recordedIDs(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var ids []string
	for _, e := range entries {
		if _, err := uuid.Parse(e.Name()); err == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

func (f Finder) workspaces() int {
	entries, err := os.ReadDir(f.Workspaces)
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if _, err := os.Lstat(filepath.Join(f.Workspaces, e.Name(), "workspace.json")); err == nil {
			n++
		}
	}
	return n
}

// audit describes the number of audit records, from the head of their log.
func (f Finder) audit() string {
	const some = "an audit log"
	text, err := os.ReadFile(f.AuditHead)
	if err != nil {
		if info, err := os.Stat(f.AuditLog); err == nil && info.Size() > 0 {
			return some
		}
		return ""
	}
	seq, _, _ := strings.Cut(string(text), ":")
	switch n, err := strconv.Atoi(seq); {
	case err != nil:
		return some
	case n > 0:
		return count(n, "audit record", "audit records")
	}
	return ""
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// None reports whether nothing was found that a new database would forget. used says that a server
// has used the state directory; otherwise workspaces do not count, because they can be created
// without a server.
func (f Found) None(used bool) bool {
	return len(f.Sandboxes) == 0 && f.Audit == "" && (f.Workspaces == 0 || !used)
}

// String describes what was found, in one line.
func (f Found) String() string {
	const most = 3 // number of listed ids
	var parts []string
	for _, s := range f.Sandboxes {
		ids := strings.Join(s.IDs[:min(len(s.IDs), most)], ", ")
		if len(s.IDs) > most {
			ids += ", …"
		}
		text := fmt.Sprintf("%s of %s (%s)", count(len(s.IDs), "sandbox", "sandboxes"), s.Runtime, ids)
		if s.Err != nil {
			text += fmt.Sprintf(", which cannot be listed (%v)", s.Err)
		}
		parts = append(parts, text)
	}
	if f.Workspaces > 0 {
		parts = append(parts, count(f.Workspaces, "workspace", "workspaces"))
	}
	if f.Audit != "" {
		parts = append(parts, f.Audit)
	}
	return strings.Join(parts, ", ")
}

// Destroy removes the sandboxes that were found, with their mounts, cgroups and records. It
// continues after errors and returns all of them. It may be repeated.
func (f Finder) Destroy(ctx context.Context, found Found) error {
	var errs []error
	for _, s := range found.Sandboxes {
		err := s.Err
		if err == nil {
			err = f.eachOwner(ctx, s.Runtime, found.Owner,
				func(d runtime.Driver, whose string, ids []string) error {
					err := f.remove(ctx, d, ids)
					if k, ok := d.(runtime.TemplateKeeper); ok {
						err = errors.Join(err, k.RemoveTemplates(ctx, whose))
					}
					return err
				})
		}
		if err != nil {
			errs = append(errs,
				fmt.Errorf("remove %s of %s: %w", count(len(s.IDs), "sandbox", "sandboxes"), s.Runtime, err))
		}
	}
	return errors.Join(errs...)
}

func (f Finder) remove(ctx context.Context, d runtime.Driver, ids []string) error {
	var g errgroup.Group // an error does not stop the others
	g.SetLimit(parallel)
	errs := make([]error, len(ids))
	for i, id := range ids {
		g.Go(func() error {
			if errs[i] = d.Remove(ctx, id); errs[i] == nil {
				f.Log.Info("removed a sandbox that state.db does not know", "sandbox", id, "runtime", d.Name())
			}
			failpoint.Hit("start.remains.removed")
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

// Purge removes what the runtimes that answered keep in their engines beside sandboxes.
func (f Finder) Purge(ctx context.Context, found Found) error {
	var errs []error
	for _, name := range found.Asked {
		driver, err := f.Open(ctx, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if p, ok := driver.(interface{ Purge(context.Context) error }); ok {
			errs = append(errs, p.Purge(ctx))
		}
		errs = append(errs, driver.Close())
	}
	return errors.Join(errs...)
}
