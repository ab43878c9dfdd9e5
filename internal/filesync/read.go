package filesync

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// entry is a checked entry of a stream.
type entry struct {
	Name  string    `json:"n"`
	Kind  string    `json:"k"` // "f", "d" or "l"
	Mode  uint32    `json:"m,omitempty"`
	Time  time.Time `json:"t"`
	Link  string    `json:"l,omitempty"`
	Size  int64     `json:"s,omitempty"`
	Keep  bool      `json:"keep,omitempty"`
	Index int       `json:"i,omitempty"` // number of the stage file with the content
}

// readStream calls do for each entry of a stream. Each name is unique and follows its directory.
func readStream(ctx context.Context, r io.Reader, limits Limits,
	do func(e entry, content io.Reader) error,
) (Sum, error) {
	t := counter{limits: limits}
	seen := map[string]bool{} // name → whether it is a directory
	in := tar.NewReader(r)
	for {
		if ctx.Err() != nil {
			return t.sum, context.Cause(ctx)
		}
		h, err := in.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return t.sum, fmt.Errorf("read the stream of files: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader && h.PAXRecords[endRecord] == strconv.Itoa(t.sum.Entries) {
			return t.sum, checkStreamEnd(r)
		}
		e, err := parseHeader(h)
		if err != nil {
			return t.sum, err
		}
		if _, twice := seen[e.Name]; twice {
			return t.sum, usererror.Errorf(errdefs.ErrInvalidArgument, "duplicate name %.100q in the stream of files",
				e.Name)
		}
		if dir := path.Dir(e.Name); dir != "." && !seen[dir] {
			return t.sum, usererror.Errorf(errdefs.ErrInvalidArgument,
				"%.100q is in the stream of files without its directory",
				e.Name)
		}
		seen[e.Name] = e.Kind == "d"
		if err := t.add(e.Name+e.Link, e.Size); err != nil {
			return t.sum, err
		}
		if e.Keep {
			t.sum.Kept++
		}
		if err := do(e, in); err != nil {
			return t.sum, err
		}
	}
}

// checkStreamEnd reads until the end of the stream. A sender that fails after a complete archive
// cuts the stream.
func checkStreamEnd(r io.Reader) error {
	const most = 1 << 20 // writers pad the last block with zeros
	n, err := io.CopyN(io.Discard, r, most)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("at least %d bytes follow its end", n)
	}
	return fmt.Errorf("read the stream of files: %w", err)
}

// parseHeader converts an untrusted header into an entry.
func parseHeader(h *tar.Header) (entry, error) {
	if err := checkName(h.Name); err != nil {
		return entry{}, err
	}
	e := entry{Name: h.Name, Mode: uint32(h.Mode) & permMask, Time: clampTime(h.ModTime)}
	switch h.Typeflag {
	case tar.TypeDir:
		e.Kind = "d"
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxPath {
			return entry{}, usererror.Errorf(errdefs.ErrInvalidArgument,
				"invalid target of link %.100q in the stream of files",
				h.Name)
		}
		e.Kind, e.Link = "l", h.Linkname
	case tar.TypeReg:
		e.Kind, e.Size = "f", h.Size
		if size, ok := h.PAXRecords[keepRecord]; ok {
			n, err := strconv.ParseInt(size, 10, 64)
			if err != nil || n < 0 || h.Size != 0 {
				return entry{}, usererror.Errorf(errdefs.ErrInvalidArgument,
					"invalid size %.40q of unchanged file %.100q in the stream of files",
					size, h.Name)
			}
			e.Keep, e.Size = true, n
		}
	default:
		return entry{}, usererror.Errorf(errdefs.ErrInvalidArgument,
			"invalid type of %.100q in the stream of files: must be a directory, file or link",
			h.Name)
	}
	return e, nil
}

// clampTime replaces times that not every file system can store.
func clampTime(t time.Time) time.Time {
	if t.Year() < 1970 || t.Year() > 2200 {
		return time.Unix(0, 0)
	}
	return t
}

// writeContent writes content into a new file. Runs of zeros become holes.
func writeContent(f *os.File, r io.Reader, size int64) error {
	const block = 64 << 10
	buf := make([]byte, block)
	var at int64
	for at < size {
		b := buf[:min(block, size-at)]
		if _, err := io.ReadFull(r, b); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if !isZero(b) {
			if _, err := f.WriteAt(b, at); err != nil {
				return err
			}
		}
		at += int64(len(b))
	}
	return f.Truncate(size)
}

func isZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// Unpack writes a stream into dir and replaces files of the same name. After an error, some files
// remain. readOnly drops the write permissions.
func Unpack(ctx context.Context, r io.Reader, dir string, limits Limits, readOnly bool) (Sum, error) {
	root, err := openRoot(dir)
	if err != nil {
		return Sum{}, fmt.Errorf("unpack files: %w", err)
	}
	defer func() { _ = root.Close() }()
	mask := fs.FileMode(permMask)
	if readOnly {
		mask = 0o555
	}
	var dirs []entry
	sum, err := readStream(ctx, r, limits, func(e entry, content io.Reader) error {
		if err := unpackEntry(root, e, content, mask); err != nil {
			return fmt.Errorf("write %.200q: %w", e.Name, err)
		}
		if e.Kind == "d" {
			dirs = append(dirs, e)
		}
		return nil
	})
	for i := len(dirs) - 1; err == nil && i >= 0; i-- {
		err = setDirTimeMode(root, dirs[i], fs.FileMode(dirs[i].Mode)&mask)
	}
	return sum, err
}

// setDirTimeMode sets a directory's time and mode. It uses the file descriptor: a chmod by name
// that follows no link needs a new system call, which seccomp filters reject.
func setDirTimeMode(root *os.Root, e entry, mode fs.FileMode) error {
	f, err := openDir(root, e.Name)
	if err != nil {
		return err
	}
	return errors.Join(root.Chtimes(e.Name, e.Time, e.Time), f.Chmod(mode), f.Close())
}

// unpackEntry writes one entry. A directory gets its mode and time later.
func unpackEntry(root *os.Root, e entry, content io.Reader, mask fs.FileMode) error {
	switch e.Kind {
	case "d":
		err := root.Mkdir(e.Name, ownerEnters)
		if errors.Is(err, fs.ErrExist) {
			err = nil // If it is not a directory, the next entry in it fails.
		}
		return err
	case "l":
		if err := root.Remove(e.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Symlink(e.Link, e.Name)
	}
	if e.Keep {
		return usererror.Errorf(errdefs.ErrInvalidArgument, "unpack cannot keep an unchanged file")
	}
	if err := root.Remove(e.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(e.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = writeContent(f, content, e.Size)
	err = errors.Join(err, f.Chmod(fs.FileMode(e.Mode)&mask), f.Close())
	if err != nil {
		return err
	}
	return root.Chtimes(e.Name, e.Time, e.Time)
}
