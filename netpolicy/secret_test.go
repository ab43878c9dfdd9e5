package netpolicy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestCheckSecrets(t *testing.T) {
	good := Secret{Name: "api-key_1", Hosts: []string{"api.example.com", "*.corp.example"}, Header: "authorization",
		Value: "Bearer hunter2"}
	if err := CheckSecrets([]Secret{good}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field  string
		change func(*Secret)
	}{
		{"name", func(s *Secret) { s.Name = "" }},
		{"name", func(s *Secret) { s.Name = "Key" }},
		{"name", func(s *Secret) { s.Name = "first" }},
		{"hosts", func(s *Secret) { s.Hosts = nil }},
		{"hosts[0]", func(s *Secret) { s.Hosts = []string{"*"} }},
		{"hosts[0]", func(s *Secret) { s.Hosts = []string{"10.0.0.0/8"} }},
		{"hosts[1]", func(s *Secret) { s.Hosts = []string{"a.com", "a.com:80"} }},
		{"header", func(s *Secret) { s.Header = "" }},
		{"header", func(s *Secret) { s.Header = "X Y" }},
		{"header", func(s *Secret) { s.Header = "X\r\nY" }},
		{"header", func(s *Secret) { s.Header = "host" }},
		{"header", func(s *Secret) { s.Header = "Content-length" }},
		{"header", func(s *Secret) { s.Header = "TRANSFER-ENCODING" }},
		{"header", func(s *Secret) { s.Header = "connection" }},
		{"header", func(s *Secret) { s.Header = "TE" }},
		{"header", func(s *Secret) { s.Header = "Proxy-Authorization" }},
		{"value", func(s *Secret) { s.Value = "" }},
		{"value", func(s *Secret) { s.Value = "hunter2 " }},
		{"value", func(s *Secret) { s.Value = "hunter2\r\nX: y" }},
		{"value", func(s *Secret) { s.Value = "hunter2\x00" }},
		{"value", func(s *Secret) { s.Value = strings.Repeat("hunter2", 9999) }},
	} {
		bad := good
		c.change(&bad)
		first := good
		first.Name = "first"
		err := CheckSecrets([]Secret{first, bad})
		if err == nil || !strings.HasPrefix(err.Error(), "egress.secrets[1]."+c.field+" ") ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("CheckSecrets = %v, want an error about egress.secrets[1].%s without the value", err, c.field)
		}
		if c.field != "name" && bad.For("api.example.com") {
			t.Errorf("%s: For = true for an invalid secret, want false", c.field)
		}
	}
	for host, want := range map[string]bool{"api.example.com": true, "x.corp.example": true, "corp.example": false,
		"example.com": false, "evil-api.example.com": false, "8.8.8.8": false} {
		if good.For(host) != want {
			t.Errorf("For(%s) = %v, want %v", host, !want, want)
		}
	}
}

func TestSecretOutputOmitsValue(t *testing.T) {
	s := Secret{Name: "key", Hosts: []string{"a.com"}, Header: "X-Key", Value: "hunter2"}
	var out bytes.Buffer
	for _, v := range []any{s, &s, []Secret{s}, map[string]Secret{"a": s}, struct{ S Secret }{s},
		struct{ S *Secret }{&s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%T"} {
			_, _ = fmt.Fprintf(&out, verb+"\n", v)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
	}
	for _, shown := range []string{"hunter2", fmt.Sprintf("%x", "hunter2"), fmt.Sprintf("%X", "hunter2")} {
		if strings.Contains(out.String(), shown) {
			t.Errorf("output contains the value as %s, want it hidden", shown)
		}
	}
	var back Secret
	if err := json.Unmarshal([]byte(`{"name":"key","hosts":["a.com"],"header":"X-Key","value":"hunter2"}`),
		&back); err != nil || back.Value != "hunter2" {
		t.Errorf("Unmarshal = value %q, %v; want hunter2", back.Value, err)
	}
}
