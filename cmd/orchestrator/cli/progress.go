package cli

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Times between two reports of progress, on a terminal and elsewhere. Shorter work reports nothing.
const (
	drawTime = 500 * time.Millisecond
	lineTime = 5 * time.Second
)

// Progress reports on standard error that long work goes on, with its time and, if known, its
// bytes: on a terminal as a line that is redrawn, and elsewhere as plain lines. Count may be called
// concurrently with the reports.
type Progress struct {
	bytes atomic.Int64
	stop  func()
}

// StartProgress starts reports about work such as "importing x.tar", of total bytes if that is more
// than 0. Call Stop at its end, before anything else is printed.
func (a *App) StartProgress(what string, total int64) *Progress {
	p, began := &Progress{}, time.Now()
	p.report(a.Stderr, func() string {
		text := Escape(what) + ":"
		switch have := p.bytes.Load(); {
		case total > 0 && have > 0:
			text += fmt.Sprintf(" %s of %s,", Size(have), Size(total))
		case have > 0:
			text += fmt.Sprintf(" %s,", Size(have))
		}
		return text + " " + Span(time.Since(began))
	})
	return p
}

// StartReports is StartProgress for work that describes itself on one line.
func (a *App) StartReports(describe func() string) *Progress {
	p := &Progress{}
	p.report(a.Stderr, describe)
	return p
}

// report starts the reports.
func (p *Progress) report(w io.Writer, describe func() string) {
	every, draw := lineTime, IsTerminal(w)
	if draw {
		every = drawTime
	}
	p.reportEvery(w, describe, every, draw)
}

// reportEvery writes reports until Stop. draw redraws one line.
func (p *Progress) reportEvery(w io.Writer, describe func() string, every time.Duration, draw bool) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() { // Stop waits for it
		defer close(ended)
		t := time.NewTicker(every)
		defer t.Stop()
		drawn := false
		for {
			select {
			case <-t.C:
				if draw {
					fmt.Fprintf(w, "\r\x1b[K%s", describe())
					drawn = true
				} else {
					fmt.Fprintln(w, describe())
				}
			case <-quit:
				if drawn {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			}
		}
	}()
	p.stop = sync.OnceFunc(func() { close(quit); <-ended })
}

// Count returns a reader that counts what is read from r.
func (p *Progress) Count(r io.Reader) io.Reader { return &countingReader{r, &p.bytes} }

// Stop ends the reports and clears a redrawn line. It may be called more than once.
func (p *Progress) Stop() { p.stop() }

type countingReader struct {
	io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}
