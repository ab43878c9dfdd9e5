package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// Failf returns a Failure. field may be empty.
func Failf(code Code, field, format string, args ...any) *Failure {
	return &Failure{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (f *Failure) Error() string {
	if f.Field == "" {
		return f.Message
	}
	return f.Field + ": " + f.Message
}

// ReadRequest reads a stream's first frame, which must arrive within this time, and clears the read
// deadline. The body is a copy. A *Failure must be sent back; after any other error the peer is
// gone.
func (c *Conn) ReadRequest(within time.Duration) (Request, error) {
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return Request{}, err
	}
	kind, payload, err := c.ReadFrame()
	if err != nil {
		return Request{}, fmt.Errorf("read request: %w", err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return Request{}, err
	}
	if kind != KindRequest {
		return Request{}, Failf(InvalidArgument, "", "the first frame is of kind %q, not a request", byte(kind))
	}
	return DecodeRequest(payload)
}

// DecodeRequest decodes and checks a Request.
func DecodeRequest(payload []byte) (Request, error) {
	var r Request
	if err := json.Unmarshal(payload, &r); err != nil {
		return Request{}, Failf(InvalidArgument, "", "decode request: %v", err)
	}
	if r.Version != Version {
		return Request{}, Failf(FailedPrecondition, "v", "the guest has protocol version %d, the host has %d", Version,
			r.Version)
	}
	if r.Op == "" || len(r.Op) > 32 {
		return Request{}, Failf(InvalidArgument, "op", "invalid operation name: use 1 to 32 bytes")
	}
	return r, nil
}

// Decode decodes a request's body into v. An empty body leaves v unchanged.
func Decode(body json.RawMessage, v any) error {
	if len(body) == 0 {
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return Failf(InvalidArgument, "", "decode request: %v", err)
	}
	return nil
}
