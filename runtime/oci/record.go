package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// record describes a sandbox, in its directory. It is written before anything is made, and again
// once the first process runs.
type record struct {
	ID       string         `json:"id"`
	Owner    string         `json:"owner"`
	Template string         `json:"template"`
	Build    string         `json:"build"`
	Created  time.Time      `json:"created"`
	Limits   runtime.Limits `json:"limits"`
	Class    runtime.Class  `json:"class,omitempty"`
	// BootID, Pid and Started identify the first process. Pid is 0 until it runs.
	BootID  string `json:"boot_id"`
	Pid     int    `json:"pid,omitempty"`
	Started uint64 `json:"started,omitempty"`
}

const (
	recordName   = "state.json"
	recordBytes  = 64 << 10
	pidName      = "pid"
	overlayName  = "root"
	bundleConfig = "config.json"
)

// bundle is the sandbox's directory: the OCI bundle, the record, and the mount point of the root.
func (d *Driver) bundle(id string) string { return filepath.Join(d.dir, id) }

// read is strict: a record with more or less than we write is not ours to act on.
func (d *Driver) read(id string) (record, error) {
	f, err := os.Open(filepath.Join(d.bundle(id), recordName))
	if err != nil {
		return record{}, fmt.Errorf("record: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, recordBytes))
	if err != nil {
		return record{}, fmt.Errorf("record: %w", err)
	}
	rec, err := parseRecord(text)
	if err != nil {
		return record{}, fmt.Errorf("record %s: %w", f.Name(), err)
	}
	if rec.ID != id {
		return record{}, fmt.Errorf("record %s: it is that of %s", f.Name(), rec.ID)
	}
	return rec, nil
}

func parseRecord(text []byte) (record, error) {
	var rec record
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&rec); err != nil {
		return record{}, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return record{}, errors.New("something follows it")
	}
	switch {
	case !runtime.ValidID(rec.ID), !runtime.ValidID(rec.Owner):
		return record{}, fmt.Errorf("id %q or owner %q is not one", rec.ID, rec.Owner)
	case rec.Pid != 0 && (rec.Pid <= 1 || rec.Started == 0 || rec.BootID == ""):
		return record{}, fmt.Errorf("process %d, started at %d in boot %q, is not one", rec.Pid, rec.Started, rec.BootID)
	}
	return rec, rec.Limits.Validate()
}

// write replaces the record atomically.
func (d *Driver) write(rec record) error {
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := hostfile.Replace(filepath.Join(d.bundle(rec.ID), recordName), text, 0o600); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// initOf returns a handle of the recorded first process, or nil if it has ended or never ran.
func (d *Driver) initOf(rec record) (*ocidriver.Process, error) {
	if rec.Pid == 0 || rec.BootID != d.bootID {
		return nil, nil
	}
	p, err := ocidriver.Open(rec.Pid)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if p.Started != rec.Started {
		p.Close()
		return nil, nil
	}
	return p, nil
}

// running is initOf without a handle, for List.
func (d *Driver) running(rec record) bool {
	if rec.Pid == 0 || rec.BootID != d.bootID {
		return false
	}
	started, err := ocidriver.StartTime(rec.Pid)
	return err == nil && started == rec.Started
}
