//go:build integration

// Package dashboard tests /ui in Debian's Chromium against the real service on real containers. The
// screenshots that the tests make are in build/dashboard.
package dashboard

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// seed is the image store that all servers of this process start with.
var seed harness.Seed

func TestMain(m *testing.M) {
	code := m.Run()
	if err := seed.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// shots is where the screenshots go, from this directory.
const shots = "../../build/dashboard"

// relay accepts TCP connections for a unix socket, as ssh -L does. Browsers open no such socket.
func relay(t *testing.T, socket string) (address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() { l.Close(); work.Wait() })
	work.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { carry(t.Context(), down, socket) })
		}
	})
	return l.Addr().String()
}

func carry(ctx context.Context, down net.Conn, socket string) {
	defer down.Close()
	up, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return // the service restarts
	}
	defer up.Close()
	defer context.AfterFunc(ctx, func() { down.Close(); up.Close() })()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(up, down); up.Close(); down.Close() })
	both.Go(func() { _, _ = io.Copy(down, up); up.Close(); down.Close() })
	both.Wait()
}

// tab is one page of the browser. Its methods are for the test's goroutine, and fail the test.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu     sync.Mutex
	faults []string // of the console, and requests to elsewhere
}

// open starts a browser of its own with one page, and fails the test at its end if the page made a
// request elsewhere, broke its policy or threw an error.
func open(t *testing.T, socket string) *tab {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("chromium not found: %v: run integration/scripts/deps.sh", err)
	}
	// Chromium leaves files here when it is killed. The path is short because it has a socket in it.
	temp, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	o := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.Env("TMPDIR=" + temp), chromedp.NoFirstRun,
		chromedp.NoSandbox, chromedp.Headless,
		chromedp.DisableGPU, chromedp.WindowSize(1280, 900),
	}
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync",
		"disable-extensions", "disable-dev-shm-usage", "hide-scrollbars"} {
		o = append(o, chromedp.Flag(flag, true))
	}
	all, stopAll := chromedp.NewExecAllocator(context.Background(), o...)
	ctx, stop := chromedp.NewContext(all)
	t.Cleanup(func() { stop(); stopAll() })
	b := &tab{t: t, ctx: ctx, base: "http://" + relay(t, socket)}
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	b.run("start", command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}),
		command(runtime.Enable, cdp.Empty{}), command(emulation.SetLocaleOverride, emulation.SetLocaleOverrideParams{Locale: "en_GB"}))
	limited, cancel := context.WithTimeout(ctx, 3*harness.Long)
	t.Cleanup(cancel)
	b.ctx = limited
	return b
}

// command returns an action that sends a command of the browser's protocol.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// listen collects what a page of the dashboard must never do.
func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(strings.TrimPrefix(e.Request.URL, "blob:"), b.base+"/") && !strings.HasPrefix(e.Request.URL, "about:") &&
			!strings.HasPrefix(e.Request.URL, "data:") { // the browser's own icons
			b.faults = append(b.faults, "a request to "+e.Request.URL)
		}
	case *log.EventEntryAdded:
		if strings.Contains(e.Entry.Text, "Content Security Policy") {
			b.faults = append(b.faults, e.Entry.Text)
		}
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, e.ExceptionDetails.Text)
	}
}

// faultless fails the test if the page did what it must not.
func (b *tab) faultless() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		b.t.Errorf("the page: %s", f)
	}
}

func (b *tab) run(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.shot("failure")
		b.t.Fatalf("%s: %v", what, err)
	}
}

// eval evaluates JavaScript in the page.
func eval[T any](b *tab, script string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script))
	if err != nil {
		b.t.Fatalf("%s: %v", script, err)
	}
	return v
}

// text returns the text of the page.
func (b *tab) text() string {
	b.t.Helper()
	return eval[string](b, `document.body.innerText`)
}

// await waits until JavaScript is true, and returns after how long it was.
func (b *tab) await(script string) time.Duration {
	b.t.Helper()
	began := time.Now()
	for {
		if eval[bool](b, `!!(`+script+`)`) {
			return time.Since(began)
		}
		if time.Since(began) > harness.Short {
			b.shot("failure")
			b.t.Fatalf("not within %s: %s; the page:\n%s", harness.Short, script, b.text())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// see waits until the page shows a text.
func (b *tab) see(text string) {
	b.t.Helper()
	b.await(fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
}

// visit opens a page of the dashboard and waits for its heading.
func (b *tab) visit(path, heading string) {
	b.t.Helper()
	b.run("visit "+path, chromedp.Navigate("about:blank"), chromedp.Navigate(b.base+"/ui/#/"+path))
	b.await(fmt.Sprintf(`document.querySelector('h1')?.innerText.includes(%q)`, heading))
}

// press clicks the first visible button with a text or accessible name.
func (b *tab) press(name string) {
	b.t.Helper()
	button := fmt.Sprintf(`[...document.querySelectorAll('button, summary, nav a')].filter(e => e.offsetParent !== null)`+
		`.find(e => (e.ariaLabel ?? e.innerText).trim() === %[1]q || e.innerText.trim() === %[1]q)`, name)
	b.await(button)
	eval[bool](b, `(`+button+`.click(), true)`)
}

// signIn opens the dashboard with a token.
func (b *tab) signIn(token string) {
	b.t.Helper()
	b.run("open", chromedp.Navigate(b.base+"/ui/"), chromedp.WaitVisible("#token"))
	b.run("sign in", chromedp.SendKeys("#token", token+"\r"))
	b.see("Sign out")
}

// shot writes a screenshot of the whole page.
func (b *tab) shot(name string) {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Logf("screenshot %s: %v", name, err)
		return
	}
	if err := os.MkdirAll(shots, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shots, strings.ReplaceAll(b.t.Name(), "/", "-")+"-"+name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
	if !bytes.HasPrefix(png, []byte("\x89PNG")) {
		b.t.Errorf("screenshot %s is not a PNG", name)
	}
}

// size sets the size of the page in CSS pixels.
func (b *tab) size(width, height int64) {
	b.t.Helper()
	b.run("size", chromedp.EmulateViewport(width, height))
}

// dark asks for the dark colours.
func (b *tab) dark() {
	b.t.Helper()
	b.run("dark", command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
	}))
}

// reload loads the page again.
func (b *tab) reload() {
	b.t.Helper()
	b.run("reload", chromedp.Reload(), chromedp.WaitVisible("h1"))
}
