//go:build linux

package standalone

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/llmextract"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/sandboxed"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/webtool"
)

// WebOptions returns the configuration of the web tools. It passes the keys to redact.
func WebOptions(c config.Config, redact func(string)) (*sandboxed.WebOptions, error) {
	w := c.Web
	o := &sandboxed.WebOptions{
		Template: w.Template,
		Host:     webtool.Host{Cache: cache.New(w.Cache.Entries, int64(w.Cache.Bytes))},
	}
	var err error
	if o.Host.Fetch, err = reach.Hosts(w.Fetch).Compile(); err != nil {
		return nil, fmt.Errorf("configuration: web.fetch.%w", err)
	}
	if o.Host.Request, err = reach.Hosts(w.Request).Compile(); err != nil {
		return nil, fmt.Errorf("configuration: web.request.%w", err)
	}
	o.Host.Fetch, o.Host.Request = o.Host.Fetch.Named("web.fetch"), o.Host.Request.Named("web.request")
	caFile := cmp.Or(w.CAFile, c.Egress.CAFile)
	if o.Roots, err = webRoots(caFile); err != nil {
		return nil, fmt.Errorf("configuration: web.ca_file: %w", err)
	}
	if w.Search.Provider != "" {
		key, err := webKey(w.Search.KeyFile, redact)
		if err != nil {
			return nil, fmt.Errorf("configuration: web.search.key_file: %w", err)
		}
		if o.Host.Search, err = search.New(w.Search.Options(key)); err != nil {
			return nil, fmt.Errorf("configuration: web.search.%w", err)
		}
	}
	if w.Extract.Kind == "" {
		return o, nil
	}
	key, err := webKey(w.Extract.KeyFile, redact)
	if err != nil {
		return nil, fmt.Errorf("configuration: web.extract.key_file: %w", err)
	}
	options := w.Extract.Options(key)
	if options.Transport, err = modelTransport(caFile); err != nil {
		return nil, fmt.Errorf("configuration: web.ca_file: %w", err)
	}
	model, err := llmextract.New(options)
	if err != nil {
		return nil, fmt.Errorf("configuration: web.extract.%w", err)
	}
	o.Host.Extract = model
	return o, nil
}

func webKey(file string, redact func(string)) (string, error) {
	if file == "" {
		return "", nil
	}
	key, err := readCredential(file)
	if err == nil {
		redact(key)
	}
	return key, err
}

// modelTransport returns a transport for the model's endpoint, which may have a certificate of the
// operator's authority.
func modelTransport(caFile string) (*http.Transport, error) {
	pool, err := rootCAs(caFile)
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, err
}

// rootBundles are the paths where systems keep their trusted certificate authorities, as in
// crypto/x509.
var rootBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// maxRoots bounds the certificates that each request carries to the web program, in bytes.
const maxRoots = 2 << 20

// webRoots returns the certificate authorities of this host and of a file as PEM, because images
// may have none. "" means those of the image.
func webRoots(caFile string) (string, error) {
	var all bytes.Buffer
	if caFile != "" {
		text, err := os.ReadFile(caFile)
		if err != nil {
			return "", err
		}
		if !addCertificates(&all, text) {
			return "", cli.Refuse(errdefs.ErrInvalidArgument, "%s has no certificate in PEM", caFile)
		}
	}
	for _, path := range append([]string{os.Getenv("SSL_CERT_FILE")}, rootBundles...) {
		text, err := os.ReadFile(path)
		if err == nil && addCertificates(&all, text) {
			break
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	if all.Len() > maxRoots {
		return "", cli.Refuse(
			errdefs.ErrInvalidArgument,
			"the authorities of this host and of ca_file are %d bytes together: at most %d",
			all.Len(),
			maxRoots,
		)
	}
	return all.String(), nil
}

// addCertificates appends the certificates of a file, and nothing else in it. It reports whether
// there were any.
func addCertificates(to *bytes.Buffer, text []byte) (some bool) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return some
		}
		if block.Type == "CERTIFICATE" {
			some = pem.Encode(to, &pem.Block{Type: block.Type, Bytes: block.Bytes}) == nil || some
		}
	}
}
