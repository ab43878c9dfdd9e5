package pull

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/images/registry"
)

// private requires basic authentication.
func private(s *site) {
	s.on(func(w http.ResponseWriter, r *http.Request) bool {
		if user, secret, _ := r.BasicAuth(); user == "ann" && secret == "s3cret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

// tokens requires a bearer token, which it gives for an identity token.
func tokens(s *site) {
	s.on(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token" && r.Method == http.MethodPost && r.FormValue("refresh_token") == "1dentity":
			fmt.Fprint(w, `{"access_token":"t0ken"}`)
			return true
		case r.URL.Path == "/token":
			w.WriteHeader(http.StatusUnauthorized)
			return true
		case r.Header.Get("Authorization") == "Bearer t0ken":
			return false
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+s.host+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

// annAuth is the encoded login of the user ann.
var annAuth = base64.StdEncoding.EncodeToString([]byte("ann:s3cret"))

// helperHead is the start of a credential helper that checks the server.
const helperHead = "#!/bin/sh\nread server\n[ \"$server\" = HOST ] || { echo wrong server >&2; exit 3; }\n"

var loginCases = map[string]struct {
	ask    func(*site)
	config string // HOST stands for the host of the registry
	helper string // content of docker-credential-test
	want   string
}{
	"auth":          {private, `{"auths":{"HOST":{"auth":"` + annAuth + `"}}}`, "", ""},
	"with a scheme": {private, `{"auths":{"https://HOST/v2/":{"auth":"` + annAuth + `"}}}`, "", ""},
	"none":          {private, ``, "", "none in the Docker configuration"},
	"of another host": {private, `{"auths":{"HOST.example":{"auth":"` + annAuth + `"}}}`,
		"", "none in the Docker configuration"},
	"wrong": {private, `{"auths":{"HOST":{"username":"ann","password":"wr0ng"}}}`, "",
		"refuses the credentials"},
	"invalid JSON":   {private, `{"auths":{"HOST":{"auth":"s3cret`, "", "is invalid JSON"},
	"invalid base64": {private, `{"auths":{"HOST":{"auth":"s3cret!"}}}`, "", "is not base64 of user:password"},
	"helper": {private, `{"credHelpers":{"HOST":"test"}}`,
		helperHead + `echo '{"Username":"ann","Secret":"s3cret"}'`, ""},
	"store": {private, `{"credsStore":"test"}`, helperHead + `echo '{"Username":"ann","Secret":"s3cret"}'`,
		""},
	"helper fails": {private, `{"credsStore":"test"}`,
		helperHead + "echo s3cret\necho the vault is locked >&2\nexit 1",
		"credential helper docker-credential-test: exit status 1: the vault is locked"},
	"helper answer":  {private, `{"credsStore":"test"}`, helperHead + "echo s3cret", "sent an invalid answer"},
	"helper unknown": {private, `{"credsStore":"nope"}`, "", "docker-credential-nope"},
	"helper a path":  {private, `{"credsStore":"../../bin/x"}`, "", "use a name without a path"},
	"helper has none": {private, `{"credsStore":"test"}`,
		helperHead + "echo credentials not found in native keychain\nexit 1",
		"none in the Docker configuration"},
	"identity": {tokens, `{"auths":{"HOST":{"identitytoken":"1dentity","username":"x","auth":"` + annAuth +
		`"}}}`, "", ""},
	"identity help": {tokens, `{"credsStore":"test"}`, helperHead + `echo '{"Username":"<token>","Secret":"1dentity"}'`,
		""},
	"identity old": {tokens, `{"auths":{"HOST":{"identitytoken":"s3cret"}}}`, "", "refuses the credentials"},
}

func TestLogins(t *testing.T) {
	for name, c := range loginCases {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			at := s.push(t, "private/app", image(t, layer(t, "f", "x")))
			c.ask(s)
			dir := t.TempDir()
			if c.config != "" {
				if err := os.WriteFile(filepath.Join(dir, "config.json"),
					[]byte(strings.ReplaceAll(c.config, "HOST", s.host)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.helper != "" {
				if err := os.WriteFile(filepath.Join(dir, "docker-credential-test"),
					[]byte(strings.ReplaceAll(c.helper, "HOST", s.host)+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			w := newWorld(t, s, func(_ *Options, o *registry.Options) {
				o.Environment = func(name string) (string, bool) { return dir, name == "DOCKER_CONFIG" }
			})
			_, err := w.pull(t, at)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("pull = %v, want %q", err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), annAuth)) {
				t.Errorf("pull = %v, want an error without secrets", err)
			}
		})
	}
}
