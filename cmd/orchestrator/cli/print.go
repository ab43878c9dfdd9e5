package cli

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

// Table holds rows of cells below a heading.
type Table struct {
	Head []string
	Rows [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write aligns the cells. Names and texts are untrusted, so control characters are escaped.
func (t *Table) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	if len(t.Head) > 0 {
		fmt.Fprintln(tw, strings.Join(t.Head, "\t"))
	}
	for _, row := range t.Rows {
		cells := make([]string, len(row))
		for i, c := range row {
			if cells[i] = Escape(c); c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// Print prints v as JSON, or t if the output is a table.
func (a *App) Print(v any, t *Table) error {
	if a.Flags.Output == "json" {
		return a.PrintJSON(v)
	}
	return t.Write(a.Stdout)
}

// PrintJSON prints v as indented JSON.
func (a *App) PrintJSON(v any) error {
	e := a.JSONLines()
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// JSONLines returns an encoder that prints each value as JSON on one line.
func (a *App) JSONLines() *json.Encoder {
	e := json.NewEncoder(&JSONWriter{W: a.Stdout})
	e.SetEscapeHTML(false) // people read it, browsers do not
	return e
}

// JSONWriter copies JSON and replaces characters that Escape escapes by JSON escapes, so values
// stay the same. encoding/json leaves C1 controls, which terminals obey, and characters that
// reorder or hide text.
type JSONWriter struct {
	W    io.Writer
	rest []byte // the first bytes of an incomplete character
}

// Write implements io.Writer. The JSON may be cut anywhere.
func (j *JSONWriter) Write(p []byte) (int, error) {
	in := slices.Concat(j.rest, p)
	out := make([]byte, 0, len(in))
	for len(in) > 0 && utf8.FullRune(in) {
		r, n := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && n == 1:
			out = append(out, `\ufffd`...)
		case r < ' ' || unicode.IsPrint(r): // control characters below the space occur only between values
			out = append(out, in[:n]...)
		default:
			for _, u := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, u)
			}
		}
		in = in[n:]
	}
	j.rest = in
	if _, err := j.W.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// PrintList prints {"items": […]}, or a table with one row for each item.
func PrintList[T any](a *App, items []T, head []string, row func(T) []string) error {
	if items == nil {
		items = []T{}
	}
	t := &Table{Head: head}
	for _, i := range items {
		t.Add(row(i)...)
	}
	return a.Print(v1.List[T]{Items: items}, t)
}

// Escape makes text safe to show on one line of a terminal. It escapes control characters, invalid
// UTF-8, and characters that reorder or hide text.
func Escape(s string) string {
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

// EscapeText makes text of several lines safe to show on a terminal. It keeps tabs and line ends.
func EscapeText(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		for i, part := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(Escape(part))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// OneLine returns an error's text on one line. Joined errors have several.
func OneLine(s string) string {
	return Escape(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

// Size formats a number of bytes, such as 1.5MiB.
func Size(n int64) string { return units.BytesSize(float64(n)) }

// Ago formats a time in the past, such as "2 hours ago". It returns "" for the zero time.
func Ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}

// Age formats the time since t, such as "2 hours". It returns "" for the zero time.
func Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return units.HumanDuration(time.Since(t))
}

// Until formats a time in the future, such as "in 2 hours". It returns "" for the zero time.
func Until(t time.Time) string {
	d := time.Until(t)
	switch {
	case t.IsZero():
		return ""
	case d <= 0:
		return "now"
	}
	return "in " + units.HumanDuration(d)
}

// HostPort joins a host and a port for a table. It returns "" without a host.
func HostPort(host string, port int) string {
	if host == "" {
		return ""
	}
	return host + ":" + strconv.Itoa(port)
}

// Truncate cuts a text to n characters for a table.
func Truncate(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:n-1]) + "…"
}

// Note prints a message that is not an error to standard error.
func (a *App) Note(format string, args ...any) {
	fmt.Fprintf(a.Stderr, "orchestrator: %s\n", OneLine(fmt.Sprintf(format, args...)))
}
