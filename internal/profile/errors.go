package profile

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// FileError describes an error in a profile file. Its errdefs class is InvalidArgument.
type FileError struct {
	File string
	// Line starts at 1; 0 means the whole file.
	Line int
	// Path names the part, such as "tools[2].result"; "" means the whole file.
	Path   string
	Reason string
}

// Error implements error. The text is "FILE:LINE: PATH: REASON".
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

// Unwrap returns the errdefs class.
func (e *FileError) Unwrap() error { return errdefs.ErrInvalidArgument }

// source is a file with the lines of its parts.
type source struct {
	file  string
	lines map[string]int
	// builtin: the file is one of the built-in profiles.
	builtin bool
}

// fail returns an error about the part at path. If the part is not in the file, the line is that of
// its nearest container.
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

// nearest returns a suggestion for the known name closest to name, or "".
func nearest(name string, known []string) string {
	if best := strictjson.Nearest(name, known); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}
