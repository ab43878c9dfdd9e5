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

// What is secret in the scenario below. Each is a word of its own, so that a
// place that has one tells where it came from.
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

var secrets = []string{leaseSecret, execSecret, envSecret, wordSecret, bearerSecret, askedSecret, wrongSecret, urlSecret}

// A secret that callers give is in no record, no log, no answer of ours, no
// file that the service keeps, and not in the environment of the sandbox's
// first process.
func TestSecretsAreNotStored(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		tok, err := s.Client.CreateToken(within(t), v1.TokenRequest{Caller: "ann", Trust: 3, Profile: "phase2"})
		if err != nil {
			t.Fatal(err)
		}
		box := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold", Env: map[string]string{"API_KEY": leaseSecret}})
		if r := exec(t, s, box.ID, v1.Exec{Command: `test "$API_KEY" = ` + leaseSecret + ` && test "$DB_PASSWORD" = ` + execSecret, Env: map[string]string{"DB_PASSWORD": execSecret}}); r.ExitCode != 0 {
			t.Errorf("the command does not have it: %+v", r)
		}
		seen := secretCalls(t, s, tok.Secret)
		first, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.Init(box.ID)))
		if err != nil {
			t.Fatal(err)
		}
		inside := sh(t, s, box.ID, "cat /proc/1/environ 2>/dev/null || true")
		for _, path := range []string{"/v1/audit", "/v1/audit/export", "/v1/approvals", "/v1/sandboxes?ended=true", "/v1/tokens", "/v1/audit/verify"} {
			seen = append(seen, place{"GET " + path, s.Ask(t, "GET", path, "").Body})
		}
		seen = append(seen, place{"/proc/1/environ", first}, place{"/proc/1/environ, inside", []byte(inside)})
		release(t, s, box.ID)
		s.Kill9() // what is in a log of the database is there as well
		seen = append(seen, kept(t, s.Dir())...)
		s.Start()
		s.Term()
		seen = append(seen, kept(t, s.Dir())...)
		seen = append(seen, place{"the server's log", []byte(s.Log())})
		for _, p := range seen {
			for _, secret := range append(slices.Clone(secrets), tok.Secret, tok.Secret[len(tok.Secret)-43:]) {
				if i := bytes.Index(p.content, []byte(secret)); i >= 0 {
					t.Errorf("%s holds %s: …%s…", p.name, secret, p.content[max(0, i-80):min(len(p.content), i+80)])
				}
			}
		}
		s.Start()
	})
}

// place is something that must hold no secret.
type place struct {
	name    string
	content []byte
}

// secretCalls calls tools with secrets in what they are given, and returns what
// the service answered: none of the commands writes one.
func secretCalls(t *testing.T, s *harness.Server, bearer string) (seen []place) {
	t.Helper()
	send := func(tool, body string, header ...string) harness.Answer {
		got := s.Ask(t, "POST", "/v1/tools/"+tool+"/call", body, header...)
		seen = append(seen, place{"the answer to " + body, got.Body})
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
		if got.Into(t, &r); got.Status != 200 || r.Ending != "exited" && r.Ending != "started" || r.ExitCode != nil && *r.ExitCode != 0 {
			t.Errorf("%s: %d %s", c.body, got.Status, got.Body)
		}
	}
	// Refusals and errors tell what is wrong and not what was given.
	for _, body := range []string{
		`{"input":{"command":5,"env":{"API_KEY":"` + wrongSecret + `"}}}`,
		`{"sandbox":"` + nobody + `","input":{"command":"true","env":{"API_KEY":"` + wrongSecret + `"}}}`,
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
	q, err := ask(within(t), c, "asked", r)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(q.Input), "rm -rf junk")
	if _, err := s.Client.AnswerApproval(within(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
		t.Fatal(err)
	}
	// With a yes, the result is kept for the key, and this profile's results
	// have the command in them: results are their caller's own.
	if got, err := c.CallTool(within(t), "system.bash", r, client.CallOptions{IdempotencyKey: "asked"}); err != nil || got.Ending != "approval_denied" {
		t.Errorf("%+v %v", got, err)
	}
	return seen
}

// kept is every file of a state directory but the image and what is callers'.
func kept(t *testing.T, dir string) (files []place) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if rel == "images" || rel == "workspaces" || d != nil && (d.Name() == "rootfs" || d.Name() == "cgroup") {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // others come and go
		}
		if b, err := os.ReadFile(path); err == nil {
			files = append(files, place{rel, b})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 3 {
		t.Errorf("only %d files are kept", len(files))
	}
	return files
}

// Whatever is done to the audit log while nobody looks is found, also by whoever
// checks it long after.
func TestTamperedAuditIsDetected(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	for i := range 6 { // of twelve records; nothing of it needs a sandbox
		call(t, s, "system.kill", v1.ToolCall{Input: input(t, map[string]any{"shell_id": fmt.Sprint("s", i)})}, client.CallOptions{})
	}
	// Whoever names a tool as a record of the log's own is not taken for it.
	s.Ask(t, "POST", "/v1/tools/audit.head/call", `{`).Problem(t, 400, "invalid_argument", "body")
	whole := s.CLI(t, "audit", "verify", "-o", "json")
	whole.Is(t, 0, "")
	var report v1.AuditReport
	harness.Answer{Body: []byte(whole.Stdout)}.Into(t, &report)
	s.Term()
	saved := auditFiles(t, s.Dir())
	for _, c := range []struct {
		name, kind string
		do         []string
	}{
		{"a changed record", "changed", []string{`UPDATE records SET record = replace(record, 'system.kill', 'system.bash') WHERE seq = 5`}},
		{"a changed hash", "changed", []string{`UPDATE records SET hash = zeroblob(32) WHERE seq = 5`}},
		{"a record that is no JSON", "", []string{`UPDATE records SET record = 'x' WHERE seq = 5`}},
		{"a removed record", "removed", []string{`DELETE FROM records WHERE seq = 5`}},
		{"removed records, and the rest moved up", "", []string{`DELETE FROM records WHERE seq = 5`, `UPDATE records SET seq = seq - 1 WHERE seq > 5`}},
		{"the first record removed", "removed", []string{`DELETE FROM records WHERE seq = 1`}},
		{"an inserted record", "", []string{
			`UPDATE records SET seq = seq + 1000 WHERE seq > 5`, `UPDATE records SET seq = seq - 999 WHERE seq > 1000`,
			`INSERT INTO records (seq, record, prev, hash) SELECT 6, replace(record, '"s', '"x'), hash, randomblob(32) FROM records WHERE seq = 5`,
		}},
		{"a record twice", "", []string{
			`UPDATE records SET seq = seq + 1000 WHERE seq > 5`, `UPDATE records SET seq = seq - 999 WHERE seq > 1000`,
			`INSERT INTO records (seq, record, prev, hash) SELECT 6, record, prev, hash FROM records WHERE seq = 5`,
		}},
		{"two records that changed places", "", []string{
			`UPDATE records SET seq = 1000 WHERE seq = 5`, `UPDATE records SET seq = 5 WHERE seq = 6`, `UPDATE records SET seq = 6 WHERE seq = 1000`,
		}},
		{"a cut tail", "cut", []string{`DELETE FROM records WHERE seq > 8`}},
		{"a record added at the end", "", []string{
			`INSERT INTO records (seq, record, prev, hash) SELECT max(seq) + 1, record, hash, randomblob(32) FROM records`,
		}},
		{"nothing left", "cut", []string{`DELETE FROM records`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer s.For(t)()
			restore(t, s.Dir(), saved)
			tamper(t, filepath.Join(s.Dir(), "audit.db"), c.do)
			times := 1
			if c.kind == "cut" { // what a start finds, the next one could not
				times = 2
			}
			for range times {
				s.Start()
				got := s.CLI(t, "audit", "verify")
				if got.Code != 1 || !strings.Contains(got.Stdout, "NOT WHOLE") || !strings.Contains(got.Stdout, c.kind) {
					t.Errorf("exit code %d\n%s%s", got.Code, got.Stdout, got.Stderr)
				}
				again, err := s.Client.VerifyAudit(within(t), report.Head)
				if err != nil || again.OK {
					t.Errorf("with the head from before: %+v %v", again, err)
				}
				s.Term()
			}
		})
	}
	restore(t, s.Dir(), saved)
	t.Run("no file at all", func(t *testing.T) {
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

// auditFiles are the log's files, read.
func auditFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "audit.*"))
	if err != nil || len(paths) < 3 {
		t.Fatalf("%v %v", paths, err)
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

// restore puts the log's files back as they were.
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

// tamper changes a database as whoever can write the file would.
func tamper(t *testing.T, path string, statements []string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}
