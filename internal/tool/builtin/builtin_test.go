package builtin

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestEveryToolHasNameAndSchemas(t *testing.T) {
	names := []string{}
	for _, b := range All() {
		names = append(names, b.Name)
		if b.Title == "" || b.Description == "" || len(b.Effects) == 0 {
			t.Errorf("%s = %+v, want a title, a description and effects", b.Name, b)
		}
		for _, schema := range []json.RawMessage{b.Input, b.Output} {
			var s struct {
				Type       string
				Properties map[string]any
			}
			if err := json.Unmarshal(schema, &s); err != nil || s.Type != "object" {
				t.Errorf("%s: schema = %s, %v; want an object", b.Name, schema, err)
			}
		}
	}
	if !slices.IsSorted(names) {
		t.Errorf("names = %v, want them sorted", names)
	}
}

func TestGetFindsEveryTool(t *testing.T) {
	for _, want := range All() {
		if got, ok := Get(want.Name); !ok || got != want {
			t.Errorf("Get(%q) = %v, %t; want %v, true", want.Name, got, ok, want)
		}
	}
	if got, ok := Get("system.none"); ok {
		t.Errorf("Get(system.none) = %v, true; want false", got)
	}
}
