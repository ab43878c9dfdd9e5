package engine

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// capture keeps the head and the tail of a stream, limit bytes together, and
// counts all of it. Both ends are kept because the reason for a failure is
// mostly the last thing written. It is used by one goroutine.
type capture struct {
	limit int
	head  []byte
	tail  []byte // a ring once it is full
	next  int    // where the ring's oldest byte is
	total int64
}

func newCapture(limit int64) *capture { return &capture{limit: int(limit)} }

// Write never fails.
func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	c.total += int64(n)
	headRoom := (c.limit+1)/2 - len(c.head)
	if headRoom > 0 {
		k := min(headRoom, len(p))
		c.head = append(c.head, p[:k]...)
		p = p[k:]
	}
	room := c.limit / 2
	if room == 0 {
		return n, nil
	}
	if len(p) >= room {
		c.tail, c.next = append(c.tail[:0], p[len(p)-room:]...), 0
		return n, nil
	}
	if grow := min(room-len(c.tail), len(p)); grow > 0 {
		c.tail = append(c.tail, p[:grow]...)
		p = p[grow:]
	}
	for len(p) > 0 {
		k := copy(c.tail[c.next:], p)
		c.next = (c.next + k) % room
		p = p[k:]
	}
	return n, nil
}

func (c *capture) truncated() bool { return c.total > int64(len(c.head)+len(c.tail)) }

// String is what was kept as valid UTF-8. A character that the cut went
// through is dropped, bytes that are no UTF-8 are replaced.
func (c *capture) String() string {
	tail := append(append(make([]byte, 0, len(c.tail)), c.tail[c.next:]...), c.tail[:c.next]...)
	if !c.truncated() {
		return strings.ToValidUTF8(string(c.head)+string(tail), "\uFFFD")
	}
	head := trimEnd(c.head)
	for i := 0; i < utf8.UTFMax-1 && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		tail = tail[1:]
	}
	return strings.ToValidUTF8(string(bytes.Join([][]byte{head, tail}, nil)), "\uFFFD")
}

// trimEnd drops the beginning of a character that is not whole.
func trimEnd(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		last := b[len(b)-i]
		if utf8.RuneStart(last) {
			if last >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			return b
		}
	}
	return b
}
