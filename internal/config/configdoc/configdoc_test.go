package configdoc

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Page describes every key, and the page in docs is the generated one.
func TestPageIsGenerated(t *testing.T) {
	want, err := Page("..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("docs/configuration.md is not the generated page (-want +got): run go generate ./internal/config\n%s", d)
	}
}
