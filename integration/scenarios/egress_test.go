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

// credential is what no sandbox, record or file of the service may hold.
const credential = "t0p-s3cret-of-the-service"

// outside is a world to reach: servers on this host's loopback under names.
type outside struct {
	http, tls int // ports
	config    string
	ca        string // a file
	slow      chan struct{}
}

func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{slow: make(chan struct{})}
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow": // one byte, and then nothing until the end of the test
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-o.slow:
			case <-r.Context().Done():
			}
		case "/auth":
			fmt.Fprintf(w, "authorized %t, asked with %q\n", r.Header.Get("Authorization") == "Bearer "+credential, strings.ReplaceAll(r.Header.Get("Authorization"), credential, "TOKEN"))
		default:
			fmt.Fprintf(w, "%s %s of %s\n", r.Method, r.URL.Path, strings.Split(r.Host, ":")[0])
		}
	})
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	t.Cleanup(func() { close(o.slow); plain.Close(); secure.Close() })
	o.http, o.tls = portIn(t, plain.URL), portIn(t, secure.URL)
	dir := harness.TempDir(t)
	o.ca = filepath.Join(dir, "ca.pem")
	harness.WriteFile(t, o.ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	harness.WriteFile(t, filepath.Join(dir, "token"), credential+"\n")
	o.config = fmt.Sprintf(onDemand+`
egress:
  resolver: ["%s"]
  private: [{hosts: ["*.site.test"], ranges: ["127.0.0.0/8"]}]
  allow: [{host: a.site.test, protocol: http, ports: [%d], paths: [/open/*]}]
  secrets: [{name: api, hosts: [a.site.test], header: Authorization, prefix: "Bearer ", value_file: "%s", env: API_TOKEN, callers: [ann]}]
`, harness.Names(t), o.http, filepath.Join(dir, "token"))
	return o
}

func portIn(t *testing.T, address string) int {
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

// plain is a rule for a host by HTTP.
func (o *outside) plain(host string) v1.EgressRule {
	return v1.EgressRule{Host: host, Protocol: "http", Ports: []int{o.http}}
}

// get asks from inside; a refusal is what curl shows of it.
func (o *outside) get(t *testing.T, s *harness.Server, id, host, path string) string {
	t.Helper()
	r := exec(t, s, id, v1.Exec{Command: fmt.Sprintf("curl -sS -m 60 -i http://%s:%d%s 2>&1", host, o.http, path)})
	return strings.ReplaceAll(r.Stdout+r.Stderr, "\r", "")
}

func TestEgress(t *testing.T) {
	t.Parallel()
	eachKernel(t, func(t *testing.T, k kernel) {
		o := newOutside(t)
		s := harness.Run(t, harness.Options{Runtime: k.runtime, Config: k.of(o.config), Seed: &seed})
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, *outside)
		}{
			{"asked for", egressAsked},
			{"changed", egressChanged},
			{"secrets", egressSecrets},
			{"ceiling", egressCeiling},
			{"bad input", egressBadInput},
			{"the command", egressCommand},
			{"restart", egressRestart},
			{"records", egressRecords},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, o)
			})
		}
	})
}

// egressAsked: what the rules allow is reached, by TLS and SOCKS too, and
// nothing else; a sandbox without rules has no proxy, and still no network.
func egressAsked(t *testing.T, s *harness.Server, o *outside) {
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold", Egress: &v1.Egress{Rules: []v1.EgressRule{
		o.plain("a.site.test"), {Host: "tls.site.test", Ports: []int{o.tls}}, {Host: "private.other.test", Protocol: "http", Ports: []int{o.http}},
	}}}).ID
	contains(t, o.get(t, s, id, "a.site.test", "/x"), "GET /x of a.site.test")
	contains(t, o.get(t, s, id, "b.site.test", "/x"), "403 ")
	contains(t, o.get(t, s, id, "b.site.test", "/x"), "b.site.test")
	contains(t, o.get(t, s, id, "private.other.test", "/x"), "egress.private")
	contains(t, sh(t, s, id, fmt.Sprintf("curl -sS -k https://tls.site.test:%d/y", o.tls)), "GET /y of tls.site.test")
	contains(t, sh(t, s, id, fmt.Sprintf("curl -sS -x socks5h://127.0.0.1:3128 http://a.site.test:%d/z", o.http)), "GET /z of a.site.test")
	if left := sh(t, s, id, interfaces+"; cat /proc/net/route | wc -l"); left != "lo\n1\n" {
		t.Errorf("the sandbox has %q", left)
	}
	r, err := s.Client.Run(within(t), v1.Run{Exec: v1.Exec{Command: fmt.Sprintf("curl -sS http://a.site.test:%d/run", o.http)}, WhenEmpty: "cold", Egress: &v1.Egress{Rules: []v1.EgressRule{o.plain("a.site.test")}}})
	if err != nil || r.Stdout != "GET /run of a.site.test\n" {
		t.Errorf("a run: %+v %v", r, err)
	}
	none := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	if out := sh(t, s, none, "env | grep -ci proxy; (exec 3<>/dev/tcp/127.0.0.1/3128) 2>/dev/null || echo none"); out != "0\nnone\n" {
		t.Errorf("without rules: %q", out)
	}
}

// egressChanged: none, some, others and none again; what is open ends.
func egressChanged(t *testing.T, s *harness.Server, o *outside) {
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	ctx := within(t)
	state, err := s.Client.SetEgress(ctx, id, v1.Egress{Rules: []v1.EgressRule{o.plain("a.site.test")}})
	if err != nil || len(state.Rules) != 1 {
		t.Fatalf("%+v %v", state, err)
	}
	contains(t, o.get(t, s, id, "a.site.test", "/1"), "GET /1")
	slow, err := s.Client.StartShell(ctx, id, v1.ShellRequest{Exec: v1.Exec{Command: fmt.Sprintf("curl -sS -N http://a.site.test:%d/slow", o.http)}})
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Short, "the slow answer has begun", func() bool {
		sh, err := s.Client.Shell(ctx, slow.ID)
		return err == nil && sh.StdoutEnd == 1
	})
	if _, err := s.Client.SetEgress(ctx, id, v1.Egress{Rules: []v1.EgressRule{o.plain("b.site.test")}}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Short, "what is no longer allowed ends", func() bool {
		sh, err := s.Client.Shell(ctx, slow.ID)
		return err == nil && sh.State == "ended" && sh.Result.ExitCode != 0
	})
	contains(t, o.get(t, s, id, "a.site.test", "/2"), "403 ")
	contains(t, o.get(t, s, id, "b.site.test", "/3"), "GET /3 of b.site.test")
	// A request is written down when it has ended, a moment after its client has the answer.
	harness.Eventually(t, harness.Short, "the last request is written down", func() bool {
		state, err = s.Client.Egress(ctx, id)
		return err != nil || len(state.Recent) > 0 && state.Recent[0].Path == "/3"
	})
	if err != nil || state.Allowed < 2 || state.Refused < 1 || len(state.Recent) < 3 || state.Recent[0].Path != "/3" || !state.Recent[0].Allowed || state.Recent[1].Allowed || state.Recent[1].Reason == "" {
		t.Errorf("%+v %v", state, err)
	}
	if err := s.Client.ClearEgress(ctx, id); err != nil {
		t.Fatal(err)
	}
	if out := sh(t, s, id, "env | grep -ci proxy; (exec 3<>/dev/tcp/127.0.0.1/3128) 2>/dev/null || echo none"); out != "0\nnone\n" {
		t.Errorf("after the rules were taken away: %q", out)
	}
}

// egressSecrets: the gateway sets the value; inside there is a placeholder.
func egressSecrets(t *testing.T, s *harness.Server, o *outside) {
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold", Egress: &v1.Egress{Rules: []v1.EgressRule{o.plain("*.site.test")}, Secrets: []string{"api"}}}).ID
	out := sh(t, s, id, fmt.Sprintf(`echo $API_TOKEN; curl -sS -H "Authorization: Bearer $API_TOKEN" http://a.site.test:%d/auth; curl -sS http://b.site.test:%d/auth; env`, o.http, o.http))
	contains(t, out, "set-by-the-gateway-api\nauthorized true")
	contains(t, out, `authorized false, asked with ""`)
	if strings.Contains(out, credential) {
		t.Errorf("the value is inside: %s", out)
	}
	if _, err := s.Client.SetEgress(within(t), id, v1.Egress{Rules: []v1.EgressRule{o.plain("*.site.test")}}); err != nil {
		t.Fatal(err)
	}
	contains(t, sh(t, s, id, fmt.Sprintf(`echo "[$API_TOKEN]"; curl -sS http://a.site.test:%d/auth`, o.http)), "[]\nauthorized false")
}

// egressCeiling: callers with tokens get what the configuration allows, whatever
// they ask for; secrets are those callers' that it names.
func egressCeiling(t *testing.T, s *harness.Server, o *outside) {
	ann, bob := person(t, s, `{"caller":"ann","trust":3}`), person(t, s, `{"caller":"bob","trust":3}`)
	everything := fmt.Sprintf(`{"when_empty":"cold","egress":{"rules":[{"host":"*","protocol":"http","ports":[%d]}],"secrets":["api"]}}`, o.http)
	var box v1.Sandbox
	ann.make(t, "/v1/sandboxes", everything, &box)
	get := func(host, path string) string {
		var r v1.ExecResult
		ann.ask(t, "POST", "/v1/sandboxes/"+box.ID+"/exec", fmt.Sprintf(`{"command":"curl -sS -i http://%s:%d%s"}`, host, o.http, path)).Into(t, &r)
		return r.Stdout
	}
	contains(t, get("a.site.test", "/open/x"), "GET /open/x of a.site.test")
	contains(t, get("a.site.test", "/closed"), "403 ")
	contains(t, get("b.site.test", "/open/x"), "403 ")
	if p := bob.ask(t, "POST", "/v1/sandboxes", everything).Problem(t, http.StatusNotFound, "not_found", "egress.secrets[0]"); strings.Contains(p.Detail, credential) {
		t.Errorf("%s", p.Detail)
	}
	if got := ann.ask(t, "DELETE", "/v1/sandboxes/"+box.ID, ""); got.Status != http.StatusNoContent {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}

func egressBadInput(t *testing.T, s *harness.Server, _ *outside) {
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
			t.Errorf("%.100s: %d %s; want %s", body, got.Status, got.Body, field)
		}
	}
	noLease(t, s)
}

func egressCommand(t *testing.T, s *harness.Server, o *outside) {
	for rule, want := range map[string]string{"tls://": "names no host", "tcp://a.test:x": "has a port"} {
		s.CLI(t, "sandbox", "create", "--egress", rule).Is(t, 64, want)
	}
	r := s.CLI(t, "run", "--when-empty", "cold", "--egress", fmt.Sprintf("http://a.site.test:%d/in/*", o.http), "-c",
		fmt.Sprintf("curl -sS http://a.site.test:%d/in/x; curl -sS -o /dev/null -w '%%{http_code}\\n' http://a.site.test:%d/out", o.http, o.http))
	if r.Code != 0 || r.Stdout != "GET /in/x of a.site.test\n403\n" {
		t.Errorf("%+v", r)
	}
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	contains(t, s.CLI(t, "sandbox", "egress", id).Stdout, "none: it reaches nothing")
	contains(t, s.CLI(t, "sandbox", "egress", id, "--allow", fmt.Sprintf("http://*.site.test:%d", o.http), "--deny", "b.site.test").Stdout, "!b.site.test")
	contains(t, o.get(t, s, id, "a.site.test", "/cli"), "GET /cli")
	contains(t, o.get(t, s, id, "b.site.test", "/cli"), "403 ")
	shown := s.CLI(t, "sandbox", "egress", id).Stdout
	contains(t, shown, fmt.Sprintf("a.site.test:%d", o.http))
	contains(t, shown, "GET /cli")
	contains(t, s.CLI(t, "sandbox", "egress", id, "--clear").Stdout, "none: it reaches nothing")
}

// egressRestart: a kill and a hand-over are over soon, and the rules hold again.
func egressRestart(t *testing.T, s *harness.Server, o *outside) {
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold", Egress: &v1.Egress{Rules: []v1.EgressRule{o.plain("a.site.test")}, Secrets: []string{"api"}}}).ID
	contains(t, o.get(t, s, id, "a.site.test", "/before"), "GET /before")
	for _, stop := range []func(){s.Kill9, s.Term} {
		stop()
		s.Start()
		contains(t, o.get(t, s, id, "a.site.test", "/auth"), "authorized true")
		contains(t, o.get(t, s, id, "b.site.test", "/after"), "403 ")
	}
	began := time.Now()
	release(t, s, id)
	t.Logf("a sandbox with egress is gone after %s", time.Since(began))
}

// egressRecords: each connection is recorded, as is who gave which rules, and no
// file of the service has the secret.
func egressRecords(t *testing.T, s *harness.Server, _ *outside) {
	var list, set v1.List[v1.AuditRecord]
	harness.Eventually(t, harness.Short, "the connections are recorded", func() bool {
		s.Ask(t, "GET", "/v1/audit?action=egress&newest=true", "").Into(t, &list)
		return len(list.Items) > 10
	})
	verdicts := map[string]int{}
	for _, r := range list.Items {
		verdicts[r.Verdict]++
		if r.Kind != "egress" || r.Egress == nil || r.Sandbox == "" || r.Caller == "" || r.Egress.Reason == "" || r.Egress.Host == "" {
			t.Errorf("%+v %+v", r, r.Egress)
		}
	}
	if verdicts["allow"] == 0 || verdicts["deny"] == 0 {
		t.Errorf("%v", verdicts)
	}
	if s.Ask(t, "GET", "/v1/audit?action=egress.set", "").Into(t, &set); len(set.Items) == 0 {
		t.Error("that rules were given is not recorded")
	}
	s.CLI(t, "audit", "verify").Is(t, 0, "")
	s.Term()
	if strings.Contains(s.Log(), credential) {
		t.Error("the secret is in the log")
	}
	err := filepath.WalkDir(s.Dir(), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.Contains(path, "/images/") || strings.Contains(path, "/guest/") {
			return nil //nolint:nilerr // what is gone by now has none
		}
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), credential) {
			t.Errorf("the secret is in %s", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
