package cli

import (
	"testing"
)

func TestMostSimilar(t *testing.T) {
	for word, want := range map[string]string{"topp": "top", "tol": "tool"} {
		if got := MostSimilar([]string{"tool", "top"}, word); got != want {
			t.Errorf("MostSimilar(%s) = %s, want %s", word, got, want)
		}
	}
}
