package cli

import (
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/term"
)

// Table holds rows of cells below a heading. Without a heading it describes one object: each row is
// a name and a value.
type Table struct {
	Head []string
	Rows [][]string
	// Optional are headings of columns that are left out if the terminal is too narrow, the first
	// ones first.
	Optional []string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write writes the whole table. Names and texts are untrusted, so control characters are escaped.
func (t *Table) Write(w io.Writer) error { return t.write(w, 0) }

// WriteFitted writes the table with short ids, in at most so many columns.
func (t *Table) WriteFitted(w io.Writer, columns int) error { return t.shortened().write(w, columns) }

// Print prints v as JSON, or t if the output is a table. Ids are shortened in a table with a
// heading, and on a terminal the table fits its width, unless --no-trunc is given.
func (a *App) Print(v any, t *Table) error {
	switch {
	case a.Flags.Output == "json":
		return a.PrintJSON(v)
	case a.Flags.Quiet && len(t.Head) > 0:
		first := &Table{}
		for _, row := range t.Rows {
			first.Add(row[0])
		}
		return first.Write(a.Stdout)
	}
	return a.PrintTable(t)
}

// PrintTable prints a table as Print does.
func (a *App) PrintTable(t *Table) error {
	if a.Flags.NoTrunc {
		return t.Write(a.Stdout)
	}
	return t.shortened().write(a.Stdout, a.Columns())
}

// Columns returns the width of standard output's terminal in characters, or 0 if it is none.
func (a *App) Columns() int {
	f, ok := a.Stdout.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// shortLen is the length of a short id of the form of a UUID: its time, to the millisecond.
const shortLen = 13

// digestLen is the length of a short image id, and digest is what it leaves out before.
const (
	digestLen = 12
	digest    = "sha256:"
)

// isIDColumn reports whether a column has ids that commands accept.
func isIDColumn(heading string) bool {
	return heading == "ID" || heading == "SANDBOX" || heading == "JOB"
}

// shortened returns the table with short ids: the beginning of each that no other id in its column
// has.
func (t *Table) shortened() *Table {
	out := &Table{Head: t.Head, Optional: t.Optional, Rows: make([][]string, len(t.Rows))}
	for i, row := range t.Rows {
		out.Rows[i] = slices.Clone(row)
	}
	for c, name := range t.Head {
		if !isIDColumn(name) {
			continue
		}
		cells := make([]string, len(t.Rows))
		for i, row := range t.Rows {
			cells[i] = row[c]
		}
		for i, short := range ShortIDs(cells) {
			out.Rows[i][c] = short
		}
	}
	return out
}

// ShortID returns the beginning of an id for a message.
func ShortID(id string) string { return ShortIDs([]string{id})[0] }

// ShortIDs returns the shortest beginnings of ids that tell them apart, of at least 13 characters
// for UUIDs and 12 digits for digests. Other texts stay as they are.
func ShortIDs(ids []string) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		short := shortLen
		switch {
		case strings.HasPrefix(id, digest):
			id, short = strings.TrimPrefix(id, digest), digestLen
		case uuid.Validate(id) != nil:
			out[i] = id
			continue
		}
		for _, other := range ids {
			if other = strings.TrimPrefix(other, digest); other != id {
				short = max(short, commonLen(id, other)+1)
			}
		}
		if id = id[:min(short, len(id))]; strings.HasSuffix(id, "-") {
			id = id[:len(id)-1] // the other one has it too, or ends there
		}
		out[i] = id
	}
	return out
}

// commonLen returns the length of the longest common beginning.
func commonLen(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// write writes the table, in at most so many columns unless it is 0.
func (t *Table) write(w io.Writer, columns int) error {
	grid := t.grid()
	gap := "   "
	var widths []int
	if columns > 0 {
		gap = "  "
		grid, widths = fit(grid, t.Head, t.Optional, columns, len(gap))
	} else {
		widths = widthsOf(grid)
	}
	var b strings.Builder
	for _, row := range grid {
		line := make([]string, len(row))
		for c, cell := range row {
			cell = Truncate(cell, widths[c])
			line[c] = cell + strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell))
		}
		text := strings.TrimRight(strings.Join(line, gap), " ")
		if columns > 0 {
			text = Truncate(text, columns)
		}
		b.WriteString(text + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// grid returns all cells escaped, with the heading first.
func (t *Table) grid() [][]string {
	var grid [][]string
	if len(t.Head) > 0 {
		grid = append(grid, slices.Clone(t.Head))
	}
	for _, row := range t.Rows {
		cells := make([]string, len(row))
		for i, c := range row {
			if cells[i] = Escape(c); c == "" {
				cells[i] = "-"
			}
		}
		grid = append(grid, cells)
	}
	return grid
}

func widthsOf(grid [][]string) []int {
	var widths []int
	for _, row := range grid {
		for c, cell := range row {
			if c == len(widths) {
				widths = append(widths, 0)
			}
			widths[c] = max(widths[c], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// Widths below which cells are cut only when no column can be left out, and never.
const (
	comfortable = 16
	narrowest   = 4
)

// fit returns the grid without the columns that do not fit, and the widths of the others. It cuts
// the last column, which has free text, then leaves out optional columns, and then cuts the widest
// ones. Ids are not cut: a cut id names nothing.
func fit(grid [][]string, head, optional []string, columns, gap int) ([][]string, []int) {
	if len(head) == 0 {
		return wrapLast(grid, widthsOf(grid), columns, gap)
	}
	for {
		widths := widthsOf(grid)
		last := len(widths) - 1
		if shrink(widths[last:], head[last:], columns-gap*last-sum(widths[:last]), gap, min(comfortable, widths[last])) {
			return grid, widths
		}
		if len(optional) == 0 {
			_ = shrink(widths, head, columns, gap, comfortable) || shrink(widths, head, columns, gap, narrowest)
			return grid, widths
		}
		if c := slices.Index(head, optional[0]); c >= 0 {
			head = slices.Delete(slices.Clone(head), c, c+1)
			for i, row := range grid {
				grid[i] = slices.Delete(slices.Clone(row), c, c+1)
			}
		}
		optional = optional[1:]
	}
}

func sum(widths []int) (total int) {
	for _, w := range widths {
		total += w
	}
	return total
}

// shrink narrows the widest columns, to not less than least, until all fit. It reports whether they
// do.
func shrink(widths []int, head []string, columns, gap, least int) bool {
	for total := sum(widths) + gap*(len(widths)-1); total > columns; total-- {
		widest := -1
		for c, w := range widths {
			if w > least && !isIDColumn(head[c]) && (widest < 0 || w > widths[widest]) {
				widest = c
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
	}
	return true
}

// wrapLast breaks the values of a table without a heading into lines that fit.
func wrapLast(grid [][]string, widths []int, columns, gap int) ([][]string, []int) {
	if len(widths) != 2 || columns-widths[0]-gap < comfortable {
		return grid, widths
	}
	width := columns - widths[0] - gap
	var out [][]string
	for _, row := range grid {
		name := row[0]
		for _, line := range Wrap(row[1], width) {
			out = append(out, []string{name, line})
			name = ""
		}
	}
	return out, widthsOf(out)
}

// Wrap breaks a text into lines of at most width characters, at spaces where it can.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Split(text, " ") {
		for utf8.RuneCountInString(word) > width {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			runes := []rune(word)
			lines, word = append(lines, string(runes[:width])), string(runes[width:])
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
