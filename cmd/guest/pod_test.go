package main

import (
	"slices"
	"strings"
	"testing"
)

func TestUnrequestedWritableMountsAreRefused(t *testing.T) {
	t.Parallel()
	const mounts = `1 0 0:1 / / ro,relatime - overlay overlay rw
2 1 0:2 / /tmp rw,relatime - tmpfs tmpfs rw
3 1 0:3 / /proc rw,nosuid - proc proc rw
4 1 8:1 /x /etc/hosts ro - ext4 /dev/x rw
`
	if err := checkMounts(mounts, []string{"/tmp"}); err != nil {
		t.Errorf("checkMounts = %v, want nil", err)
	}
	err := checkMounts(mounts+"5 1 8:1 /v /data rw - ext4 /dev/x rw\n", []string{"/tmp"})
	if err == nil || !strings.Contains(err.Error(), "/data") {
		t.Errorf("checkMounts with a volume = %v, want an error that names /data", err)
	}
}

func TestParsePod(t *testing.T) {
	t.Parallel()
	o, err := parsePod(
		[]string{"--rlimit", "RLIMIT_CORE=0", "--env", "A=b", "--writable", "/tmp", "--", "/x", "init", "--stdio"},
	)
	if err != nil || len(o.rlimits) != 1 || !slices.Equal(o.env, []string{"A=b"}) ||
		!slices.Equal(o.command, []string{"/x", "init", "--stdio"}) {
		t.Errorf("parsePod = %+v, %v; want one rlimit, A=b and the command after --", o, err)
	}
	for _, bad := range [][]string{nil, {"--", "relative"}, {"--rlimit", "CORE=0", "--", "/x"}, {"--rlimit", "RLIMIT_CORE=x", "--", "/x"}} {
		if _, err := parsePod(bad); err == nil {
			t.Errorf("parsePod(%q) succeeded, want an error", bad)
		}
	}
	want := directory{"/tmp", 0o1777, 0, 0}
	if d, err := parseDirectory("/tmp=1777:0:0"); err != nil || d != want {
		t.Errorf("parseDirectory = %+v, %v; want %+v", d, err, want)
	}
	if _, err := parseDirectory("/tmp"); err == nil {
		t.Error("parseDirectory without a mode succeeded, want an error")
	}
}
