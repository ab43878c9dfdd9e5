package ref

import (
	"strings"
	"testing"
)

const (
	sumA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sumB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"debian":                       "docker.io/library/debian:latest",
		"debian:12":                    "docker.io/library/debian:12",
		"index.docker.io/debian":       "docker.io/library/debian:latest",
		"docker.io/team/x":             "docker.io/team/x:latest",
		"team/x@" + sumA:               "docker.io/team/x@" + sumA,
		"reg.example:5000/x:1@" + sumA: "reg.example:5000/x:1@" + sumA,
		"localhost/x":                  "localhost/x:latest",
		"[::1]:5000/x":                 "[::1]:5000/x:latest",
	} {
		r, err := Parse(in)
		if err != nil || r.String() != want {
			t.Errorf("Parse(%q) = %q, %v; want %q", in, r.String(), err, want)
		}
		again, err := Parse(r.String())
		if err != nil || again != r {
			t.Errorf("Parse(String) of %q = %v, %v; want the same reference", in, again, err)
		}
	}
	for _, in := range []string{"", "team/UPPER", "a//b", "x:", "x@sha256:12", "https://reg.example/x", "x y",
		strings.Repeat("a", 2000), "x@sha512:" + strings.Repeat("a", 128), "../x"} {
		if r, err := Parse(in); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", in, r)
		}
	}
}

// patternCases are patterns with references that they match and do not match.
var patternCases = []struct {
	pattern string
	yes, no []string
}{
	{"debian", []string{"debian", "debian:12", "docker.io/library/debian", "debian@" + sumA,
		"index.docker.io/library/debian"},
		[]string{"debian-evil", "evil/debian", "library/debian/x", "evil.example/debian",
			"evil.example/library/debian", "xdebian"}},
	{"docker.io/library/debian:12", []string{"debian:12"},
		[]string{"debian", "debian:12.1", "debian:123", "debian:12@" + sumA, "debian@" + sumA}},
	{"debian:12*", []string{"debian:12", "debian:12-slim"}, []string{"debian:1", "debian:x12"}},
	{"docker.io/team/*", []string{"team/x", "team/x:1"},
		[]string{"team/x/y", "teams/x", "evil/team/x", "team.example/x"}},
	{"reg.example/team/**", []string{"reg.example/team/x", "reg.example/team/x/y/z:1"},
		[]string{"reg.example/team", "reg.example:443/team/x", "reg.example.evil.example/team/x",
			"evil-reg.example/team/x", "sub.reg.example/team/x", "reg.example/teamx/y"}},
	{"reg.example:5000/x", []string{"reg.example:5000/x:7"},
		[]string{"reg.example/x", "reg.example:50000/x", "reg.example:5001/x"}},
	{"reg.example/app-*", []string{"reg.example/app-1", "reg.example/app-a-b"},
		[]string{"reg.example/app", "reg.example/app-1/x", "reg.example/x/app-1"}},
	{"*.example.com/x", []string{"a.example.com/x"},
		[]string{"example.com/x", "a.b.example.com/x", "aexample.com/x", "a.example.com.evil.org/x",
			"a.example.com:5000/x"}},
	{"reg.example/x@" + sumA, []string{"reg.example/x@" + sumA, "reg.example/x:1@" + sumA},
		[]string{"reg.example/x", "reg.example/x@" + sumB, "reg.example/y@" + sumA}},
	{"reg.example/x:1@" + sumA, []string{"reg.example/x@" + sumA}, []string{"reg.example/x:1"}},
	{"localhost/**", []string{"localhost/x"}, []string{"localhost:5000/x", "docker.io/localhost/x"}},
	{"*/x", []string{"team/x", "library/x"}, []string{"evil.example/x", "a/b/x"}},
	{"docker.io/**", []string{"debian", "team/x"}, []string{"reg.example/debian"}},
	{"REG.example/x", []string{"reg.example/x"}, []string{"reg.exampl/x"}},
	{"[::1]:5000/**", []string{"[::1]:5000/x"}, []string{"[::2]:5000/x"}},
	{"a/*b*c", []string{"a/bc", "a/xxbyyc"}, []string{"a/bcx", "a/b"}},
}

func TestPatterns(t *testing.T) {
	for _, c := range patternCases {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Errorf("ParsePattern(%q) = %v, want no error", c.pattern, err)
			continue
		}
		for want, refs := range map[bool][]string{true: c.yes, false: c.no} {
			for _, s := range refs {
				r, err := Parse(s)
				if err != nil {
					t.Fatalf("Parse(%q) = %v, want no error", s, err)
				}
				if p.Match(r) != want {
					t.Errorf("pattern %q matches %q = %v, want %v", c.pattern, s, !want, want)
				}
			}
		}
	}
	for _, s := range []string{"", "*", "**", "*/*", "reg.example", "reg.example:5000", "reg.*/x", "a/**/b",
		"a**x/.", "x@sha256:1", "x:a b", "a//b", "Reg/x y", "exa*mple.com/x", "/x", "x/", "x:"} {
		if p, err := ParsePattern(s); err == nil {
			t.Errorf("ParsePattern(%q) = %+v, want an error", s, p)
		}
	}
	if l, _ := ParseList(nil); !l.Has(Reference{Registry: "any.example", Repository: "x"}) {
		t.Error("Has of an empty list = false, want true")
	}
}

// A pattern without * matches only the repository that it names.
func FuzzAllowList(f *testing.F) {
	for _, s := range []string{"debian", "reg.example:5000/a/b:1", "x@" + sumA, "a/*", "[::1]:1/x", "a.b/**"} {
		f.Add(s, "debian:12")
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		p, err := ParsePattern(pattern)
		if err != nil {
			return
		}
		r, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(r.String()); err != nil || again != r {
			t.Fatalf("Parse(String) of %q (%v) = %v, %v; want the same reference", text, r, again, err)
		}
		if strings.Contains(pattern, "*") || !p.Match(r) {
			return
		}
		want, err := Parse(pattern)
		if err != nil {
			t.Fatalf("pattern %q matches %q but is not a reference: %v", pattern, text, err)
		}
		if !strings.EqualFold(want.Registry, r.Registry) || want.Repository != r.Repository {
			t.Fatalf("pattern %q matches %q, want only its own repository", pattern, text)
		}
	})
}
