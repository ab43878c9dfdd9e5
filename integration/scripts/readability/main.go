// Command readability checks the limits that keep this code base readable: the size of types,
// packages, files and functions, the length of comment and Markdown lines, and the sentence
// openings that the style guide bans.
//
// It reads the files that git tracks below the current directory. Findings in the list of
// exceptions are tolerated up to the recorded value. The list can only shrink: an exception that is
// not needed any more, or is larger than needed, is a finding too. It prints one finding per line
// and exits with 1 if there are any.
//
// Usage: readability [-exceptions FILE] [-write]
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

func main() {
	file := flag.String("exceptions", "integration/scripts/readability/exceptions.txt",
		"`FILE` with the tolerated findings")
	write := flag.Bool("write", false, "write the present findings to the exceptions file")
	flag.Parse()
	if err := run(*file, *write, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "readability:", err)
		os.Exit(1)
	}
}

// run checks the tree in the current directory against the exceptions in file.
func run(file string, write bool, out io.Writer) error {
	list, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("list the tracked files: %w", err)
	}
	paths := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
	found, err := measure(paths)
	if err != nil {
		return err
	}
	if write {
		return os.WriteFile(file, []byte(format(found)), 0o644)
	}
	tolerated, err := readExceptions(file)
	if err != nil {
		return err
	}
	bad := compare(found, tolerated)
	for _, line := range bad {
		fmt.Fprintln(out, line)
	}
	if len(bad) > 0 {
		return fmt.Errorf("%d findings: shorten, split or rename what is named above", len(bad))
	}
	return nil
}

// findings maps "RULE PLACE" to the measured value: a size, or a count of offending lines.
type findings map[string]int

func (f findings) add(rule, place string, n int) { f[rule+" "+place] += n }

// compare returns a line for each finding above its tolerated value and for each exception above
// the finding.
func compare(found, tolerated findings) []string {
	var bad []string
	for _, key := range slices.Sorted(maps.Keys(found)) {
		if n, limit := found[key], tolerated[key]; n > limit {
			bad = append(bad, fmt.Sprintf("%s: %d, tolerated %d", key, n, limit))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(tolerated)) {
		if n, limit := found[key], tolerated[key]; n < limit {
			bad = append(bad, fmt.Sprintf("%s: now %d; lower the exception of %d or remove it", key, n, limit))
		}
	}
	return bad
}

func format(found findings) string {
	var b strings.Builder
	b.WriteString("# Findings that the readability check tolerates: RULE PLACE VALUE. This list may only shrink.\n")
	for _, key := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&b, "%s %d\n", key, found[key])
	}
	return b.String()
}

func readExceptions(file string) (findings, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tolerated := findings{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		n, err := strconv.Atoi(line[at+1:])
		if at < 0 || err != nil {
			return nil, fmt.Errorf("%s: invalid line %q: use RULE PLACE VALUE", file, line)
		}
		tolerated[line[:at]] = n
	}
	return tolerated, s.Err()
}
