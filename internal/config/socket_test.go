package config

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestSocketAccess(t *testing.T) {
	for _, c := range []struct {
		listen, group, mode string
		want                fs.FileMode
		err                 string
	}{
		{"unix:/s", "", "", 0o600, ""},
		{"unix:/s", "", "0600", 0o600, ""},
		{"unix:/s", "agents", "", 0o660, ""},
		{"unix:/s", "1001", "0660", 0o660, ""},
		{"unix:/s", "agents", "0666", 0, "every account of this host would be an operator"},
		{"unix:/s", "agents", "0662", 0, "every account of this host would be an operator"},
		{"unix:/s", "", "0777", 0, "every account of this host would be an operator"},
		{"unix:/s", "agents", "0600", 0, `must be "0660" with socket_group`},
		{"unix:/s", "", "0660", 0, "needs socket_group"},
		{"unix:/s", "agents", "0640", 0, `must be "0600" or "0660"`},
		{"unix:/s", "agents", "4660", 0, `must be "0600" or "0660"`},
		{"unix:/s", "agents", "rw", 0, `must be "0600" or "0660"`},
		{"127.0.0.1:1", "agents", "", 0, "must be unix:PATH with socket_group"},
	} {
		config := Default()
		config.Listen, config.SocketGroup, config.SocketMode = c.listen, c.group, c.mode
		err := config.Validate()
		if c.err != "" {
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("Validate(%+v) = %v, want %q", c, err, c.err)
			}
			continue
		}
		if got := config.SocketPerm(); err != nil || got != c.want {
			t.Errorf("SocketPerm(%+v) = %04o, %v; want %04o", c, got, err, c.want)
		}
	}
	if _, err := Parse([]byte("socket_mode: 0660\n")); err == nil || !strings.Contains(err.Error(), "put it in quotes") {
		t.Errorf("Parse of a number = %v, want advice to quote it", err)
	}
}
