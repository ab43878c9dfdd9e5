package cli

import (
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// Zero means the default or no limit, so short times must not become zero.
func TestMillisNeverRoundsToZero(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Microsecond: 1, -1: -1, 1500 * time.Microsecond: 1, -time.Second: -1000, time.Hour: 3600000,
	} {
		if got := Millis(d); got != want {
			t.Errorf("Millis(%s) = %d, want %d", d, got, want)
		}
	}
	a := &App{Lookup: func(string) (string, bool) { return "", false }}
	if x, err := a.Exec(&cobra.Command{}, CommandOptions{Timeout: 1}, []string{"true"}); err != nil || x.TimeoutMS != 1 {
		t.Errorf("Exec with a timeout of 1 ns = %+v, %v; want 1 ms", x, err)
	}
}
