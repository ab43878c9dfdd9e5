//go:build integration

package scenarios

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// readMetrics returns the samples of GET /metrics by name and labels, and the whole text.
func readMetrics(t *testing.T, s *harness.Server) (samples map[string]float64, text string) {
	t.Helper()
	got := s.Ask(t, "GET", "/metrics", "")
	if got.Status != http.StatusOK {
		t.Fatalf("GET /metrics = %d %s, want 200", got.Status, got.Body)
	}
	samples = map[string]float64{}
	for line := range strings.Lines(string(got.Body)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(strings.TrimSpace(line[i+1:]), 64)
		if err != nil {
			t.Fatalf("sample %q: %v", line, err)
		}
		samples[line[:i]] = v
	}
	return samples, string(got.Body)
}

// matching returns the samples whose name has the prefix.
func matching(samples map[string]float64, prefix string) map[string]float64 {
	out := maps.Clone(samples)
	maps.DeleteFunc(out, func(name string, _ float64) bool { return !strings.HasPrefix(name, prefix) })
	return out
}

// assertSamples checks that the samples with the prefix are exactly the wanted ones.
func assertSamples(t *testing.T, samples map[string]float64, prefix string, want map[string]float64) {
	t.Helper()
	if got := matching(samples, prefix); !maps.Equal(got, want) {
		t.Errorf("samples of %s = %v, want %v", prefix, got, want)
	}
}

// scriptedCall is a call of the script below, and how often it is made.
type scriptedCall struct {
	times int
	call  func(t *testing.T, s *harness.Server, box string)
}

// scriptedTool returns a call of a tool that may end with an error.
func scriptedTool(tool, profile string, fields map[string]any, named bool) func(*testing.T, *harness.Server, string) {
	return func(t *testing.T, s *harness.Server, box string) {
		r := v1.ToolCall{Profile: profile, Input: input(t, fields)}
		if named {
			r.Sandbox = box
		}
		_, _ = s.Client.Tools.Call(within(t), tool, r, client.CallOptions{}) // the metrics tell how it ended
	}
}

// script returns 500 calls whose endings are known.
func script() []scriptedCall {
	return []scriptedCall{
		{200, scriptedTool("system.bash", "default", map[string]any{"command": "echo hello"}, true)},
		{80, scriptedTool("system.bash", "default", map[string]any{"command": "exit 3"}, true)},
		{10, scriptedTool("system.bash", "default", map[string]any{"command": "sleep 60", "timeout_ms": 50}, true)},
		{60, scriptedTool("system.bash", "phase2", map[string]any{"command": "sudo true"}, false)},
		{40, scriptedTool("fs.read", "default", map[string]any{"path": "/workspace/none"}, true)},
		{30, scriptedTool("no.such.tool", "default", map[string]any{}, false)},
		{30, scriptedTool("system.bash", "no_such_profile", map[string]any{"command": "true"}, false)},
		{40, func(t *testing.T, s *harness.Server, box string) { sh(t, s, box, "true") }},
		{10, func(t *testing.T, s *harness.Server, _ string) { runOnce(t, s, "true") }},
	}
}

// TestMetricsEqualScriptedCalls makes 500 calls from 8 goroutines. The counters must be exactly
// theirs.
func TestMetricsEqualScriptedCalls(t *testing.T) {
	t.Parallel()
	onServer(t, roomy, func(t *testing.T, s *harness.Server) {
		box := lease(t, s, v1.SandboxRequest{})
		todo := make(chan func(*testing.T, *harness.Server, string))
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for call := range todo {
					call(t, s, box.ID)
				}
			})
		}
		total := 0
		for _, c := range script() {
			for range c.times {
				todo <- c.call
				total++
			}
		}
		close(todo)
		callers.Wait()
		if total != 500 {
			t.Fatalf("the script has %d calls, want 500", total)
		}
		release(t, s, box.ID)
		awaitNoLease(t, s)
		got, text := readMetrics(t, s)
		assertScriptCounted(t, got, s.Runtime)
		assertPromtoolClean(t, text)
	})
}

// assertScriptCounted checks the metrics after the script.
func assertScriptCounted(t *testing.T, got map[string]float64, runtime string) {
	t.Helper()
	calls := func(tool, profile, ending string) string {
		return fmt.Sprintf(`orchestrator_tool_calls_total{ending=%q,profile=%q,runtime=%q,tool=%q}`,
			ending, profile, runtime, tool)
	}
	commands := func(ending string) string {
		return fmt.Sprintf(`orchestrator_commands_total{ending=%q,runtime=%q}`, ending, runtime)
	}
	assertSamples(t, got, "orchestrator_tool_calls_total", map[string]float64{
		calls("system.bash", "default", "exited"):       280,
		calls("system.bash", "default", "timeout"):      10,
		calls("system.bash", "phase2", "policy_denied"): 60,
		calls("fs.read", "default", "failed"):           40,
		calls("unknown", "default", "failed"):           30,
		calls("unknown", "unknown", "failed"):           30,
	})
	assertSamples(t, got, "orchestrator_commands_total", map[string]float64{
		commands("exited"): 330, commands("timeout"): 10,
	})
	assertSamples(t, got, "orchestrator_tool_call_refusals_total", map[string]float64{
		`orchestrator_tool_call_refusals_total{class="rule"}`: 60,
	})
	assertSamples(t, got, "orchestrator_leases_ended_total", map[string]float64{
		`orchestrator_leases_ended_total{reason="removed",template="default"}`:  1,
		`orchestrator_leases_ended_total{reason="finished",template="default"}`: 10,
	})
	for name, want := range map[string]float64{
		`orchestrator_command_kills_total{reason="timeout"}`:                   10,
		`orchestrator_policy_verdicts_total{profile="phase2",verdict="deny"}`:  60,
		`orchestrator_stage_duration_seconds_count{stage="call"}`:              450,
		`orchestrator_stage_duration_seconds_count{stage="exec"}`:              340,
		`orchestrator_stage_duration_seconds_count{stage="lease"}`:             11,
		`orchestrator_sandboxes{state="leased"}`:                               0,
		`orchestrator_approval_requests_pending`:                               0,
		`orchestrator_pool_waiting_calls{template="default"}`:                  0,
		`orchestrator_audit_queued_records`:                                    0,
		`orchestrator_sandbox_failed_removals`:                                 0,
		`orchestrator_pool_creation_failures_total{template="default"}`:        0,
		`orchestrator_egress_connections_total{decision="allow"}`:              0,
		`orchestrator_policy_verdicts_total{profile="default",verdict="deny"}`: 0,
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	started := 0.0
	for _, n := range matching(got, "orchestrator_leases_total") {
		started += n
	}
	if started != 11 {
		t.Errorf("leases that began = %v, want 11", started)
	}
	if head := got["orchestrator_audit_head_records"]; head < 840 { // two of each call whose tool exists
		t.Errorf("head of the audit log = %v, want at least 840", head)
	}
}

// assertPromtoolClean checks that "promtool check metrics" has nothing to say.
func assertPromtoolClean(t *testing.T, text string) {
	t.Helper()
	cmd := osexec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v, %s; want no output", err, out)
	}
}

// TestMetricsAreReadByOperatorsAndScrapers checks who may read the metrics, and where.
func TestMetricsAreReadByOperatorsAndScrapers(t *testing.T) { //nolint:tparallel // the subtests share an address
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("scrape-only-0123456789-0123456789-abcd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"without a token": "", "with a token": token} {
		config := fmt.Sprintf("%s\nmetrics: {listen: '%s', token_file: '%s', callers: [ann]}\n", onDemand, address, file)
		t.Run(name, func(t *testing.T) {
			s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed})
			tok, err := s.Client.Tokens.Create(within(t), v1.TokenRequest{Caller: "ann", Trust: 3})
			if err != nil {
				t.Fatal(err)
			}
			got := s.Ask(t, "GET", "/metrics", "", "Authorization", "Bearer "+tok.Secret)
			got.Problem(t, http.StatusForbidden, "permission_denied", "")
			open := s.Ask(t, "GET", "/metrics", "", "Accept", "application/openmetrics-text;version=1.0.0")
			if form := open.Header.Get("Content-Type"); !strings.HasPrefix(form, "application/openmetrics-text") ||
				!strings.HasSuffix(string(open.Body), "# EOF\n") {
				t.Errorf("GET /metrics as OpenMetrics: Content-Type %s, want application/openmetrics-text", form)
			}
			want := []int{http.StatusOK, http.StatusOK, http.StatusNotFound}
			if file != "" {
				want[0] = http.StatusUnauthorized
			}
			status := []int{
				scrape(t, address, "/metrics", ""), scrape(t, address, "/metrics", "scrape-only-0123456789-0123456789-abcd"),
				scrape(t, address, "/v1/sandboxes", "scrape-only-0123456789-0123456789-abcd"),
			}
			if !slices.Equal(status, want) {
				t.Errorf("statuses of the listener for metrics = %v, want %v", status, want)
			}
			s.Ask(t, "GET", "/metrics", "", "Authorization", "Bearer scrape-only-0123456789-0123456789-abcd").
				Problem(t, http.StatusUnauthorized, "unauthenticated", "")
			s.Term()
		})
	}
}

// scrape returns the status of a request to a listener for metrics.
func scrape(t *testing.T, address, path, token string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	got.Body.Close()
	return got.StatusCode
}
