package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// location is the SRC or DST of a copy.
type location struct {
	text               string
	sandbox, workspace string
	path               string
	std                bool // standard input or output
}

func (p location) remote() bool { return p.sandbox != "" || p.workspace != "" }

// parseLocation reads -, SANDBOX:PATH, workspace:NAME:PATH or a path of this host.
func parseLocation(text string) location { return locate(text, filepath.VolumeName(text)) }

// locate is parseLocation. volume is the Windows volume that text begins with, such as C:, or "".
func locate(text, volume string) location {
	p := location{text: text, path: filepath.ToSlash(text), std: text == "-"}
	if volume != "" {
		return p
	}
	if rest, ok := strings.CutPrefix(text, "workspace:"); ok {
		p.workspace, p.path, _ = strings.Cut(rest, ":")
		return p
	}
	name, rest, ok := strings.Cut(text, ":")
	if ok && name != "" && !strings.ContainsAny(name, "/.\\") {
		p.sandbox, p.path = name, rest
	}
	return p
}

// base returns the last element of the path, or "" if the path ends without a name.
func (p location) base() string {
	name := path.Base(path.Clean(p.path))
	if !p.remote() {
		name = filepath.ToSlash(filepath.Base(filepath.Clean(p.path))) // without a volume
	}
	if name == "." || name == ".." || name == "/" {
		return ""
	}
	return name
}

func (p location) files(cl *client.Client) files {
	switch {
	case p.workspace != "":
		return remoteFiles{cl.Workspaces.Files(p.workspace)}
	case p.sandbox != "":
		return remoteFiles{cl.SandboxFiles(p.sandbox)}
	}
	return hostFiles{}
}

// Types of entries that are copied.
const (
	kindFile = "file"
	kindDir  = "dir"
)

// entry is a file or a directory.
type entry struct {
	name, kind string
	mode       string // octal
	size       int64
}

// files gives access to the files of one source or destination.
type files interface {
	// stat does not follow a symbolic link.
	stat(ctx context.Context, path string) (entry, error)
	list(ctx context.Context, path string) ([]entry, error)
	open(ctx context.Context, path string) (io.ReadCloser, error)
	// write creates missing parent directories. size is -1 if it is not known.
	write(ctx context.Context, path string, r io.Reader, mode string, size int64) error
	mkdir(ctx context.Context, path, mode string) error
}

// remoteFiles are the files of a sandbox or a workspace.
type remoteFiles struct {
	client.Files
}

func entryOf(f v1.File) entry { return entry{f.Name, f.Type, f.Mode, f.Size} }

func (r remoteFiles) stat(ctx context.Context, path string) (entry, error) {
	f, err := r.Stat(ctx, path)
	return entryOf(f), err
}

func (r remoteFiles) list(ctx context.Context, path string) ([]entry, error) {
	list, truncated, err := r.List(ctx, path)
	if err == nil && truncated {
		err = cli.Refuse(
			errdefs.ErrFailedPrecondition,
			"directory %s has too many entries to list: copy it as an archive",
			path,
		)
	}
	out := make([]entry, 0, len(list))
	for _, f := range list {
		out = append(out, entryOf(f))
	}
	return out, err
}

func (r remoteFiles) open(ctx context.Context, path string) (io.ReadCloser, error) {
	return r.Read(ctx, path, client.Range{})
}

func (r remoteFiles) write(ctx context.Context, path string, in io.Reader, mode string, size int64) error {
	_, err := r.Write(ctx, path, in, client.WriteOptions{Mode: mode, Size: size, Sized: size > 0})
	return err
}

func (r remoteFiles) mkdir(ctx context.Context, path, _ string) error {
	if path == "" || path == "." {
		return nil
	}
	_, err := r.MakeDir(ctx, path)
	return err
}

// hostFiles are the files of this host.
type hostFiles struct{}

func hostError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cli.Refuse(errdefs.ErrNotFound, "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return cli.Refuse(errdefs.ErrPermissionDenied, "%w", err)
	}
	return err
}

func hostEntry(info fs.FileInfo) entry {
	e := entry{name: info.Name(), kind: "other", mode: fmt.Sprintf("%04o", info.Mode().Perm()), size: info.Size()}
	switch {
	case info.Mode().IsRegular():
		e.kind = kindFile
	case info.IsDir():
		e.kind = kindDir
	}
	return e
}

func (hostFiles) stat(_ context.Context, path string) (entry, error) {
	if path == "" {
		path = "."
	}
	info, err := os.Lstat(path)
	if err != nil {
		return entry{}, hostError(err)
	}
	return hostEntry(info), nil
}

func (hostFiles) list(_ context.Context, path string) ([]entry, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, hostError(err)
	}
	out := make([]entry, 0, len(entries))
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed after it was listed
		}
		if err != nil {
			return nil, hostError(err)
		}
		out = append(out, hostEntry(info))
	}
	return out, nil
}

func (hostFiles) open(_ context.Context, path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, hostError(err)
	}
	return f, nil
}

// write replaces a file when the new one is complete.
func (hostFiles) write(_ context.Context, path string, in io.Reader, mode string, _ int64) error {
	perm, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		perm = 0o644
	}
	// Drop setuid and setgid: a file from a sandbox must not run as another user.
	return hostError(cli.SaveFile(path, fs.FileMode(perm)&fs.ModePerm, in))
}

// isDirectory reports whether a path of this host is a directory or a link to one.
func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func (hostFiles) mkdir(_ context.Context, path, mode string) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return cli.Refuse(errdefs.ErrFailedPrecondition, "%s exists and is not a directory", path)
	case !errors.Is(err, fs.ErrNotExist):
		return hostError(err)
	}
	perm, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		perm = 0o755
	}
	return hostError(os.Mkdir(path, fs.FileMode(perm)&fs.ModePerm|0o700))
}
