//go:build integration

package scenarios

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// monitoring is the directory of the rules and the dashboard.
const monitoring = "../../deploy/monitoring/"

// TestMonitoringRules checks the rules and runs their unit tests.
func TestMonitoringRules(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", "rules.yaml"}, {"test", "rules", "rules_test.yaml"},
	} {
		cmd := osexec.Command("promtool", args...)
		cmd.Dir = monitoring
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// freeAddress returns a loopback address that nothing listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startPrometheus starts a Prometheus that scrapes the target once a second, with the rules, and
// returns its address.
func startPrometheus(t *testing.T, target string) string {
	t.Helper()
	rules, err := filepath.Abs(monitoring + "rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir, address := t.TempDir(), freeAddress(t)
	config := filepath.Join(dir, "prometheus.yml")
	harness.WriteFile(t, config, fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ['%s']
scrape_configs:
  - job_name: orchestrator
    static_configs: [{targets: ['%s']}]
`, rules, target))
	cmd := osexec.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Prometheus printed:\n%s", log.String())
		}
	})
	harness.Eventually(t, harness.Long, "Prometheus has scraped the service", func() bool {
		v, err := query(t, address, `up{job="orchestrator"} == 1`)
		return err == nil && len(v) > 0
	})
	return address
}

// query returns the values of a query now.
func query(t *testing.T, address, expr string) (values []string, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), http.MethodGet,
		"http://"+address+"/api/v1/query?query="+url.QueryEscape(expr), http.NoBody)
	if err != nil {
		return nil, err
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer got.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(got.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("query %s: %s", expr, answer.Error)
	}
	for _, one := range answer.Data.Result {
		values = append(values, fmt.Sprint(one.Value[1]))
	}
	return values, nil
}

// dashboardQueries returns the queries of the dashboard by the titles of their panels.
func dashboardQueries(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(monitoring + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	queries := map[string][]string{}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	for _, p := range board.Panels {
		for _, one := range p.Targets {
			queries[p.Title] = append(queries[p.Title], variables.Replace(one.Expr))
		}
	}
	if len(queries) < 20 {
		t.Fatalf("the dashboard has queries in %d panels, want at least 20", len(queries))
	}
	return queries
}

// TestEveryDashboardQueryReturnsData has a real Prometheus scrape the service while calls run.
func TestEveryDashboardQueryReturnsData(t *testing.T) {
	t.Parallel()
	target := freeAddress(t)
	config := roomy + fmt.Sprintf("\nmetrics: {listen: '%s'}\n", target)
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed})
	box := lease(t, s, v1.SandboxRequest{})
	for range 2 { // rate() needs a sample before a counter grows, so each series begins before the first scrape
		makeEveryKindOfCall(t, s, box.ID)
	}
	prometheus := startPrometheus(t, target)
	ended := time.Now().Add(harness.Long)
	missing := dashboardQueries(t)
	for len(missing) > 0 && time.Now().Before(ended) {
		makeEveryKindOfCall(t, s, box.ID)
		for title, queries := range missing {
			if hasData(t, prometheus, queries) {
				delete(missing, title)
			}
		}
	}
	for title, queries := range missing {
		t.Errorf("panel %q has a query without data: %q", title, queries)
	}
}

// hasData reports whether each query has a value that is a number.
func hasData(t *testing.T, prometheus string, queries []string) bool {
	t.Helper()
	for _, q := range queries {
		values, err := query(t, prometheus, q)
		if err != nil {
			t.Fatal(err)
		}
		number := false
		for _, v := range values {
			number = number || v != "NaN"
		}
		if !number {
			return false
		}
	}
	return true
}

// makeEveryKindOfCall makes calls that end in different ways, and answers an approval request.
func makeEveryKindOfCall(t *testing.T, s *harness.Server, box string) {
	t.Helper()
	for _, call := range []func(*testing.T, *harness.Server, string){
		scriptedTool("system.bash", "default", map[string]any{"command": "true"}, true),
		scriptedTool("system.bash", "phase2", map[string]any{"command": "sudo true"}, false),
	} {
		call(t, s, box)
	}
	runOnce(t, s, "true")
	asked := make(chan v1.ToolResult, 1)
	go func() { // received below
		r := v1.ToolCall{Profile: "phase2", Input: json.RawMessage(`{"command":"rm -r none"}`)}
		got, _ := s.Client.Tools.Call(within(t), "system.bash", r, client.CallOptions{})
		asked <- got
	}()
	q := awaitApproval(t, s)
	if _, err := s.Client.Approvals.Answer(within(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
		t.Fatal(err)
	}
	if got := <-asked; got.Ending != "approval_denied" {
		t.Errorf("a denied call ended as %s, want approval_denied", got.Ending)
	}
}
