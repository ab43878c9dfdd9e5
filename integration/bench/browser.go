package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const (
	browserTarget = 1500 * time.Millisecond
	// browserExample is the browser template from the documentation.
	browserExample = "docs/examples/templates/browser.yaml"
)

// article is a long page whose end is written by a script.
var article = []byte("<!doctype html><title>An article</title><h1>An article</h1>" +
	strings.Repeat("<p>Words that somebody wrote, <a href='/more'>with a link</a>, and that somebody else is to read.</p>",
		100) +
	"<script>document.body.append('made by a script')</script>")

// browser measures a page's text and picture from a warm browser.
func (b *bench) browser(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write(article)
		})}
	done := make(chan struct{})
	go func() { defer close(done); _ = web.Serve(l) }()
	defer func() { web.Close(); <-done }()
	port := l.Addr().(*net.TCPAddr).Port
	if err := b.browserServer(ctx, port); err != nil {
		return err
	}
	input, err := json.Marshal(map[string]any{"url": fmt.Sprintf("http://localhost:%d/", port), "screenshot": "viewport"})
	if err != nil {
		return err
	}
	var all samples
	for range b.n(20) {
		err := b.srv.poll(ctx, "a browser is warm", 20*time.Millisecond, func() (bool, error) {
			p, err := b.srv.pool(ctx, "browser")
			return p.Warm > 0 && p.Creating == 0 && p.Leased == 0, err
		})
		if err != nil {
			return err
		}
		began := time.Now()
		r, err := b.srv.client.Tools.Call(ctx, "browser.open", v1.ToolCall{Input: input}, client.CallOptions{})
		if err != nil {
			return err
		}
		all = append(all, time.Since(began))
		var page struct {
			Content    string `json:"content"`
			Mode       string `json:"mode"`
			Screenshot struct {
				Height int `json:"height"`
			} `json:"screenshot"`
		}
		if err := json.Unmarshal(r.Output, &page); err != nil {
			return fmt.Errorf("the call ended %s (%v): %w", r.Ending, r.Error, err)
		}
		if page.Mode != "real" || page.Screenshot.Height == 0 || !strings.Contains(page.Content, "made by a script") {
			return fmt.Errorf("unexpected page: ending %s, error %v %+v", r.Ending, r.Error, page)
		}
	}
	b.figure("text and picture of a page from a warm browser, p50", "1.5 s", ms(all.p50()),
		fmt.Sprintf("slowest of %d: %s", len(all), ms(all.max())), all.p50() <= browserTarget)
	return nil
}

// browserServer imports the image of the browser template and starts the service with it.
func (b *bench) browserServer(ctx context.Context, port int) error {
	archive := os.Getenv("ORCHESTRATOR_TEST_BROWSER_ARCHIVE")
	text, err := os.ReadFile(browserExample)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.root, "templates")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "browser.yaml"), text, 0o600); err != nil {
		return err
	}
	if err := b.srv.configure("oci", b.engine.host, 0, 1,
		fmt.Sprintf("templates_dir: '%s'\nbrowser: {open: {http_ports: [%d]}}\n", dir, port)); err != nil {
		return err
	}
	if err := b.srv.command(ctx, "image", "import", archive).Run(); err != nil {
		return fmt.Errorf("import %s: %w\n%s", archive, err, b.srv.tail())
	}
	_, err = b.srv.start(ctx)
	return err
}
