//go:build integration

package scenarios

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// hangUp sends SIGHUP and waits until the log has a text that it did not have before.
func hangUp(t *testing.T, s *harness.Server, text string) {
	t.Helper()
	before := strings.Count(s.Log(), text)
	s.Signal(syscall.SIGHUP)
	harness.Eventually(t, harness.Short, "the log has "+text, func() bool { return strings.Count(s.Log(), text) > before })
}

func TestReloadAppliesWhatCanChange(t *testing.T) {
	onServer(t, "", func(t *testing.T, s *harness.Server) {
		dir := harness.TempDir(t)
		profiles := "\nprofiles: {dir: " + dir + "}\n"
		s.Configure(harness.DefaultConfig + "egress: {allow: [{host: a.example}]}\nexec: {timeout: 1m}" + profiles)
		hangUp(t, s, `changed="[egress.allow profiles.dir]" needs_restart=[exec.timeout]`)

		harness.WriteFile(t, filepath.Join(dir, "mine.yaml"), "name: mine\nextends: default\n")
		hangUp(t, s, `changed=[profiles] needs_restart=[exec.timeout]`)
		wantProfile(t, s, "mine")

		for _, bad := range []string{"lisen: x", "egress: {allow: [{host: '***'}]}", "profiles: {dir: /nowhere}"} {
			s.Configure(harness.DefaultConfig + bad)
			hangUp(t, s, "failed to reload the configuration; nothing has changed")
		}
		wantProfile(t, s, "mine")
		s.Configure(harness.DefaultConfig + profiles)
		hangUp(t, s, `changed=[egress.allow] needs_restart=[]`)
	})
}

// wantProfile checks that callers can use a profile.
func wantProfile(t *testing.T, s *harness.Server, name string) {
	t.Helper()
	if _, err := s.Client.Tools.List(within(t), name); err != nil {
		t.Errorf("Tools.List(%s) = %v, want nil", name, err)
	}
}

// The token and the entries of client certificates change without a restart, and what is revoked
// loses its connections.
func TestReloadReplacesCredentials(t *testing.T) {
	e := startTLS(t)
	ci, operator := e.client(t, "ci"), e.client(t, "")
	stream, err := ci.Run(within(t), v1.Run{Exec: v1.Exec{Command: "true"}})
	if err != nil {
		t.Fatalf("run before the reload = %+v, %v", stream, err)
	}
	held := make(chan error, 1)
	go func() { // received below
		_, err := ci.Run(within(t), v1.Run{Exec: v1.Exec{Command: "sleep 60"}})
		held <- err
	}()
	harness.Eventually(t, harness.Short, "the command runs", func() bool {
		list, err := operator.AllSandboxes(within(t))
		return err == nil && slices.ContainsFunc(list, func(sb v1.Sandbox) bool { return sb.Caller == "ci" })
	})
	text, err := os.ReadFile(e.config)
	if err != nil {
		t.Fatal(err)
	}
	harness.WriteFile(t, e.config, strings.ReplaceAll(string(text), "cn:ci", "cn:other"))
	harness.WriteFile(t, e.token, strings.Repeat("fedcba9876543210", 2))
	hangUp(t, e.Server, `changed="[tls.clients token_file]"`)
	if err := <-held; err == nil {
		t.Error("the call of the removed certificate ended without an error, want a closed connection")
	}
	if _, err := ci.Templates.List(within(t)); !errdefs.IsUnauthorized(err) {
		t.Errorf("request with the removed certificate = %v, want Unauthenticated", err)
	}
	if _, err := operator.Tokens.List(within(t)); !errdefs.IsUnauthorized(err) {
		t.Errorf("request with the earlier token = %v, want Unauthenticated", err)
	}
	if _, err := e.client(t, "").Tokens.List(within(t)); err != nil {
		t.Errorf("request with the new token = %v, want nil", err)
	}
	if _, err := e.client(t, "other").Templates.List(within(t)); err != nil {
		t.Errorf("request with the new entry's certificate = %v, want nil", err)
	}
}

// A reload that moves to a socket without a token must not leave the TCP listener without one.
func TestReloadKeepsTheTokenOfTheListener(t *testing.T) {
	e := startTLS(t)
	text, err := os.ReadFile(e.config)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(harness.TempDir(t), "s.sock")
	changed := strings.Replace(string(text), "127.0.0.1:0", "unix:"+socket, 1)
	changed = regexp.MustCompile(`(?s)token_file: .*trust: 3\}\]`).ReplaceAllString(changed, "")
	harness.WriteFile(t, e.config, changed)
	hangUp(t, e.Server, ` token_file]"`) // the end of needs_restart
	if _, err := e.client(t, "").Tokens.List(within(t)); err != nil {
		t.Errorf("request with the token after the reload = %v, want nil", err)
	}
	files := client.TLSFiles{CA: e.authority.File()}
	config, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	anonymous, err := client.New(client.Options{Address: e.address, TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	defer anonymous.Close()
	if _, err := anonymous.Tokens.List(within(t)); !errdefs.IsUnauthorized(err) {
		t.Errorf("request without a token after the reload = %v, want Unauthenticated", err)
	}
}
