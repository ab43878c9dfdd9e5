package mcp

import (
	"context"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Run serves one session on a pair of streams, until the client closes its
// side or ctx ends. Nothing but the protocol is written to out.
func (s *Server) Run(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	ss, err := s.sdk.Connect(ctx, &mcp.IOTransport{Reader: in, Writer: out, MaxLineLength: maxMessage}, nil)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- ss.Wait() }() // waited for here, or by Close
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	return errors.Join(err, s.Close(end))
}
