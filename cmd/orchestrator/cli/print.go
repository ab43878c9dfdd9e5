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

// Table is rows of cells below a head.
type Table struct {
	Head []string
	Rows [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write aligns the cells. Names and texts are foreign: what could steer a
// terminal is shown escaped.
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

// Print prints v as JSON, or t.
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

// JSONLines prints each value as JSON on a line.
func (a *App) JSONLines() *json.Encoder { return json.NewEncoder(&JSONWriter{W: a.Stdout}) }

// JSONWriter hands JSON on with the same values, and with escapes for what
// escape escapes: encoding/json leaves C1 controls, which terminals obey, and
// what reorders or hides text.
type JSONWriter struct {
	W    io.Writer
	rest []byte // the beginning of a character
}

// Write takes a piece, which may end anywhere.
func (j *JSONWriter) Write(p []byte) (int, error) {
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
	if _, err := j.W.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// PrintList prints items as {"items": […]}, or as a table with a row for each.
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

// Escape makes text safe to show on one line of a terminal: control
// characters, invalid UTF-8, and characters that reorder or hide text become
// escapes.
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

// OneLine is an error's text on one line: joined errors stand on several.
func OneLine(s string) string {
	return Escape(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

// Size formats a number of bytes, such as 1.5MiB.
func Size(n int64) string { return units.BytesSize(float64(n)) }

// Ago is how long ago something was.
func Ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}

// Age is how long something has been there.
func Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return units.HumanDuration(time.Since(t))
}

// Until is how long it is until then.
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

// Truncate cuts a text for a table.
func Truncate(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:n-1]) + "…"
}

// Note tells something on standard error that is no error.
func (a *App) Note(format string, args ...any) {
	fmt.Fprintf(a.Stderr, "orchestrator: %s\n", OneLine(fmt.Sprintf(format, args...))) //nolint:errcheck // a note
}
