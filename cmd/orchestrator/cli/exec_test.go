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
			t.Errorf("%s: %d", d, got)
		}
	}
	a := &App{Lookup: func(string) (string, bool) { return "", false }}
	if x, err := a.Exec(&cobra.Command{}, CommandOptions{Timeout: 1}, []string{"true"}); err != nil || x.TimeoutMS != 1 {
		t.Errorf("%+v %v", x, err)
	}
}
