package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
}

// The commented file, with its comments taken away, is the default.
func TestCommentedFileIsTheDefault(t *testing.T) {
	var b strings.Builder
	for line := range strings.Lines(string(Commented)) {
		if rest, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "  ") {
			b.WriteString(rest)
		}
	}
	got, err := Parse([]byte(b.String()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	if d := cmp.Diff(Default(), got); d != "" {
		t.Fatalf("default.yaml is not the default (-code +file):\n%s", d)
	}
	for _, key := range []string{"listen", "ttl", "max_output", "queue", "alone", "open_files", "max_age"} {
		if !strings.Contains(b.String(), key+":") {
			t.Errorf("default.yaml does not show %s", key)
		}
	}
}

func TestParseErrorsNameTheKey(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"unknown key", "lisen: x", `unknown key lisen; did you mean "listen"?`},
		{"unknown nested key", "templates: {a: {limits: {memroy: 1g}}}", `unknown key templates.a.limits.memroy; did you mean "memory"?`},
		{"far from all", "zzzzzzzz: 1", "unknown key zzzzzzzz:"},
		{"duplicate", "runtime: oci\nruntime: docker", "already set"},
		{"bad duration", "leases: {ttl: soon}", `"soon" is not a duration`},
		{"bare duration", "leases: {ttl: 5}", "5 is not a duration"},
		{"bad size", "exec: {max_output: lots}", `"lots" is not a size`},
		{"wrong type", "admission: {queue: [1]}", "queue"},
		{"a list for a map", "templates: [1]", "templates"},
		{"not yaml", ":\n-", "yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.yaml))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
			if !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Fatalf("%v is not an invalid argument", err)
			}
		})
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"listen: nowhere", "listen"},
		{"listen: 'unix:relative'", "listen"},
		{"listen: 'localhost:99999'", "listen"},
		{"state_dir: x", "state_dir"},
		{"runtime: podman", "runtime"},
		{"leases: {ttl: 25h}", "leases.max_ttl"},
		{"exec: {max_output: 1g}", "exec.max_output"},
		{"templates: {default: {pool: {min: 9, max: 3}}}", "templates.default.pool.max"},
		{"templates: {a: {limits: {memory: 1m}}}", "templates.a.limits.memory_bytes"},
		{"templates: {a: {entrypoint: [x]}}", "templates.a.entrypoint"},
	} {
		got, err := Parse([]byte(c.yaml))
		if err != nil {
			t.Errorf("%s: %v", c.yaml, err)
			continue
		}
		if err := got.Validate(); err == nil || !strings.Contains(err.Error(), c.want+" ") {
			t.Errorf("%s: got %v, want an error about %s", c.yaml, err, c.want)
		}
	}
}

func TestEnvironmentStandsOverTheFile(t *testing.T) {
	c, err := Parse([]byte("runtime: docker"))
	if err != nil {
		t.Fatal(err)
	}
	c.ApplyEnvironment(func(key string) (string, bool) {
		return "oci", key == "ORCHESTRATOR_RUNTIME"
	})
	if c.Runtime != "oci" {
		t.Fatalf("runtime is %q", c.Runtime)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("listen: unix:/x"))
	f.Add([]byte("templates: {a: {pool: {min: 1}}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := Parse(text); err == nil {
			_ = c.Validate()
		} else if !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Fatalf("%v is not an invalid argument", err)
		}
	})
}
