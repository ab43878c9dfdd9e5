package engine

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/workspaces"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Two concurrent requests cannot both take the rest of the quota.
func TestDiskQuotaBoundsAllWorkspaces(t *testing.T) {
	s := boundedWorld(t, 20<<20)
	defer s.stop()
	ann := s.as(t, v1.TokenRequest{Caller: "ann"})
	var made atomic.Int32
	var group sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		group.Go(func() {
			_, err := s.Workspaces.Create(t.Context(), ann, v1.WorkspaceRequest{Name: name})
			if q, ok := errors.AsType[*caller.QuotaError](err); ok && q.Quota == "disk_bytes" && q.Limit == 20<<20 &&
				q.Used == 16<<20 &&
				errdefs.IsResourceExhausted(err) {
				return
			}
			if err != nil {
				t.Errorf("Create(%q): %v, want success or a disk_bytes quota error with 16 of 20 MiB used", name, err)
				return
			}
			made.Add(1)
		})
	}
	group.Wait()
	list, err := s.Workspaces.List(t.Context(), ann)
	if err != nil || made.Load() != 2 || len(list) != 2 {
		t.Fatalf("%d were made, List = %+v, %v; want 2 of both", made.Load(), list, err)
	}
	one := list[0].Name
	if _, err := s.Workspaces.Resize(t.Context(), ann, one, v1.WorkspaceResize{QuotaBytes: 16 << 20}); !errdefs.IsResourceExhausted(
		err,
	) {
		t.Errorf("Resize beyond the quota: %v, want ResourceExhausted", err)
	}
	if got, err := s.Workspaces.Resize(t.Context(), ann, one, v1.WorkspaceResize{QuotaBytes: 12 << 20}); err != nil ||
		got.QuotaBytes != 12<<20 ||
		got.Name != one {
		t.Errorf("Resize within the quota = %+v, %v; want %s with %d bytes", got, err, one, 12<<20)
	}
	if err := s.Workspaces.Delete(t.Context(), ann, one); err != nil {
		t.Fatal(err)
	}
	more := s.as(t, v1.TokenRequest{Caller: "ann", Quotas: v1.Quotas{DiskBytes: 40 << 20}})
	if _, err := s.Workspaces.Create(t.Context(), more, v1.WorkspaceRequest{Name: "more", QuotaBytes: 32 << 20}); err != nil {
		t.Errorf("Create within the quota of the token: %v, want no error", err)
	}
	for _, bytes := range []int64{-1, 7, 65 << 20} {
		_, err := s.Workspaces.Create(t.Context(), caller.Local(""), v1.WorkspaceRequest{Name: "w", QuotaBytes: bytes})
		if bad, ok := errors.AsType[*usererror.InvalidError](err); !ok || bad.Field != "quota_bytes" {
			t.Errorf("Create with %d bytes: %v, want an error for field quota_bytes", bytes, err)
		}
	}
}

// A size limit that cannot be enforced is refused, not ignored.
func TestUnenforceableQuotaIsRefused(t *testing.T) {
	s := newWorld(t).start(t)
	defer s.stop()
	_, err := s.Workspaces.Create(t.Context(), caller.Local(""), v1.WorkspaceRequest{Name: "w", QuotaBytes: 8 << 20})
	if bad, ok := errors.AsType[*usererror.InvalidError](err); !ok || bad.Field != "quota_bytes" ||
		!errdefs.IsFailedPrecondition(err) {
		t.Errorf("Create: %v, want FailedPrecondition for field quota_bytes", err)
	}
}

// boundedWorld returns a service whose workspaces have size limits.
func boundedWorld(t *testing.T, limit int64) *service {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	w := newWorld(t)
	return w.startOptions(t, func(o *Options) {
		v, err := volumes.Open(
			filepath.Join(w.dir, "bounded"),
			volumes.Options{Mechanism: string(quotadir.Loop), Quota: 8 << 20, MaxQuota: 64 << 20, Snapshots: 16},
		)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
		o.Volumes, o.Quotas.DiskBytes = v, limit
	})
}

// Snapshots count toward the caller's disk quota, not the workspace's.
func TestSnapshotsCountTowardDiskQuota(t *testing.T) {
	s := boundedWorld(t, 20<<20)
	defer s.stop()
	ann := s.as(t, v1.TokenRequest{Caller: "ann"})
	if _, err := s.Workspaces.Create(t.Context(), ann, v1.WorkspaceRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 5<<20)
	rand.NewChaCha8([32]byte{}).Read(content)
	_, err := s.Workspaces.WriteFile(
		t.Context(),
		ann,
		"a",
		wire.FileRequest{Path: "f", Mode: 0o644, Size: int64(len(content))},
		bytes.NewReader(content),
	)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for range 4 {
		_, err = s.Workspaces.Snapshot(t.Context(), ann, "a", "")
		if err != nil {
			break
		}
		made++
	}
	if q, ok := errors.AsType[*caller.QuotaError](err); !ok || q.Quota != "disk_bytes" || made == 0 || made > 2 {
		t.Errorf("%d snapshots of 5 MiB within 12 MiB: %v; want 1 or 2, then a disk_bytes quota error", made, err)
	}
	if _, err := s.Workspaces.Create(t.Context(), ann, v1.WorkspaceRequest{Name: "b"}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("Create beside the snapshots: %v, want ResourceExhausted", err)
	}
}

// A snapshot larger than the workspace is refused with a caller-safe error.
func TestRestoreOfTooLargeSnapshotIsRefused(t *testing.T) {
	s := boundedWorld(t, 0)
	defer s.stop()
	ann := s.as(t, v1.TokenRequest{Caller: "ann"})
	if _, err := s.Workspaces.Create(t.Context(), ann, v1.WorkspaceRequest{Name: "a", QuotaBytes: 32 << 20}); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 12<<20)
	rand.NewChaCha8([32]byte{}).Read(content)
	if _, err := s.Workspaces.WriteFile(t.Context(), ann, "a", wire.FileRequest{Path: "f", Mode: 0o644,
		Size: int64(len(content))}, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Workspaces.Snapshot(t.Context(), ann, "a", "s"); err != nil {
		t.Fatal(err)
	}
	if err := s.Workspaces.RemoveFile(t.Context(), ann, "a", wire.FileRequest{Path: "f"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Workspaces.Resize(t.Context(), ann, "a", v1.WorkspaceResize{QuotaBytes: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Workspaces.Restore(t.Context(), ann, "a", "s")
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "resize it first") ||
		strings.Contains(err.Error(), "/") {
		t.Errorf("Restore: %v, want FailedPrecondition that says to resize, without a path", err)
	}
	if w, err := s.Workspaces.Get(t.Context(), ann, "a"); err != nil || w.QuotaBytes != 8<<20 || w.UsedBytes > 4<<20 {
		t.Errorf("Get = %+v, %v; want a quota of %d and at most %d bytes used", w, err, 8<<20, 4<<20)
	}
}

// claimDriver is a fake cluster whose templates have volume claims.
type claimDriver struct{ *fake.Driver }

func (claimDriver) ClaimBytes(string) int64 { return 1 << 30 }

func (claimDriver) RemoveClaim(context.Context, string) error { return nil }

// startWithClaims starts a service with volume claims of 1 GiB and a disk quota.
func startWithClaims(t *testing.T, limit int64) *service {
	t.Helper()
	w := newWorld(t)
	return w.startOptions(t, func(o *Options) {
		caps := runtime.AllYes()
		caps[runtime.CapLateBind] = "no: it is a cluster"
		o.Driver = claimDriver{fake.New(fake.Options{Host: w.host, Serve: w.serve, Capabilities: caps})}
		o.Quotas.DiskBytes = limit
	})
}

// A first lease checks the disk quota and records its claim as one request for space.
func TestDiskQuotaBoundsVolumeClaims(t *testing.T) {
	s := startWithClaims(t, 3<<29)
	ann := s.as(t, v1.TokenRequest{Caller: "ann"})
	for _, name := range []string{"a", "b"} {
		if _, err := s.Workspaces.Create(t.Context(), ann, v1.WorkspaceRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	wantClaim := func(name string, want bool) {
		t.Helper()
		if w, err := s.Workspaces.Get(t.Context(), ann, name); err != nil || (w.Claim != "") != want {
			t.Errorf("Get(%q) = %+v, %v; want a claim: %t", name, w, err, want)
		}
	}
	leave, err := s.idem.LockKey(t.Context(), workspaces.SpaceKey(ann))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Lease(t.Context(), ann, v1.SandboxRequest{Workspace: "a", WaitMS: 50})
	leave()
	if !errdefs.IsUnavailable(err) {
		t.Errorf("Lease during another request for space: %v, want Unavailable", err)
	}
	wantClaim("a", false)
	l, err := s.Lease(t.Context(), ann, v1.SandboxRequest{Workspace: "a"})
	if err != nil {
		t.Fatal(err)
	}
	wantClaim("a", true)
	_, err = s.Lease(t.Context(), ann, v1.SandboxRequest{Workspace: "b"})
	if q, ok := errors.AsType[*caller.QuotaError](err); !ok || q.Quota != "disk_bytes" || q.Used != 1<<30 {
		t.Errorf("Lease beyond the quota: %v, want a disk_bytes quota error with %d bytes used", err, 1<<30)
	}
	wantClaim("b", false)
	if err := s.Remove(t.Context(), ann, l.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a lease of a claim that counts already", func() bool {
		_, err := s.Lease(t.Context(), ann, v1.SandboxRequest{Workspace: "a"})
		return err == nil
	})
}

// A native sandbox cannot mount a claim, so its job is refused when it is created.
func TestNativeJobRefusesVolumeClaim(t *testing.T) {
	s := startWithClaims(t, 0)
	if _, err := s.Workspaces.Create(t.Context(), me, v1.WorkspaceRequest{Name: "w"}); err != nil {
		t.Fatal(err)
	}
	r := v1.SandboxRequest{Workspace: "w"}
	err := jobSandboxes{s.Engine}.CheckLease(me, r, true)
	if e, ok := errors.AsType[*usererror.InvalidError](err); !ok || e.Field != "workspace" || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("CheckLease(%+v) of a native job = %v, want FailedPrecondition of field workspace", r, err)
	}
	if err := (jobSandboxes{s.Engine}).CheckLease(me, r, false); err != nil {
		t.Errorf("CheckLease(%+v) = %v, want nil", r, err)
	}
	if err := (jobSandboxes{s.Engine}).CheckLease(me, v1.SandboxRequest{}, true); err != nil {
		t.Errorf("CheckLease without a workspace of a native job = %v, want nil", err)
	}
}

// A slow request of one caller does not delay another's.
func TestSpaceLockIsPerCaller(t *testing.T) {
	s := boundedWorld(t, 20<<20)
	defer s.stop()
	ann, bob := s.as(t, v1.TokenRequest{Caller: "ann"}), s.as(t, v1.TokenRequest{Caller: "bob"})
	leave, err := s.idem.LockKey(t.Context(), workspaces.SpaceKey(ann))
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Workspaces.Create(ctx, bob, v1.WorkspaceRequest{Name: "b"}); err != nil {
		t.Errorf("Create by another caller: %v, want no error", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Workspaces.Create(gone, ann, v1.WorkspaceRequest{Name: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Create by a caller that left: %v, want %v", err, context.Canceled)
	}
}
