package stage

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// recorder notes what it is told.
type recorder struct{ notes []string }

type key struct{}

// Begin implements Observer.
func (r *recorder) Begin(ctx context.Context, name Name) (context.Context, func(error)) {
	r.notes = append(r.notes, "begin "+string(name))
	return context.WithValue(ctx, key{}, name), func(err error) {
		text := "end " + string(name)
		if err != nil {
			text += ": " + err.Error()
		}
		r.notes = append(r.notes, text)
	}
}

func TestTimeReportsStageAndItsError(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	fault := errors.New("no room")
	err := Time(t.Context(), r, Lease, func(ctx context.Context) error {
		if got := ctx.Value(key{}); got != Lease {
			t.Errorf("context of the work has stage %v, want %s", got, Lease)
		}
		return Time(ctx, r, Bind, func(context.Context) error { return fault })
	})
	if err != fault {
		t.Errorf("Time = %v, want the error of the work", err)
	}
	want := []string{"begin lease", "begin bind", "end bind: no room", "end lease: no room"}
	if !slices.Equal(r.notes, want) {
		t.Errorf("observer was told %q, want %q", r.notes, want)
	}
}

func TestTimeWithoutObserverRunsTheWork(t *testing.T) {
	t.Parallel()
	ran := false
	if err := Time(t.Context(), nil, Exec, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("Time without an observer: ran %v, error %v; want true and none", ran, err)
	}
}
