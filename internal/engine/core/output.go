package core

import (
	"encoding/base64"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// MaxPiece bounds one read of output, in bytes.
const MaxPiece = 1 << 20

// OutputRequest selects a part of a shell's output.
type OutputRequest = tool.OutputRequest

// EncodeOutput returns bytes as text if they are valid UTF-8, else as base64.
func EncodeOutput(b []byte) (data, base string) {
	if utf8.Valid(b) {
		return string(b), ""
	}
	return "", base64.StdEncoding.EncodeToString(b)
}
