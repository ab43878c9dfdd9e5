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

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// Bounds of a profile file.
const (
	// MaxFile is the maximum size in bytes.
	MaxFile = 1 << 20
	// maxNodes is the maximum number of values, including those repeated by aliases.
	maxNodes = 50_000
	// maxDepth is the maximum nesting.
	maxDepth = 64
)

// kind is the type of a node, as shown in errors.
type kind string

const (
	object  kind = "a map of keys"
	list    kind = "a list"
	text    kind = "text"
	integer kind = "a whole number"
	number  kind = "a number"
	boolean kind = "true or false"
	null    kind = "nothing"
)

// node is a value in a file with its line.
type node struct {
	kind kind
	line int
	// value is set for text, integer (int64), number (float64) and boolean.
	value any
	// keys and items of an object, or items of a list.
	keys  []string
	at    []int // lines of the keys
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

// parseFile parses a JSON file if its name ends in .json, and a YAML file otherwise.
func parseFile(file string, data []byte) (*node, error) {
	src := &source{file: file}
	switch {
	case len(data) > MaxFile:
		return nil, src.fail("", "is %d bytes long, more than %d", len(data), MaxFile)
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
		out := &FileError{File: src.file, Reason: "is invalid YAML: " + clip.Message(err.Error())}
		if e, ok := errors.AsType[*yaml.LoadError](err); ok {
			out.Line, out.Reason = e.Mark.Line, "is invalid YAML: "+clip.Message(e.Message)
		}
		return nil, out
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, &FileError{File: src.file, Line: more.Line,
			Reason: "has more than one document: use one file per profile"}
	}
	b := nodeBuilder{src: src}
	return b.yaml(&doc, 0)
}

// builder builds nodes and counts them.
type nodeBuilder struct {
	src   *source
	count int
}

func (b *nodeBuilder) fail(line int, format string, args ...any) error {
	return &FileError{File: b.src.file, Line: line, Reason: fmt.Sprintf(format, args...)}
}

func (b *nodeBuilder) next(line, depth int) error {
	b.count++
	switch {
	case b.count > maxNodes:
		return b.fail(line, "has more than %d values, including those repeated by aliases", maxNodes)
	case depth > maxDepth:
		return b.fail(line, "is nested more than %d levels", maxDepth)
	}
	return nil
}

func (b *nodeBuilder) yaml(y *yaml.Node, depth int) (*node, error) {
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
			return nil, b.fail(y.Line, "has an alias without an anchor")
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
	default:
		return b.scalar(y)
	}
}

func (b *nodeBuilder) mapping(y *yaml.Node, depth int) (*node, error) {
	n := &node{kind: object, line: y.Line}
	seen := make(map[string]int, len(y.Content)/2)
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		if key.Kind != yaml.ScalarNode {
			return nil, b.fail(key.Line, "has a key that is not a scalar")
		}
		if key.ShortTag() == "!!merge" {
			return nil, b.fail(key.Line, "has a merge key (<<), which is not supported: use extends")
		}
		if line, ok := seen[key.Value]; ok {
			return nil, b.fail(key.Line, "has duplicate key %q, first in line %d", clip.Message(key.Value), line)
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

func (b *nodeBuilder) scalar(y *yaml.Node) (*node, error) {
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
		n.kind, n.value = integer, v
	case "!!float":
		var v float64
		err = y.Decode(&v)
		n.kind, n.value = number, v
	case "!!timestamp": // a date is plain text
		n.kind, n.value = text, y.Value
	default:
		return nil, b.fail(y.Line, "has a value with unsupported tag %s", clip.Message(tag))
	}
	if err != nil {
		return nil, b.fail(y.Line, "has invalid value %s", clip.Message(y.Value))
	}
	if f, ok := n.value.(float64); ok && (f != f || f > 1e300 || f < -1e300) {
		return nil, b.fail(y.Line, "has invalid number %s", clip.Message(y.Value))
	}
	return n, nil
}

// parseJSON parses JSON. The YAML library does not accept all of it.
func parseJSON(src *source, data []byte) (*node, error) {
	j := &jsonReader{nodeBuilder: nodeBuilder{src: src}, data: data, d: json.NewDecoder(bytes.NewReader(data)), line: 1}
	j.d.UseNumber()
	n, err := j.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := j.d.Token(); !errors.Is(err, io.EOF) {
		return nil, j.fail(j.currentLine(), "has data after the JSON value")
	}
	return n, nil
}

type jsonReader struct {
	nodeBuilder
	data []byte
	d    *json.Decoder
	line int // line at offset seen
	seen int64
}

// currentLine returns the line of the last token.
func (j *jsonReader) currentLine() int {
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
	line := j.currentLine()
	if s, ok := errors.AsType[*json.SyntaxError](err); ok && s.Offset >= 0 && s.Offset <= int64(len(j.data)) {
		line = 1 + bytes.Count(j.data[:s.Offset], []byte{'\n'})
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, j.fail(line, "is an incomplete JSON value")
	}
	return nil, j.fail(line, "is invalid JSON: %s", clip.Message(err.Error()))
}

func (j *jsonReader) value(depth int) (*node, error) {
	t, err := j.token()
	if err != nil {
		return nil, err
	}
	line := j.currentLine()
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
			return &node{kind: integer, line: line, value: i}, nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, j.fail(line, "has invalid number %s", clip.Message(v.String()))
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
		at := j.currentLine()
		if !ok {
			return nil, j.fail(at, "has a key that is not text")
		}
		if first, ok := seen[key]; ok {
			return nil, j.fail(at, "has duplicate key %q, first in line %d", clip.Message(key), first)
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
