package builtin

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestEveryToolHasSchemasAndAName(t *testing.T) {
	names := []string{}
	for _, b := range All() {
		names = append(names, b.Name)
		if b.Title == "" || b.Description == "" || len(b.Effects) == 0 {
			t.Errorf("%s lacks a title, a description or effects", b.Name)
		}
		for _, schema := range []json.RawMessage{b.Input, b.Output} {
			var s struct {
				Type       string
				Properties map[string]any
			}
			if err := json.Unmarshal(schema, &s); err != nil || s.Type != "object" {
				t.Errorf("%s: schema %s: %v", b.Name, schema, err)
			}
		}
	}
	if !slices.IsSorted(names) {
		t.Errorf("not sorted: %v", names)
	}
}

func TestGetFindsEveryTool(t *testing.T) {
	for _, want := range All() {
		if got, ok := Get(want.Name); !ok || got != want {
			t.Errorf("Get(%q) = %v, %t", want.Name, got, ok)
		}
	}
	if got, ok := Get("system.none"); ok {
		t.Errorf("Get of an unknown name = %v", got)
	}
}
