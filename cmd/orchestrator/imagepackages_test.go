package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A build that was killed has left a root; one that lives keeps its own.
func TestBuildsThatWereKilledLeaveNothing(t *testing.T) {
	state := t.TempDir()
	dir, done, err := buildDir(state)
	if err != nil {
		t.Fatal(err)
	}
	dead, young := filepath.Join(state, newBuild+"dead"), filepath.Join(state, newBuild+"young")
	for _, one := range []string{dead, young} {
		if err := os.MkdirAll(filepath.Join(one, "root", "etc"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	for _, old := range []string{dead, filepath.Join(dir, "lock"), dir} {
		if err := os.Chtimes(old, past, past); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // twice is as good as once
		if err := sweepBuilds(state); err != nil {
			t.Fatal(err)
		}
	}
	for one, want := range map[string]bool{dir: true, young: true, dead: false} {
		if _, err := os.Stat(one); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", filepath.Base(one), err == nil, want)
		}
	}
	done()
	if _, err := os.Stat(dir); err == nil {
		t.Error("a build that has ended left its folder")
	}
}
