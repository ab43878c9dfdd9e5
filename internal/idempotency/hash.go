package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
)

// Hash returns the fingerprint of a request for its idempotency key.
func Hash(v any) (string, error) {
	sum := sha256.New()
	if err := json.NewEncoder(newlineTrimmer{sum}).Encode(v); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// newlineTrimmer drops the newline that json.Encoder writes after each document.
type newlineTrimmer struct{ w io.Writer }

// Write implements io.Writer.
func (u newlineTrimmer) Write(p []byte) (int, error) {
	_, err := u.w.Write(bytes.TrimSuffix(p, []byte("\n")))
	return len(p), err
}
