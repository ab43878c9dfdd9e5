package ptysocket

import (
	"bytes"
	"io"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestKeysAreOrderedAndBounded(t *testing.T) {
	k := newKeys()
	if !k.add([]byte("abc")) || !k.add(nil) || !k.add([]byte("de")) {
		t.Fatal("add within the window = false, want true")
	}
	buf := make([]byte, 4)
	if n, err := k.Read(buf); string(buf[:n]) != "abcd" || err != nil {
		t.Errorf("Read = %q, %v; want abcd", buf[:n], err)
	}
	// Read bytes are not accepted yet: the window counts the bytes that the terminal accepted.
	if k.add(make([]byte, v1.TerminalWindow-4)) {
		t.Error("add beyond the window = true, want false")
	}
	k.accepted(4)
	if !k.add(make([]byte, v1.TerminalWindow-1)) || k.add([]byte("x")) {
		t.Error("after accepted(4), add does not end at the window, want exactly the window")
	}
	k.end()
	rest, err := io.ReadAll(k)
	if err != nil || len(rest) != v1.TerminalWindow || rest[0] != 'e' {
		t.Errorf("ReadAll = %d bytes, %v; want %d bytes from e", len(rest), err, v1.TerminalWindow)
	}
}

func TestKeysReadWaits(t *testing.T) {
	k := newKeys()
	got := make(chan []byte)
	go func() { b, _ := io.ReadAll(k); got <- b }()
	for _, s := range []string{"one ", "two ", "three"} {
		k.add([]byte(s))
	}
	k.end()
	if b := <-got; !bytes.Equal(b, []byte("one two three")) {
		t.Errorf("typed = %q, want one two three", b)
	}
}
