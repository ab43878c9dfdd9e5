package tool

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// Cut configures how much of a stream is kept, and which part.
type Cut struct {
	// Limit is in Unit: "bytes" (the default) or "characters". Zero means the service's limit.
	Limit int64  `json:"limit,omitempty"`
	Unit  string `json:"unit,omitempty"`
	// Keep is "head", "tail" or "both" (the default).
	Keep string `json:"keep,omitempty"`
	// Marker replaces the omitted part: after the head, before the tail, or between them.
	// {omitted}, {total} and {unit} in it are expanded. Counts are in bytes if the unit is bytes,
	// otherwise in characters as far as known.
	Marker string `json:"marker,omitempty"`
}

// The values of Cut.Unit and Cut.Keep.
const (
	Bytes      = "bytes"
	Characters = "characters"
	Head       = "head"
	Tail       = "tail"
	Both       = "both"
)

// Keeper keeps the part of a stream that a Cut selects, in memory bounded by the cut. Only one
// goroutine may use it.
type Keeper struct {
	cut   Cut
	head  []byte
	tail  []byte // a ring buffer once it is full
	next  int    // index of the ring's oldest byte
	total int64
	// characters counts the complete runes so far. broken holds the bytes of an incomplete one.
	characters int64
	broken     []byte
}

// NewKeeper returns an empty Keeper.
func NewKeeper(c Cut) *Keeper {
	if c.Keep == "" {
		c.Keep = Both
	}
	if c.Unit == "" {
		c.Unit = Bytes
	}
	return &Keeper{cut: c}
}

// room returns the maximum number of bytes at each end.
func (k *Keeper) room() (head, tail int) {
	n := int(k.cut.Limit)
	if k.cut.Unit == Characters {
		n *= utf8.UTFMax
	}
	switch k.cut.Keep {
	case Head:
		return n, 0
	case Tail:
		return 0, n
	}
	return (n + 1) / 2, n / 2
}

// Write never fails.
func (k *Keeper) Write(p []byte) (int, error) {
	n := len(p)
	k.total += int64(n)
	if k.cut.Unit == Characters {
		k.count(p)
	}
	head, tail := k.room()
	if free := head - len(k.head); free > 0 {
		m := min(free, len(p))
		k.head = append(k.head, p[:m]...)
		p = p[m:]
	}
	if tail == 0 {
		return n, nil
	}
	if len(p) >= tail {
		k.tail, k.next = append(k.tail[:0], p[len(p)-tail:]...), 0
		return n, nil
	}
	if grow := min(tail-len(k.tail), len(p)); grow > 0 {
		k.tail = append(k.tail, p[:grow]...)
		p = p[grow:]
	}
	for len(p) > 0 {
		m := copy(k.tail[k.next:], p)
		k.next = (k.next + m) % tail
		p = p[m:]
	}
	return n, nil
}

func (k *Keeper) count(p []byte) {
	if len(k.broken) > 0 {
		for len(k.broken) < utf8.UTFMax && len(p) > 0 && !utf8.FullRune(k.broken) {
			k.broken = append(k.broken, p[0])
			p = p[1:]
		}
		if !utf8.FullRune(k.broken) {
			return
		}
		k.characters += int64(clip.Count(k.broken))
		k.broken = k.broken[:0]
	}
	if cut := len(p) - len(TrimPartial(p)); cut > 0 {
		k.broken = append(k.broken, p[len(p)-cut:]...)
		p = p[:len(p)-cut]
	}
	k.characters += int64(clip.Count(p))
}

// Total returns the number of bytes written.
func (k *Keeper) Total() int64 { return k.total }

// Text returns what is kept as valid UTF-8, with the marker in place of the rest, and reports
// whether there was a rest. Invalid bytes are replaced. A character split by the cut is dropped.
func (k *Keeper) Text() (string, bool) {
	tail := make([]byte, 0, len(k.tail))
	tail = append(append(tail, k.tail[k.next:]...), k.tail[:k.next]...)
	all := k.total == int64(len(k.head)+len(tail))
	if all && k.fits() {
		return valid(append(append(make([]byte, 0, k.total), k.head...), tail...)), false
	}
	head, rest := k.head, tail
	if all { // all bytes are kept, but too many characters
		joined := append(append(make([]byte, 0, k.total), head...), tail...)
		head, rest = joined, joined
	}
	switch k.cut.Keep {
	case Head:
		return k.first(head, k.cut.Limit) + k.marker(), true
	case Tail:
		return k.marker() + k.last(rest, k.cut.Limit), true
	}
	return k.first(head, (k.cut.Limit+1)/2) + k.marker() + k.last(rest, k.cut.Limit/2), true
}

func (k *Keeper) fits() bool {
	if k.cut.Unit == Characters {
		return k.seen() <= k.cut.Limit
	}
	return k.total <= k.cut.Limit
}

// seen returns the number of characters so far.
func (k *Keeper) seen() int64 { return k.characters + int64(clip.Count(k.broken)) }

func (k *Keeper) first(b []byte, n int64) string {
	if k.cut.Unit == Bytes {
		return valid(TrimPartial(b[:min(int64(len(b)), n)]))
	}
	s := valid(TrimPartial(b))
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func (k *Keeper) last(b []byte, n int64) string {
	if k.cut.Unit == Bytes {
		b = b[int64(len(b))-min(int64(len(b)), n):]
	}
	for i := 0; i < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:]
	}
	s := valid(b)
	if k.cut.Unit == Bytes {
		return s
	}
	for i := len(s); i > 0; n-- {
		if n == 0 {
			return s[i:]
		}
		_, size := utf8.DecodeLastRuneInString(s[:i])
		i -= size
	}
	return s
}

func (k *Keeper) marker() string {
	if !strings.Contains(k.cut.Marker, "{") {
		return k.cut.Marker
	}
	total := k.total
	if k.cut.Unit == Characters {
		total = k.seen()
	}
	return strings.NewReplacer(
		"{total}", strconv.FormatInt(total, 10), "{omitted}", strconv.FormatInt(total-k.cut.Limit, 10), "{unit}", k.cut.Unit,
	).Replace(k.cut.Marker)
}

func valid(b []byte) string { return clip.Valid(string(b)) }

// TrimPartial removes an incomplete character from the end.
func TrimPartial(b []byte) []byte {
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
