package program

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// maxHeader is the maximum size of a response header in bytes.
const maxHeader = 256 << 10

// newClient returns a transport that uses only the proxy of the request. It opens one connection
// per request, so that unsolicited data of a host is never taken for a response.
func newClient(req *web.Request) (*http.Transport, error) {
	roots, err := rootsOf(req.Roots)
	if err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(req.Proxy); err != nil {
		return nil, faultf(web.FaultRequest, "proxy: %q is not host:port", oneLine(req.Proxy, 80))
	}
	return &http.Transport{
		Proxy:                  http.ProxyURL(&url.URL{Scheme: "http", Host: req.Proxy}),
		OnProxyConnectResponse: tunnelRefusal,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DisableCompression:     true,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: maxHeader,
	}, nil
}

// rootsOf parses certificate authorities in PEM; nil means those of the image.
func rootsOf(pem string) (*x509.CertPool, error) {
	if pem == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(pem)) {
		return nil, faultf(web.FaultRequest, "roots: no PEM certificate found")
	}
	return pool, nil
}

// tunnelRefusal returns the fault if the proxy opens no tunnel.
func tunnelRefusal(_ context.Context, _ *url.URL, _ *http.Request, res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	return refusal(res)
}

// refusal returns the fault for a response of the proxy. The kind is in its header or follows from
// its status; the reason is in the status line.
func refusal(res *http.Response) error {
	kind := res.Header.Get(web.RefusalHeader)
	switch kind {
	case web.FaultURL, web.FaultDenied, web.FaultName, web.FaultConnect, web.FaultTLS, web.FaultTimeout,
		web.FaultProtocol:
	default:
		kind = kindOfStatus(res.StatusCode)
	}
	_, reason, _ := strings.Cut(res.Status, " ")
	if reason == "" || reason == http.StatusText(res.StatusCode) {
		reason = "proxy sent status " + strconv.Itoa(res.StatusCode) + " without a reason"
	}
	return &fault{kind: kind, message: reason}
}

func kindOfStatus(status int) string {
	switch status {
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return web.FaultConnect
	case http.StatusGatewayTimeout:
		return web.FaultTimeout
	case http.StatusBadRequest:
		return web.FaultProtocol
	default:
		return web.FaultDenied
	}
}

// connFault converts a connection error to a fault.
func connFault(u *url.URL, err error) error {
	var (
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		alert       tls.AlertError
		dial        *net.OpError
	)
	switch {
	case errors.As(err, &certificate):
		return faultf(web.FaultTLS, "certificate of %s is not trusted: %v", u.Host, certificate.Err)
	case errors.As(err, &record):
		return faultf(web.FaultTLS, "%s does not support TLS: use http:// if that is intended", u.Host)
	case errors.As(err, &alert):
		return faultf(web.FaultTLS, "TLS refused by %s: %v", u.Host, alert)
	case errors.As(err, &dial) && (dial.Op == "dial" || dial.Op == "proxyconnect"):
		return faultf(web.FaultConnect, "proxy of the sandbox does not answer: %v", dial.Err)
	case errors.As(err, &dial) && dial.Op == "remote error":
		return faultf(web.FaultTLS, "TLS refused by %s: %v", u.Host, dial.Err)
	case strings.Contains(err.Error(), "tls: "):
		return faultf(web.FaultTLS, "TLS handshake with %s failed: %v", u.Host, err)
	default:
		return faultf(web.FaultProtocol, "no valid HTTP response from %s: %v", u.Host, err)
	}
}
