package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	units "github.com/docker/go-units"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// PrintJSON prints v as indented JSON, or as --format says.
func (a *App) PrintJSON(v any) error {
	if a.Flags.Format != "" {
		return a.printFormatted(v)
	}
	e := a.jsonLines()
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// PrintJSONLine prints v as JSON on one line, or as --format says.
func (a *App) PrintJSONLine(v any) error {
	if a.Flags.Format != "" {
		return a.printFormatted(v)
	}
	return a.jsonLines().Encode(v)
}

// jsonLines returns an encoder that prints each value as JSON on one line.
func (a *App) jsonLines() *json.Encoder {
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
	return PrintTable(a, items, &Table{Head: head}, row)
}

// PrintTable is PrintList with a table that has more than a heading.
func PrintTable[T any](a *App, items []T, t *Table, row func(T) []string) error {
	if items == nil {
		items = []T{}
	}
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

// Ago formats a time in the past, such as "2h ago". It returns "" for the zero time.
func Ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Age(t) + " ago"
}

// Age formats the time since t, such as "2h". It returns "" for the zero time.
func Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Span(time.Since(t))
}

// Until formats a time in the future, such as "in 2h". It returns "" for the zero time.
func Until(t time.Time) string {
	d := time.Until(t)
	switch {
	case t.IsZero():
		return ""
	case d <= 0:
		return "now"
	}
	return "in " + Span(d)
}

// Span formats a duration in its largest unit of which there are at least two: "90s", "2m", "36h",
// "9d". A negative one is "0s".
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
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
