//go:build integration

package scenarios

import (
	"bytes"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// The secrets of the scenario below. They differ, so that a leak shows which of them it is.
const (
	leaseSecret  = "lease-5b1f-hunter2"
	execSecret   = "exec-77ce-hunter2"
	envSecret    = "env-9c31-hunter2"
	wordSecret   = "word-a04d-hunter2"
	bearerSecret = "bearer-1e88-hunter2"
	askedSecret  = "asked-c6f2-hunter2"
	wrongSecret  = "wrong-d2b9-hunter2"
	urlSecret    = "url-3b70-hunter2"
)

var secrets = []string{
	leaseSecret, execSecret, envSecret, wordSecret, bearerSecret, askedSecret, wrongSecret, urlSecret,
}

// TestSecretsAreNotStored checks that secrets that callers send appear in no record, log, answer or
// file of the service, and not in the environment of the sandbox's first process.
func TestSecretsAreNotStored(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		tok, err := s.Client.Tokens.Create(within(t), v1.TokenRequest{Caller: "ann", Trust: 3, Profile: "phase2"})
		if err != nil {
			t.Fatal(err)
		}
		box := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold", Env: map[string]string{"API_KEY": leaseSecret}})
		r := exec(t, s, box.ID, v1.Exec{
			Command: `test "$API_KEY" = ` + leaseSecret + ` && test "$DB_PASSWORD" = ` + execSecret,
			Env:     map[string]string{"DB_PASSWORD": execSecret},
		})
		if r.ExitCode != 0 {
			t.Errorf("command that compares the secrets of its environment = %+v, want exit code 0", r)
		}
		contents := secretCalls(t, s, tok.Secret)
		first, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.Init(box.ID)))
		if err != nil {
			t.Fatal(err)
		}
		inside := sh(t, s, box.ID, "cat /proc/1/environ 2>/dev/null || true")
		for _, path := range []string{
			"/v1/audit", "/v1/audit/export", "/v1/approvals", "/v1/sandboxes?ended=true", "/v1/tokens", "/v1/audit/verify",
		} {
			contents = append(contents, namedContent{"GET " + path, s.Ask(t, "GET", path, "").Body})
		}
		contents = append(contents, namedContent{"/proc/1/environ", first},
			namedContent{"/proc/1/environ, inside", []byte(inside)})
		release(t, s, box.ID)
		s.Kill9() // so that the databases' write-ahead logs are read, too
		contents = append(contents, storedFiles(t, s.Dir())...)
		s.Start()
		s.Term()
		contents = append(contents, storedFiles(t, s.Dir())...)
		contents = append(contents, namedContent{"the server's log", []byte(s.Log())})
		for _, p := range contents {
			for _, secret := range append(slices.Clone(secrets), tok.Secret, tok.Secret[len(tok.Secret)-43:]) {
				if i := bytes.Index(p.content, []byte(secret)); i >= 0 {
					t.Errorf("%s has %s, want no secret there: …%s…",
						p.name, secret, p.content[max(0, i-80):min(len(p.content), i+80)])
				}
			}
		}
		s.Start()
	})
}

// namedContent is a text that must hold no secret.
type namedContent struct {
	name    string
	content []byte
}

// secretCalls makes tool calls with secrets in their requests, and returns the service's answers.
// None of the commands prints a secret.
func secretCalls(t *testing.T, s *harness.Server, bearer string) (answers []namedContent) {
	t.Helper()
	send := func(tool, body string, header ...string) harness.Answer {
		got := s.Ask(t, "POST", "/v1/tools/"+tool+"/call", body, header...)
		answers = append(answers, namedContent{"the answer to " + body, got.Body})
		return got
	}
	for i, c := range []struct{ tool, body string }{
		{"system.bash", `{"input":{"command":"test -n \"$API_KEY\"","env":{"API_KEY":"` + envSecret + `"}}}`},
		{"system.bash", `{"input":{"command":"login() { true; }; login --password=` + wordSecret + `"}}`},
		{"system.run", `{"input":{"argv":["true","-H","Authorization: Bearer ` + bearerSecret + `"]}}`},
		{"system.bash", `{"input":{"command":"true https://user:` + urlSecret + `@example.com/"}}`},
		{"system.bash", `{"input":{"command":"true","env":{"API_KEY":"` + envSecret + `"},"run_in_background":true}}`},
	} {
		var r v1.ToolResult
		got := send(c.tool, c.body, "Idempotency-Key", fmt.Sprint("key", i))
		got.Into(t, &r)
		ended := r.Ending == "exited" || r.Ending == "started"
		if got.Status != 200 || !ended || r.ExitCode != nil && *r.ExitCode != 0 {
			t.Errorf("call %s: status %d %s, want exit code 0 or started", c.body, got.Status, got.Body)
		}
	}
	// Errors must not quote the request's values.
	for _, body := range []string{
		`{"input":{"command":5,"env":{"API_KEY":"` + wrongSecret + `"}}}`,
		`{"sandbox":"` + unknownID + `","input":{"command":"true","env":{"API_KEY":"` + wrongSecret + `"}}}`,
		`{"profile":"phase2","input":{"command":"export PASSWORD=` + wrongSecret + `; echo )"}}`,
		`{"profile":"phase2","input":{"command":"export PASSWORD=` + wrongSecret + `; sudo true"}}`,
		`{"inputs":{"env":{"API_KEY":"` + wrongSecret + `"}}}`,
		`{"input":{"command":"true","env":{"API_KEY":"` + wrongSecret + `"}}`,
	} {
		send("system.bash", body)
	}
	c, err := client.New(client.Options{Address: "unix:" + s.Socket(), Token: bearer})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r := v1.ToolCall{Input: input(t, map[string]any{"command": "export PASSWORD=" + askedSecret + "; rm -rf junk"})}
	q, err := requestApproval(within(t), c, "asked", r)
	if err != nil {
		t.Fatal(err)
	}
	assertContains(t, string(q.Input), "rm -rf junk")
	if _, err := s.Client.Approvals.Answer(within(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
		t.Fatal(err)
	}
	// The call is denied: an approved call would store its result for the key, and results of this
	// profile contain the command.
	if got, err := c.Tools.Call(within(t), "system.bash", r, client.CallOptions{IdempotencyKey: "asked"}); err != nil ||
		got.Ending != "approval_denied" {
		t.Errorf("the denied call = %+v, %v; want approval_denied", got, err)
	}
	return answers
}

// storedFiles reads all files of a state directory, except images and what belongs to callers.
func storedFiles(t *testing.T, dir string) (files []namedContent) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if rel == "images" || rel == "workspaces" || d != nil && (d.Name() == "rootfs" || d.Name() == "cgroup") {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // the service removes files during the walk
		}
		if b, err := os.ReadFile(path); err == nil {
			files = append(files, namedContent{rel, b})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 3 {
		t.Errorf("%d files in the state directory, want at least 3", len(files))
	}
	return files
}

// tampering is a change to the audit log's database.
type tampering struct {
	name       string
	kind       string // the kind of damage that verify must report, or ""
	statements []string
}

// tamperings are changes that "audit verify" must detect in a log of twelve records.
var tamperings = []tampering{
	{"changed record", "changed",
		[]string{`UPDATE records SET record = replace(record, 'system.kill', 'system.bash') WHERE seq = 5`}},
	{"changed hash", "changed", []string{`UPDATE records SET hash = zeroblob(32) WHERE seq = 5`}},
	{"record that is not JSON", "", []string{`UPDATE records SET record = 'x' WHERE seq = 5`}},
	{"removed record", "removed", []string{`DELETE FROM records WHERE seq = 5`}},
	{"removed record, the rest renumbered", "",
		[]string{`DELETE FROM records WHERE seq = 5`, `UPDATE records SET seq = seq - 1 WHERE seq > 5`}},
	{"removed first record", "removed", []string{`DELETE FROM records WHERE seq = 1`}},
	{"inserted record", "", []string{
		`UPDATE records SET seq = seq + 1000 WHERE seq > 5`, `UPDATE records SET seq = seq - 999 WHERE seq > 1000`,
		`INSERT INTO records (seq, record, prev, hash)
			SELECT 6, replace(record, '"s', '"x'), hash, randomblob(32) FROM records WHERE seq = 5`,
	}},
	{"duplicated record", "", []string{
		`UPDATE records SET seq = seq + 1000 WHERE seq > 5`, `UPDATE records SET seq = seq - 999 WHERE seq > 1000`,
		`INSERT INTO records (seq, record, prev, hash)
			SELECT 6, record, prev, hash FROM records WHERE seq = 5`,
	}},
	{"two exchanged records", "", []string{
		`UPDATE records SET seq = 1000 WHERE seq = 5`,
		`UPDATE records SET seq = 5 WHERE seq = 6`,
		`UPDATE records SET seq = 6 WHERE seq = 1000`,
	}},
	{"cut tail", "cut", []string{`DELETE FROM records WHERE seq > 8`}},
	{"record added at the end", "", []string{
		`INSERT INTO records (seq, record, prev, hash) SELECT max(seq) + 1, record, hash, randomblob(32) FROM records`,
	}},
	{"all records removed", "cut", []string{`DELETE FROM records`}},
}

// TestTamperedAuditIsDetected changes the audit log while no server runs. Every change must be
// found, also by a later check.
func TestTamperedAuditIsDetected(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	for i := range 6 { // twelve records; these calls need no sandbox
		callTool(t, s, "system.kill", v1.ToolCall{Input: input(t, map[string]any{"shell_id": fmt.Sprint("s", i)})},
			client.CallOptions{})
	}
	// A tool that is named like a record of the log itself must not be taken for one.
	s.Ask(t, "POST", "/v1/tools/audit.head/call", `{`).Problem(t, 400, "invalid_argument", "body")
	whole := s.CLI(t, "audit", "verify", "-o", "json")
	whole.Is(t, 0, "")
	var report v1.AuditReport
	harness.Answer{Body: []byte(whole.Stdout)}.Into(t, &report)
	s.Term()
	saved := auditFiles(t, s.Dir())
	for _, c := range tamperings {
		t.Run(c.name, func(t *testing.T) {
			defer s.For(t)()
			restore(t, s.Dir(), saved)
			tamper(t, filepath.Join(s.Dir(), "audit.db"), c.statements)
			starts := 1
			if c.kind == "cut" { // a second start must still know what the first one found
				starts = 2
			}
			for range starts {
				assertTampered(t, s, c.kind, report.Head)
			}
		})
	}
	restore(t, s.Dir(), saved)
	t.Run("removed database", func(t *testing.T) {
		defer s.For(t)()
		for name := range saved {
			if strings.HasPrefix(name, "audit.db") {
				if err := os.Remove(filepath.Join(s.Dir(), name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.Start()
		s.CLI(t, "audit", "verify").Is(t, 1, "")
		s.Term()
	})
	restore(t, s.Dir(), saved)
	s.Start()
	s.CLI(t, "audit", "verify", "--head", report.Head).Is(t, 0, "")
}

// assertTampered starts the server, checks that verification fails with the kind of damage, and
// with the head from before the change, and stops the server.
func assertTampered(t *testing.T, s *harness.Server, kind, head string) {
	t.Helper()
	s.Start()
	got := s.CLI(t, "audit", "verify")
	if got.Code != 1 || !strings.Contains(got.Stdout, "NOT WHOLE") || !strings.Contains(got.Stdout, kind) {
		t.Errorf("audit verify: exit code %d, want 1 and NOT WHOLE with %q\n%s%s", got.Code, kind, got.Stdout, got.Stderr)
	}
	again, err := s.Client.Audit.Verify(within(t), head)
	if err != nil || again.OK {
		t.Errorf("VerifyAudit with the earlier head = %+v, %v; want OK false", again, err)
	}
	s.Term()
}

// auditFiles returns the content of the audit log's files by name.
func auditFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "audit.*"))
	if err != nil || len(paths) < 3 {
		t.Fatalf("files of the audit log = %v, %v; want at least 3", paths, err)
	}
	out := map[string][]byte{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(p)] = b
	}
	return out
}

// restore replaces the audit log's files.
func restore(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name := range auditFiles(t, dir) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// tamper executes statements on a database whose server is stopped.
func tamper(t *testing.T, path string, statements []string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("statement %q: %v", s, err)
		}
	}
}
