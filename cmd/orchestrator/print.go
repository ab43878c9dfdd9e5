package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	units "github.com/docker/go-units"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// table is rows of cells below a head.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write aligns the cells. Names and texts are foreign: what could steer a
// terminal is shown escaped.
func (t *table) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	if len(t.head) > 0 {
		fmt.Fprintln(tw, strings.Join(t.head, "\t"))
	}
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, c := range row {
			if cells[i] = escape(c); c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// print prints v as JSON, or t.
func (a *app) print(v any, t *table) error {
	if a.flags.output == "json" {
		return a.printJSON(v)
	}
	return t.write(a.stdout)
}

func (a *app) printJSON(v any) error {
	e := a.jsonLines()
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// jsonLines prints each value as JSON on a line.
func (a *app) jsonLines() *json.Encoder { return json.NewEncoder(&jsonWriter{w: a.stdout}) }

// jsonWriter hands JSON on with the same values, and with escapes for what
// escape escapes: encoding/json leaves C1 controls, which terminals obey, and
// what reorders or hides text.
type jsonWriter struct {
	w    io.Writer
	rest []byte // the beginning of a character
}

// Write takes a piece, which may end anywhere.
func (j *jsonWriter) Write(p []byte) (int, error) {
	in := slices.Concat(j.rest, p)
	out := make([]byte, 0, len(in))
	for len(in) > 0 && utf8.FullRune(in) {
		r, n := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && n == 1:
			out = append(out, `\ufffd`...)
		case r < ' ' || unicode.IsPrint(r): // below are the spaces between values only
			out = append(out, in[:n]...)
		default:
			for _, u := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, u)
			}
		}
		in = in[n:]
	}
	j.rest = in
	if _, err := j.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// printList prints items as {"items": […]}, or as a table with a row for each.
func printList[T any](a *app, items []T, head []string, row func(T) []string) error {
	if items == nil {
		items = []T{}
	}
	t := &table{head: head}
	for _, i := range items {
		t.add(row(i)...)
	}
	return a.print(v1.List[T]{Items: items}, t)
}

// escape makes text safe to show on one line of a terminal: control
// characters, invalid UTF-8, and characters that reorder or hide text become
// escapes.
func escape(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}

// oneLine is an error's text on one line: joined errors stand on several.
func oneLine(s string) string {
	return escape(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

func size(n int64) string { return units.BytesSize(float64(n)) }

// ago is how long ago something was.
func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}

// age is how long something has been there.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return units.HumanDuration(time.Since(t))
}

// in is how long it is until then.
func in(t time.Time) string {
	d := time.Until(t)
	switch {
	case t.IsZero():
		return ""
	case d <= 0:
		return "now"
	}
	return "in " + units.HumanDuration(d)
}
