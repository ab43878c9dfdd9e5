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

// private asks for a login, as a registry with basic authentication does.
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

// tokens asks for a bearer token, and gives one for an identity token.
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

func TestLogins(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("ann:s3cret"))
	const helper = "#!/bin/sh\nread server\n[ \"$server\" = HOST ] || { echo wrong server >&2; exit 3; }\n"
	for name, c := range map[string]struct {
		ask    func(*site)
		config string // HOST is the registry's
		helper string // docker-credential-test
		want   string
	}{
		"auth":           {private, `{"auths":{"HOST":{"auth":"` + auth + `"}}}`, "", ""},
		"with a scheme":  {private, `{"auths":{"https://HOST/v2/":{"auth":"` + auth + `"}}}`, "", ""},
		"none":           {private, ``, "", "there are none for it in the Docker configuration"},
		"of another":     {private, `{"auths":{"HOST.example":{"auth":"` + auth + `"}}}`, "", "there are none for it"},
		"wrong":          {private, `{"auths":{"HOST":{"username":"ann","password":"wr0ng"}}}`, "", "refuses the credentials"},
		"no JSON":        {private, `{"auths":{"HOST":{"auth":"s3cret`, "", "is not the JSON it should be"},
		"no base64":      {private, `{"auths":{"HOST":{"auth":"s3cret!"}}}`, "", "is not user:password in base64"},
		"helper":         {private, `{"credHelpers":{"HOST":"test"}}`, helper + `echo '{"Username":"ann","Secret":"s3cret"}'`, ""},
		"store":          {private, `{"credsStore":"test"}`, helper + `echo '{"Username":"ann","Secret":"s3cret"}'`, ""},
		"helper fails":   {private, `{"credsStore":"test"}`, helper + "echo s3cret\necho the vault is locked >&2\nexit 1", "credential helper docker-credential-test: exit status 1: the vault is locked"},
		"helper mumbles": {private, `{"credsStore":"test"}`, helper + "echo s3cret", "does not answer in its protocol"},
		"helper unknown": {private, `{"credsStore":"nope"}`, "", "docker-credential-nope"},
		"helper a path":  {private, `{"credsStore":"../../bin/x"}`, "", "a name is needed, no path"},
		"helper has none": {private, `{"credsStore":"test"}`, helper + "echo credentials not found in native keychain\nexit 1",
			"there are none for it"},
		"identity":      {tokens, `{"auths":{"HOST":{"identitytoken":"1dentity","username":"x","auth":"` + auth + `"}}}`, "", ""},
		"identity help": {tokens, `{"credsStore":"test"}`, helper + `echo '{"Username":"<token>","Secret":"1dentity"}'`, ""},
		"identity old":  {tokens, `{"auths":{"HOST":{"identitytoken":"s3cret"}}}`, "", "refuses the credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			at := s.push(t, "private/app", image(t, layer(t, "f", "x")))
			c.ask(s)
			dir := t.TempDir()
			if c.config != "" {
				if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(strings.ReplaceAll(c.config, "HOST", s.host)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.helper != "" {
				if err := os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte(strings.ReplaceAll(c.helper, "HOST", s.host)+"\n"), 0o700); err != nil {
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
				t.Errorf("not %q: %v", c.want, err)
			}
			if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), auth)) {
				t.Errorf("a secret is in %v", err)
			}
		})
	}
}
