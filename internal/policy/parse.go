package policy

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

// Bounds of one decision. A command over any of them is denied.
const (
	MaxCommand = 64 << 10 // bytes

	maxNested  = 12       // levels of code within code: sh -c, eval, functions
	maxDepth   = 200      // levels of constructs in one piece of code
	maxFrames  = 2000     // stack frames of the parser, about ten per construct
	maxParsed  = 80 << 10 // total bytes of code
	maxSteps   = 20_000   // cost of the walk: words, matches, copied variables
	maxText    = 64 << 10 // maximum bytes of one value
	maxBraces  = 64       // words that the braces of one word expand to
	maxForEach = 16       // iterations of a loop over known words
)

var (
	errTooDeep  = errors.New("nested too deeply")
	errTooLarge = errors.New("too many words and operators")
	// The parser takes some # for the start of a comment where bash continues the word. Code after
	// it would not be checked.
	errAmbiguousHash = errors.New("ambiguous # inside a word: quote it or put a blank before it")
)

// commentParsers holds parsers that keep comments in the syntax tree.
var commentParsers = sync.Pool{New: func() any {
	return syntax.NewParser(syntax.Variant(syntax.LangBash),
		syntax.KeepComments(true))
}}

var parsers = sync.Pool{New: func() any { return syntax.NewParser(syntax.Variant(syntax.LangBash)) }}

// limitedReader feeds the parser in small pieces and checks the stack depth before each. The parser
// is recursive and has no depth limit.
type limitedReader struct {
	text string
	read bool // a piece was read, so the parser may be nested
	pcs  [1]uintptr
}

// pieceSize is the size of one read, in bytes.
const pieceSize = 256

func (s *limitedReader) Read(p []byte) (int, error) {
	if s.text == "" {
		return 0, io.EOF
	}
	if s.read && runtime.Callers(maxFrames, s.pcs[:]) > 0 {
		return 0, errTooDeep
	}
	n := copy(p[:min(len(p), pieceSize)], s.text)
	s.text, s.read = s.text[n:], true
	return n, nil
}

// parse parses shell code. Callers must ignore the file if err is not nil.
func parse(text string) (*syntax.File, error) {
	if countNodes(text) > maxNodes {
		return nil, errTooLarge
	}
	pool := &parsers
	if hasInnerHash(text) {
		pool = &commentParsers
	}
	p := pool.Get().(*syntax.Parser)
	defer pool.Put(p)
	file, err := p.Parse(&limitedReader{text: text}, "")
	if err == nil && pool == &commentParsers && hasFalseComment(file, text) {
		return nil, errAmbiguousHash
	}
	return file, err
}

// commentPredecessors lists the bytes after which a # starts a comment.
const commentPredecessors = " \t\n;&|()<>"

// hasInnerHash reports whether text has a # where bash does not start a comment.
func hasInnerHash(text string) bool {
	for i := 1; i < len(text); i++ {
		if text[i] == '#' && strings.IndexByte(commentPredecessors, text[i-1]) < 0 {
			return true
		}
	}
	return false
}

// hasFalseComment reports whether the parser took a part of a word for a comment.
func hasFalseComment(file *syntax.File, text string) (bad bool) {
	syntax.Walk(file, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.Comment); ok {
			at := int(c.Hash.Offset())
			bad = bad || at > 0 && (at > len(text) || strings.IndexByte(commentPredecessors, text[at-1]) < 0)
		}
		return !bad
	})
	return bad
}
