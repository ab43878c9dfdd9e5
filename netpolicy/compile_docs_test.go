package netpolicy

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// TestDocs checks that the rules in docs/egress.md compile, and refuse with the messages given
// there.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/egress.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	block, _, _ := strings.Cut(rest, "```")
	var doc struct {
		Egress struct {
			Rules []Rule `json:"rules"`
		} `json:"egress"`
	}
	if err := json.Unmarshal([]byte(block), &doc); err != nil || len(doc.Egress.Rules) == 0 {
		t.Fatalf("document has %d rules, %v; want some and no error", len(doc.Egress.Rules), err)
	}
	r, err := Compile(doc.Egress.Rules)
	if err != nil {
		t.Fatal(err)
	}
	all, none := mustCompile(t, "*"), mustCompile(t, "")
	said := []string{
		all.Within(none, parseWants("CONNECT example.com|443")).Reason,
		(&Guard{}).Check("db.internal", netip.MustParseAddr("10.1.2.3")).Error(),
	}
	for _, want := range []string{"CONNECT example.com|443", "CONNECT 8.8.8.8|53", "POST api.example.com|80 /v1/x",
		"CONNECT api.example.com|443", "CONNECT upload.pypi.org|443", "CONNECT 127.1|443"} {
		said = append(said, r.Decide(parseWants(want)).Reason)
	}
	for _, line := range said {
		if !strings.Contains(string(page), line+"\n") {
			t.Errorf("docs/egress.md has no line %q, want it", line)
		}
	}
}
