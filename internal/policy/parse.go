package policy

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

// Bounds of one decision. Past any of them the command is refused: what cannot
// be looked at in bounded time is not let through.
const (
	MaxCommand = 64 << 10 // bytes

	maxNested  = 12       // code within code: sh -c, eval, functions
	maxDepth   = 200      // constructs within constructs, in one piece of code
	maxFrames  = 2000     // of the parser's own stack, about ten for each construct
	maxParsed  = 80 << 10 // bytes of code in all
	maxSteps   = 20_000   // of the walk: words, matches, copied variables
	maxText    = 64 << 10 // bytes of one value
	maxBraces  = 64       // words that one word's braces may become
	maxForEach = 16       // rounds of a loop over known words
)

var (
	errDeep = errors.New("nested too deep")
	errMuch = errors.New("too many words and operators")
	// Where the shell goes on with a word, the parser sometimes sees a comment,
	// and would not see what runs behind it.
	errHash = errors.New("a # within a word is read in more than one way: quote it, or put a blank before it")
)

// commenting parsers keep comments in the tree.
var commenting = sync.Pool{New: func() any { return syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)) }}

var parsers = sync.Pool{New: func() any { return syntax.NewParser(syntax.Variant(syntax.LangBash)) }}

// source feeds the parser in small pieces and, with each, looks how deep it has
// gone: the parser calls itself for whatever opens, and has no bound of its own.
type source struct {
	text string
	read bool // a piece has been read: there may be depth
	pcs  [1]uintptr
}

const piece = 256

func (s *source) Read(p []byte) (int, error) {
	if s.text == "" {
		return 0, io.EOF
	}
	if s.read && runtime.Callers(maxFrames, s.pcs[:]) > 0 {
		return 0, errDeep
	}
	n := copy(p[:min(len(p), piece)], s.text)
	s.text, s.read = s.text[n:], true
	return n, nil
}

// parse reads shell code. The tree it returns may be of an error too, and is
// then not looked at.
func parse(text string) (*syntax.File, error) {
	if weight(text) > maxWeight {
		return nil, errMuch
	}
	pool := &parsers
	if hashed(text) {
		pool = &commenting
	}
	p := pool.Get().(*syntax.Parser)
	defer pool.Put(p)
	file, err := p.Parse(&source{text: text}, "")
	if err == nil && pool == &commenting && miscommented(file, text) {
		return nil, errHash
	}
	return file, err
}

// before are the bytes that a comment may stand behind.
const before = " \t\n;&|()<>"

// hashed says whether a # stands where no comment begins.
func hashed(text string) bool {
	for i := 1; i < len(text); i++ {
		if text[i] == '#' && strings.IndexByte(before, text[i-1]) < 0 {
			return true
		}
	}
	return false
}

// miscommented says whether the parser took a part of a word for a comment.
func miscommented(file *syntax.File, text string) (bad bool) {
	syntax.Walk(file, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.Comment); ok {
			at := int(c.Hash.Offset())
			bad = bad || at > 0 && (at > len(text) || strings.IndexByte(before, text[at-1]) < 0)
		}
		return !bad
	})
	return bad
}
