//go:build integration

// Package contracts holds each profile to the contract of the system that it
// stands in for: every list entry, number, message and rule of it is a line of
// a file in this folder, and has a test that shows it through the HTTP interface
// in a real sandbox. A line without a test, and a test without a line, fail.
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

// line is one line of a contract: an id, and what it says.
type line struct{ id, says string }

var linePattern = regexp.MustCompile(`^([a-z0-9][a-z0-9./-]*)\t(\S.*)$`)

// read reads a contract. Lines that begin with "#" are headings.
func read(t *testing.T, file string) []line {
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
			t.Fatalf("%s: %q is no line of its own: an id, a tab, and what it says", file, text)
		}
		seen[m[1]] = true
		lines = append(lines, line{m[1], m[2]})
	}
	return lines
}

// hold runs a contract's tests on one server. Tests are by the id of their line,
// or by the part of it before a slash for lines that differ only in a word,
// which the test gets. What a contract runs on does not change its words, so
// one runtime is enough: the scenarios are what runs on all.
func hold(t *testing.T, file, config string, tests map[string]func(t *testing.T, s *harness.Server, l line)) {
	t.Helper()
	lines := read(t, file)
	if len(lines) == 0 {
		t.Fatalf("%s holds nothing", file)
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
			t.Errorf("%s: %s (%s) has no test", file, l.id, l.says)
		}
		used[name] = true
	}
	for name := range tests {
		if !used[name] {
			t.Errorf("%s: the test %s has no line", file, name)
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
