//go:build kubernetes

package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// claimConfig configures template default with volume claims; template plain has none.
const claimConfig = `
  pods:
    default: {workspace: {storage_class: orchestrator-test-workspaces, size: 32MiB}}
templates:
  plain:
    image: orchestrator/sandbox:latest
    limits: {memory: 192MiB}
    pool: {min: 0, max: 2}
`

// claimVolume is a storage class without provisioner, with one volume in a directory of the node.
const claimVolume = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: orchestrator-test-workspaces}
provisioner: kubernetes.io/no-provisioner
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: orchestrator-test-workspace}
spec:
  capacity: {storage: 64Mi}
  accessModes: [ReadWriteOncePod]
  storageClassName: orchestrator-test-workspaces
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: %q}
`

// newClaimService starts a service whose default template keeps workspaces in volume claims.
func newClaimService(t *testing.T) (cluster, *service) {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	loadSandboxImage(t)
	c := newCluster(t, dir)
	volume := filepath.Join(given(t, "KUBERNETES_DIR"), "claim-"+filepath.Base(dir))
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(volume) })
	file := filepath.Join(dir, "volume.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, claimVolume, volume), 0o600); err != nil {
		t.Fatal(err)
	}
	c.do(t, "apply", "--filename", file)
	t.Cleanup(func() { c.do(t, "delete", "--filename", file, "--wait") })
	s := newService(t, dir, c.user)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "\ntemplates:\n", claimConfig, 1)
	if err := os.WriteFile(s.config, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	t.Cleanup(func() {
		s.kill(t)
		s.do(t, "down")
	})
	return c, s
}

// refused runs a command that must fail with a text.
func (s *service) refused(t *testing.T, want string, args ...string) {
	t.Helper()
	if out, err := output(s.bin, append([]string{"--config", s.config}, args...)...); err == nil || !strings.Contains(out, want) {
		t.Errorf("%q = %q, %v; want an error with %q", args, out, err, want)
	}
}

// TestWorkspaceInAVolumeClaim uses a workspace over several leases and a crash of the service, with
// the permissions of the example, and removes it.
func TestWorkspaceInAVolumeClaim(t *testing.T) {
	c, s := newClaimService(t)
	claims := func() string {
		return c.do(t, "get", "persistentvolumeclaims", "--namespace", namespace, "--output", "name")
	}
	s.do(t, "workspace", "create", "w")
	id := s.do(t, "sandbox", "create", "--quiet", "--workspace", "w")
	s.do(t, "exec", id, "--", "sh", "-c", "echo first >note")
	s.refused(t, "is a volume claim, which sandbox "+id+" has", "sandbox", "create", "--workspace", "w")
	s.refused(t, "which has no overlays", "sandbox", "create", "--workspace", "w", "--mode", "overlay")
	s.refused(t, "is in use", "workspace", "rm", "w")
	if got := claims(); !strings.Contains(got, "orchestrator-workspace-") {
		t.Errorf("claims = %q, want that of the workspace", got)
	}
	s.kill(t)
	s.start(t)
	if got := s.do(t, "exec", id, "--", "sh", "-c", "cat note && echo second >>note"); got != "first" {
		t.Errorf("note after kill -9 = %q, want what was written before", got)
	}
	s.refused(t, "is a volume claim, which sandbox "+id+" has", "sandbox", "create", "--workspace", "w")
	s.do(t, "sandbox", "rm", id)
	id = s.do(t, "sandbox", "create", "--quiet", "--workspace", "w", "--mode", "ro")
	if got := s.do(t, "exec", id, "--", "cat", "note"); got != "first\nsecond" {
		t.Errorf("note in the next lease = %q, want both lines", got)
	}
	s.do(t, "sandbox", "rm", id)
	s.refused(t, "which this template does not mount", "run", "--template", "plain", "--workspace", "w", "--", "true")
	s.refused(t, "the host cannot reach its files", "workspace", "get", "w", "note", "-")
	s.refused(t, "which has no snapshots", "workspace", "snapshot", "w")
	s.do(t, "workspace", "create", "plain")
	id = s.do(t, "sandbox", "create", "--quiet", "--template", "plain", "--workspace", "plain")
	s.do(t, "exec", id, "--", "sh", "-c", "echo carried >note")
	s.do(t, "sandbox", "rm", id)
	if got := s.do(t, "workspace", "get", "plain", "note", "-"); got != "carried" {
		t.Errorf("file of a workspace without a claim = %q, want it on the host", got)
	}
	s.refused(t, "has files on the host", "run", "--workspace", "plain", "--", "true")
	s.do(t, "workspace", "rm", "w")
	if got := claims(); got != "" {
		t.Errorf("claims after the removal of the workspace: %s", got)
	}
}

// TestVolumeClaimSurvivesCrashes kills the service at each step of a first lease with a claim, and
// of the claim's removal. After the next start, the workspace has one pod again, and can be
// removed.
func TestVolumeClaimSurvivesCrashes(t *testing.T) {
	faults := given(t, "BIN_FAULTS")
	c, s := newClaimService(t)
	ordinary := s.bin
	dieAt := func(t *testing.T, point string, args ...string) {
		t.Helper()
		s.kill(t)
		s.bin, s.env = faults, []string{"ORCHESTRATOR_FAULT=" + point}
		s.start(t)
		s.awaitReady(t)
		_, _ = output(s.bin, append([]string{"--config", s.config}, args...)...) // the service dies before it answers
		if err := s.cmd.Wait(); err == nil {
			t.Error("the service ended without an error, want it killed")
		}
		s.bin, s.env = ordinary, nil
		s.start(t)
		s.awaitReady(t)
	}
	for _, point := range []string{"kubernetes.claim.created", "scheduler.claim.created", "kubernetes.claim.deleted"} {
		t.Run(point, func(t *testing.T) {
			s.do(t, "workspace", "create", "w")
			create := []string{"--config", s.config, "sandbox", "create", "--quiet", "--workspace", "w"}
			if point == "kubernetes.claim.deleted" {
				s.do(t, "sandbox", "rm", s.do(t, create[2:]...))
				dieAt(t, point, "workspace", "rm", "w")
			} else {
				dieAt(t, point, create[2:]...)
				id, err := output(s.bin, create...)
				for end := time.Now().Add(patience); err != nil && time.Now().Before(end); { // the lost pod is removed first
					time.Sleep(200 * time.Millisecond)
					id, err = output(s.bin, create...)
				}
				if err != nil {
					t.Fatalf("lease after the crash: %v: %s", err, id)
				}
				s.do(t, "sandbox", "rm", id)
				s.do(t, "workspace", "rm", "w")
			}
			c.awaitNoClaims(t)
		})
	}
}

// awaitNoClaims waits until no volume claim exists, and makes the volume free for the next one.
func (c cluster) awaitNoClaims(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		left := c.do(t, "get", "persistentvolumeclaims", "--namespace", namespace, "--output", "name")
		if left == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("volume claims = %s, want none", left)
		}
	}
	c.do(t, "patch", "persistentvolume", "orchestrator-test-workspace", "--type", "json",
		"--patch", `[{"op": "remove", "path": "/spec/claimRef"}]`)
}
