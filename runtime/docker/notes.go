package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// A note is a file named by a sandbox's id that contains its owner. It is written before the first
// part of a sandbox is made and removed after the last. It identifies the run directory of a
// sandbox without a container as ours, not another driver's.

// maxNote bounds the size of a note, in bytes.
const maxNote = 128

func (d *Driver) notesDir() string { return filepath.Join(d.dir, "sandboxes") }

func (d *Driver) writeNote(spec runtime.Spec) error {
	if err := os.MkdirAll(d.notesDir(), 0o700); err != nil {
		return fmt.Errorf("docker: make folder for notes: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(d.notesDir(), spec.ID), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("docker: sandbox %s: %w", spec.ID, errdefs.ErrAlreadyExists)
	case err != nil:
		return fmt.Errorf("docker: note sandbox %s: %w", spec.ID, err)
	}
	_, err = f.WriteString(spec.Owner)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("docker: note sandbox %s: %w", spec.ID, err), d.removeNote(spec.ID))
	}
	return nil
}

func (d *Driver) removeNote(id string) error {
	if err := os.Remove(filepath.Join(d.notesDir(), id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("docker: remove note of sandbox %s: %w", id, err)
	}
	return nil
}

// notes returns the ids of an owner's notes. An incomplete note counts for every owner: its sandbox
// has no other parts yet.
func (d *Driver) notes(owner string) ([]string, error) {
	all, err := d.readNotes()
	if err != nil {
		return nil, err
	}
	var out []string
	for id, whose := range all {
		if whose == owner || whose == "" {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Owners returns the owners of all sandboxes that were noted down, sorted. It
// finds sandboxes whose owner id was lost.
func (d *Driver) Owners(context.Context) ([]string, error) {
	all, err := d.readNotes()
	if err != nil {
		return nil, err
	}
	var owners []string
	for _, whose := range all {
		if runtime.ValidID(whose) {
			owners = append(owners, whose)
		}
	}
	slices.Sort(owners)
	return slices.Compact(owners), nil
}

// readNotes returns the owners of all notes by the ids of their sandboxes.
func (d *Driver) readNotes() (map[string]string, error) {
	entries, err := os.ReadDir(d.notesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("docker: read notes: %w", err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if !runtime.ValidID(e.Name()) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d.notesDir(), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("docker: read notes: %w", err)
		}
		out[e.Name()] = strings.TrimSpace(string(b[:min(len(b), maxNote)]))
	}
	return out, nil
}
