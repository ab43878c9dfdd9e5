package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/servertls"
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
	switch {
	case c.TokenFile == "":
		return bad("TCP needs a token; give --token-file")
	case !isLoopback(host) && c.TLS.CertFile == "" && !c.AllowRemote:
		return bad("it is not a loopback address: set tls.cert_file and tls.key_file, or say --allow-remote to " +
			"send tokens and output unencrypted")
	}
	return nil
}

// openTLS reads the files of TLS, if they are configured.
func (s *service) openTLS() error {
	t := s.config.TLS
	if t.CertFile == "" {
		return nil
	}
	var err error
	s.tls, err = servertls.Open(servertls.Files{
		Cert: t.CertFile, Key: t.KeyFile, ClientCA: t.ClientCAFile, RequireClient: t.ClientAuth == "required",
	}, func() { s.api.EndCertificates() })
	return err
}

// tlsConfig returns the configuration of the listener, or nil without TLS.
func (s *service) tlsConfig() *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Config()
}

// trustsChains returns the check of clients' chains, or nil without TLS.
func (s *service) trustsChains() func([][]*x509.Certificate) bool {
	if s.tls == nil {
		return nil
	}
	return s.tls.Trusts
}

// certificates returns the callers of client certificates.
func certificates(c config.TLS) []caller.Certificate {
	list := make([]caller.Certificate, 0, len(c.Clients))
	for _, e := range c.Clients {
		list = append(list, caller.Certificate{
			Name: e.Name, Caller: e.Caller, Profile: e.Profile, Trust: e.Trust, Operator: e.Operator,
		})
	}
	return list
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
	gid, err := socketGroup(c.SocketGroup)
	if err != nil {
		return nil, err
	}
	old := syscall.Umask(0o177) // so that it is never open to more than its owner before it has its group
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	syscall.Umask(old)
	if err != nil {
		return nil, listenError(c.Listen, err)
	}
	if gid >= 0 {
		if err := errors.Join(os.Lchown(address, -1, gid), os.Chmod(address, c.SocketPerm())); err != nil {
			return nil, errors.Join(cli.Refuse(errdefs.ErrFailedPrecondition, "socket_group %s: %w", c.SocketGroup, err), l.Close())
		}
	}
	return l, nil
}

// socketGroup returns the number of the group with this name or number, or -1 for "".
func socketGroup(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if gid, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(gid), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, cli.Refuse(
			errdefs.ErrInvalidArgument,
			"configuration: socket_group is %s: no such group on this host: create it with `groupadd --system %s`",
			name,
			name,
		)
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return 0, fmt.Errorf("socket_group %s: %w", name, err)
	}
	return gid, nil
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
