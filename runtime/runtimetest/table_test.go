package runtimetest

import (
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestTableIsComplete(t *testing.T) {
	got, err := Table()
	if err != nil {
		t.Fatal(err)
	}
	for _, driver := range []string{"docker-local", "docker-stdio", "oci"} {
		if len(got[driver]) != len(runtime.AllCapabilities()) {
			t.Errorf("%s has %d cells, want %d", driver, len(got[driver]), len(runtime.AllCapabilities()))
		}
	}
}

func TestEveryCapabilityHasACheck(t *testing.T) {
	all := checks()
	for _, name := range runtime.AllCapabilities() {
		if all[name].holds == nil {
			t.Errorf("capability %s has no check, want one", name)
		}
		delete(all, name)
	}
	if len(all) > 0 {
		t.Errorf("checks of unknown capabilities = %v, want none", all)
	}
}

func TestParseTableRefusesInvalidTables(t *testing.T) {
	for what, change := range map[string]func(string) string{
		"an empty cell":     func(s string) string { return strings.Replace(s, "| yes", "| ", 1) },
		"another word":      func(s string) string { return strings.Replace(s, "| yes", "| maybe", 1) },
		"no reason":         func(s string) string { return strings.Replace(s, "| yes", "| no: ", 1) },
		"a missing cell":    func(s string) string { return strings.Replace(s, "| yes\n", "\n", 1) },
		"a missing line":    func(s string) string { return s[:strings.Index(s, "nothing-left")] },
		"a line twice":      func(s string) string { return s + "nothing-left | yes | yes | yes\n" },
		"an unknown line":   func(s string) string { return strings.Replace(s, "\nkill", "\nfly", 1) },
		"a driver twice":    func(s string) string { return strings.Replace(s, "| docker-stdio", "| oci", 1) },
		"an unnamed driver": func(s string) string { return strings.Replace(s, "| oci", "|", 1) },
		"nothing":           func(string) string { return "" },
	} {
		if _, err := parseTable(change(table)); err == nil {
			t.Errorf("parseTable of a table with %s succeeded, want error", what)
		}
	}
}
