package testtime

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{"": 1, "1": 1, "8": 8, "255": 255} {
		if got, err := parse(text); err != nil || got != want {
			t.Errorf("parse(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "-1", "256", "1.5", "x"} {
		if got, err := parse(text); err == nil {
			t.Errorf("parse(%q) = %d, want an error", text, got)
		}
	}
}
