package sandbox

import (
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

const (
	// copyParallel is the number of files copied at once.
	copyParallel = 8
)

// NewCopyCommand returns "orchestrator cp".
func NewCopyCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "cp SRC DST",
		Short: "Copy files from and to sandboxes and workspaces",
		Long: `Copy a file, or a directory with its contents. SRC and DST are a path on this host,
SANDBOX:PATH or workspace:NAME:PATH; "-" is standard input or output. If DST is a
directory or ends with "/", the copy is created in it under SRC's name. File modes
are kept. Symbolic links are not copied, but named on standard error. Write a path
on this host that has a ":" as ./with:colon.`,
		Example: `  orchestrator cp src/ $id:/workspace/
  orchestrator cp $id:/tmp/report.html .
  orchestrator cp workspace:notes:todo.md - | less
  tar c . | orchestrator cp - $id:/tmp/src.tar`,
		Args: cli.ExactArgs("SRC", "DST"),
		RunE: func(cmd *cobra.Command, args []string) error { return runCopy(cmd.Context(), a, cmd, args[0], args[1]) },
	}
}

// copying is one execution of cp.
type copying struct {
	app      *cli.App
	from, to files

	group   *errgroup.Group
	ctx     context.Context // of the group, for as long as it runs
	found   atomic.Int64
	done    atomic.Int64
	bytes   atomic.Int64
	skipped []string
	mu      sync.Mutex
	unnamed []string      // entries whose names are not valid text; guarded by mu
	slots   chan struct{} // limits the files copied at once
}

func runCopy(ctx context.Context, a *cli.App, cmd *cobra.Command, src, dst string) error {
	from, to := parseLocation(src), parseLocation(dst)
	switch {
	case !from.remote() && !to.remote():
		return cli.Usage(
			cmd,
			"neither %q nor %q is in a sandbox or a workspace: write SANDBOX:PATH or workspace:NAME:PATH",
			src,
			dst,
		)
	case from.std && to.std:
		return cli.Usage(cmd, "SRC and DST are both -")
	}
	for _, p := range []location{from, to} {
		if p.remote() && p.path == "" {
			return cli.Usage(cmd, "path missing in %q: use %s:. for everything", p.text, strings.TrimSuffix(p.text, ":"))
		}
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	c := &copying{app: a, from: from.files(cl), to: to.files(cl), slots: make(chan struct{}, copyParallel)}
	group, gctx := errgroup.WithContext(ctx)
	c.group, c.ctx = group, gctx
	stop := c.progress()
	err = c.start(from, to)
	if wait := group.Wait(); wait != nil {
		err = wait
	}
	stop()
	for _, name := range c.skipped {
		a.Note("not copied, neither a file nor a directory: %s", name)
	}
	for _, name := range c.unnamed {
		a.Note("not copied, name is not UTF-8: %s", name)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// start finds out what to copy where, and copies it.
func (c *copying) start(from, to location) error {
	if from.std || to.std {
		return c.stream(from, to)
	}
	src, err := c.from.stat(c.ctx, from.path)
	if err != nil {
		return err
	}
	target := to.path
	dst, err := c.to.stat(c.ctx, strings.TrimSuffix(target, "/"))
	if !to.remote() && err == nil && isDirectory(target) {
		dst.kind = kindDir
	}
	switch {
	case err != nil && !errdefs.IsNotFound(err):
		return err
	case err == nil && dst.kind == kindDir || strings.HasSuffix(target, "/"):
		if name := from.base(); name != "" {
			if err := c.checkName(path.Dir(from.path), name); err != nil {
				return err
			}
			target = join(target, name)
		}
	case err == nil && src.kind == kindDir:
		return cli.Refuse(errdefs.ErrFailedPrecondition, "%s is a file and %s is a directory", to.text, from.text)
	}
	return c.entry(src, from.path, strings.TrimSuffix(target, "/"))
}

func (c *copying) stream(from, to location) error {
	in, mode := io.ReadCloser(io.NopCloser(c.app.Input(c.ctx))), "0644"
	if !from.std {
		src, err := c.from.stat(c.ctx, from.path)
		if err != nil {
			return err
		}
		if src.kind != kindFile {
			return cli.Refuse(errdefs.ErrFailedPrecondition, "%s is not a file", from.text)
		}
		if in, err = c.from.open(c.ctx, from.path); err != nil {
			return err
		}
	}
	defer in.Close()
	if to.std {
		_, err := io.Copy(c.app.Stdout, c.count(in))
		return err
	}
	return c.to.write(c.ctx, to.path, c.count(in), mode, -1)
}

// entry copies a file in the background, or a directory with its contents.
func (c *copying) entry(e entry, from, to string) error {
	switch e.kind {
	case kindFile:
		c.found.Add(1)
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
		c.group.Go(func() error {
			defer func() { <-c.slots }()
			return c.file(e, from, to)
		})
		return nil
	case kindDir:
		list, err := c.from.list(c.ctx, from)
		if c.noteUnnamed(from, err) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.to.mkdir(c.ctx, to, e.mode); err != nil {
			return err
		}
		for _, below := range list {
			if err := c.checkName(from, below.name); err != nil {
				return err
			}
			if err := c.entry(below, join(from, below.name), join(to, below.name)); err != nil {
				return err
			}
		}
		return nil
	}
	c.skipped = append(c.skipped, from)
	return nil
}

// checkName returns an error if name, an entry of dir, would not name an entry of a directory at
// the destination. It may come from a sandbox.
func (c *copying) checkName(dir, name string) error {
	bad := name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00")
	if _, host := c.to.(hostFiles); host {
		// Windows has more separators, and reserves the names of devices, drives and streams.
		bad = bad || !filepath.IsLocal(name) || filepath.Base(name) != name
	}
	if bad {
		return fmt.Errorf("%s has an entry with the name %q: %w", dir, name, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (c *copying) file(e entry, from, to string) error {
	in, err := c.from.open(c.ctx, from)
	if c.noteUnnamed(from, err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	if err := c.to.write(c.ctx, to, c.count(in), e.mode, e.size); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	c.done.Add(1)
	return nil
}

// noteUnnamed reports whether an entry was listed but cannot be opened: its name has bytes that a
// listing cannot hold. It notes the name, and the copy continues.
func (c *copying) noteUnnamed(from string, err error) bool {
	if !errdefs.IsNotFound(err) || !strings.ContainsRune(path.Base(from), utf8.RuneError) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unnamed = append(c.unnamed, from)
	return true
}

// count returns a reader that adds what is read to the progress.
func (c *copying) count(r io.Reader) io.Reader { return &counted{r, &c.bytes} }

type counted struct {
	io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (r *counted) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.n.Add(int64(n))
	return n, err
}

// progress shows the progress if the copy takes long. Call stop at the end.
func (c *copying) progress() (stop func()) {
	return c.app.StartReports(func() string {
		return fmt.Sprintf("%d of %d files, %s", c.done.Load(), c.found.Load(), cli.Size(c.bytes.Load()))
	}).Stop
}

func join(dir, name string) string {
	if dir == "" || dir == "." {
		return name
	}
	return strings.TrimSuffix(dir, "/") + "/" + name
}
