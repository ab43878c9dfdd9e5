package config

import (
	"strings"
	"testing"
)

func TestAllowedHostsAreNames(t *testing.T) {
	for host, ok := range map[string]bool{
		"agents.example.com": true, "agents.example.com:8443": true, "[::1]:80": true, "box": true, "192.0.2.1": true,
		"https://agents.example.com": false, "agents.example.com/mcp": false, "": false, "*": false, "a b": false,
		"host:": false, "host:port": false,
	} {
		c := Default()
		c.AllowedHosts = []string{"fine.example", host}
		err := c.Validate()
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "allowed_hosts[1]") {
			t.Errorf("Validate with allowed_hosts %q = %v, want success %t, or an error that names the entry", host, err, ok)
		}
	}
}
