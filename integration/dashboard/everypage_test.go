//go:build integration

package dashboard

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// unnamed lists the visible controls of a page that have no accessible name.
const unnamed = `[...document.querySelectorAll('a, button, input, select, textarea, [role=table], [tabindex="0"]')]` +
	`.filter(e => e.offsetParent !== null && !e.closest('.xterm'))` +
	`.filter(e => !(e.ariaLabel || e.innerText?.trim() || [...(e.labels ?? [])].some(l => l.innerText.trim())))` +
	`.map(e => e.outerHTML.slice(0, 120)).join('\n')`

// wide returns the elements that make the page wider than the window.
const wide = `document.documentElement.scrollWidth <= innerWidth ? '' : innerWidth + ': ' +` +
	`[...document.querySelectorAll('main *, header *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)` +
	`.slice(0, 5).map(e => e.outerHTML.slice(0, 100)).join('\n')`

// page is one page of the dashboard with its heading and a text that it shows.
type page struct{ path, heading, sees string }

// everyPage returns all pages of a service with the things of world.
func everyPage(sh v1.Shell, overlay v1.Sandbox) []page {
	plain, changed := "sandboxes/"+sh.SandboxID, "sandboxes/"+overlay.ID
	return []page{
		{"", "Overview", "pools"},
		{"sandboxes", "Sandboxes", last(sh.SandboxID)},
		{plain + "?shell=" + sh.ID, "Sandbox", "step 5 of 5"},
		{plain + "?tab=egress", "Sandbox", "refused.example"},
		{plain + "?tab=terminal", "Sandbox", "Shift+Escape"},
		{changed + "?tab=files", "Sandbox", "b.txt"},
		{changed + "?tab=changes", "Sandbox", "src/a.txt"},
		{"approvals", "Approvals", "wait for an answer"},
		{"audit", "Audit", "system.bash"},
		{"workspaces", "Workspaces", "project"},
		{"workspaces/project", "Workspace", "src/"},
		{"workspaces/project?tab=overlays", "Workspace", overlay.ID},
		{"workspaces/project?tab=snapshots", "Workspace", "snapshot"},
		{"images", "Images", "sandbox"},
		{"templates", "Templates", "default"},
		{"tokens", "Tokens", "operator"},
	}
}

func TestEveryPageOnAWideScreen(t *testing.T) {
	t.Parallel()
	testEveryPage(t, func(b *tab) { b.size(1280, 860) })
}

func TestEveryPageOnADarkPhone(t *testing.T) {
	t.Parallel()
	testEveryPage(t, func(b *tab) {
		b.size(400, 860)
		b.dark()
	})
}

// testEveryPage opens every page, makes a screenshot of it, and checks that nothing is wider than
// the window and that every control has an accessible name.
func testEveryPage(t *testing.T, set func(*tab)) {
	t.Helper()
	s := start(t)
	secret, c := operator(t, s)
	sh, overlay := world(t, s, c)
	b := open(t, s.Socket())
	b.signIn(secret)
	set(b)
	for i, p := range everyPage(sh, overlay) {
		b.visit(p.path, p.heading)
		b.await(fmt.Sprintf(`document.body.innerText.toLowerCase().includes(%q.toLowerCase())`, p.sees))
		if strings.HasSuffix(p.path, "changes") {
			b.eachDetails()
		}
		b.shot(fmt.Sprintf("%02d-%s", i, strings.ToLower(p.heading)))
		if got := eval[string](b, wide); got != "" {
			t.Errorf("page %q is wider than %s", p.path, got)
		}
		if got := eval[string](b, unnamed); got != "" {
			t.Errorf("page %q has controls without an accessible name:\n%s", p.path, got)
		}
	}
	b.faultless()
}
