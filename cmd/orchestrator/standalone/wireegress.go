//go:build linux

package standalone

import (
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/egress"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// maxCredential bounds a credential file, in bytes.
const maxCredential = 64 << 10

// EgressOptions returns what sandboxes may reach, or nil if that is nothing.
func EgressOptions(c config.Egress, log *slog.Logger) (*egress.Config, error) {
	if !c.Enabled {
		return nil, nil
	}
	o := &egress.Config{Gateway: netpolicy.Options{Limits: c.Limits.Gateway(), Log: log}}
	var err error
	if o.Gateway.Private, err = c.Exceptions(); err != nil {
		return nil, err
	}
	if o.Gateway.Resolver, err = netpolicy.NewResolver(c.Resolver); err != nil {
		return nil, err
	}
	if o.Gateway.Roots, err = rootCAs(c.CAFile); err != nil {
		return nil, fmt.Errorf("configuration: egress.ca_file: %w", err)
	}
	for i, rule := range c.Rules() {
		o.Allow = append(o.Allow, egress.Allowance{Rule: rule, Callers: c.Allow[i].Callers, Profiles: c.Allow[i].Profiles})
	}
	var plain []netpolicy.Secret
	for i, s := range c.Secrets {
		value, err := readCredential(s.ValueFile)
		if err != nil {
			return nil, fmt.Errorf("configuration: egress.secrets[%d].value_file: %w", i, err)
		}
		one := netpolicy.Secret{Name: s.Name, Hosts: s.Hosts, Header: s.Header, Value: s.Prefix + value}
		plain = append(plain, one)
		o.Secrets = append(o.Secrets, egress.Credential{Secret: one, Bare: value, Env: s.Env, Callers: s.Callers})
	}
	if err := netpolicy.CheckSecrets(plain); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return o, nil
}

// rootCAs returns the certificate authorities of the host and of a file. It returns nil, the host's
// alone, without a file.
func rootCAs(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("authorities of this host: %w", err)
	}
	if !pool.AppendCertsFromPEM(text) {
		return nil, cli.Refuse(errdefs.ErrInvalidArgument, "%s has no certificate in PEM", path)
	}
	return pool, nil
}

// readCredential reads a file that only its owner may be able to read.
func readCredential(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO must not wait for a writer
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return "", cli.Refuse(
			errdefs.ErrFailedPrecondition,
			"%s has mode %v: it must be a file that only its owner can read (chmod 600)",
			path,
			info.Mode(),
		)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxCredential+1))
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(b))
	if value == "" || len(b) > maxCredential {
		return "", cli.Refuse(errdefs.ErrInvalidArgument, "%s is empty, or larger than %d bytes", path, maxCredential)
	}
	return value, nil
}
