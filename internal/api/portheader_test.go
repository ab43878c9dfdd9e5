package api

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"testing"
)

func TestRedirectsOfPortsStayBelowThem(t *testing.T) {
	const prefix = "/v1/sandboxes/a/ports/80"
	for to, want := range map[string]string{
		"/login":                      prefix + "/login",
		"/a%2Fb?x=1#y":                prefix + "/a%2Fb?x=1#y",
		"next":                        "next",
		"?q=1":                        "?q=1",
		"http://localhost:80/x":       prefix + "/x",
		"http://user@127.0.0.1:80/x":  prefix + "/x",
		"http://LOCALHOST:80":         prefix + "/",
		"http://localhost:81/x":       "http://localhost:81/x",
		"https://elsewhere.example/x": "https://elsewhere.example/x",
		"//elsewhere.example/x":       "//elsewhere.example/x",
		"/\\elsewhere.example":        prefix + "/%5Celsewhere.example",
		"http://[::1":                 prefix + "/",
	} {
		if got := located(to, prefix, 80); got != want {
			t.Errorf("%s leads to %s, want %s", to, got, want)
		}
	}
}

func TestPathsOfPortsStayAsTheyAre(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/sandboxes/a/ports/80/":            "/",
		"/v1/sandboxes/a/ports/80/x/y?q=%20&z": "/x/y?q=%20&z",
		"/v1/sandboxes/a/ports/80/a%2F..%2Fb":  "/a%2F..%2Fb",
		"/v1/sandboxes/a/ports/80/ä":           "/%C3%A4",
		"/v1/sandboxes/a/ports/80/?":           "/?",
	} {
		in := httptest.NewRequest(http.MethodGet, path, nil)
		pr := &httputil.ProxyRequest{In: in, Out: in.Clone(t.Context())}
		outward(pr, "/p", 80)
		if got := pr.Out.URL.RequestURI(); got != want || pr.Out.Host != "localhost:80" {
			t.Errorf("%s is asked for as %s of %s, want %s", path, got, pr.Out.Host, want)
		}
	}
}
