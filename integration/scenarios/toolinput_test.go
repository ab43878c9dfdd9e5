//go:build integration

package scenarios

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// The memory and time that bad input may cost. The largest body is decoded twice.
const inputMemory = 768 << 20

var inputTime = harness.Short

// jobID is the id of a job.
const jobID = "0190b6f0-0000-7000-8000-000000000000"

// badCall is an invalid request for a tool call and its expected error.

// badCall is a request that cannot be used.
type badCall struct {
	name, tool, body string
	status           int
	code, field      string
	says             string // part of the detail
}

// badCalls returns requests with every kind of error.
func badCalls() []badCall {
	const bash = "system.bash"
	bad := func(name, body, field, says string) badCall {
		return badCall{name, bash, body, http.StatusBadRequest, "invalid_argument", field, says}
	}
	none := func(name, tool, body, field, says string) badCall {
		return badCall{name, tool, body, http.StatusNotFound, "not_found", field, says}
	}
	at := func(place string) string { return `{"input":{"command":"true"},` + place + `}` }
	return []badCall{
		bad("incomplete document", `{"input":`, "body", "incomplete JSON"),
		bad("not JSON", `input=x`, "body", "invalid JSON"),
		bad("two documents", `{}{}`, "body", "more than one"),
		bad("a list", `[]`, "body", "must be an object"),
		bad("invalid UTF-8", "{\"input\":{\"command\":\"\xff\"}}", "body", "UTF-8"),
		bad("an unknown field of the request", `{"inputs":{"command":"true"}}`, "inputs", "unknown"),
		bad("a session that is a number", `{"session":1}`, "session", "must be a string"),
		bad("an input that is text", `{"input":"true"}`, "input", "must be an object"),
		bad("an input that is a list", `{"input":["true"]}`, "input", "must be an object"),
		bad("no input", `{}`, "command", "missing"),
		bad("an input that is null", `{"input":null}`, "command", "missing"),
		bad("an empty command", `{"input":{"command":""}}`, "command", "empty"),
		bad("a blank command", `{"input":{"command":" \t\n"}}`, "command", "empty"),
		bad("a command that is a number", `{"input":{"command":5}}`, "command", "must be a string"),
		bad("a command that nests 9,000 deep", `{"input":{"command":`+nested("[", 9000, "]")+`}}`, "command",
			"must be a string"),
		bad("JSON that nests 100,000 deep", `{"input":`+nested("[", 100_000, "]")+`}`, "body", "depth"),
		bad("objects that nest 100,000 deep", `{"input":`+nested(`{"a":`, 100_000, "}")+`}`, "body", ""),
		bad("an unknown field of the input", `{"input":{"command":"true","comand":"x"}}`, "comand", "unknown"),
		bad("a time that is text", `{"input":{"command":"true","timeout_ms":"1s"}}`, "timeout_ms", "whole number"),
		bad("a time that is negative", `{"input":{"command":"true","timeout_ms":-1}}`, "timeout_ms", "negative"),
		bad("a NUL byte", `{"input":{"command":"echo a\u0000b"}}`, "command", "NUL"),
		bad("a NUL byte in the environment", `{"input":{"command":"true","env":{"A":"\u0000"}}}`, "env", "NUL"),
		bad("20 MB", `{"input":{"command":"echo `+strings.Repeat("x", 20<<20)+`"}}`, "input", "at most"),
		none("an unknown tool", "system.bsh", `{"input":{"command":"true"}}`, "", `did you mean "system.bash"?`),
		none("a tool's name that is a path", "..%2f..%2fetc", `{}`, "", "known: "),
		none("an unknown profile", bash, at(`"profile":"phase3"`), "profile", `did you mean "phase2"?`),
		bad("a sandbox and a session", at(`"sandbox":"`+unknownID+`","session":"s"`), "sandbox", "session"),
		bad("a sandbox and a job", at(`"sandbox":"`+unknownID+`","job":"`+jobID+`"`), "sandbox", "job"),
		bad("a sandbox and a workspace", at(`"sandbox":"`+unknownID+`","workspace":"w"`), "sandbox", "workspace"),
		bad("a sandbox and a template", at(`"sandbox":"`+unknownID+`","template":"default"`), "sandbox", "template"),
		bad("a job and a workspace", at(`"job":"`+jobID+`","workspace":"w"`), "job", "workspace"),
		bad("a job that is not a UUID", at(`"job":"../x"`), "job", "uuid"),
		bad("a session with a control character", at(`"session":"a\u0007"`), "session", "control character"),
		bad("a session's name that is too long", at(`"session":"`+strings.Repeat("s", 200)+`"`), "session", "128"),
		bad("read-only without a workspace", at(`"read_only":true`), "read_only", "workspace"),
		none("an unknown sandbox", bash, at(`"sandbox":"`+unknownID+`"`), "", unknownID),
		none("an unknown workspace", bash, at(`"workspace":"nope"`), "workspace", "nope"),
		none("a workspace that is a path", bash, at(`"workspace":"../x"`), "workspace", "not found"),
		none("an unknown template", bash, at(`"template":"nope"`), "template", "default"),
		{"an empty path", "fs.read", `{"input":{"path":""}}`, http.StatusBadRequest, "invalid_argument", "path", "empty"},
	}
}

// nested returns open n times, a 1, and shut n times.
func nested(open string, n int, shut string) string {
	return strings.Repeat(open, n) + "1" + strings.Repeat(shut, n)
}

// TestInvalidToolInput sends invalid calls. Each must get one error that names the field and the
// way out, lease no sandbox, and be recorded.
func TestInvalidToolInput(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	defer keepCalling(t, s)()
	ann := newCaller(t, s, `{"caller":"ann","trust":3}`)
	for _, c := range badCalls() {
		t.Run(c.name, func(t *testing.T) {
			defer s.For(t)()
			testInvalidCall(t, s, ann, c)
		})
	}
	t.Run("schema of the profile", func(t *testing.T) {
		bob := newCaller(t, s, `{"caller":"bob","trust":3,"profile":"phase2"}`)
		for body, field := range map[string]string{
			`{"input":[]}`:                           "input",
			`{}`:                                     "command",
			`{"input":{"command":5}}`:                "command",
			`{"input":{"command":"true","cwd":"/"}}`: "cwd",
			`{"input":{"command":"true","timeout_ms":0}}`:      "timeout_ms",
			`{"profile":"default","input":{"command":"true"}}`: "profile",
		} {
			got := bob.request(t, "POST", "/v1/tools/system.bash/call", body)
			if p, ok := v1.Decode(got.Body); !ok || got.Status/100 != 4 || !strings.Contains(p.Detail, field) {
				t.Errorf("call with %s: status %d %s, want an error of the client that names %s", body, got.Status, got.Body, field)
			}
		}
	})
	t.Run("commands that do not parse", func(t *testing.T) { testUnparsedCommands(t, s) })
	t.Run("command line", func(t *testing.T) { testBadCommandLines(t, s) })
	t.Run("bad tokens", func(t *testing.T) { testBadTokens(t, s) })
	leased, err := s.Client.Sandboxes(within(t), true)
	if err != nil || len(leased) != 1 { // that of keepCalling
		t.Errorf("Sandboxes = %+v, %v; want only that of the valid calls", leased, err)
	}
	if got := harness.PeakMemory(t, s.Pid()); got > inputMemory {
		t.Errorf("peak memory %d MiB, want at most %d MiB", got>>20, inputMemory>>20)
	} else {
		t.Logf("peak memory %d MiB", got>>20)
	}
}

// testInvalidCall makes an invalid call as the operator and as ann, and checks the error and the
// records.
func testInvalidCall(t *testing.T, s *harness.Server, ann caller, c badCall) {
	before := lastRecord(t, s)
	p := s.Ask(t, "POST", "/v1/tools/"+c.tool+"/call", c.body).Problem(t, c.status, c.code, c.field)
	assertContains(t, p.Detail, c.says)
	if c.field != "" && c.field != "body" {
		assertContains(t, p.Detail, c.field)
	}
	if len(p.Detail) > 2000 {
		t.Errorf("the detail has %d bytes, want at most 2000", len(p.Detail))
	}
	if c.field != "profile" { // callers with tokens cannot choose it
		again := ann.request(t, "POST", "/v1/tools/"+c.tool+"/call", c.body).
			Problem(t, c.status, c.code, c.field)
		if again.Detail != p.Detail {
			t.Errorf("detail for a caller with a token is %q, want %q", again.Detail, p.Detail)
		}
	}
	var recorded bool
	for _, r := range recordsSince(t, s, before) {
		recorded = recorded || r.Ending == "failed" && strings.HasPrefix(r.Error, p.Detail)
		if r.Sandbox != "" {
			t.Errorf("the call got sandbox %s, want none", r.Sandbox)
		}
	}
	if !recorded {
		t.Errorf("records = %+v, want one with the error %q", recordsSince(t, s, before), p.Detail)
	}
}

// keepCalling calls a tool repeatedly in one session until stop is called, which checks that each
// call was answered in time.
func keepCalling(t *testing.T, s *harness.Server) (stop func()) {
	t.Helper()
	r := v1.ToolCall{Session: "ping", Input: input(t, map[string]any{"command": "true"})}
	callTool(t, s, "system.bash", r, client.CallOptions{})
	ended, worst := make(chan struct{}), make(chan time.Duration, 1)
	go func() { // stop receives from worst
		var most time.Duration
		for {
			select {
			case <-ended:
				worst <- most
				return
			case <-time.After(50 * time.Millisecond):
			}
			began := time.Now()
			if got, err := s.Client.Tools.Call(t.Context(), "system.bash", r, client.CallOptions{}); err != nil ||
				got.Ending != "exited" {
				t.Errorf("valid call beside invalid ones = %+v, %v; want exited", got, err)
			}
			most = max(most, time.Since(began))
		}
	}()
	return func() {
		close(ended)
		most := <-worst
		if most > inputTime {
			t.Errorf("valid calls beside invalid ones took up to %s, want at most %s", most, inputTime)
		}
		t.Logf("valid calls beside invalid ones took up to %s", most)
	}
}

// lastRecord returns the number of the last audit record.
func lastRecord(t *testing.T, s *harness.Server) int64 {
	t.Helper()
	got, err := s.Client.Audit.Records(within(t), client.AuditFilter{Limit: 1, Newest: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 {
		return 0
	}
	return got[0].Seq
}

// recordsSince returns the audit records after a number, without those of keepCalling.
func recordsSince(t *testing.T, s *harness.Server, seq int64) []v1.AuditRecord {
	t.Helper()
	got, err := s.Client.Audit.Records(within(t), client.AuditFilter{After: seq})
	if err != nil {
		t.Fatal(err)
	}
	pings := map[string]bool{}
	for _, r := range got {
		if r.Session == "ping" {
			pings[r.Call] = true
		}
	}
	var out []v1.AuditRecord
	for _, r := range got {
		if r.Call == "" || !pings[r.Call] {
			out = append(out, r)
		}
	}
	return out
}

// testUnparsedCommands calls with commands that the policy cannot parse. Each must be denied, with
// the place of the error.
func testUnparsedCommands(t *testing.T, s *harness.Server) {
	for _, c := range []struct {
		name, command, rule string
		line, column        int // 0: not checked
	}{
		{"a parenthesis that was not opened", "echo a\necho )", "syntax", 2, 6},
		{"an open quotation", "echo 'a", "syntax", 1, 6},
		{"an end without a beginning", "echo a; done", "syntax", 1, 9},
		{"a megabyte", "echo " + strings.Repeat("x", 1<<20), "limit", 0, 0},
		{"100,000 (", strings.Repeat("( ", 100_000), "limit", 0, 0},
		{"100,000 {", strings.Repeat("{ ", 100_000), "limit", 0, 0},
		{"100,000 $(", strings.Repeat("$(", 100_000), "limit", 0, 0},
		{"100,000 [[", strings.Repeat("[[ ", 100_000), "limit", 0, 0},
		{"20,000 (", strings.Repeat("(", 20_000), "", 0, 0},
		{"20,000 {", strings.Repeat("{ ", 20_000), "", 0, 0},
		{"20,000 $(", strings.Repeat("$(", 20_000), "", 0, 0},
		{"20,000 [[", strings.Repeat("[[ ", 20_000), "", 0, 0},
		{"20,000 $(( that close", strings.Repeat("$((", 10_000) + "1" + strings.Repeat("))", 10_000), "", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			in := input(t, map[string]any{"command": c.command})
			r := callTool(t, s, "system.bash", v1.ToolCall{Profile: "phase2", Input: in}, client.CallOptions{})
			v := r.Verdict
			denied := r.Ending == "policy_denied" && v != nil && v.Verdict == "deny" && r.SandboxID == ""
			if !denied || c.rule != "" && v.Rule != c.rule {
				t.Fatalf("got %+v, verdict %+v; want policy_denied by rule %q", r, v, c.rule)
			}
			if c.line > 0 && (v.At == nil || v.At.Line != c.line || v.At.Column != c.column) {
				t.Errorf("error at %+v, want line %d, column %d", v.At, c.line, c.column)
			}
			if c.line > 0 {
				assertContains(t, r.Error.Message, fmt.Sprintf("line %d, column %d", c.line, c.column))
			}
			if took := time.Since(began); took > inputTime {
				t.Errorf("the call took %s, want at most %s", took, inputTime)
			}
			got, err := s.Client.Audit.Records(within(t), client.AuditFilter{Call: r.ID})
			if err != nil || len(got) != 2 || got[1].Ending != "policy_denied" || got[1].Rule != v.Rule {
				t.Errorf("records of the call = %+v, %v; want two, the last policy_denied", got, err)
			}
		})
	}
}

// testBadCommandLines passes invalid input on the command line: it must print one line and exit
// with a code of docs/exit-codes.md.
func testBadCommandLines(t *testing.T, s *harness.Server) {
	deep := filepath.Join(harness.TempDir(t), "deep.json")
	harness.WriteFile(t, deep, nested("[", 100_000, "]"))
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"system.bash", "--input", `{"command":`}, 64, "--input"},
		{[]string{"system.bash", "--input", `[]`}, 64, "--input"},
		{[]string{"system.bash", "--input-file", deep}, 64, "--input-file"},
		{[]string{"system.bash", "--input", `{"command":"true"}`, "command=true"}, 64, "exclude each other"},
		{[]string{"system.bash"}, 64, "command is missing"},
		{[]string{"system.bash", "command= "}, 64, "command is empty"},
		{[]string{"system.bash", "comand=true"}, 64, "comand"},
		{[]string{"system.bash", "command=true", "timeout_ms=soon"}, 64, "timeout_ms"},
		{[]string{"system.bsh", "command=true"}, 66, "system.bash"},
		{[]string{"system.bash", "command=true", "--profile", "phase3"}, 66, "phase2"},
		{[]string{"system.bash", "command=true", "--workspace", "nope"}, 66, "nope"},
		{[]string{"system.bash", "command=true", "--job", "x"}, 64, "job"},
		{[]string{"system.bash", "command=echo )", "--profile", "phase2"}, 117, "line 1, column 6"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			got := s.CLI(t, append([]string{"tool", "call"}, c.args...)...)
			got.Is(t, c.code, c.text)
			if strings.Count(got.Stderr, "\n") != 1 || !strings.HasPrefix(got.Stderr, "orchestrator: ") {
				t.Errorf("the command printed %q, want one line", got.Stderr)
			}
		})
	}
}

// testBadTokens sends tokens that are invalid, expired or revoked on several routes, which must all
// give the same answer, and requests for invalid tokens.
func testBadTokens(t *testing.T, s *harness.Server) {
	var expired, revoked v1.Token
	s.Ask(t, "POST", "/v1/tokens", `{"caller":"ann","trust":3,"ttl_ms":1}`).Into(t, &expired)
	s.Ask(t, "POST", "/v1/tokens", `{"caller":"ann","trust":3}`).Into(t, &revoked)
	if _, err := s.Client.Tokens.Revoke(within(t), revoked.ID); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{
		expired.Secret, revoked.Secret, revoked.Secret[:len(revoked.Secret)-1] + "A",
		"orc_", "orc_x_y", "orc_" + strings.Repeat("0", 50_000), "orc_" + unknownID,
	} {
		for _, path := range []string{
			"/v1/tools/system.bash/call", "/v1/sandboxes", "/v1/policy/check", "/v1/approvals/" + unknownID + "/answer", "/mcp",
		} {
			p := s.Ask(t, "POST", path, `{}`, "Authorization", "Bearer "+secret).
				Problem(t, http.StatusUnauthorized, "unauthenticated", "")
			if p.Detail != "the bearer token is unknown, expired or revoked" {
				t.Errorf("POST %s with a bad token: detail %q, want one for all", path, p.Detail)
			}
		}
	}
	// A header that is too long for any request is refused before the token is read.
	tooLong := s.Ask(t, "GET", "/v1/sandboxes", "", "Authorization", "Bearer orc_"+strings.Repeat("0", 100_000))
	if want := http.StatusRequestHeaderFieldsTooLarge; tooLong.Status != want {
		t.Errorf("GET with a header of 100,000 bytes: status %d, want %d", tooLong.Status, want)
	}
	for body, field := range map[string]string{
		`{"caller":""}`:                          "caller",
		`{"caller":"../x"}`:                      "caller",
		`{"caller":"local"}`:                     "caller",
		`{"caller":"ann","trust":4}`:             "trust",
		`{"caller":"ann","trust":-1}`:            "trust",
		`{"caller":"ann","ttl_ms":-1}`:           "ttl_ms",
		`{"caller":"ann","quotas":{"calls":-1}}`: "quotas.calls",
		`{"caller":"ann","trust":"3"}`:           "trust",
		`{"caller":"ann","quotas":{"call":1}}`:   "call",
	} {
		s.Ask(t, "POST", "/v1/tokens", body).Problem(t, http.StatusBadRequest, "invalid_argument", field)
	}
	s.Ask(t, "POST", "/v1/tokens", `{"caller":"ann","profile":"phase3"}`).
		Problem(t, http.StatusNotFound, "not_found", "profile")
}

// TestServeRefusesBrokenProfiles checks that a server refuses to start with an invalid profile and
// names the place.
func TestServeRefusesBrokenProfiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file, text string
		texts            []string
	}{
		{"unknown key", "mine.yaml", "name: mine\nextends: default\npolcy: {}\n",
			[]string{"mine.yaml:3: polcy", `did you mean "policy"?`}},
		{"unknown action of a rule", "mine.yaml",
			"name: mine\nextends: default\npolicy:\n  rules:\n    - id: a\n      action: dney\n      programs: [a]\n",
			[]string{"mine.yaml:6: policy.rules[0].action", "dney"}},
		{"invalid expression", "mine.yaml", "name: mine\ntools:\n  - name: system.bash\n    result: '{'\n",
			[]string{"mine.yaml:4: tools[0].result"}},
		{"not YAML", "mine.yml", "name: [\n", []string{"mine.yml:"}},
		{"incomplete JSON", "mine.json", `{"name":`, []string{"mine.json:1: "}},
		{"name of a built-in profile", "mine.yaml", "name: phase2\nextends: default\n",
			[]string{"mine.yaml:1: name", "built-in"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := harness.TempDir(t)
			harness.WriteFile(t, filepath.Join(dir, c.file), c.text)
			config := onDemand + fmt.Sprintf("profiles: {dir: '%s'}\n", dir)
			s := harness.New(t, harness.Options{Runtime: "oci", Seed: &seed, Config: config})
			assertServeRefuses(t, s, 64, c.texts...)
		})
	}
	t.Run("unknown default", func(t *testing.T) {
		t.Parallel()
		s := harness.New(t, harness.Options{Runtime: "oci", Seed: &seed, Config: onDemand + "profiles: {default: phase3}\n"})
		assertServeRefuses(t, s, 66, "profiles.default", "phase3", "phase2")
	})
}
