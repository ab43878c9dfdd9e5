package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Bounds of a profile's file.
const (
	// MaxFile is how large one may be, in bytes.
	MaxFile = 1 << 20
	// maxNodes bounds its values, with those that an alias repeats.
	maxNodes = 50_000
	// maxDepth bounds how deep they nest.
	maxDepth = 64
)

// kind of a node.
type kind string

const (
	object  kind = "a map of keys"
	list    kind = "a list"
	text    kind = "text"
	whole   kind = "a whole number"
	number  kind = "a number"
	boolean kind = "true or false"
	null    kind = "nothing"
)

// node is a value of a file, with its line.
type node struct {
	kind kind
	line int
	// value of text, whole (int64), number (float64) and boolean.
	value any
	// keys and items of an object, items of a list.
	keys  []string
	at    []int // the lines of the keys
	items []*node
}

func (n *node) get(key string) *node {
	for i, k := range n.keys {
		if k == key {
			return n.items[i]
		}
	}
	return nil
}

// parseFile reads a file of YAML, or of JSON if its name says so.
func parseFile(file string, data []byte) (*node, error) {
	src := &source{file: file}
	switch {
	case len(data) > MaxFile:
		return nil, src.fail("", "is %d bytes long: at most %d", len(data), MaxFile)
	case !utf8.Valid(data):
		return nil, &FileError{File: file, Line: badLine(data), Reason: "is not valid UTF-8"}
	}
	if strings.HasSuffix(file, ".json") {
		return parseJSON(src, data)
	}
	return parseYAML(src, data)
}

func badLine(data []byte) int {
	line := 1
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError && size == 1 {
			return line
		}
		if r == '\n' {
			line++
		}
		data = data[size:]
	}
	return line
}

func parseYAML(src *source, data []byte) (*node, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, src.fail("", "is empty")
	} else if err != nil {
		out := &FileError{File: src.file, Reason: "is not YAML: " + shorten(err.Error())}
		if e, ok := errors.AsType[*yaml.LoadError](err); ok {
			out.Line, out.Reason = e.Mark.Line, "is not YAML: "+shorten(e.Message)
		}
		return nil, out
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, &FileError{File: src.file, Line: more.Line, Reason: "has more than one document: use a file for each profile"}
	}
	b := builder{src: src}
	return b.yaml(&doc, 0)
}

// builder makes nodes and counts them.
type builder struct {
	src   *source
	count int
}

func (b *builder) fail(line int, format string, args ...any) error {
	return &FileError{File: b.src.file, Line: line, Reason: fmt.Sprintf(format, args...)}
}

func (b *builder) next(line, depth int) error {
	b.count++
	switch {
	case b.count > maxNodes:
		return b.fail(line, "holds over %d values, with those that its aliases repeat", maxNodes)
	case depth > maxDepth:
		return b.fail(line, "nests over %d deep", maxDepth)
	}
	return nil
}

func (b *builder) yaml(y *yaml.Node, depth int) (*node, error) {
	if err := b.next(y.Line, depth); err != nil {
		return nil, err
	}
	switch y.Kind {
	case yaml.DocumentNode:
		if len(y.Content) != 1 {
			return nil, b.fail(y.Line, "is empty")
		}
		return b.yaml(y.Content[0], depth)
	case yaml.AliasNode:
		if y.Alias == nil {
			return nil, b.fail(y.Line, "has an alias of nothing")
		}
		return b.yaml(y.Alias, depth+1)
	case yaml.MappingNode:
		return b.mapping(y, depth)
	case yaml.SequenceNode:
		n := &node{kind: list, line: y.Line}
		for _, c := range y.Content {
			item, err := b.yaml(c, depth+1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
		return n, nil
	}
	return b.scalar(y)
}

func (b *builder) mapping(y *yaml.Node, depth int) (*node, error) {
	n := &node{kind: object, line: y.Line}
	seen := make(map[string]int, len(y.Content)/2)
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		if key.Kind != yaml.ScalarNode {
			return nil, b.fail(key.Line, "has a key that is not a plain word")
		}
		if key.ShortTag() == "!!merge" {
			return nil, b.fail(key.Line, "has a merge key (<<), which profiles do not know: use extends")
		}
		if line, ok := seen[key.Value]; ok {
			return nil, b.fail(key.Line, "has the key %q twice, first in line %d", shorten(key.Value), line)
		}
		seen[key.Value] = key.Line
		v, err := b.yaml(y.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		n.keys, n.at, n.items = append(n.keys, key.Value), append(n.at, key.Line), append(n.items, v)
	}
	return n, nil
}

func (b *builder) scalar(y *yaml.Node) (*node, error) {
	n := &node{line: y.Line}
	var err error
	switch tag := y.ShortTag(); tag {
	case "!!str":
		n.kind, n.value = text, y.Value
	case "!!null":
		n.kind = null
	case "!!bool":
		var v bool
		err = y.Decode(&v)
		n.kind, n.value = boolean, v
	case "!!int":
		var v int64
		err = y.Decode(&v)
		n.kind, n.value = whole, v
	case "!!float":
		var v float64
		err = y.Decode(&v)
		n.kind, n.value = number, v
	case "!!timestamp": // a date is a word here
		n.kind, n.value = text, y.Value
	default:
		return nil, b.fail(y.Line, "has a value with the tag %s, which profiles do not know", shorten(tag))
	}
	if err != nil {
		return nil, b.fail(y.Line, "has a value that cannot be read: %s", shorten(y.Value))
	}
	if f, ok := n.value.(float64); ok && (f != f || f > 1e300 || f < -1e300) {
		return nil, b.fail(y.Line, "has a number that is none: %s", shorten(y.Value))
	}
	return n, nil
}

// parseJSON reads JSON by itself: the YAML library does not take all of it.
func parseJSON(src *source, data []byte) (*node, error) {
	j := &jsonReader{builder: builder{src: src}, data: data, d: json.NewDecoder(bytes.NewReader(data)), line: 1}
	j.d.UseNumber()
	n, err := j.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := j.d.Token(); !errors.Is(err, io.EOF) {
		return nil, j.fail(j.here(), "has something after its JSON value")
	}
	return n, nil
}

type jsonReader struct {
	builder
	data []byte
	d    *json.Decoder
	line int // of offset
	seen int64
}

// here is the line of the token that was read last.
func (j *jsonReader) here() int {
	end := j.d.InputOffset()
	j.line += bytes.Count(j.data[j.seen:end], []byte{'\n'})
	j.seen = end
	return j.line
}

func (j *jsonReader) token() (json.Token, error) {
	t, err := j.d.Token()
	if err == nil {
		return t, nil
	}
	line := j.here()
	if s, ok := errors.AsType[*json.SyntaxError](err); ok && s.Offset >= 0 && s.Offset <= int64(len(j.data)) {
		line = 1 + bytes.Count(j.data[:s.Offset], []byte{'\n'})
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, j.fail(line, "is not a whole JSON value")
	}
	return nil, j.fail(line, "is not JSON: %s", shorten(err.Error()))
}

func (j *jsonReader) value(depth int) (*node, error) {
	t, err := j.token()
	if err != nil {
		return nil, err
	}
	line := j.here()
	if err := j.next(line, depth); err != nil {
		return nil, err
	}
	switch v := t.(type) {
	case json.Delim:
		if v == '{' {
			return j.object(line, depth)
		}
		return j.list(line, depth)
	case string:
		return &node{kind: text, line: line, value: v}, nil
	case bool:
		return &node{kind: boolean, line: line, value: v}, nil
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return &node{kind: whole, line: line, value: i}, nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, j.fail(line, "has a number that is none: %s", shorten(v.String()))
		}
		return &node{kind: number, line: line, value: f}, nil
	}
	return &node{kind: null, line: line}, nil
}

func (j *jsonReader) list(line, depth int) (*node, error) {
	n := &node{kind: list, line: line}
	for j.d.More() {
		item, err := j.value(depth + 1)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, item)
	}
	_, err := j.token()
	return n, err
}

func (j *jsonReader) object(line, depth int) (*node, error) {
	n := &node{kind: object, line: line}
	seen := map[string]int{}
	for j.d.More() {
		t, err := j.token()
		if err != nil {
			return nil, err
		}
		key, ok := t.(string)
		at := j.here()
		if !ok {
			return nil, j.fail(at, "has a key that is not text")
		}
		if first, ok := seen[key]; ok {
			return nil, j.fail(at, "has the key %q twice, first in line %d", shorten(key), first)
		}
		seen[key] = at
		v, err := j.value(depth + 1)
		if err != nil {
			return nil, err
		}
		n.keys, n.at, n.items = append(n.keys, key), append(n.at, at), append(n.items, v)
	}
	_, err := j.token()
	return n, err
}
