package registry

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
)

// network is a transport that passes requests to handlers by host.
type network map[string]http.HandlerFunc

func (n network) RoundTrip(r *http.Request) (*http.Response, error) {
	h := n[r.URL.Host]
	if h == nil {
		return nil, fmt.Errorf("no host %s", r.URL.Host)
	}
	w := httptest.NewRecorder()
	h(w, r)
	got := w.Result()
	got.Request = r
	return got, nil
}

// A token server gets the credentials, but a host that it redirects to does not: they are in the
// body of the request, which a redirect sends again.
func TestTokenServerRedirectDropsCredentials(t *testing.T) {
	for name, config := range map[string]string{
		"identity token": `{"auths":{"reg.example":{"identitytoken":"1dentity"}}}`,
		"password":       `{"auths":{"reg.example":{"username":"ann","password":"s3cret"}}}`,
	} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				var mu sync.Mutex
				var seen []string
				took := func(w http.ResponseWriter, r *http.Request) {
					var body []byte
					if r.Body != nil {
						body, _ = io.ReadAll(r.Body)
					}
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, r.URL.String()+" "+string(body)+r.Header.Get("Authorization"))
					fmt.Fprint(w, `{"token":"t0ken","access_token":"t0ken"}`)
				}
				net := network{
					"reg.example": func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("WWW-Authenticate", `Bearer realm="https://auth.example/token",service="x"`)
						w.WriteHeader(http.StatusUnauthorized)
					},
					"auth.example": func(w http.ResponseWriter, r *http.Request) {
						http.Redirect(w, r, "https://evil.example/token", status)
					},
					"evil.example": took,
				}
				dir := t.TempDir()
				if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
					t.Fatal(err)
				}
				c := New(Options{Transport: net, Pause: 1,
					Environment: func(name string) (string, bool) { return dir, name == "DOCKER_CONFIG" }})
				_, err := c.Manifest(t.Context(), ref.Reference{Registry: "reg.example", Repository: "a", Tag: "1"})
				if !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) {
					t.Errorf("Manifest = %v, want FailedPrecondition or Unavailable", err)
				}
				for _, line := range append(seen, fmt.Sprint(err)) {
					if strings.Contains(line, "1dentity") || strings.Contains(line, "s3cret") ||
						strings.Contains(line, "Basic") {
						t.Errorf("request or error = %q, want no credentials", line)
					}
				}
			})
		}
	}
}
