package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
)

// CheckReplaceable refuses to replace a device, a FIFO or a directory by a file.
func CheckReplaceable(path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return Refuse(
			errdefs.ErrInvalidArgument,
			"%s is not a regular file: name the file to write, or - for standard output",
			path,
		)
	}
	return nil
}

// SaveFile replaces the file at path by what it reads from in. If it fails, the old file stays.
func SaveFile(path string, mode fs.FileMode, in io.Reader) (err error) {
	if err := CheckReplaceable(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".orchestrator-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name())) // it is incomplete
		}
	}()
	if err := errors.Join(WriteSparse(f, in), f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// WriteSparse writes in to a new file and leaves out blocks of zeros: a sparse file in a small
// workspace can have any length.
func WriteSparse(f *os.File, in io.Reader) error {
	b, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	at := int64(0)
	for {
		n, err := in.Read(b)
		if n > 0 && !bytes.Equal(b[:n], zeros[:n]) {
			if _, err := f.WriteAt(b[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if err == io.EOF {
			return f.Truncate(at)
		}
		if err != nil {
			return err
		}
	}
}

// OpenInput opens a file to send, or standard input for "-". size is -1 if it is not known. Call
// done after the last read.
func (a *App) OpenInput(ctx context.Context, path string) (in io.Reader, size int64, done func(), err error) {
	if path == "-" {
		return a.Input(ctx), -1, func() {}, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO must not wait for a writer
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, 0, nil, Refuse(errdefs.ErrNotFound, "%s: no such file", path)
	case errors.Is(err, os.ErrPermission):
		return nil, 0, nil, Refuse(errdefs.ErrPermissionDenied, "%w", err)
	case err != nil:
		return nil, 0, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = Refuse(errdefs.ErrInvalidArgument, "%s is not a regular file; send what has no size through -", path)
	}
	if err != nil {
		return nil, 0, nil, errors.Join(err, f.Close())
	}
	return f, info.Size(), func() { f.Close() }, nil
}
