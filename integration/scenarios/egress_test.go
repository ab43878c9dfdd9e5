//go:build integration

package scenarios

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// credential must not appear in any sandbox, record or file of the service.
const credential = "t0p-s3cret-of-the-service"

// egressSite is a group of servers on this host's loopback, under several names.
type egressSite struct {
	http, tls int    // ports
	config    string // of a service that may reach it
	ca        string // file with the certificate authority
	stop      chan struct{}
}

// newEgressSite starts the servers until the end of the test.
func newEgressSite(t *testing.T) *egressSite {
	t.Helper()
	o := &egressSite{stop: make(chan struct{})}
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow": // one byte, and no more until the end of the test
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-o.stop:
			case <-r.Context().Done():
			}
		case "/auth":
			authorization := r.Header.Get("Authorization")
			fmt.Fprintf(w, "authorized %t, asked with %q\n", authorization == "Bearer "+credential,
				strings.ReplaceAll(authorization, credential, "TOKEN"))
		default:
			fmt.Fprintf(w, "%s %s of %s\n", r.Method, r.URL.Path, strings.Split(r.Host, ":")[0])
		}
	})
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	t.Cleanup(func() { close(o.stop); plain.Close(); secure.Close() })
	o.http, o.tls = urlPort(t, plain.URL), urlPort(t, secure.URL)
	dir := harness.TempDir(t)
	o.ca = filepath.Join(dir, "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}
	harness.WriteFile(t, o.ca, string(pem.EncodeToMemory(block)))
	harness.WriteFile(t, filepath.Join(dir, "token"), credential+"\n")
	o.config = fmt.Sprintf(onDemand+`
egress:
  resolver: ["%s"]
  private: [{hosts: ["*.site.test"], ranges: ["127.0.0.0/8"]}]
  allow: [{host: a.site.test, protocol: http, ports: [%d], paths: [/open/*]}]
  secrets:
    - name: api
      hosts: [a.site.test]
      header: Authorization
      prefix: "Bearer "
      value_file: "%s"
      env: API_TOKEN
      callers: [ann]
`, harness.Names(t), o.http, filepath.Join(dir, "token"))
	return o
}

// urlPort returns the port of a URL.
func urlPort(t *testing.T, address string) int {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// httpRule returns a rule that allows plain HTTP to a host.
func (o *egressSite) httpRule(host string) v1.EgressRule {
	return v1.EgressRule{Host: host, Protocol: "http", Ports: []int{o.http}}
}

// get sends a request from a sandbox and returns the answer with its header, or curl's error.
func (o *egressSite) get(t *testing.T, s *harness.Server, id, host, path string) string {
	t.Helper()
	r := exec(t, s, id, v1.Exec{Command: fmt.Sprintf("curl -sS -m 60 -i http://%s:%d%s 2>&1", host, o.http, path)})
	return strings.ReplaceAll(r.Stdout+r.Stderr, "\r", "")
}

// TestEgress runs the scenarios of egress rules and secrets on one server for each kernel.
func TestEgress(t *testing.T) {
	t.Parallel()
	onAllKernels(t, func(t *testing.T, k kernel) {
		o := newEgressSite(t)
		s := harness.Run(t, harness.Options{Runtime: k.runtime, Config: k.config(o.config), Seed: &seed})
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, *egressSite)
		}{
			{"asked for", testEgressAsked},
			{"changed", testEgressChanged},
			{"secrets", testEgressSecrets},
			{"ceiling", testEgressCeiling},
			{"bad input", testEgressBadInput},
			{"the command", testEgressCommand},
			{"restart", testEgressRestart},
			{"records", testEgressRecords},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, o)
			})
		}
	})
}

// testEgressAsked checks that a sandbox reaches what its rules allow, also over TLS and SOCKS, and
// nothing else. A sandbox without rules has no proxy and no network.
func testEgressAsked(t *testing.T, s *harness.Server, o *egressSite) {
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold", Egress: &v1.Egress{Rules: []v1.EgressRule{
		o.httpRule("a.site.test"),
		{Host: "tls.site.test", Ports: []int{o.tls}},
		{Host: "private.other.test", Protocol: "http", Ports: []int{o.http}},
	}}}).ID
	assertContains(t, o.get(t, s, id, "a.site.test", "/x"), "GET /x of a.site.test")
	assertContains(t, o.get(t, s, id, "b.site.test", "/x"), "403 ")
	assertContains(t, o.get(t, s, id, "b.site.test", "/x"), "b.site.test")
	assertContains(t, o.get(t, s, id, "private.other.test", "/x"), "egress.private")
	overTLS := fmt.Sprintf("curl -sS -k https://tls.site.test:%d/y", o.tls)
	assertContains(t, sh(t, s, id, overTLS), "GET /y of tls.site.test")
	bySOCKS := fmt.Sprintf("curl -sS -x socks5h://127.0.0.1:3128 http://a.site.test:%d/z", o.http)
	assertContains(t, sh(t, s, id, bySOCKS), "GET /z of a.site.test")
	if left := sh(t, s, id, interfaces+"; cat /proc/net/route | wc -l"); left != "lo\n1\n" {
		t.Errorf("interfaces and routes of the sandbox: %q, want loopback without routes", left)
	}
	r, err := s.Client.Run(within(t), v1.Run{
		Exec:      v1.Exec{Command: fmt.Sprintf("curl -sS http://a.site.test:%d/run", o.http)},
		WhenEmpty: "cold",
		Egress:    &v1.Egress{Rules: []v1.EgressRule{o.httpRule("a.site.test")}},
	})
	if err != nil || r.Stdout != "GET /run of a.site.test\n" {
		t.Errorf("Run with an egress rule = %+v, %v; want the site's answer", r, err)
	}
	none := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	if out := sh(t, s, none, probeProxy); out != "0\nnone\n" {
		t.Errorf("a sandbox without rules has proxy variables and port %q, want none", out)
	}
}

// probeProxy prints the number of proxy variables, and "none" if nothing listens on the proxy's
// port.
const probeProxy = "env | grep -ci proxy; (exec 3<>/dev/tcp/127.0.0.1/3128) 2>/dev/null || echo none"

// testEgressChanged sets, replaces and clears the rules of a sandbox. Connections that are no
// longer allowed must end.
func testEgressChanged(t *testing.T, s *harness.Server, o *egressSite) {
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	ctx := within(t)
	state, err := s.Client.Egress.Set(ctx, id, v1.Egress{Rules: []v1.EgressRule{o.httpRule("a.site.test")}})
	if err != nil || len(state.Rules) != 1 {
		t.Fatalf("SetEgress = %+v, %v; want one rule", state, err)
	}
	assertContains(t, o.get(t, s, id, "a.site.test", "/1"), "GET /1")
	download := v1.Exec{Command: fmt.Sprintf("curl -sS -N http://a.site.test:%d/slow", o.http)}
	slow, err := s.Client.StartShell(ctx, id, v1.ShellRequest{Exec: download})
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Short, "the slow answer has begun", func() bool {
		sh, err := s.Client.Shell(ctx, slow.ID)
		return err == nil && sh.StdoutEnd == 1
	})
	if _, err := s.Client.Egress.Set(ctx, id, v1.Egress{Rules: []v1.EgressRule{o.httpRule("b.site.test")}}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Short, "the connection that is no longer allowed ends", func() bool {
		sh, err := s.Client.Shell(ctx, slow.ID)
		return err == nil && sh.State == "ended" && sh.Result.ExitCode != 0
	})
	assertContains(t, o.get(t, s, id, "a.site.test", "/2"), "403 ")
	assertContains(t, o.get(t, s, id, "b.site.test", "/3"), "GET /3 of b.site.test")
	// A request is recorded after it has ended, shortly after its client has the answer.
	harness.Eventually(t, harness.Short, "the last request is recorded", func() bool {
		state, err = s.Client.Egress.Get(ctx, id)
		return err != nil || len(state.Recent) > 0 && state.Recent[0].Path == "/3"
	})
	if err != nil || state.Allowed < 2 || state.Refused < 1 || len(state.Recent) < 3 {
		t.Fatalf("Egress = %+v, %v; want at least 2 allowed and 1 refused of 3 recent requests", state, err)
	}
	if r := state.Recent; r[0].Path != "/3" || !r[0].Allowed || r[1].Allowed || r[1].Reason == "" {
		t.Errorf("recent requests = %+v, want /3 allowed and the one before refused with a reason", r)
	}
	if err := s.Client.Egress.Clear(ctx, id); err != nil {
		t.Fatal(err)
	}
	if out := sh(t, s, id, probeProxy); out != "0\nnone\n" {
		t.Errorf("after ClearEgress the sandbox has proxy variables and port %q, want none", out)
	}
}

// testEgressSecrets checks that the gateway sets the secret's value, and that the sandbox sees only
// a placeholder.
func testEgressSecrets(t *testing.T, s *harness.Server, o *egressSite) {
	rules := []v1.EgressRule{o.httpRule("*.site.test")}
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold", Egress: &v1.Egress{Rules: rules, Secrets: []string{"api"}}}).ID
	out := sh(t, s, id, fmt.Sprintf(`echo $API_TOKEN; curl -sS -H "Authorization: Bearer $API_TOKEN" http://a.site.test:%d/auth
curl -sS http://b.site.test:%d/auth; env`, o.http, o.http))
	assertContains(t, out, "set-by-the-gateway-api\nauthorized true")
	assertContains(t, out, `authorized false, asked with ""`)
	if strings.Contains(out, credential) {
		t.Errorf("output of the sandbox has the secret's value, want it absent: %s", out)
	}
	if _, err := s.Client.Egress.Set(within(t), id, v1.Egress{Rules: rules}); err != nil {
		t.Fatal(err)
	}
	out = sh(t, s, id, fmt.Sprintf(`echo "[$API_TOKEN]"; curl -sS http://a.site.test:%d/auth`, o.http))
	assertContains(t, out, "[]\nauthorized false")
}

// testEgressCeiling checks that callers with tokens get at most what the configuration allows, and
// secrets only if it names them.
func testEgressCeiling(t *testing.T, s *harness.Server, o *egressSite) {
	ann, bob := newCaller(t, s, `{"caller":"ann","trust":3}`), newCaller(t, s, `{"caller":"bob","trust":3}`)
	everything := fmt.Sprintf(
		`{"when_empty":"cold","egress":{"rules":[{"host":"*","protocol":"http","ports":[%d]}],"secrets":["api"]}}`, o.http)
	var box v1.Sandbox
	ann.create(t, "/v1/sandboxes", everything, &box)
	get := func(host, path string) string {
		var r v1.ExecResult
		body := fmt.Sprintf(`{"command":"curl -sS -i http://%s:%d%s"}`, host, o.http, path)
		ann.request(t, "POST", "/v1/sandboxes/"+box.ID+"/exec", body).Into(t, &r)
		return r.Stdout
	}
	assertContains(t, get("a.site.test", "/open/x"), "GET /open/x of a.site.test")
	assertContains(t, get("a.site.test", "/closed"), "403 ")
	assertContains(t, get("b.site.test", "/open/x"), "403 ")
	p := bob.request(t, "POST", "/v1/sandboxes", everything).
		Problem(t, http.StatusNotFound, "not_found", "egress.secrets[0]")
	if strings.Contains(p.Detail, credential) {
		t.Errorf("detail = %q, want it without the secret's value", p.Detail)
	}
	if got := ann.request(t, "DELETE", "/v1/sandboxes/"+box.ID, ""); got.Status != http.StatusNoContent {
		t.Errorf("DELETE sandbox: status %d, want 204: %s", got.Status, got.Body)
	}
}

// testEgressBadInput checks that the error of invalid rules names the field.
func testEgressBadInput(t *testing.T, s *harness.Server, _ *egressSite) {
	for body, field := range map[string]string{
		`{"rules":[{"host":""}]}`:                                         "egress.rules[0].host",
		`{"rules":[{"host":"a.test"},{"host":"http://a.test/"}]}`:         "egress.rules[1].host",
		`{"rules":[{"host":"2130706433"}]}`:                               "egress.rules[0].host",
		`{"rules":[{"host":"user@a.test"}]}`:                              "egress.rules[0].host",
		`{"rules":[{"host":"a.test","ports":[0]}]}`:                       "egress.rules[0].ports",
		`{"rules":[{"host":"a.test","protocol":"ftp"}]}`:                  "egress.rules[0].protocol",
		`{"rules":[{"host":"a.test","protocol":"tcp"}]}`:                  "egress.rules[0].ports",
		`{"rules":[{"host":"a.test","paths":["/x"]}]}`:                    "egress.rules[0].paths",
		`{"rules":[{"host":"a.test"}],"secrets":["none"]}`:                "egress.secrets[0]",
		`{"rules":[],"secrets":["api"]}`:                                  "egress.rules",
		`{"rules":[{"host":"a.test"}],"secrets":["api","api"]}`:           "egress.secrets[1]",
		`{"rules":[` + strings.Repeat(`{"host":"a.test"},`, 300) + `{}]}`: "egress.rules",
	} {
		got := s.Ask(t, "POST", "/v1/sandboxes", `{"egress":`+body+`}`, "Content-Type", "application/json")
		p, _ := v1.Decode(got.Body)
		if p == nil || p.Field != field || got.Status != http.StatusBadRequest && got.Status != http.StatusNotFound {
			t.Errorf("sandbox with egress %.100s: status %d %s, want an error of field %s", body, got.Status, got.Body, field)
		}
	}
	awaitNoLease(t, s)
}

// testEgressCommand sets and shows rules on the command line.
func testEgressCommand(t *testing.T, s *harness.Server, o *egressSite) {
	for rule, want := range map[string]string{"tls://": "has no host", "tcp://a.test:x": "has an invalid port"} {
		s.CLI(t, "sandbox", "create", "--egress", rule).Is(t, 64, want)
	}
	inAndOut := fmt.Sprintf("curl -sS http://a.site.test:%d/in/x; "+
		"curl -sS -o /dev/null -w '%%{http_code}\\n' http://a.site.test:%d/out", o.http, o.http)
	rule := fmt.Sprintf("http://a.site.test:%d/in/*", o.http)
	r := s.CLI(t, "run", "--when-empty", "cold", "--egress", rule, "-c", inAndOut)
	if r.Code != 0 || r.Stdout != "GET /in/x of a.site.test\n403\n" {
		t.Errorf("run --egress = %+v, want the answer below /in and 403 for the other", r)
	}
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	assertContains(t, s.CLI(t, "sandbox", "egress", id).Stdout, "none: it reaches nothing")
	site := fmt.Sprintf("http://*.site.test:%d", o.http)
	set := s.CLI(t, "sandbox", "egress", id, "--allow", site, "--deny", "b.site.test")
	assertContains(t, set.Stdout, "!b.site.test")
	assertContains(t, o.get(t, s, id, "a.site.test", "/cli"), "GET /cli")
	assertContains(t, o.get(t, s, id, "b.site.test", "/cli"), "403 ")
	shown := s.CLI(t, "sandbox", "egress", id).Stdout
	assertContains(t, shown, fmt.Sprintf("a.site.test:%d", o.http))
	assertContains(t, shown, "GET /cli")
	assertContains(t, s.CLI(t, "sandbox", "egress", id, "--clear").Stdout, "none: it reaches nothing")
}

// testEgressRestart kills and restarts the service. The rules and secrets must apply again.
func testEgressRestart(t *testing.T, s *harness.Server, o *egressSite) {
	id := lease(t, s, v1.SandboxRequest{
		WhenEmpty: "cold",
		Egress:    &v1.Egress{Rules: []v1.EgressRule{o.httpRule("a.site.test")}, Secrets: []string{"api"}},
	}).ID
	assertContains(t, o.get(t, s, id, "a.site.test", "/before"), "GET /before")
	for _, stop := range []func(){s.Kill9, s.Term} {
		stop()
		s.Start()
		assertContains(t, o.get(t, s, id, "a.site.test", "/auth"), "authorized true")
		assertContains(t, o.get(t, s, id, "b.site.test", "/after"), "403 ")
	}
	began := time.Now()
	release(t, s, id)
	t.Logf("a sandbox with egress was released after %s", time.Since(began))
}

// testEgressRecords checks that connections and changes of rules are recorded, and that no file of
// the service has the secret.
func testEgressRecords(t *testing.T, s *harness.Server, _ *egressSite) {
	var list, set v1.List[v1.AuditRecord]
	harness.Eventually(t, harness.Short, "the connections are recorded", func() bool {
		s.Ask(t, "GET", "/v1/audit?action=egress&newest=true", "").Into(t, &list)
		return len(list.Items) > 10
	})
	verdicts := map[string]int{}
	for _, r := range list.Items {
		verdicts[r.Verdict]++
		complete := r.Kind == "egress" && r.Sandbox != "" && r.Caller != "" &&
			r.Egress != nil && r.Egress.Reason != "" && r.Egress.Host != ""
		if !complete {
			t.Errorf("record %+v, egress %+v; want kind egress with sandbox, caller, host and reason", r, r.Egress)
		}
	}
	if verdicts["allow"] == 0 || verdicts["deny"] == 0 {
		t.Errorf("verdicts of the records = %v, want allow and deny", verdicts)
	}
	if s.Ask(t, "GET", "/v1/audit?action=egress.set", "").Into(t, &set); len(set.Items) == 0 {
		t.Error("no record of changed rules, want some")
	}
	s.CLI(t, "audit", "verify").Is(t, 0, "")
	s.Term()
	if strings.Contains(s.Log(), credential) {
		t.Error("the log has the secret, want it absent")
	}
	err := filepath.WalkDir(s.Dir(), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.Contains(path, "/images/") || strings.Contains(path, "/guest/") {
			return nil //nolint:nilerr // a file that was removed has no secret
		}
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), credential) {
			t.Errorf("%s has the secret, want no file with it", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
