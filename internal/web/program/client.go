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

// maxHeader bounds an answer's header in bytes.
const maxHeader = 256 << 10

// newClient asks through req's proxy alone, with one connection per request, so
// that what a host sends unasked is nobody's answer.
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

// rootsOf are the authorities in PEM, nil for the image's.
func rootsOf(pem string) (*x509.CertPool, error) {
	if pem == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(pem)) {
		return nil, faultf(web.FaultRequest, "roots: there is no certificate in PEM in it")
	}
	return pool, nil
}

// tunnelRefusal is the fault of a proxy that opens no tunnel.
func tunnelRefusal(_ context.Context, _ *url.URL, _ *http.Request, res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	return refusal(res)
}

// refusal is what a proxy's own answer says: the kind in its header, or by its
// status, and the reason in the status line.
func refusal(res *http.Response) error {
	kind := res.Header.Get(web.RefusalHeader)
	switch kind {
	case web.FaultURL, web.FaultDenied, web.FaultName, web.FaultConnect, web.FaultTLS, web.FaultTimeout, web.FaultProtocol:
	default:
		kind = kindOfStatus(res.StatusCode)
	}
	_, reason, _ := strings.Cut(res.Status, " ")
	if reason == "" || reason == http.StatusText(res.StatusCode) {
		reason = "the proxy answers " + strconv.Itoa(res.StatusCode) + " and gives no reason"
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

// connFault says what went wrong between the program and a host.
func connFault(u *url.URL, err error) error {
	var (
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		alert       tls.AlertError
		dial        *net.OpError
	)
	switch {
	case errors.As(err, &certificate):
		return faultf(web.FaultTLS, "the certificate of %s is not trusted: %v", u.Host, certificate.Err)
	case errors.As(err, &record):
		return faultf(web.FaultTLS, "%s does not speak TLS: ask for it with http:// if that is meant", u.Host)
	case errors.As(err, &alert):
		return faultf(web.FaultTLS, "%s refuses TLS: %v", u.Host, alert)
	case errors.As(err, &dial) && (dial.Op == "dial" || dial.Op == "proxyconnect"):
		return faultf(web.FaultConnect, "the sandbox's proxy does not answer: %v", dial.Err)
	case errors.As(err, &dial) && dial.Op == "remote error":
		return faultf(web.FaultTLS, "%s refuses TLS: %v", u.Host, dial.Err)
	case strings.Contains(err.Error(), "tls: "):
		return faultf(web.FaultTLS, "no TLS with %s: %v", u.Host, err)
	default:
		return faultf(web.FaultProtocol, "%s gives no answer in HTTP: %v", u.Host, err)
	}
}
