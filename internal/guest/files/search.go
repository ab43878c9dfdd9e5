package files

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
)

const (
	maxContext = 10
	// firstLine is the initial buffer for a line. It grows to the pattern's limit.
	firstLine = 64 << 10
)

// errBinary means that a file is not text.
var errBinary = errors.New("it contains a NUL byte")

func (s *Server) search(ctx context.Context, q wire.SearchRequest) (wire.SearchReply, error) {
	f, err := newFinder(&q)
	if err != nil {
		return wire.SearchReply{}, err
	}
	pl, err := s.place(&q.FileRequest)
	if err != nil {
		return wire.SearchReply{}, err
	}
	options := safefile.WalkOptions{Max: wire.MaxWalk, Enter: func(rel string) bool { return f.hidden || !dotted(rel) }}
	err = s.look(ctx, pl, func(r *safefile.Root) error {
		whole, err := r.Walk(ctx, q.Path, options, func(e *safefile.Entry) error {
			if e.Type != safefile.TypeFile || !f.wants(e) {
				return nil
			}
			return f.file(ctx, pl, e)
		})
		f.cut = f.cut || !whole
		return err
	})
	if err != nil {
		return wire.SearchReply{}, err
	}
	return f.reply(), nil
}

// finder is the state of one search.
type finder struct {
	*expression
	glob          *glob // nil: all files
	names         bool  // the glob matches base names
	hidden        bool
	before, after int
	limit         int

	buf     []byte
	matches []wire.Match
	room    int // bytes left for matches
	files   int
	skipped int
	cut     bool // the result is incomplete
}

func newFinder(q *wire.SearchRequest) (*finder, error) {
	limit, err := matchLimit(q.Max)
	if err != nil {
		return nil, err
	}
	for field, n := range map[string]int{"before": q.Before, "after": q.After} {
		if n < 0 || n > maxContext {
			return nil, wire.Failf(wire.InvalidArgument, field, "must be from 0 to %d", maxContext)
		}
	}
	f := &finder{hidden: q.Hidden, before: q.Before, after: q.After, limit: limit, room: wire.MaxHeader}
	if f.expression, err = newExpression(q); err != nil {
		return nil, err
	}
	if q.Glob != "" {
		if f.glob, err = newGlob("glob", q.Glob); err != nil {
			return nil, err
		}
		f.names = !strings.Contains(q.Glob, "/")
		f.hidden = f.hidden || f.glob.hidden || strings.HasPrefix(f.glob.base, ".")
	}
	return f, nil
}

func (f *finder) wants(e *safefile.Entry) bool {
	name := path.Base(e.Rel)
	switch {
	case !f.hidden && name[0] == '.':
		return false
	case f.glob == nil:
		return true
	case f.names:
		return f.glob.re.MatchString(name)
	}
	return f.glob.re.MatchString(e.Rel)
}

// file searches one file.
func (f *finder) file(ctx context.Context, pl place, e *safefile.Entry) error {
	if len(f.matches) >= f.limit || f.room <= 0 {
		f.cut = true
		return fs.SkipAll
	}
	f.files++
	rd, err := e.Open()
	if err != nil {
		f.skipped++
		return nil // removed since, or not to be read: counted
	}
	defer rd.Close()
	had, room, cut := len(f.matches), f.room, f.cut
	if rd.Info().Size > wire.MaxSearchBytes {
		f.cut = true
	}
	in := &lines{r: io.LimitReader(rd, wire.MaxSearchBytes), buf: f.buf, longest: f.longest}
	err = f.scan(ctx, in, pl.path(rd.Info().Path))
	f.buf, f.cut = in.buf, f.cut || in.cut
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil { // binary, or it cannot be read on: nothing of it counts
		f.matches, f.room, f.cut = f.matches[:had], room, cut
		f.skipped++
	}
	return nil
}

// scan searches the lines of a file. After the last permitted match it continues to the end,
// because the file may turn out to be binary.
func (f *finder) scan(ctx context.Context, in *lines, name string) error {
	var last []string // preceding lines
	open := 0         // number of the last matches that need more lines after them
	for n := 1; ; n++ {
		if n%64 == 1 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		line, err := in.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		full := len(f.matches) >= f.limit || f.room <= 0
		if full && open == 0 && f.cut {
			continue
		}
		at := f.find(line)
		if at == nil && open == 0 && f.before == 0 {
			continue
		}
		text := shown(line)
		open = f.follow(open, text)
		switch {
		case at != nil && full:
			f.cut = true
		case at != nil:
			m := wire.Match{Path: name, Line: n, Column: at[0] + 1, Text: text, Before: slices.Clone(last)}
			f.add(m)
			if f.after > 0 {
				open++
			}
		}
		if f.before > 0 {
			if len(last) == f.before {
				last = append(last[:0:0], last[1:]...)
			}
			last = append(last, text)
		}
	}
}

// follow adds a line to the preceding matches that need more. It returns how many still do.
func (f *finder) follow(open int, text string) int {
	still := 0
	for i := len(f.matches) - open; i < len(f.matches); i++ {
		m := &f.matches[i]
		m.After = append(m.After, text)
		f.room -= len(text)
		if len(m.After) < f.after {
			still++
		}
	}
	return still
}

func (f *finder) add(m wire.Match) {
	f.room -= len(m.Path) + len(m.Text)
	for _, l := range m.Before {
		f.room -= len(l)
	}
	f.matches = append(f.matches, m)
}

// reply returns the matches that fit into a reply.
func (f *finder) reply() wire.SearchReply {
	slices.SortStableFunc(f.matches, func(a, b wire.Match) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line))
	})
	left := replyRoom
	r := wire.SearchReply{Matches: []wire.Match{}, Files: f.files, Skipped: f.skipped, Truncated: f.cut}
	for _, m := range f.matches {
		if !left.take(m) {
			r.Truncated = true
			break
		}
		r.Matches = append(r.Matches, m)
	}
	return r
}

// shown returns the part of a line that is sent to the host, as valid UTF-8.
func shown(line []byte) string {
	if len(line) > wire.MaxLineBytes {
		n := wire.MaxLineBytes
		for n > wire.MaxLineBytes-utf8.UTFMax && !utf8.RuneStart(line[n]) {
			n--
		}
		line = line[:n]
	}
	return clip.Valid(string(line))
}

// lines reads text line by line, with limited memory.
type lines struct {
	r       io.Reader
	buf     []byte
	longest int

	start, end int
	skip       bool // discards the rest of a line that was too long
	done       bool
	cut        bool // a line was too long
}

// next returns the next line without its end, or io.EOF. It is valid until the next call. Of a line
// that is too long, it returns the first part.
func (l *lines) next() ([]byte, error) {
	for {
		if i := bytes.IndexByte(l.buf[l.start:l.end], '\n'); i >= 0 {
			line := l.buf[l.start : l.start+i]
			l.start += i + 1
			if l.skip {
				l.skip = false
				continue
			}
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
		switch {
		case l.skip:
			l.start = l.end
		case l.end-l.start >= l.longest:
			line := l.buf[l.start:l.end]
			l.start, l.skip, l.cut = l.end, true, true
			return line, nil
		case l.done && l.start < l.end:
			line := l.buf[l.start:l.end]
			l.start = l.end
			return line, nil
		}
		if l.done {
			return nil, io.EOF
		}
		if err := l.fill(); err != nil {
			return nil, err
		}
	}
}

// fill reads more text. It invalidates lines that were returned.
func (l *lines) fill() error {
	if l.start > 0 {
		l.end = copy(l.buf, l.buf[l.start:l.end])
		l.start = 0
	}
	if l.end == len(l.buf) {
		bigger := make([]byte, min(max(2*len(l.buf), firstLine), max(l.longest, firstLine)))
		copy(bigger, l.buf[:l.end])
		l.buf = bigger
	}
	n, err := l.r.Read(l.buf[l.end:])
	if bytes.IndexByte(l.buf[l.end:l.end+n], 0) >= 0 {
		return errBinary
	}
	l.end += n
	if err == io.EOF {
		l.done = true
		return nil
	}
	return err
}
