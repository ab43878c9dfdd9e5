package profile

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// FileError is what is wrong with a profile's file: where, in which part of it,
// and why. It is of class InvalidArgument.
type FileError struct {
	File string
	// Line is from 1; 0 if it is about the whole file.
	Line int
	// Path names the part, as "tools[2].result"; "" for the whole.
	Path   string
	Reason string
}

// Error is "FILE:LINE: PATH: REASON".
func (e *FileError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line))
	}
	if e.Path != "" {
		b.WriteString(": " + e.Path)
	}
	return b.String() + ": " + e.Reason
}

// Unwrap gives the class.
func (e *FileError) Unwrap() error { return errdefs.ErrInvalidArgument }

// source is one file, and where its parts stand.
type source struct {
	file  string
	lines map[string]int
	// builtin: it comes with the service.
	builtin bool
}

// fail makes an error about the part at path. A part that is not in the file
// is told of at the line of what would hold it.
func (s *source) fail(path, format string, args ...any) error {
	return &FileError{File: s.file, Line: s.line(path), Path: path, Reason: fmt.Sprintf(format, args...)}
}

func (s *source) line(path string) int {
	for {
		if n, ok := s.lines[path]; ok {
			return n
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return s.lines[""]
		}
		path = path[:i]
	}
}

// nearest proposes the known name that is closest to one that is not.
func nearest(name string, known []string) string {
	if best := strictjson.Nearest(name, known); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}

// shorten bounds what an error shows of a file.
func shorten(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
