package mcp

import (
	"context"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Run serves one session on a pair of streams until the client closes its side or ctx ends. It
// writes only protocol messages to out.
func (s *Server) Run(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	ss, err := s.sdk.Connect(ctx, &mcp.IOTransport{Reader: in, Writer: lineWriter{out}, MaxLineLength: maxMessage}, nil)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- ss.Wait() }() // received here or ended by Close
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	return errors.Join(err, s.Close(end))
}
