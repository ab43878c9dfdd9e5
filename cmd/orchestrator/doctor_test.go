package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDoctorKnowsWhatTheHostSharesWithSandboxes(t *testing.T) {
	const missing = ""
	for _, c := range []struct {
		check  func(string) check
		text   string
		status string
		found  string
	}{
		{checkCores, "core\n", checkOK, "files"},
		{checkCores, "|/usr/lib/systemd/systemd-coredump %P %u\n", checkWarn, "systemd-coredump"},
		{checkCores, missing, checkWarn, "no such file"},
		{checkFiles, "9223372036854775807\n", checkOK, "memory"},
		{checkFiles, "2466170\n", checkWarn, "2466170"},
		{checkFiles, "x\n", checkWarn, "invalid"},
		{checkFiles, missing, checkWarn, "no such file"},
	} {
		file := filepath.Join(t.TempDir(), "setting")
		if c.text != missing {
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got := c.check(file)
		if got.Status != c.status || !strings.Contains(got.Found, c.found) || (c.status == checkWarn && c.text != missing && c.text != "x\n") != (got.Fix != "") {
			t.Errorf("%q: %+v", c.text, got)
		}
	}
}
