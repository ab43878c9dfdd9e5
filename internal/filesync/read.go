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

// entry is one of a stream, checked.
type entry struct {
	Name  string    `json:"n"`
	Kind  string    `json:"k"` // "f", "d", "l"
	Mode  uint32    `json:"m,omitempty"`
	Time  time.Time `json:"t"`
	Link  string    `json:"l,omitempty"`
	Size  int64     `json:"s,omitempty"`
	Keep  bool      `json:"keep,omitempty"`
	Index int       `json:"i,omitempty"` // of the file that holds the content
}

// readStream goes through a stream. Every name that do gets is below a folder that it got before, and none comes twice.
func readStream(ctx context.Context, r io.Reader, limits Limits, do func(e entry, content io.Reader) error) (Sum, error) {
	t := counter{limits: limits}
	seen := map[string]bool{} // name → is a folder
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
			return t.sum, usererror.Errorf(errdefs.ErrInvalidArgument, "the stream of files has %.100q twice", e.Name)
		}
		if dir := path.Dir(e.Name); dir != "." && !seen[dir] {
			return t.sum, usererror.Errorf(errdefs.ErrInvalidArgument, "the stream of files has %.100q without its folder", e.Name)
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

// checkStreamEnd makes sure that whoever sent the stream ended it well: the archive may be whole and its sender not sure of it.
func checkStreamEnd(r io.Reader) error {
	const most = 1 << 20 // writers fill the last block with zeros
	n, err := io.CopyN(io.Discard, r, most)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%d bytes and more follow its end", n)
	}
	return fmt.Errorf("read the stream of files: %w", err)
}

// parseHeader makes an entry of a header that anybody may have written.
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
			return entry{}, usererror.Errorf(errdefs.ErrInvalidArgument, "the link %.100q in the stream of files leads nowhere", h.Name)
		}
		e.Kind, e.Link = "l", h.Linkname
	case tar.TypeReg:
		e.Kind, e.Size = "f", h.Size
		if size, ok := h.PAXRecords[keepRecord]; ok {
			n, err := strconv.ParseInt(size, 10, 64)
			if err != nil || n < 0 || h.Size != 0 {
				return entry{}, usererror.Errorf(errdefs.ErrInvalidArgument, "the stream of files says of %.100q that it is unchanged, with %.40q bytes", h.Name, size)
			}
			e.Keep, e.Size = true, n
		}
	default:
		return entry{}, usererror.Errorf(errdefs.ErrInvalidArgument, "%.100q in the stream of files is no folder, file or link", h.Name)
	}
	return e, nil
}

// clampTime keeps times that every file system can hold.
func clampTime(t time.Time) time.Time {
	if t.Year() < 1970 || t.Year() > 2200 {
		return time.Unix(0, 0)
	}
	return t
}

// writeContent writes content into a new file; runs of zeros become holes.
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

// Unpack writes a stream into a folder, over what is there of the same name. It is for the end that keeps nothing: after an error some of it is there. readOnly takes
// away the right to write, from whoever has not the right to give it back.
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

// setDirTimeMode gives a folder its time and mode. By its descriptor: a chmod by name that follows no link is a new system call, which filters refuse.
func setDirTimeMode(root *os.Root, e entry, mode fs.FileMode) error {
	f, err := openDir(root, e.Name)
	if err != nil {
		return err
	}
	return errors.Join(root.Chtimes(e.Name, e.Time, e.Time), f.Chmod(mode), f.Close())
}

func unpackEntry(root *os.Root, e entry, content io.Reader, mask fs.FileMode) error {
	switch e.Kind {
	case "d":
		err := root.Mkdir(e.Name, ownerEnters)
		if errors.Is(err, fs.ErrExist) {
			err = nil // the next one in it tells if it is not a folder
		}
		return err
	case "l":
		if err := root.Remove(e.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Symlink(e.Link, e.Name)
	}
	if e.Keep {
		return usererror.Errorf(errdefs.ErrInvalidArgument, "nothing is there yet that could be kept")
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
