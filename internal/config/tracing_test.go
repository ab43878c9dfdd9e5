package config

import (
	"strings"
	"testing"
)

func TestTracingValidateNamesTheKey(t *testing.T) {
	t.Parallel()
	for text, key := range map[string]string{
		"{endpoint: 'http://127.0.0.1:4317'}":                    "",
		"{endpoint: 'https://collector:4318', protocol: http}":   "",
		"{endpoint: '127.0.0.1:4317'}":                           "tracing.endpoint",
		"{endpoint: 'http://collector'}":                         "tracing.endpoint",
		"{endpoint: 'http://user:word@collector:4317'}":          "tracing.endpoint",
		"{endpoint: 'http://collector:4318/v1/traces'}":          "tracing.endpoint",
		"{endpoint: 'http://collector:4318', protocol: zipkin}":  "tracing.protocol",
		"{endpoint: 'http://collector:4318', ratio: 2}":          "tracing.ratio",
		"{endpoint: 'http://collector:4318', ratio: -0.5}":       "tracing.ratio",
		"{endpoint: 'http://collector:4318', ratio: 0.25}":       "",
		"{endpoint: 'unix:/run/collector.sock', protocol: grpc}": "tracing.endpoint",
	} {
		c, err := Parse([]byte("tracing: " + text))
		if err != nil {
			t.Fatal(err)
		}
		err = c.Validate()
		if key == "" && err != nil || key != "" && (err == nil || !strings.Contains(err.Error(), key)) {
			t.Errorf("Validate(tracing: %s) = %v, want an error about %q", text, err, key)
		}
	}
}
