package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChangesNamesTheKeys(t *testing.T) {
	parse := func(text string) Config {
		c, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := parse("{exec: {timeout: 1m}, templates: {a: {image: one}}, egress: {allow: [{host: a.example}]}}")
	after := parse("{exec: {timeout: 2m}, log: {level: warn}, templates: {a: {image: two}}, egress: {allow: []}}")
	got, err := Changes(before, after)
	want := []string{"egress.allow", "exec.timeout", "log.level", "templates.a.image"}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("Changes = %v, %v; want %v", got, err, want)
	}
	if got, err := Changes(before, before); len(got) != 0 || err != nil {
		t.Errorf("Changes of the same = %v, %v; want none", got, err)
	}
	for key, want := range map[string]bool{
		"exec.timeout": false, "log.level": true, "log.format": false, "templates.a.image": true, "templates_dir": true,
		"tls.cert_file": false, "tls.clients[].name": true,
	} {
		if got := Reloadable(key); got != want {
			t.Errorf("Reloadable(%s) = %v, want %v", key, got, want)
		}
	}
}
