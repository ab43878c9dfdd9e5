package service

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// checkListen refuses addresses that would be open to others.
func checkListen(c config.Config) error {
	network, address := config.SplitListen(c.Listen)
	if network == "unix" {
		return nil
	}
	bad := func(why string) error {
		return cli.Refuse(errdefs.ErrInvalidArgument, "listen is %s: %s", c.Listen, why)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return bad("must be unix:PATH or HOST:PORT")
	}
	ip := net.ParseIP(host)
	local := host == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case c.TokenFile == "":
		return bad("TCP needs a token; give --token-file")
	case !local && !c.AllowRemote:
		return bad("it is not a loopback address; say --allow-remote if others shall reach it")
	}
	return nil
}

// listen opens the server's socket. Call it before other goroutines create files: the umask applies
// to the whole process.
func listen(ctx context.Context, c config.Config) (net.Listener, error) {
	network, address := config.SplitListen(c.Listen)
	if network != "unix" {
		l, err := new(net.ListenConfig).Listen(ctx, network, address)
		if err != nil {
			return nil, listenError(c.Listen, err)
		}
		return l, nil
	}
	if err := clearSocket(ctx, address); err != nil {
		return nil, err
	}
	old := syscall.Umask(0o177) // so that it never exists with another mode than 0600
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	syscall.Umask(old)
	if err != nil {
		return nil, listenError(c.Listen, err)
	}
	return l, nil
}

func listenError(where string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return cli.Refuse(errdefs.ErrUnavailable, "listen on %s: another program listens there: %w", where, err)
	case errors.Is(err, os.ErrNotExist):
		return cli.Refuse(errdefs.ErrInvalidArgument, "listen on %s: its directory does not exist: %w", where, err)
	case errors.Is(err, os.ErrPermission):
		return cli.Refuse(errdefs.ErrPermissionDenied, "listen on %s: %w", where, err)
	}
	return cli.Refuse(errdefs.ErrFailedPrecondition, "listen on %s: %w", where, err)
}

// clearSocket removes the socket of a server that has ended: nothing answers on it.
func clearSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return listenError("unix:"+path, err)
	case info.Mode()&os.ModeSocket == 0:
		return cli.Refuse(errdefs.ErrInvalidArgument, "listen on unix:%s: the path exists and is not a socket", path)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		conn.Close()
		return cli.Refuse(errdefs.ErrUnavailable, "listen on unix:%s: another server answers there", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return listenError("unix:"+path, err)
		}
		return nil
	}
	return listenError("unix:"+path, err)
}
