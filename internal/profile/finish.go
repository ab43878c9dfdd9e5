package profile

import (
	"cmp"
	"context"
	"encoding/json"
)

// Shown is what callers get of a call.
type Shown struct {
	// Output is of the tool's output schema; nil for a call that has none.
	Output json.RawMessage
	// Text is its form for models: the profile's, or the output as JSON, or for
	// a call without one what is said of its ending.
	Text string
	// Error is set if the tool calls this ending an error.
	Error *Error
}

// Finish makes what callers get. r is the built-in tool's output, typed or as
// JSON; nil for a refusal and other endings without one. It may be called again
// for another ending.
func (c *Call) Finish(ctx context.Context, r any, end End) (Shown, error) {
	t := c.Tool
	s := scene{call: c, end: end, r: r}
	var out Shown
	var err error
	if out.Output, err = s.output(ctx); err != nil {
		return out, err
	}
	if out.Error, err = s.error(); err != nil {
		return out, err
	}
	switch {
	case t.text != nil:
		out.Text, err = s.run(t.text)
	case out.Output != nil:
		out.Text = string(out.Output)
	case out.Error != nil:
		out.Text = out.Error.Message
	default:
		out.Text = cmp.Or(end.Message, end.Detail)
	}
	return out, err
}

// scene is one ending, and what expressions and templates look at.
type scene struct {
	call *Call
	end  End
	r    any
	vars map[string]any
	// made is the output, as JSON.
	made json.RawMessage
}

// names are the variables, made once and only if something looks at them.
func (s *scene) names() (map[string]any, error) {
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

func (s *scene) output(ctx context.Context) (json.RawMessage, error) {
	var err error
	switch t := s.call.Tool; {
	case t.result != nil:
		vars, verr := s.names()
		if verr != nil {
			return nil, verr
		}
		if s.made, err = t.result.JSON(ctx, vars); err != nil {
			return nil, t.broken("result", err)
		}
	case s.r == nil:
		return nil, nil
	default:
		s.made, err = encodeJSON(s.r)
	}
	if string(s.made) == "null" {
		s.made = nil
	}
	return s.made, err
}

// run makes a text of a template.
func (s *scene) run(t *textTemplate) (string, error) {
	vars, err := s.names()
	if err != nil {
		return "", err
	}
	if _, ok := vars["result"]; t.result && !ok {
		if vars["result"], err = decodeJSON(s.made); err != nil {
			return "", err
		}
	}
	return t.run(vars)
}

// error is the profile's error for the ending, the more exact one first.
func (s *scene) error() (*Error, error) {
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
		out.Message, err = s.run(e.message)
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

// plain is the ending for expressions and templates.
func (e *End) plain() map[string]any {
	return map[string]any{
		"ending": e.Ending, "refused": e.Refused, "class": e.Class, "rule": e.Rule, "never": e.Never, "message": e.Message, "program": e.Program,
		"exit_code": int64(e.ExitCode), "signal": int64(e.Signal), "duration_ms": e.DurationMS, "timeout_ms": e.TimeoutMS, "detail": e.Detail,
		"retry_after_ms": e.RetryAfterMS,
	}
}
