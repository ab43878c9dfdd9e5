package main

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// answerTime is how long a server may take to say that it is there, before a
// command does without it.
const answerTime = 5 * time.Second

// startTime is how long a command waits for a server that holds the state
// directory and does not listen yet. It may listen elsewhere, too.
const startTime = 5 * time.Second

// configFile is the configuration file's path, or "" for none.
func (a *app) configFile() string {
	if a.flags.config != "" {
		return a.flags.config
	}
	path, _ := a.lookup("ORCHESTRATOR_CONFIG")
	return path
}

// settings reads the configuration file, the environment over it, and the
// flags of all commands over both. It is not validated yet.
func (a *app) settings() (config.Config, error) {
	c, err := config.Load(a.configFile())
	if err != nil {
		return c, err
	}
	c.ApplyEnvironment(a.lookup)
	if a.flags.stateDir != "" {
		c.StateDir = a.flags.stateDir
	}
	return c, nil
}

// valid is settings that are validated as they are.
func (a *app) valid() (config.Config, error) {
	c, err := a.settings()
	if err != nil {
		return c, err
	}
	return c, c.Validate()
}

// address is where a server is looked for: the flag, ORCHESTRATOR_ADDRESS, or
// where one with this configuration listens.
func (a *app) address(c config.Config) string {
	if a.flags.address != "" {
		return a.flags.address
	}
	if v, ok := a.lookup("ORCHESTRATOR_ADDRESS"); ok && v != "" {
		return v
	}
	if network, _ := config.SplitListen(c.Listen); network == "unix" {
		return c.Listen
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return c.Listen
}

// token is what is sent to the server, or "".
func (a *app) token(c config.Config) (string, error) {
	path := a.flags.tokenFile
	if path == "" {
		if v, ok := a.lookup("ORCHESTRATOR_TOKEN"); ok && v != "" {
			return v, nil
		}
		path = c.TokenFile
	}
	if path == "" {
		return "", nil
	}
	return readToken(path)
}

func (a *app) clientFor(c config.Config) (*client.Client, error) {
	token, err := a.token(c)
	if err != nil {
		return nil, err
	}
	return client.New(client.Options{Address: a.address(c), Token: token})
}

// client is for commands that need a server.
func (a *app) client(ctx context.Context) (*client.Client, error) {
	c, err := a.settings()
	if err != nil {
		return nil, err
	}
	a.awaitStart(ctx, c, startTime)
	return a.clientFor(c)
}

// awaitStart waits while a server is starting: it was started just before this
// command, and without it the command would fail or get in its way.
func (a *app) awaitStart(ctx context.Context, c config.Config, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	network, address := config.SplitListen(a.address(c))
	for ctx.Err() == nil && serverOf(c.StateDir) != "" {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			conn.Close()
			return
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return // what is wrong is told by the call itself
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// server is a client for the server that answers, or nil if none does. What
// answers and is no server of ours, or refuses us, is an error.
func (a *app) server(ctx context.Context, c config.Config) (*client.Client, error) {
	cl, err := a.clientFor(c)
	if err != nil {
		return nil, err
	}
	a.awaitStart(ctx, c, startTime)
	ask, cancel := context.WithTimeoutCause(ctx, answerTime,
		refuse(errdefs.ErrUnavailable, "the server at %s is there but does not answer within %s", cl.Address(), answerTime))
	defer cancel()
	switch _, err := cl.Version(ask); {
	case errors.Is(err, client.ErrNoServer):
		cl.Close()
		return nil, nil
	case err != nil:
		return nil, err
	}
	return cl, nil
}
