//go:build integration

package scenarios

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

const (
	// refusalTime is how long the clients send calls.
	refusalTime = 5 * time.Second
	// refusalBytes is the growth of the state directory that is allowed in that time: some pages for
	// each table and index, and the databases' write-ahead logs.
	refusalBytes = 512 << 10
)

// TestRefusedCallsDoNotFillTheDisk sends refused calls of every kind for a caller without quota, as
// fast as possible. The disk use must stay bounded, and the records must count every refusal.
func TestRefusedCallsDoNotFillTheDisk(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	ann := newCaller(t, s, `{"caller":"ann","trust":3,"quotas":{"calls":1}}`)
	kill := `{"input":{"shell_id":"s"}}`
	if got := ann.request(t, "POST", "/v1/tools/system.kill/call", kill); got.Status != http.StatusOK {
		t.Fatalf("the call within the quota: status %d, want 200: %s", got.Status, got.Body)
	}
	large := `{"input":{"shell_id":"` + strings.Repeat("x", 15<<10) + `"}}`
	before := bytesBelow(t, s.Dir())
	var refused, keys atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), refusalTime)
	defer cancel()
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name, body, header := "system.kill", large, ann.header
				switch (i + n) % 4 {
				case 1:
					header = append([]string{"Idempotency-Key", fmt.Sprint("key", keys.Add(1))}, header...)
				case 2:
					name = fmt.Sprint("no.tool", keys.Add(1))
				case 3:
					body = `{"inputs":` + large + `}`
				}
				got := s.Ask(t, "POST", "/v1/tools/"+name+"/call", body, header...)
				if got.Status == http.StatusOK && !strings.Contains(string(got.Body), `"class":"quota"`) || got.Status >= 500 {
					t.Errorf("%s: status %d, want a refusal below 500: %.300s", name, got.Status, got.Body)
					return
				}
				refused.Add(1)
			}
		})
	}
	callers.Wait()
	grown := bytesBelow(t, s.Dir()) - before
	t.Logf("%d refusals, %d bytes", refused.Load(), grown)
	if grown > refusalBytes {
		t.Errorf("the state directory grew by %d bytes for %d refusals, want at most %d", grown, refused.Load(), refusalBytes)
	}
	s.Term() // writes the pending counts
	s.Start()
	records, err := s.Client.Audit.Records(within(t), client.AuditFilter{Caller: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	var counted int64
	for _, r := range records {
		if counted += r.Count; r.Kind == "refused" && len(r.Input) > 0 {
			t.Errorf("record %d of a refusal has an input, want none", r.Seq)
		}
	}
	if counted != refused.Load() || len(records) > 20 {
		t.Errorf("%d refusals in %d records, want %d in at most 20 records", counted, len(records), refused.Load())
	}
	s.CLI(t, "audit", "verify").Is(t, 0, "")
}

// bytesBelow returns the total size of the regular files below a directory, without images.
func bytesBelow(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == "images" {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // the service removes files during the walk
		}
		if info, err := d.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestAuditLogRotates verifies and reads an audit log of several parts, through the service and
// from copied files.
func TestAuditLogRotates(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand + "audit: {part_size: 1MiB}\n", Seed: &seed})
	const calls = 200
	long := strings.Repeat("x", 15<<10)
	for i := range calls {
		callTool(t, s, "system.kill", v1.ToolCall{Input: input(t, map[string]any{"shell_id": fmt.Sprint(long, i)})},
			client.CallOptions{})
	}
	s.Kill9()
	s.Start()
	report, err := s.Client.Audit.Verify(within(t), "")
	if err != nil || !report.OK || report.Records < 2*calls || len(report.Parts) < 3 || report.Parts[0].State != "sealed" {
		t.Fatalf("VerifyAudit = %+v, %v; want at least 3 parts and an intact log", report, err)
	}
	records, err := s.Client.Audit.Records(within(t), client.AuditFilter{Limit: 10_000})
	if err != nil || int64(len(records)) != report.Records || records[0].Seq != 1 {
		t.Errorf("Audit returned %d records, %v; want all %d from number 1", len(records), err, report.Records)
	}
	s.CLI(t, "audit", "verify", "--dir", s.Dir()).Is(t, 69, "held by the server")
	s.Term()
	s.CLI(t, "audit", "verify", "--dir", s.Dir(), "--head", report.Head).Is(t, 0, "")
	files, err := filepath.Glob(filepath.Join(s.Dir(), "audit*"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tamper(t, filepath.Join(dir, "audit.db"), []string{`DELETE FROM records WHERE seq = 5`})
	got := s.CLI(t, "audit", "verify", "--dir", dir, "--key", filepath.Join(s.Dir(), "audit.key"))
	if got.Code != 1 || !strings.Contains(got.Stdout, "record 5 is missing") {
		t.Errorf("verify of a tampered copy: exit code %d, want 1 and the missing record 5\n%s%s",
			got.Code, got.Stdout, got.Stderr)
	}
	s.Start()
}
