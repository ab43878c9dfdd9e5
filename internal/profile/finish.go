package profile

import (
	"cmp"
	"context"
	"encoding/json"
)

// CallerOutcome is the outcome of a call for its caller.
type CallerOutcome struct {
	// Output matches the output schema; nil if the call has no output.
	Output json.RawMessage
	// Text is the form for models: by the template of the profile, or the output as JSON, or the
	// message of the ending.
	Text string
	// Error is set if the profile defines this ending as an error.
	Error *Error
}

// Finish returns what the caller gets. r is the output of the built-in tool, as a Go value or JSON;
// nil for a refusal or another ending without output. It can be called again with another ending.
func (c *Call) Finish(ctx context.Context, r any, end End) (CallerOutcome, error) {
	t := c.Tool
	s := outcome{call: c, end: end, r: r}
	var out CallerOutcome
	var err error
	if out.Output, err = s.output(ctx); err != nil {
		return out, err
	}
	if out.Error, err = s.error(); err != nil {
		return out, err
	}
	switch {
	case t.text != nil:
		out.Text, err = s.execute(t.text)
	case out.Output != nil:
		out.Text = string(out.Output)
	case out.Error != nil:
		out.Text = out.Error.Message
	default:
		out.Text = cmp.Or(end.Message, end.Detail)
	}
	return out, err
}

// outcome is the data for the expressions and templates of one ending.
type outcome struct {
	call *Call
	end  End
	r    any
	vars map[string]any
	// encoded is the output as JSON.
	encoded json.RawMessage
}

// variables returns the variables. They are built on first use.
func (s *outcome) variables() (map[string]any, error) {
	if s.vars != nil {
		return s.vars, nil
	}
	r, err := plainValue(s.r)
	if err != nil {
		return nil, err
	}
	s.vars = map[string]any{"r": r, "input": s.call.Values(), "call": s.call.call, "end": s.end.plain()}
	return s.vars, nil
}

func (s *outcome) output(ctx context.Context) (json.RawMessage, error) {
	var err error
	switch t := s.call.Tool; {
	case t.result != nil:
		vars, verr := s.variables()
		if verr != nil {
			return nil, verr
		}
		if s.encoded, err = t.result.JSON(ctx, vars); err != nil {
			return nil, t.broken("result", err)
		}
	case s.r == nil:
		return nil, nil
	default:
		s.encoded, err = encodeJSON(s.r)
	}
	if string(s.encoded) == "null" {
		s.encoded = nil
	}
	return s.encoded, err
}

// execute executes a template.
func (s *outcome) execute(t *textTemplate) (string, error) {
	vars, err := s.variables()
	if err != nil {
		return "", err
	}
	if _, ok := vars["result"]; t.usesResult && !ok {
		if vars["result"], err = decodeJSON(s.encoded); err != nil {
			return "", err
		}
	}
	return t.run(vars)
}

// error returns the profile's error for the ending, by the most specific key.
func (s *outcome) error() (*Error, error) {
	for _, key := range s.end.keys() {
		e := s.call.Tool.errors[key]
		if e == nil {
			continue
		}
		out := &Error{Type: e.kind, Message: cmp.Or(s.end.Message, s.end.Detail)}
		if e.message == nil {
			return out, nil
		}
		var err error
		out.Message, err = s.execute(e.message)
		return out, err
	}
	return nil, nil
}

func (e *End) keys() []string {
	keys := make([]string, 0, 3)
	if e.Never {
		keys = append(keys, e.Ending+":"+ClassNever)
	}
	if e.Class != "" {
		keys = append(keys, e.Ending+":"+e.Class)
	}
	return append(keys, e.Ending)
}

// plain returns the ending as data for expressions and templates.
func (e *End) plain() map[string]any {
	return map[string]any{
		"ending": e.Ending, "refused": e.Refused, "class": e.Class, "rule": e.Rule, "never": e.Never,
		"message": e.Message, "program": e.Program,
		"exit_code": int64(e.ExitCode), "signal": int64(e.Signal), "duration_ms": e.DurationMS,
		"timeout_ms": e.TimeoutMS, "detail": e.Detail,
		"retry_after_ms": e.RetryAfterMS,
	}
}
