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
	// The shell goes on with the word, and the parser sometimes sees a comment.
	errHash = errors.New("a # right behind a backquote is read in more than one way: put a blank between them")
)

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
	if strings.Contains(text, "`#") {
		return nil, errHash
	}
	p := parsers.Get().(*syntax.Parser)
	defer parsers.Put(p)
	return p.Parse(&source{text: text}, "")
}
