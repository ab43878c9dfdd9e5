package core

import "io"

// Stream connects a command's input and output while it runs. If Stdout or Stderr is set, the
// result holds no output.
type Stream struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Started is called once, when the command runs and before any output.
	Started func(id string)
}

// Live reports whether output goes to the caller while the command runs.
func (s Stream) Live() bool { return s.Stdout != nil || s.Stderr != nil }
