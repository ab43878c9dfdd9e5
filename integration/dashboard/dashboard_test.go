//go:build integration

package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

const config = `
templates:
  default:
    limits: {memory: 256MiB, pids: 160}
    pool: {min: 1, max: 12, rate: 10, parallel: 2}
`

// start runs a service with the embedded driver.
func start(t *testing.T) *harness.Server {
	t.Helper()
	return harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed})
}

func token(t *testing.T, s *harness.Server, r v1.TokenRequest) v1.Token {
	t.Helper()
	got, err := s.Client.Tokens.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// operator returns the secret of a new operator's token, and a client with it.
func operator(t *testing.T, s *harness.Server) (string, *client.Client) {
	t.Helper()
	secret := token(t, s, v1.TokenRequest{Caller: "op", Operator: true, Trust: 3, Profile: "default"}).Secret
	return secret, as(t, s, secret)
}

// as returns a client with a token.
func as(t *testing.T, s *harness.Server, secret string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{Address: "unix:" + s.Socket(), Token: secret})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lease leases a sandbox that ends with the test.
func lease(t *testing.T, c *client.Client, r v1.SandboxRequest) v1.Sandbox {
	t.Helper()
	got, err := c.CreateSandbox(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.RemoveSandbox(context.WithoutCancel(t.Context()), got.ID) })
	return got
}

func shell(t *testing.T, c *client.Client, sandbox, command string) v1.Shell {
	t.Helper()
	got, err := c.StartShell(t.Context(), sandbox, v1.ShellRequest{Exec: v1.Exec{Command: command}})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func last(id string) string { return id[len(id)-8:] }

func TestSignInWatchAndRestart(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := open(t, s.Socket())
	b.run("open", chromedp.Navigate(b.base+"/ui/"), chromedp.WaitVisible("#token"))
	b.shot("signin")
	b.run("wrong token", chromedp.SendKeys("#token", "orc_wrong\r"))
	b.see("This token is not valid")
	secret, c := operator(t, s)
	b.signIn(secret)
	b.visit("sandboxes", "Sandboxes")
	one := lease(t, c, v1.SandboxRequest{})
	b.see(last(one.ID)) // without a reload
	sh := shell(t, c, one.ID, `i=0; while :; do i=$((i+1)); echo "line $i"; sleep 0.2; done`)
	b.visit("sandboxes/"+one.ID, "Sandbox")
	b.see(last(sh.ID))
	b.see("line 3")
	s.Term()
	b.see("connection to the service is lost")
	s.Start()
	b.await(`!document.body.innerText.includes('connection to the service is lost')`)
	before := eval[string](b, `[...document.querySelectorAll('.log code')].at(-1).innerText`)
	b.await(fmt.Sprintf(`[...document.querySelectorAll('.log code')].at(-1).innerText > '' && `+
		`parseInt([...document.querySelectorAll('.log code')].at(-1).innerText.slice(5)) > parseInt(%q) + 5`,
		strings.TrimPrefix(before, "line ")))
	b.press("End the sandbox")
	b.press("Yes")
	b.see("removed")
	b.visit("sandboxes", "Sandboxes")
	b.await(fmt.Sprintf(`!document.body.innerText.includes(%q)`, last(one.ID)))
	b.press("Sign out")
	b.run("signed out", chromedp.WaitVisible("#token"))
	b.faultless()
}

// TestCookieThatAnotherPortReceivesOpensNothing visits another server of the same host, as one in a
// sandbox that is forwarded to a port here, or another user's.
func TestCookieThatAnotherPortReceivesOpensNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	secret, _ := operator(t, s)
	b := open(t, s.Socket())
	b.signIn(secret)
	cookies := make(chan string, 1)
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case cookies <- r.Header.Get("Cookie"):
		default: // the icon
		}
	}))
	t.Cleanup(thief.Close)
	b.run("visit the other port", chromedp.Navigate(thief.URL))
	stolen := <-cookies
	if !strings.Contains(stolen, "orchestrator_session=") {
		t.Fatalf("the other port received the cookies %q, want that of the session: this test shows nothing", stolen)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.base+"/v1/sandboxes", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Cookie": {stolen}, "Origin": {b.base}, "Orchestrator-Ui": {"1"}}
	res, err := new(http.Transport).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("GET /v1/sandboxes with the stolen cookie = %d, want 401", res.StatusCode)
	}
	b.visit("sandboxes", "Sandboxes") // the page has both secrets
	b.reload()
	b.see("Sign out")
}

// TestApprovalIsAnsweredAndAuditedAtOnce approves a call in one page, and sees its row in another
// one.
func TestApprovalIsAnsweredAndAuditedAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	secret, _ := operator(t, s)
	asks, log := open(t, s.Socket()), open(t, s.Socket())
	asks.signIn(secret)
	log.signIn(secret)
	asks.visit("approvals", "Approvals")
	log.visit("audit", "Audit")
	for i, answer := range []string{"Approve", "Deny", "Change the input"} {
		input := json.RawMessage(fmt.Sprintf(`{"command":"echo approved-%d; rm -r junk"}`, i))
		ended := make(chan v1.ToolResult, 1)
		go func() { // received below
			got, err := s.Client.Tools.Call(t.Context(), "system.bash", v1.ToolCall{Profile: "phase2", Input: input}, client.CallOptions{})
			if err != nil {
				t.Error(err)
			}
			ended <- got
		}()
		asks.see(fmt.Sprintf("approved-%d", i))
		if i == 0 {
			asks.shot("pending")
		}
		if answer == "Change the input" {
			asks.press(answer)
			eval[bool](asks, `(document.querySelector('textarea').select(), true)`)
			asks.run("change", chromedp.SendKeys("textarea", `{"command":"echo another"}`))
			answer = "Approve with this input"
		}
		asks.press(answer)
		got := <-ended
		want := map[string]string{"Deny": "approval_denied"}[answer]
		if want == "" {
			want = "exited"
		}
		if got.Ending != want {
			t.Errorf("%s: the call ended %s %q, want %s", answer, got.Ending, got.Detail, want)
		}
		row := fmt.Sprintf(`[...document.querySelectorAll('.audit .list-row')]`+
			`.some(e => e.innerText.includes('close') && e.innerHTML.includes(%q))`, got.ID)
		if took := log.await(row); took > 500*time.Millisecond {
			t.Errorf("%s: the audit row was shown after %v, want at most 500 ms", answer, took)
		}
		if i == 2 && !strings.Contains(got.Text, "another") {
			t.Errorf("the changed call = %q, want the output of the changed input", got.Text)
		}
		if i == 0 {
			log.shot("rows")
			log.visit("audit/"+got.ID, "Call of")
			log.see("approved by op")
			log.shot("call")
			log.visit("audit", "Audit")
		}
	}
	log.press("Verify the chain")
	log.see("records is whole")
	asks.faultless()
	log.faultless()
}

func TestCallerSeesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3, Profile: "default"})
	c := as(t, s, ann.Secret)
	others, own := lease(t, s.Client, v1.SandboxRequest{}), lease(t, c, v1.SandboxRequest{})
	b := open(t, s.Socket())
	b.signIn(ann.Secret)
	b.visit("sandboxes", "Sandboxes")
	b.see(last(own.ID))
	if text := b.text(); strings.Contains(text, last(others.ID)) || strings.Contains(text, "Tokens") {
		t.Errorf("a caller's page shows what is not its own:\n%s", text)
	}
	b.visit("sandboxes/"+others.ID, "Sandbox")
	b.see("not found")
	sh := shell(t, c, own.ID, "echo seen by operators; sleep 1000")
	op := open(t, s.Socket())
	secret, _ := operator(t, s)
	op.signIn(secret)
	op.visit("sandboxes/"+own.ID, "Sandbox")
	op.see("seen by operators")
	if text := op.text(); strings.Contains(text, "Terminal") || strings.Contains(text, "Start a background command") {
		t.Errorf("an operator's page offers to act in another caller's sandbox:\n%s", text)
	}
	op.press("Kill " + sh.ID)
	op.press("Yes")
	op.await(fmt.Sprintf(`!document.querySelector('[aria-label="Kill %s"]')`, sh.ID))
	op.faultless()
	if _, err := s.Client.Tokens.Revoke(t.Context(), ann.ID); err != nil {
		t.Fatal(err)
	}
	b.run("signed out by the revocation", chromedp.WaitVisible("#token"))
	b.faultless()
}

func TestTerminalTypesAndKeepsItsOutputToItself(t *testing.T) {
	t.Parallel()
	s := start(t)
	secret, c := operator(t, s)
	b := open(t, s.Socket())
	b.signIn(secret)
	one := lease(t, c, v1.SandboxRequest{})
	b.visit("sandboxes/"+one.ID+"?tab=terminal", "Sandbox")
	b.await(`document.querySelector('.xterm-rows')?.innerText.includes('$')`)
	b.run("type", chromedp.KeyEvent("echo $((6*7))-answer; stty size\r"))
	b.await(`document.querySelector('.xterm-rows').innerText.includes('42-answer')`)
	// A title, the clipboard, a link, and a colour of 24 bits, which is the only one that may draw.
	b.run("escapes", chromedp.KeyEvent(
		`printf '\033]0;evil\007\033]2;evil\007\033]52;c;ZXZpbA==\007\033]8;;http://evil.example/\007link\033]8;;\007 '; `+
			`printf '\033[38;2;1;2;3mcolour\033[0m done\n'`+"\r"))
	b.await(`document.querySelector('.xterm-rows').innerText.includes('link colour done')`)
	title := eval[string](b, `document.title`)
	links := eval[int](b, `document.querySelectorAll('.xterm a, .xterm-underline-5').length`)
	if strings.Contains(title, "evil") || links != 0 {
		t.Errorf("after escape sequences: title %q and %d links, want neither", title, links)
	}
	b.shot("terminal")
	b.run("leave", chromedp.KeyEvent(kb.Escape, chromedp.KeyModifiers(chromedp.ModifierShift)))
	b.await(`document.activeElement.id === 'terminal-leave'`)
	b.run("exit", chromedp.Focus(".xterm-helper-textarea"), chromedp.KeyEvent("exit 7\r"))
	b.see("The command ended: exited 7")
	b.faultless()
}

func TestHostileOutputAndNamesStayText(t *testing.T) {
	t.Parallel()
	s := start(t)
	secret, c := operator(t, s)
	b := open(t, s.Socket())
	b.signIn(secret)
	if _, err := c.Workspaces.Create(t.Context(), "hostile"); err != nil {
		t.Fatal(err)
	}
	one := lease(t, c, v1.SandboxRequest{Workspace: "hostile", Labels: map[string]string{"l": "<img src=x onerror=alert(1)>"}})
	shell(t, c, one.ID, `cd /workspace; touch "<img src=x onerror=alert(1)>" "$(printf 'a\342\200\256txt.exe')" "$(printf 'new\nline')"
		touch "$(printf 'esc\033[31m')" "$(printf 'tag\363\240\201\201\343\205\244')"
		echo '<script>alert(1)</script><img src=x onerror=alert(1)>'; printf 'left\342\200\256right \033]0;title\007\033[31mred\033[0m \001 end\n'
		yes '0123456789012345678901234567890123456789012345678901234567890123456789' | head -c 60000000; echo; echo THE-END; sleep 1000`)
	b.visit("sandboxes/"+one.ID, "Sandbox")
	b.see("<img src=x onerror=alert(1)>")
	b.see("THE-END") // 60 MB later
	rows := eval[int](b, `document.querySelectorAll('.log .list-row').length`)
	images := eval[int](b, `document.querySelectorAll('img, script:not([src="app.js"]), #main a[href^="http"]').length`)
	if rows == 0 || rows > 200 || images != 0 {
		t.Errorf("%d rows and %d elements from output, want up to 200 and none", rows, images)
	}
	b.shot("flood")
	shell(t, c, one.ID, `printf '<script>alert(1)</script>\nleft\342\200\256right \033]0;title\007\033[31mred\033[0m \001 end\n'`)
	b.see(`<script>alert(1)</script>`)
	b.see("left⟨U+202E⟩right red ⟨U+0001⟩ end")
	b.visit("sandboxes/"+one.ID+"?tab=files", "Sandbox")
	for _, name := range []string{
		"<img src=x onerror=alert(1)>", "a⟨U+202E⟩txt.exe", "new⟨U+000A⟩line", "esc⟨U+001B⟩[31m", "tag⟨U+E0041⟩⟨U+3164⟩",
	} {
		b.see(name)
	}
	b.shot("names")
	b.faultless()
}
