package program

import (
	"context"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// respond adds the body to the answer in the requested form. It abandons a conversion that takes
// too long.
func respond(ctx context.Context, req *web.Request, a *web.Answer, b *body) error {
	a.MediaType = b.mediaType
	if req.Form == web.Raw {
		a.Body, a.Form = b.data, web.Raw
		return nil
	}
	type result struct {
		text *converted
		err  error
	}
	done := make(chan result, 1)
	at := a.URL
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r = result{err: panicked(p)}
			}
			done <- r
		}()
		r.text, r.err = convert(b, req.Form, at)
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return r.err
		}
		r.text.into(a, req.MaxText)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
