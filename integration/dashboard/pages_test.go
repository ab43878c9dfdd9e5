//go:build integration

package dashboard

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// world has something to see on every page.
func world(t *testing.T, s *harness.Server, c *client.Client) (sh v1.Shell, overlay v1.Sandbox) {
	t.Helper()
	if _, err := c.Workspaces.Create(t.Context(), "project"); err != nil {
		t.Fatal(err)
	}
	call := func(command string) {
		if _, err := s.Client.Tools.Call(t.Context(), "system.bash", v1.ToolCall{Input: []byte(fmt.Sprintf(`{"command":%q}`, command))},
			client.CallOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 6 {
		call("sleep 0.1; echo done")
	}
	call("exit 3")
	first := lease(t, c, v1.SandboxRequest{Workspace: "project"})
	files := v1.Exec{Command: "mkdir -p src; printf 'one\\ntwo\\n' >src/a.txt; head -c 3000 /dev/urandom >data.bin"}
	if _, err := c.Exec(t.Context(), first.ID, files); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveSandbox(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	overlay = lease(t, c, v1.SandboxRequest{Workspace: "project", Mode: "overlay"})
	changes := v1.Exec{Command: "printf 'one\\n<b>2</b>\\n' >src/a.txt; echo new >b.txt; rm data.bin"}
	if _, err := c.Exec(t.Context(), overlay.ID, changes); err != nil {
		t.Fatal(err)
	}
	plain := lease(t, c, v1.SandboxRequest{Egress: &v1.Egress{Rules: []v1.EgressRule{{Host: "example.com"}}}})
	sh = shell(t, c, plain.ID, `for i in 1 2 3 4 5; do echo "step $i of 5"; done; echo oops >&2; sleep 1000`)
	_, err := c.Exec(t.Context(), plain.ID, v1.Exec{Command: "curl -sS -m 5 https://refused.example/ || true"})
	if err != nil {
		t.Fatal(err)
	}
	return sh, overlay
}

// eachDetails opens every part of the page that is folded.
func (b *tab) eachDetails() {
	b.t.Helper()
	eval[bool](b, `(document.querySelectorAll('details').forEach(d => d.open = true), true)`)
}

func TestOverlayIsCommittedAndFilesAreUploaded(t *testing.T) {
	t.Parallel()
	s := start(t)
	secret, c := operator(t, s)
	_, overlay := world(t, s, c)
	b := open(t, s.Socket())
	b.signIn(secret)
	b.visit("sandboxes/"+overlay.ID+"?tab=changes", "Sandbox")
	b.see("src/a.txt")
	b.eachDetails()
	b.see("+<b>2</b>")
	b.press("Commit all changes")
	b.press("Yes")
	b.see("3 changes were committed")
	b.visit("workspaces/project", "Workspace")
	b.see("b.txt")
	eval[bool](b, `(() => { const input = document.querySelector('input[type=file]'); const all = new DataTransfer();`+
		`all.items.add(new File(['<i>uploaded</i>'], 'up & <down>.txt')); input.files = all.files;`+
		`input.dispatchEvent(new Event('change', {bubbles: true})); return true; })()`)
	b.see("up & <down>.txt")
	b.press("up & <down>.txt")
	b.see("<i>uploaded</i>")
	dir := t.TempDir()
	b.run("allow downloads", command(browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{Behavior: "allow", DownloadPath: dir}))
	b.press("Download up & <down>.txt")
	harness.Eventually(t, harness.Short, "the download", func() bool {
		file, _ := os.ReadFile(filepath.Join(dir, "up_down_.txt"))
		return string(file) == "<i>uploaded</i>"
	})
	got, err := c.Exec(t.Context(), lease(t, c, v1.SandboxRequest{Workspace: "project"}).ID, v1.Exec{Command: "cat up*; cat src/a.txt; ls"})
	if err != nil || !strings.Contains(got.Stdout, "<i>uploaded</i>one\n<b>2</b>\n") || strings.Contains(got.Stdout, "data.bin") {
		t.Errorf("the workspace has %q, %v; want the upload and the committed changes", got.Stdout, err)
	}
	b.faultless()
}

// TestKeyboardAlone uses nothing but keys, from the sign-in to a decision.
func TestKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := start(t)
	secret, c := operator(t, s)
	one := lease(t, c, v1.SandboxRequest{})
	b := open(t, s.Socket())
	b.run("open", chromedp.Navigate(b.base+"/ui/"), chromedp.WaitVisible("#token"))
	b.await(`document.activeElement.id === 'token'`)
	b.run("sign in", chromedp.KeyEvent(secret+kb.Enter))
	b.see("Sign out")
	b.tabTo(`document.activeElement.innerText === 'Sandboxes'`)
	b.run("enter", chromedp.KeyEvent(kb.Enter))
	b.see(last(one.ID))
	b.tabTo(fmt.Sprintf(`document.activeElement.ariaLabel === 'End %s'`, one.ID))
	if got := eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`); got != "solid" {
		t.Errorf("outline of the focused button = %q, want solid", got)
	}
	b.run("end", chromedp.KeyEvent(kb.Enter))
	b.await(`document.querySelector('dialog')?.open`)
	b.run("leave the question", chromedp.KeyEvent(kb.Escape))
	b.await(`!document.querySelector('dialog')`)
	b.tabTo(fmt.Sprintf(`document.activeElement.ariaLabel === 'End %s'`, one.ID))
	b.run("end", chromedp.KeyEvent(kb.Enter))
	b.await(`document.activeElement.innerText === 'Yes'`)
	b.run("yes", chromedp.KeyEvent(kb.Enter))
	b.await(fmt.Sprintf(`!document.body.innerText.includes(%q)`, last(one.ID)))
	b.faultless()
}

// tabTo presses Tab until JavaScript is true.
func (b *tab) tabTo(script string) {
	b.t.Helper()
	for range 60 {
		if eval[bool](b, script) {
			return
		}
		b.run("tab", chromedp.KeyEvent(kb.Tab))
	}
	b.t.Fatalf("60 times Tab do not lead to %s, but to %s", script, eval[string](b, `document.activeElement.outerHTML`))
}
