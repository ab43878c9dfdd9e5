// Package portproxy forwards HTTP requests and connections to an untrusted server in a sandbox.
//
// A proxy from [New] drops every header field that would give the server's pages rights of the
// origin of this service, or the server the client's credentials. [Join] copies the bytes of a
// connection without looking at them.
package portproxy

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
)

// maxHeader bounds the header of a server's answer, in bytes.
const maxHeader = 256 << 10

// New returns a proxy to the server that dial connects to, for one request. prefix is the path of
// the request below which the server's paths are, and port the server's port in its sandbox.
func New(prefix string, port int, dial func(context.Context) (net.Conn, error)) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		},
		FlushInterval: -1, // flush every write, for events
		Rewrite:       func(pr *httputil.ProxyRequest) { rewriteRequest(pr, prefix, port) },
		ModifyResponse: func(resp *http.Response) error {
			rewriteResponse(resp.Header, prefix, port)
			dropTrailers(resp)
			return nil
		},
	}
}
