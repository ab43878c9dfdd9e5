package registry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// dockerConfig is the used part of a Docker configuration file.
type dockerConfig struct {
	Auths       map[string]login  `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// login is the entry for one registry.
type login struct {
	Auth          string `json:"auth"` // user:password in base64
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

const (
	maxDockerConfig = 4 << 20
	helperTime      = 30 * time.Second
	maxHelper       = 64 << 10
	// hubKey is the key of docker.io in a Docker configuration.
	hubKey = "https://index.docker.io/v1/"
	// identity is the user name of a helper's answer that contains an identity token.
	identity = "<token>"
)

// credentials returns the credentials for a registry. It reads the Docker configuration on each
// call, so that a login takes effect without a restart.
func (c *Client) credentials(ctx context.Context, r ref.Reference) (authn.Authenticator, error) {
	config, path, err := c.dockerConfig()
	if err != nil {
		return nil, err
	}
	keys := keysOf(r.Registry)
	for _, key := range keys {
		if helper := config.CredHelpers[key]; helper != "" {
			return c.ask(ctx, helper, keys[0])
		}
	}
	for _, key := range keys {
		found, ok := config.Auths[key]
		switch {
		case !ok || found == (login{}):
			continue
		case found.IdentityToken != "": // the user name next to it has no meaning
			return authn.FromConfig(authn.AuthConfig{Username: identity, IdentityToken: found.IdentityToken}), nil
		case found.Auth != "":
			var err error
			if found.Username, found.Password, err = decodeBasicAuth(found.Auth); err != nil {
				return nil, refused("%s: auths[%q].auth is not base64 of user:password", path, key)
			}
		}
		return authn.FromConfig(authn.AuthConfig{Username: found.Username, Password: found.Password,
			RegistryToken: found.RegistryToken}), nil
	}
	if config.CredsStore != "" {
		return c.ask(ctx, config.CredsStore, keys[0])
	}
	return authn.Anonymous, nil
}

// keysOf returns the keys under which tools store a registry in the configuration.
func keysOf(host string) []string {
	if host == hub {
		return []string{hubKey, "index.docker.io", hub, "https://index.docker.io", "https://docker.io",
			"registry-1.docker.io"}
	}
	return []string{host, "https://" + host, "http://" + host, "https://" + host + "/", "https://" + host + "/v1/",
		"https://" + host + "/v2/", host + "/"}
}

func decodeBasicAuth(auth string) (user, secret string, err error) {
	raw, err := base64.StdEncoding.DecodeString(auth)
	if err != nil {
		return "", "", err
	}
	user, secret, ok := strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")
	if !ok {
		return "", "", errdefs.ErrInvalidArgument
	}
	return user, secret, nil
}

// dockerConfig reads the configuration. A missing file gives an empty one.
func (c *Client) dockerConfig() (dockerConfig, string, error) {
	dir, _ := c.o.Environment("DOCKER_CONFIG")
	if dir == "" {
		home, _ := c.o.Environment("HOME")
		if home == "" {
			return dockerConfig{}, "", nil
		}
		dir = filepath.Join(home, ".docker")
	}
	path := filepath.Join(dir, "config.json")
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return dockerConfig{}, path, nil
	}
	if err != nil {
		return dockerConfig{}, path, fmt.Errorf("docker configuration: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxDockerConfig))
	if err != nil {
		return dockerConfig{}, path, fmt.Errorf("docker configuration %s: %w: %w", path,
			err, errdefs.ErrFailedPrecondition)
	}
	var config dockerConfig
	if err := json.Unmarshal(raw, &config); err != nil {
		// The decoder's error can contain a part of a secret.
		return dockerConfig{}, path, refused("docker configuration %s is invalid JSON", path)
	}
	return config, path, nil
}

var helperName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// ask runs a credential helper on the host.
func (c *Client) ask(ctx context.Context, helper, server string) (authn.Authenticator, error) {
	if !helperName.MatchString(helper) {
		return nil, refused("invalid credential helper %q: use a name without a path", clip.Message(helper))
	}
	program := "docker-credential-" + helper
	ctx, cancel := context.WithTimeoutCause(ctx, helperTime,
		refused("credential helper %s did not answer within %s", program, helperTime))
	defer cancel()
	var out, stderr limited
	cmd := exec.CommandContext(ctx, program, "get") // the operator's configuration names it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(server), &out, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case err != nil && strings.Contains(out.String(), "credentials not found"):
		return authn.Anonymous, nil
	case err != nil:
		text := fmt.Sprintf("credential helper %s: %v", program, err)
		if words := strings.TrimSpace(stderr.String()); words != "" {
			text += ": " + clip.Message(words)
		}
		return nil, refused("%s", text)
	}
	var got struct {
		Username string `json:"Username"`
		Secret   string `json:"Secret"`
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return nil, refused("credential helper %s sent an invalid answer", program)
	}
	if got.Username == identity {
		return authn.FromConfig(authn.AuthConfig{Username: identity, IdentityToken: got.Secret}), nil
	}
	return authn.FromConfig(authn.AuthConfig{Username: got.Username, Password: got.Secret}), nil
}

// limited keeps the first maxHelper bytes of a program's output.
type limited struct{ bytes.Buffer }

// Write implements io.Writer. It never fails.
func (l *limited) Write(p []byte) (int, error) {
	if room := maxHelper - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
