// Package backup writes the state directory of a service to one file, and puts it back.
//
// A backup is a gzip-compressed tar archive: manifest.json, and then the files that the manifest
// lists. [Write] works while a service uses the directory. [Restore] needs the directory's lock.
// It checks everything before it changes the directory, and keeps the earlier files. The package
// starts no goroutines.
package backup

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

const (
	manifestName = "manifest.json"
	// formatVersion is the version of the archive. Older programs refuse a newer one.
	formatVersion = 1
	// scratchPrefix starts the names of directories in the state directory that a backup uses.
	scratchPrefix = ".backup-"
	// asidePrefix starts the names of the directories that keep what a restore replaced.
	asidePrefix = "before-restore-"

	maxManifest = 1 << 20
)

// Manifest describes a backup.
type Manifest struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created"`
	// Program is the version of the program that made it.
	Program string `json:"program"`
	Files   []File `json:"files"`
	// Excluded lists what the state directory also had.
	Excluded []string `json:"excluded"`
}

// File is a file of a backup.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Bytes returns the size of all files.
func (m Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

// Write writes a backup of the state directory dir to w. program is the version of this program.
func Write(ctx context.Context, w io.Writer, dir, program string) (m Manifest, err error) {
	if err := scratch.Sweep(dir, scratchPrefix, nil); err != nil {
		return m, err
	}
	temp, err := scratch.Make(dir, scratchPrefix)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, temp.Remove()) }()
	m = Manifest{Format: formatVersion, Created: time.Now().UTC(), Program: program}
	// The head of the audit log must not be newer than the log.
	names, err := copySmall(dir, temp.Path, audit.KeyFile, audit.HeadFile)
	if err != nil {
		return m, err
	}
	databases, err := store.CopyTo(ctx, dir, temp.Path)
	if err != nil {
		return m, err
	}
	for _, name := range append(names, databases...) {
		f, err := describe(temp.Path, name)
		if err != nil {
			return m, err
		}
		m.Files = append(m.Files, f)
	}
	if m.Excluded, err = excluded(dir); err != nil {
		return m, err
	}
	return m, writeArchive(ctx, w, m, temp.Path)
}

// copySmall copies small files that exist, and returns their names.
func copySmall(dir, to string, names ...string) (found []string, err error) {
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(to, name), text, 0o600); err != nil {
			return nil, err
		}
		found = append(found, name)
	}
	return found, nil
}

func describe(dir, name string) (File, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return File{name, n, hex.EncodeToString(h.Sum(nil))}, err
}

// excluded lists the entries of a state directory that are not backed up and have a meaning to
// operators.
func excluded(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	list := []string{}
	for _, e := range entries {
		if e.IsDir() && e.Name()[0] != '.' {
			list = append(list, e.Name())
		}
	}
	return list, nil
}

func writeArchive(ctx context.Context, w io.Writer, m Manifest, dir string) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	head := func(name string, size int64) error {
		return t.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o600, ModTime: m.Created, Format: tar.FormatPAX})
	}
	if err := head(manifestName, int64(len(text))); err != nil {
		return err
	}
	if _, err := t.Write(text); err != nil {
		return err
	}
	for _, f := range m.Files {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := head(f.Name, f.Bytes); err != nil {
			return err
		}
		if err := copyInto(t, filepath.Join(dir, f.Name)); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func copyInto(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// Restore puts a backup into the state directory dir, whose lock the caller holds. Earlier files go
// to the directory aside, which is "" if there were none. Without replace, earlier files are an
// error of class AlreadyExists. A file that is not a backup is of class InvalidArgument.
func Restore(ctx context.Context, r io.Reader, dir string, replace bool) (m Manifest, aside string, err error) {
	if !replace && store.HasState(dir) {
		return m, "", fmt.Errorf("state directory %s is in use: give --replace, which keeps the earlier files: %w", dir,
			errdefs.ErrAlreadyExists)
	}
	if err := scratch.Sweep(dir, scratchPrefix, nil); err != nil {
		return m, "", err
	}
	temp, err := scratch.Make(dir, scratchPrefix)
	if err != nil {
		return m, "", err
	}
	defer func() { err = errors.Join(err, temp.Remove()) }()
	if m, err = unpack(ctx, r, temp.Path); err != nil {
		return m, "", fmt.Errorf("read the backup: %w", err)
	}
	if err := store.CheckCopy(ctx, temp.Path); err != nil {
		return m, "", fmt.Errorf("check the backup: %w", err)
	}
	if aside, err = setAside(dir); err != nil {
		return m, aside, err
	}
	// owner.json is last: without it, an interrupted restore is not taken for a whole state.
	slices.SortStableFunc(m.Files, func(a, b File) int { return rank(a.Name) - rank(b.Name) })
	for _, f := range m.Files {
		if err := os.Rename(filepath.Join(temp.Path, f.Name), filepath.Join(dir, f.Name)); err != nil {
			return m, aside, err
		}
	}
	return m, aside, nil
}

func rank(name string) int {
	if name == store.OwnerFile {
		return 1
	}
	return 0
}

// setAside moves the files that a backup can have, with SQLite's own, to a new directory.
func setAside(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	aside := ""
	for _, e := range entries {
		base := e.Name()
		for _, suffix := range []string{"-wal", "-shm", "-journal"} {
			if cut, ok := strings.CutSuffix(base, suffix); ok {
				base = cut
			}
		}
		if e.IsDir() || !known(base) {
			continue
		}
		if aside == "" {
			aside = filepath.Join(dir, asidePrefix+time.Now().UTC().Format("20060102T150405.000Z"))
			if err := os.Mkdir(aside, 0o700); err != nil {
				return "", err
			}
		}
		if err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(aside, e.Name())); err != nil {
			return aside, err
		}
	}
	return aside, nil
}

// known reports whether a backup can have a file of this name.
func known(name string) bool {
	return name == audit.HeadFile || name == audit.KeyFile || store.IsBackupFile(name)
}

// unpack writes the files of a backup to a directory, and compares them with the manifest.
func unpack(ctx context.Context, r io.Reader, dir string) (m Manifest, err error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return m, bad("it is not a backup: %v", err)
	}
	t := tar.NewReader(z)
	h, err := t.Next()
	if err != nil || h.Name != manifestName || h.Size > maxManifest {
		return m, bad("it is not a backup: %s is not its first entry", manifestName)
	}
	text, err := io.ReadAll(t)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	switch {
	case err != nil:
		return m, bad("%s: %v", manifestName, err)
	case m.Format > formatVersion:
		return m, fmt.Errorf("format %d, want %d: use the newer program: %w", m.Format, formatVersion,
			errdefs.ErrFailedPrecondition)
	}
	for _, f := range m.Files {
		if err := ctx.Err(); err != nil {
			return m, context.Cause(ctx)
		}
		h, err := t.Next()
		switch {
		case err != nil:
			return m, bad("%s is missing: the file is cut or damaged: %v", f.Name, err)
		case h.Name != f.Name || h.Size != f.Bytes || !known(f.Name):
			return m, bad("unexpected entry %q", h.Name)
		}
		if err := writeFile(filepath.Join(dir, f.Name), t); err != nil {
			return m, bad("%s: %v", f.Name, err)
		}
		got, err := describe(dir, f.Name)
		switch {
		case err != nil:
			return m, err
		case got != f:
			return m, bad("%s does not match its checksum: the file is damaged", f.Name)
		}
	}
	return m, nil
}

func writeFile(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Sync(), f.Close())
}
