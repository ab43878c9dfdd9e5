//go:build integration

// Package contracts tests each profile against the contract of the system that it replaces. Every
// list entry, number, message and rule is a line of a file in this directory, and has a test
// through the HTTP interface in a real sandbox. A line without a test fails, and so does a test
// without a line.
package contracts

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// seed is the image store that all servers of this process start with.
var seed harness.Seed

func TestMain(m *testing.M) {
	code := m.Run()
	if err := seed.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// line is a line of a contract: an id and its statement.
type line struct{ id, text string }

var linePattern = regexp.MustCompile(`^([a-z0-9][a-z0-9./-]*)\t(\S.*)$`)

// readContract reads a contract. Lines that begin with "#" are headings.
func readContract(t *testing.T, file string) []line {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []line
	seen := map[string]bool{}
	for s := bufio.NewScanner(f); s.Scan(); {
		text := s.Text()
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		m := linePattern.FindStringSubmatch(text)
		if m == nil || seen[m[1]] {
			t.Fatalf("%s: invalid line %q: use a unique id, a tab, and the statement", file, text)
		}
		seen[m[1]] = true
		lines = append(lines, line{m[1], m[2]})
	}
	return lines
}

// runContract runs a contract's tests on one server. A test has the id of its line, or the part
// before a slash for lines that differ in one word, which the test gets from the line. The contract
// does not depend on the runtime, so one is enough; the scenarios run on all.
func runContract(t *testing.T, file, config string, tests map[string]func(t *testing.T, s *harness.Server, l line)) {
	t.Helper()
	lines := readContract(t, file)
	if len(lines) == 0 {
		t.Fatalf("%s has no lines, want some", file)
	}
	used := map[string]bool{}
	find := func(id string) (string, bool) {
		if tests[id] != nil {
			return id, true
		}
		group, _, _ := strings.Cut(id, "/")
		return group, tests[group] != nil
	}
	for _, l := range lines {
		name, ok := find(l.id)
		if !ok {
			t.Errorf("line %s: %s (%s) has no test, want one", file, l.id, l.text)
		}
		used[name] = true
	}
	for name := range tests {
		if !used[name] {
			t.Errorf("test %s has no line in %s, want one", name, file)
		}
	}
	if t.Failed() {
		return
	}
	s := harness.Run(t, harness.Options{Runtime: harness.Runtimes()[0], Config: config, Seed: &seed})
	for _, l := range slices.Clone(lines) {
		t.Run(l.id, func(t *testing.T) {
			defer s.For(t)()
			name, _ := find(l.id)
			tests[name](t, s, l)
		})
	}
}
