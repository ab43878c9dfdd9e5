//go:build linux

package standalone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEachLineReadsWholeFile checks that a file of secrets is read whole or refused, never cut.
func TestEachLineReadsWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secrets")
	for size, want := range map[int]bool{maxSecretsFile: true, maxSecretsFile + 1: false} {
		text := "first\n\n" + strings.Repeat("x", size-len("first\n\n\nlast")) + "\nlast"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var lines []string
		err := eachLine(path, func(line string) { lines = append(lines, line) })
		if (err == nil) != want || want && (len(lines) != 3 || lines[2] != "last") {
			t.Errorf("eachLine of %d bytes = %v with %d lines; want success %t and 3 lines", len(text), err, len(lines), want)
		}
	}
}
