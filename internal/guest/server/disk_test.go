package server

import (
	"bytes"
	"strings"
	"testing"
)

func TestPumpKeepsTheEnd(t *testing.T) {
	for _, pieces := range [][]int{{1}, {1023, 1}, {1024}, {1025}, {700, 700}, {5000, 3}, {1, 2, 3, 1000, 900, 10}} {
		var p pump
		var all []byte
		for i, n := range pieces {
			b := bytes.Repeat([]byte{byte('a' + i)}, n)
			all = append(all, b...)
			p.keepTail(b)
		}
		if want := all[max(0, len(all)-tailBytes):]; !bytes.Equal(p.tail, want) {
			t.Errorf("pieces of %v bytes: %q is kept, want the last %d bytes %q", pieces, p.tail, len(want),
				want)
		}
	}
}

func TestSaysDiskFull(t *testing.T) {
	for words, want := range map[string]bool{
		"dd: error writing '/tmp/x': No space left on device\n": true, "OSError: [Errno 28] No space left on device": true,
		"Error: ENOSPC: no space left on device, write": true, "cp: Disk quota exceeded": true, "": false, "no match": false,
	} {
		if got := saysDiskFull([]byte(words)); got != want {
			t.Errorf("saysDiskFull(%q) = %v, want %v", words, got, want)
		}
	}
}

func TestWritableMounts(t *testing.T) {
	dir := t.TempDir()
	if _, ok := writableMount("1 2 0:1 / " + dir + " rw,nosuid - tmpfs tmpfs rw,size=1k"); ok {
		t.Error("writableMount of a directory that only root can write = true, want false")
	}
	for line, want := range map[string]bool{
		"1 2 0:1 / /tmp rw,nosuid shared:1 - tmpfs tmpfs rw": true,
		"1 2 0:1 / /tmp ro,nosuid - tmpfs tmpfs rw":          false,
		"1 2 0:1 / /tmp rw - proc proc rw":                   false,
		"1 2 0:1 / /no/such/place rw - tmpfs tmpfs rw":       false,
		"1 2 0:1 / /dev/null rw - devtmpfs devtmpfs rw":      false,
		"1 2 0:1 / /tmp":        false,
		"":                      false,
		strings.Repeat("x ", 9): false,
	} {
		if _, ok := writableMount(line); ok != want {
			t.Errorf("writableMount(%q) = %v, want %v", line, ok, want)
		}
	}
}

func BenchmarkDiskFull(b *testing.B) {
	s, err := New(Options{Workspace: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%d places", len(s.places()))
	for b.Loop() {
		s.fullPlaces()
	}
}
