package governed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// secretName matches names of variables that hold secrets.
var secretName = regexp.MustCompile(
	`(?i)(secret|token|passw|passphrase|credential|private|api_?key|access_?key|auth|cookie|session|` +
		`_key$|^key$|_pat$|(^|_)pw$|(^|_)pass$|dsn|database_url|connection_?string)`,
)

// maxEnvJSON bounds an input's variables as JSON, where a byte may take six.
const maxEnvJSON = 8 * core.MaxEnvBytes

// hideSecrets redacts the secrets of the call's input from the caller's records until the call
// ends.
func (t *transaction) hideSecrets(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	values, err := secretsOf(t.input)
	if err != nil {
		return err
	}
	show, err := t.g.hide(ctx, t.principal.Caller, values)
	if err == nil {
		t.unhide = append(t.unhide, show)
	}
	return err
}

// HideEnv redacts the secrets of env from the caller's records until show is called. show is nil if
// env holds none.
func (s *Service) HideEnv(ctx context.Context, caller string, env map[string]string) (show func(), err error) {
	var values []string
	for name, value := range env {
		if secretName.MatchString(name) {
			values = append(values, value)
		}
	}
	if s.opts.Config == nil || len(values) == 0 {
		return nil, nil
	}
	return s.opts.Config.hide(ctx, caller, values)
}

// secretsOf returns the values of the secret variables in a tool's input. It fails beyond the
// limits of inputs and variables.
func secretsOf(input json.RawMessage) ([]string, error) {
	if len(input) > maxToolInput {
		return nil, usererror.Invalid("input", "is %d bytes long: at most %d", len(input), maxToolInput)
	}
	var in struct {
		Env json.RawMessage `json:"env"`
	}
	named := bytes.Contains(input, []byte(`"env"`)) || bytes.Contains(input, []byte(`\u`))
	if !named || json.Unmarshal(input, &in) != nil || !bytes.HasPrefix(in.Env, []byte("{")) {
		return nil, nil //nolint:nilerr // the check of the schema reports invalid JSON
	}
	if len(in.Env) > maxEnvJSON {
		return nil, usererror.Invalid("env", "is %d bytes long: at most %d", len(in.Env), core.MaxEnvBytes)
	}
	return secretMembers(in.Env)
}

// secretMembers returns the string values of a JSON object whose names match secretName.
func secretMembers(env json.RawMessage) (values []string, err error) {
	d := json.NewDecoder(bytes.NewReader(env))
	if _, err := d.Token(); err != nil {
		return nil, usererror.Invalid("env", "is not an object")
	}
	total := 0
	for n := 1; d.More(); n++ {
		if n > core.MaxEnv {
			return nil, usererror.Invalid("env", "has over %d entries: at most %d", core.MaxEnv, core.MaxEnv)
		}
		var value any
		name, err := d.Token()
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return nil, usererror.Invalid("env", "is not an object")
		}
		key, _ := name.(string)
		text, _ := value.(string)
		if total += len(key) + len(text); total > core.MaxEnvBytes {
			return nil, usererror.Invalid("env", "is over %d bytes long: at most %d", core.MaxEnvBytes, core.MaxEnvBytes)
		}
		if secretName.MatchString(key) {
			values = append(values, text)
		}
	}
	return values, nil
}

// replaceInputWithHash replaces a record's input with its length and hash, for inputs with more
// secrets than can be redacted.
func replaceInputWithHash(r *audit.Record) {
	sum := sha256.Sum256(r.Input)
	r.Input, r.InputBytes, r.InputHash = nil, len(r.Input), hex.EncodeToString(sum[:])
}

// hide redacts the given values from the caller's records until show is called.
func (g *Config) hide(ctx context.Context, caller string, values []string) (show func(), err error) {
	show, err = g.Redactor.Own(ctx, caller, values)
	if errdefs.IsResourceExhausted(err) {
		err = &usererror.InvalidError{
			Field: "env", Class: errdefs.ErrResourceExhausted,
			Message: "holds secrets, and with those of this caller's running calls and sandboxes they exceed the bound: " +
				"end some, or pass fewer variables",
		}
	}
	return show, err
}
