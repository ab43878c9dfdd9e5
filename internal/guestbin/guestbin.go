// Package guestbin holds the guest, the binary that becomes PID 1 of every
// sandbox, with its programs, and puts them where sandboxes can be given them.
// Building them comes first: `make build` does both. It starts no goroutine.
package guestbin

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
)

//go:embed bin/*
var files embed.FS

// ErrNone says that this binary was built without a guest.
var ErrNone = errors.New("this binary was built without a guest: build it with `make build`")

// Bytes returns the guest, or ErrNone.
func Bytes() ([]byte, error) { return binary(files, name) }

// binary returns a program of those that were built, whose architecture must be this program's.
func binary(built fs.FS, name string) ([]byte, error) {
	b, err := fs.ReadFile(built, "bin/"+name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	return b, checkMachine(b, runtime.GOARCH)
}

// checkMachine returns an error unless b is a program for the architecture arch.
func checkMachine(b []byte, arch string) error {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("embedded guest: %w: build it with `make build`", err)
	}
	if want, ok := machines[arch]; ok && f.Machine != want {
		return fmt.Errorf("embedded guest: built for %s, and this program for %s: build both with `make build GOARCH=%s`",
			f.Machine, arch, arch)
	}
	return nil
}

// name is that of the guest's file; those of its programs are beside it.
const name = "guest"

// Write puts the guest at dir/<hash>/guest, its programs beside it as
// wire.ProgramPath says, with mode 0555, and returns that path and the hash of all
// of them. The guest comes last, and each file appears whole or not at all; what
// is there already is checked and kept. Concurrent calls are fine.
func Write(dir string) (path, hash string, err error) { return writeBuilt(dir, files) }

// writeBuilt is Write for the programs in bin of built.
func writeBuilt(dir string, built fs.FS) (path, hash string, err error) {
	all := make(map[string][]byte)
	for _, program := range wire.Programs() {
		file := wire.ProgramPath(name, program)
		if all[file], err = binary(built, file); err != nil {
			return "", "", err
		}
	}
	if all[name], err = binary(built, name); err != nil {
		return "", "", err
	}
	return write(dir, all)
}

func write(dir string, all map[string][]byte) (path, hash string, err error) {
	h := sha256.New()
	order := slices.Sorted(maps.Keys(all))
	for _, file := range order {
		sum := sha256.Sum256(all[file])
		h.Write(sum[:])
	}
	hash = hex.EncodeToString(h.Sum(nil))
	folder := filepath.Join(dir, hash)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", "", fmt.Errorf("write the guest: %w", err)
	}
	for _, file := range slices.Backward(order) {
		if err := writeFile(filepath.Join(folder, file), all[file]); err != nil {
			return "", "", fmt.Errorf("write the guest: %w", err)
		}
	}
	return filepath.Join(folder, name), hash, nil
}

func writeFile(path string, b []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		now := time.Now()
		return errors.Join(os.Chmod(path, 0o555), os.Chtimes(path, now, now)) // for Sweep
	}
	temp, err := scratch.Make(filepath.Dir(filepath.Dir(path)), newGuest)
	if err != nil {
		return err
	}
	defer temp.Remove() //nolint:errcheck // else Sweep does
	f, err := os.OpenFile(filepath.Join(temp.Path, "file"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	failpoint.Hit("start.guest.made")
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o555), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

// newGuest begins the names of directories that files are written in.
const newGuest = ".guest-"

// sweepAge is how long a guest is kept that no program has written again: every
// start of one does.
const sweepAge = 7 * 24 * time.Hour

// Sweep removes the guests of other versions in dir that nobody asked for in a
// week, and files that a killed program was writing. Sandboxes that have a guest
// as their first process go on with it. It is for the service that holds the
// state directory.
func Sweep(dir, keep string) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var errs []error
	for _, e := range entries {
		folder := filepath.Join(dir, e.Name())
		if b, err := hex.DecodeString(e.Name()); err != nil || len(b) != sha256.Size || e.Name() == keep || !e.IsDir() {
			continue
		}
		fi, err := os.Stat(filepath.Join(folder, name))
		if errors.Is(err, fs.ErrNotExist) {
			fi, err = e.Info()
		}
		if err != nil || time.Since(fi.ModTime()) < sweepAge {
			continue
		}
		if err := os.RemoveAll(folder); err != nil {
			errs = append(errs, fmt.Errorf("remove an earlier guest: %w", err))
			continue
		}
		removed = append(removed, e.Name())
	}
	return removed, errors.Join(append(errs, err, scratch.Sweep(dir, newGuest, nil))...)
}
