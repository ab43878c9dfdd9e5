// Package caller identifies the callers of the service, by tokens and client certificates, and
// holds their quotas.
package caller

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Principal identifies the caller of a request and its idempotency key. Identify makes it from a
// token, IdentifyCertificate from a client certificate, and Local from access to the service's
// socket.
type Principal struct {
	// Caller owns what the call creates.
	Caller string
	// Key is the Idempotency-Key, or "".
	Key string
	// Token is the id of the caller's token, CertificatePrefix and a name if a client certificate
	// identified it, or "".
	Token string
	// Expires is when the token or certificate expires, or zero.
	Expires time.Time
	// Profile is the caller's profile. Trust is the caller's level from 0 to 3.
	Profile string
	Trust   int
	Quotas  v1.Quotas
	// Operator callers may do everything: choose a profile, create tokens, answer approval
	// requests, read all audit records.
	Operator bool
	// Via is the adapter of the call: "http", "mcp", "cli", "shell" or "ui".
	Via string
	// By is the person on whose behalf an adapter acts, or "" for the caller.
	By string
}

// LocalCaller is the caller of the service's own socket.
const LocalCaller = "local"

// maxKey bounds an idempotency key, in bytes.
const maxKey = 255

// Validate returns an *InvalidError if the idempotency key is too long, not valid UTF-8, or has
// a control character.
func (p Principal) Validate() error {
	if len(p.Key) > maxKey {
		return usererror.Invalid("Idempotency-Key", "is %d bytes long: at most %d", len(p.Key), maxKey)
	}
	if !utf8.ValidString(p.Key) {
		return usererror.Invalid("Idempotency-Key", "is not valid UTF-8")
	}
	if strings.ContainsFunc(p.Key, unicode.IsControl) { // names of internal locks begin with NUL
		return usererror.Invalid("Idempotency-Key", "has a control character")
	}
	return nil
}

// Operate returns PermissionDenied unless the caller is an operator. what completes "only
// operators may".
func (p Principal) Operate(what string) error {
	if p.Operator {
		return nil
	}
	return usererror.Errorf(
		errdefs.ErrPermissionDenied,
		"only operators may %s: use the service's own socket or token, or a token made with operator",
		what,
	)
}

// Keyless returns the principal without its idempotency key, for the steps within a request.
func (p Principal) Keyless() Principal {
	p.Key = ""
	return p
}

// Local returns the operator who uses the service's own socket.
func Local(key string) Principal {
	return Principal{Caller: LocalCaller, Key: key, Trust: tool.TrustMax, Operator: true}
}
