package policy

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// policies compiles every rule set in testdata and returns them by file name without extension.
func policies(tb testing.TB) map[string]*Policy {
	tb.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		tb.Fatalf("rule sets = %v, %v; want at least one", files, err)
	}
	out := map[string]*Policy{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		var rules Rules
		if err := yaml.UnmarshalStrict(data, &rules); err != nil {
			tb.Fatalf("rules of %s: %v", f, err)
		}
		p, err := Compile(rules)
		if err != nil {
			tb.Fatalf("Compile(%s): %v", f, err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".yaml")] = p
	}
	return out
}

// evasion is one case of evasions.txt.
type evasion struct {
	line                            int
	profile, verdict, rule, command string
}

func evasions(tb testing.TB) []evasion {
	tb.Helper()
	f, err := os.Open("testdata/evasions.txt")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	var out []evasion
	var head []string
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		switch {
		case line == "" || len(head) == 0 && strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") && len(strings.Fields(line)) == 3 &&
			!strings.HasPrefix(line, "[["):
			head = strings.Fields(line[1 : len(line)-1])
		default:
			out = append(out, evasion{n, head[0], head[1], head[2], strings.ReplaceAll(line, "⏎", "\n")})
		}
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return out
}

func TestEvasions(t *testing.T) {
	all := policies(t)
	list := evasions(t)
	for _, e := range list {
		p := all[e.profile]
		if p == nil {
			t.Fatalf("evasions.txt:%d: rule set %q not found", e.line, e.profile)
		}
		v := p.Command(e.command)
		if string(v.Action) != e.verdict || e.rule != "..." && v.Rule != e.rule {
			t.Errorf("evasions.txt:%d: %s: Command(%q) = %s by %s (%s), want %s by %s", e.line, e.profile, e.command,
				v.Action, v.Rule, v.Message, e.verdict, e.rule)
		}
		if v.Action != Allow && (v.At == nil || v.Message == "") {
			t.Errorf("evasions.txt:%d: Command(%q) = %+v, want a position and a message", e.line, e.command, v)
		}
		if v.At != nil && (v.At.Offset < 0 || v.At.Offset > len(e.command)) {
			t.Errorf("evasions.txt:%d: position = %+v, want one within the %d bytes of the command",
				e.line, v.At, len(e.command))
		}
	}
	if len(list) < 300 {
		t.Errorf("evasions.txt has %d cases, want at least 300", len(list))
	}
	t.Logf("%d commands", len(list))
}
