package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// answerTimeout bounds the wait for a server's answer, before a command works without one.
const answerTimeout = 5 * time.Second

// startTimeout bounds the wait for a server that holds the state directory and does not listen yet.
// It may also listen elsewhere.
const startTimeout = 5 * time.Second

// ConfigFile returns the path of the configuration file, or "" if none is given.
func (a *App) ConfigFile() string {
	if a.Flags.Config != "" {
		return a.Flags.Config
	}
	path, _ := a.Lookup("ORCHESTRATOR_CONFIG")
	return path
}

// Settings reads the configuration file, the environment and the global flags. The later ones take
// precedence. The result is not validated.
func (a *App) Settings() (config.Config, error) {
	c, err := config.Load(a.ConfigFile())
	if err != nil {
		return c, err
	}
	c.ApplyEnvironment(a.Lookup)
	if a.Flags.StateDir != "" {
		c.StateDir = a.Flags.StateDir
	}
	return c, nil
}

// ValidSettings returns the validated Settings.
func (a *App) ValidSettings() (config.Config, error) {
	c, err := a.Settings()
	if err != nil {
		return c, err
	}
	return c, c.Validate()
}

// Address returns where to look for a server: the flag, ORCHESTRATOR_ADDRESS, or where a server
// with this configuration listens.
func (a *App) Address(c config.Config) string {
	if a.Flags.Address != "" {
		return a.Flags.Address
	}
	if v, ok := a.Lookup("ORCHESTRATOR_ADDRESS"); ok && v != "" {
		return v
	}
	if network, _ := config.SplitListen(c.Listen); network == "unix" {
		return c.Listen
	}
	address := c.Listen
	host, port, err := net.SplitHostPort(c.Listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	if c.TLS.CertFile != "" {
		return "https://" + address
	}
	return address
}

// tlsConfig reads the files for a connection with TLS. It returns nil if none is named.
func (a *App) tlsConfig() (*tls.Config, error) {
	files := client.TLSFiles{CA: a.Flags.CAFile, Cert: a.Flags.CertFile, Key: a.Flags.KeyFile}
	for path, variable := range map[*string]string{
		&files.CA: "ORCHESTRATOR_CA_FILE", &files.Cert: "ORCHESTRATOR_CERT_FILE", &files.Key: "ORCHESTRATOR_KEY_FILE",
	} {
		if v, ok := a.Lookup(variable); ok && *path == "" {
			*path = v
		}
	}
	return files.Config()
}

// token returns the token to send to the server, or "" for none.
func (a *App) token(c config.Config) (string, error) {
	path := a.Flags.TokenFile
	if path == "" {
		if v, ok := a.Lookup("ORCHESTRATOR_TOKEN"); ok && v != "" {
			return v, nil
		}
		path = c.TokenFile
	}
	if path == "" {
		return "", nil
	}
	return ReadToken(path)
}

// ClientFor returns a client for the address and token of c. It connects with the first call.
func (a *App) ClientFor(c config.Config) (*client.Client, error) {
	token, err := a.token(c)
	if err != nil {
		return nil, err
	}
	secure, err := a.tlsConfig()
	if err != nil {
		return nil, err
	}
	return client.New(client.Options{Address: a.Address(c), Token: token, TLS: secure})
}

// Client returns a client for a command that needs a server. If a server is starting, it waits for
// that.
func (a *App) Client(ctx context.Context) (*client.Client, error) {
	c, err := a.Settings()
	if err != nil {
		return nil, err
	}
	a.AwaitStart(ctx, c, startTimeout)
	return a.ClientFor(c)
}

// WithClient returns a function for cobra.Command.RunE that calls do with the client of Client.
func (a *App) WithClient(
	do func(cmd *cobra.Command, cl *client.Client, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cl, err := a.Client(cmd.Context())
		if err != nil {
			return err
		}
		return do(cmd, cl, args)
	}
}

// AwaitStart waits while a server is starting, at most for limit. A command that runs right after
// "serve" would fail or be in the server's way otherwise.
func (a *App) AwaitStart(ctx context.Context, c config.Config, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	network, address := config.SplitListen(a.Address(c))
	if _, host, ok := strings.Cut(address, "://"); ok {
		address = host
	}
	for ctx.Err() == nil && ServerPID(c.StateDir) != "" {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			conn.Close()
			return
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return // the call itself reports the error
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// FindServer returns a client for the server that answers, or nil if none does. It is an error if
// something else answers, or if the server refuses the caller. Outside of Linux, where commands
// need a server, it returns a client.NoServerError instead of nil.
func (a *App) FindServer(ctx context.Context, c config.Config) (*client.Client, error) {
	return a.findServer(ctx, c, onLinux)
}

// findServer is FindServer. optional says that commands can work without a server.
func (a *App) findServer(ctx context.Context, c config.Config, optional bool) (*client.Client, error) {
	cl, err := a.ClientFor(c)
	if err != nil {
		return nil, err
	}
	a.AwaitStart(ctx, c, startTimeout)
	ask, cancel := context.WithTimeoutCause(
		ctx,
		answerTimeout,
		Refuse(
			errdefs.ErrUnavailable,
			"the server at %s is there but does not answer within %s",
			cl.Address(),
			answerTimeout,
		),
	)
	defer cancel()
	switch _, err := cl.Version(ask); {
	case optional && errors.Is(err, client.ErrNoServer):
		cl.Close()
		return nil, nil
	case err != nil:
		cl.Close()
		return nil, err
	}
	return cl, nil
}

// ServerPID returns the pid of the process that holds a state directory, "unknown", or "" if none
// does.
func ServerPID(dir string) string {
	path := filepath.Join(dir, "lock")
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if free, _ := hostfile.TryLock(f, hostfile.Shared); free {
		return ""
	}
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0) // only used in a message
	pid := strings.TrimSpace(string(text[:n]))
	if pid == "" {
		pid = "unknown"
	}
	return pid
}
