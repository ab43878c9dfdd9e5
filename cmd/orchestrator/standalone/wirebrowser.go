//go:build linux

package standalone

import (
	"bytes"
	"cmp"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/sandboxed"
)

// BrowserOptions returns the configuration of browser.open. The browser has its own certificate
// authorities, so it gets only the operator's.
func BrowserOptions(c config.Config) (*sandboxed.BrowserOptions, error) {
	open, err := reach.Hosts(c.Browser.Open).Compile()
	if err != nil {
		return nil, fmt.Errorf("configuration: browser.open.%w", err)
	}
	o := &sandboxed.BrowserOptions{Template: c.Browser.Template, Allowed: open.Named("browser.open")}
	file := cmp.Or(c.Web.CAFile, c.Egress.CAFile)
	if file == "" {
		return o, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("configuration: web.ca_file: %w", err)
	}
	var roots bytes.Buffer
	if !addCertificates(&roots, text) {
		return nil, cli.Refuse(errdefs.ErrInvalidArgument, "configuration: web.ca_file: %s has no certificate in PEM", file)
	}
	o.Roots = roots.String()
	return o, nil
}
