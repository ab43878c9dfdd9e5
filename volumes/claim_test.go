package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

const (
	firstLease  = "lease-00000001"
	secondLease = "lease-00000002"
)

func openClaims(t *testing.T, dir string) *Manager {
	t.Helper()
	m, err := Open(dir, Options{Snapshots: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestClaimHasOneLease checks that a volume claim excludes other leases in every mode, over a
// restart too.
func TestClaimHasOneLease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := openClaims(t, dir)
	made, err := m.Create(t.Context(), "w", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, c, err := m.AcquireClaim(t.Context(), "w", firstLease, ReadWrite, 1<<30)
	if err != nil || c.ID != made.ID || c.Made {
		t.Fatalf("AcquireClaim = %+v, %v; want id %s, not made", c, err, made.ID)
	}
	var busy *BusyError
	for _, mode := range []Mode{ReadWrite, ReadOnly} {
		if _, _, err := m.AcquireClaim(t.Context(), "w", secondLease, mode, 1<<30); !errors.As(err, &busy) || busy.Lease != firstLease {
			t.Errorf("AcquireClaim by another lease, mode %s: %v, want a BusyError that names %s", mode, err, firstLease)
		}
		if err := m.FreeClaim("w", mode); !errors.As(err, &busy) {
			t.Errorf("FreeClaim in mode %s = %v, want a BusyError", mode, err)
		}
	}
	if err := m.ClaimMade(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Get("w"); err != nil || got.Claim != "orchestrator-workspace-"+made.ID || got.QuotaBytes != 1<<30 {
		t.Errorf("Get = %+v, %v; want the claim with its size", got, err)
	}
	again := openClaims(t, dir)
	restored, c, err := again.AcquireClaim(t.Context(), "w", firstLease, ReadWrite, 0)
	if err != nil || !c.Made || c.ID != made.ID || c.Bytes != 1<<30 {
		t.Fatalf("AcquireClaim after a restart = %+v, %v; want one that was made, of %d bytes", c, err, 1<<30)
	}
	if err := again.FreeClaim("w", ReadOnly); !errors.As(err, &busy) {
		t.Errorf("FreeClaim after a restart = %v, want a BusyError", err)
	}
	restored.Release()
	if err := again.FreeClaim("w", ReadOnly); err != nil {
		t.Errorf("FreeClaim after Release = %v, want nil", err)
	}
}

// TestClaimKeepsItsRecordedSize checks that a lease of a template with another size gets the size
// that the first, failed one has recorded.
func TestClaimKeepsItsRecordedSize(t *testing.T) {
	t.Parallel()
	m := openClaims(t, t.TempDir())
	if _, err := m.Create(t.Context(), "w", CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h, _, err := m.AcquireClaim(t.Context(), "w", firstLease, ReadWrite, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
	_, c, err := m.AcquireClaim(t.Context(), "w", secondLease, ReadWrite, 100<<30)
	if err != nil || c.Made || c.Bytes != 1<<30 {
		t.Errorf("second AcquireClaim = %+v, %v; want a claim of %d bytes that was not made", c, err, 1<<30)
	}
	if got, err := m.Get("w"); err != nil || got.QuotaBytes != 1<<30 {
		t.Errorf("Get = %+v, %v; want a size of %d bytes", got, err, 1<<30)
	}
}

// TestClaimRefusesHostFiles checks that what needs the files on the host names the claim, and that
// files on the host are not hidden by a claim.
func TestClaimRefusesHostFiles(t *testing.T) {
	t.Parallel()
	m := openClaims(t, t.TempDir())
	for _, name := range []string{"w", "full"} {
		if _, err := m.Create(t.Context(), name, CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := m.AcquireClaim(t.Context(), "w", firstLease, Overlaid, 1<<30)
	if !errors.As(err, new(*ClaimError)) {
		t.Errorf("AcquireClaim in mode overlay = %v, want a ClaimError", err)
	}
	if got, err := m.Get("w"); err != nil || got.Claim != "" {
		t.Errorf("after a refused lease Get = %+v, %v; want no claim", got, err)
	}
	h, _, err := m.AcquireClaim(t.Context(), "w", firstLease, ReadWrite, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
	for what, do := range map[string]func() error{
		"Free":     func() error { return m.Free("w", ReadWrite) },
		"Acquire":  func() error { _, err := m.Acquire(t.Context(), "w", secondLease, ReadWrite); return err },
		"Files":    func() error { _, err := m.Files(t.Context(), "w"); return err },
		"Edit":     func() error { _, err := m.Edit(t.Context(), "w"); return err },
		"Snapshot": func() error { _, err := m.Snapshot(t.Context(), "w", ""); return err },
		"Resize":   func() error { _, err := m.Resize(t.Context(), "w", 64<<20); return err },
		"Delete":   func() error { return m.Delete(t.Context(), "w") }, // without a driver
		"overlay":  func() error { return m.FreeClaim("w", Overlaid) },
	} {
		if err := do(); !errors.As(err, new(*ClaimError)) || !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s of a claim = %v, want a ClaimError", what, err)
		}
	}
	f, err := m.Edit(t.Context(), "full")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Mkdir("d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.AcquireClaim(t.Context(), "full", firstLease, ReadWrite, 1<<30); !errors.As(err, new(*ClaimError)) {
		t.Errorf("AcquireClaim of a workspace with files = %v, want a ClaimError", err)
	}
}

// TestDeleteRemovesClaim checks that the claim goes with its workspace, and that a failed removal
// is retried, by the next process too.
func TestDeleteRemovesClaim(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := openClaims(t, dir)
	w, err := m.Create(t.Context(), "w", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := m.AcquireClaim(t.Context(), "w", firstLease, ReadWrite, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	m.RemoveClaims(func(context.Context, string) error { return errdefs.ErrUnavailable })
	if err := m.Delete(t.Context(), "w"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Delete of a claim in use = %v, want FailedPrecondition", err)
	}
	h.Release()
	if err := m.Delete(t.Context(), "w"); !errdefs.IsUnavailable(err) {
		t.Errorf("Delete with a failed removal = %v, want its error", err)
	}
	again := openClaims(t, dir)
	var removed []string
	again.RemoveClaims(func(_ context.Context, id string) error {
		removed = append(removed, id)
		return nil
	})
	if err := again.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(removed) != 1 || removed[0] != w.ID {
		t.Errorf("removed claims %q, want %s", removed, w.ID)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// TestDeleteReportsUnreadableClaim checks that a removal does not forget a claim whose record
// cannot be read.
func TestDeleteReportsUnreadableClaim(t *testing.T) {
	t.Parallel()
	m := openClaims(t, t.TempDir())
	m.RemoveClaims(func(context.Context, string) error { return nil })
	w, err := m.Create(t.Context(), "w", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(m.dir, w.ID, metaFile)
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.deleteFiles(t.Context(), w.ID); err == nil || !strings.Contains(err.Error(), metaFile) {
		t.Errorf("deleteFiles with a broken record = %v, want an error that names %s", err, metaFile)
	}
	if !pathExists(record) {
		t.Error("the record of the claim is gone, want it kept")
	}
}
