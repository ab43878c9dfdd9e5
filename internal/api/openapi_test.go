package api

import "testing"

func TestDescriptionIsBuiltOnce(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	first, err := s.description()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.description(); err != nil || &again[0] != &first[0] {
		t.Errorf("second description: built again or error %v, want the first", err)
	}
}
