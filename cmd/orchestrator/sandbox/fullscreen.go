package sandbox

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// fullScreen draws on a terminal's alternate screen, so that the previous content reappears at the
// end.
type fullScreen struct {
	w    io.Writer
	size func() (cols, rows int)
	open bool
}

func newFullScreen(w io.Writer) *fullScreen {
	return &fullScreen{w: w, size: func() (int, int) {
		if f, ok := w.(*os.File); ok {
			if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
				return cols, rows
			}
		}
		return 80, 24
	}}
}

// draw replaces the shown text, cut to the screen. It writes once, so that the screen does not
// flicker.
func (s *fullScreen) draw(text string) error {
	var b strings.Builder
	if !s.open {
		b.WriteString("\x1b[?1049h\x1b[?25l") // alternate screen, hidden cursor
		s.open = true
	}
	cols, rows := s.size()
	b.WriteString("\x1b[H")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines[:min(len(lines), rows)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if r := []rune(line); len(r) > cols {
			line = string(r[:cols])
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err := io.WriteString(s.w, b.String())
	return err
}

// close restores the terminal. It is idempotent.
func (s *fullScreen) close() {
	if s.open {
		s.open = false
		io.WriteString(s.w, "\x1b[?25h\x1b[?1049l") //nolint:errcheck // there is nothing else to try
	}
}
