package config

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestInvalidWebValueNamesKey(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"template: none", `web.template is "none"`},
		{"ca_file: ca.pem", "web.ca_file"},
		{"fetch: {allow: ['*.']}", "web.fetch.allow[0]"},
		{"fetch: {deny: [a.example, '0x7f.1']}", "web.fetch.deny[1]"},
		{"fetch: {methods: [GET]}", "web.fetch.methods"},
		{"request: {http_ports: [443]}", "web.request.http_ports has 443"},
		{"request: {ports: [70000]}", "web.request.ports"},
		{"search: {url: 'http://s.example'}", "web.search.provider is missing"},
		{"search: {provider: brave}", "web.search.key_file is missing"},
		{"search: {provider: searxng, url: 'http://s.example', results: 0}", "web.search.results is 0"},
		{"search: {provider: searxng, url: 'http://s.example', key_file: /k}", "web.search.key_file is not supported"},
		{"search: {provider: serper, key_file: k}", "web.search.key_file"},
		{"extract: {model: m}", "web.extract.kind is missing"},
		{"extract: {kind: openai}", "web.extract.model is missing"},
		{"extract: {kind: gemini, model: m}", `web.extract.kind is "gemini"`},
		{"extract: {timeout: 0s}", "web.extract.timeout"},
		{"extract: {max_tokens: 0}", "web.extract.max_tokens"},
		{"cache: {entries: -1}", "web.cache.entries"},
		{"cache: {bytes: 8GiB}", "web.cache.bytes"},
		{"fetsh: {}", `unknown key web.fetsh; did you mean "fetch"?`},
	} {
		got, err := Parse([]byte("web: {" + c.text + "}"))
		if err == nil {
			err = got.Validate()
		}
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want InvalidArgument with %q", c.text, err, c.says)
		}
	}
	for _, text := range []string{
		"search: {provider: searxng, url: 'http://127.0.0.1:8888/'}", "search: {provider: brave, key_file: /etc/brave.key}",
		"extract: {kind: openai, url: 'http://127.0.0.1:11434/v1', model: small}", "request: {allow: [], http: []}",
	} {
		got, err := Parse([]byte("web: {" + text + "}"))
		if err == nil {
			err = got.Validate()
		}
		if err != nil {
			t.Errorf("Parse or Validate of %s: %v", text, err)
		}
	}
}
