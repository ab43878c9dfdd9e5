package expr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func compile(tb testing.TB, source string) *Expr {
	tb.Helper()
	x, err := Compile(source, "input", "call")
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

func input(tb testing.TB, text string) map[string]any {
	tb.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		tb.Fatal(err)
	}
	return map[string]any{"input": v, "call": map[string]any{"caller": "a", "trust": float64(2)}}
}

const small = `{"command":"git push","timeout":30,"cost":2.5,"args":["a","b"],"env":{"A":"1"},"big":9007199254740993,
	"none":null,"yes":true,"path":"/tmp/x","n":-3}`

func TestEval(t *testing.T) {
	for source, want := range map[string]any{
		`input.command`:                              "git push",
		`input.timeout * 1000`:                       int64(30000),
		`input.cost * 2.0`:                           5.0,
		`input.timeout > 2.5 && input.cost < 3`:      true,
		`double(input.timeout) / 4.0`:                7.5,
		`input.none`:                                 nil,
		`input.args.map(a, a + "!")`:                 []any{"a!", "b!"},
		`{"a": 1, ?"b": optional.none()}`:            map[string]any{"a": int64(1)},
		`{?"t": input.?timeout, ?"x": input.?nope}`:  map[string]any{"t": int64(30)},
		`[?input.?nope, 1]`:                          []any{int64(1)},
		`input.?nope.orValue("d")`:                   "d",
		`input.?nope`:                                nil,
		`input.?command`:                             "git push",
		`has(input.nope)`:                            false,
		`{1: "a", true: "b"}`:                        map[string]any{"1": "a", "true": "b"},
		`b"ab"`:                                      "YWI=",
		`timestamp("2026-01-02T03:04:05Z")`:          "2026-01-02T03:04:05Z",
		`duration("90s")`:                            "1m30s",
		`5u`:                                         int64(5),
		`input.command.split(" ")[1].upperAscii()`:   "PUSH",
		`"b" in input.args`:                          true,
		`sets.contains(input.args, ["a"])`:           true,
		`math.greatest(input.n, 4)`:                  int64(4),
		`base64.encode(b"x")`:                        "eA==",
		`input.command.matches("^git (push|pull)$")`: true,
		`cel.bind(x, input.timeout, x + x)`:          int64(60),
		`input.env.transformMap(k, v, v + k)`:        map[string]any{"A": "1A"},
		`input.args.join(",")`:                       "a,b",
		`call.trust >= 2`:                            true,
		`input`:                                      nil, // below
	} {
		t.Run(source, func(t *testing.T) {
			vars := input(t, small)
			got, err := compile(t, source).Eval(t.Context(), vars)
			if err != nil {
				t.Fatal(err)
			}
			if source == "input" {
				a, _ := json.Marshal(vars["input"])
				b, _ := json.Marshal(got)
				if string(a) != string(b) {
					t.Fatalf("Eval(input) = %[2]s, want %[1]s", a, b)
				}
				return
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("Eval(%s) (-want +got):\n%s", source, d)
			}
		})
	}
}

func TestCompileErrors(t *testing.T) {
	for source, want := range map[string]string{
		"":                            "1:1: ",
		"input.":                      "1:7: ",
		"true &&\n  nope > 1":         "2:3: undeclared reference to 'nope'",
		"1 + 'a'":                     "1:3: found no matching overload",
		"input.a.matches('(')":        "error parsing regexp",
		"\"\x00\"":                    "NUL",
		"\"\xff\"":                    "UTF-8",
		strings.Repeat("a", 16385):    "16385 bytes long, more than 16384",
		strings.Repeat("(", 8000):     "1:",
		strings.Repeat("[", 16000):    "1:",
		strings.Repeat("-", 16000):    "1:",
		strings.Repeat("a ? ", 4000):  "1:",
		strings.Repeat("input.x.", 9): "1:",
		strings.Repeat("[1].all(a,", 400) + "true" + strings.Repeat(")", 400): "1:",
	} {
		_, err := Compile(source, "input")
		if err == nil || !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("Compile(%.40q) = %v, want InvalidArgument", source, err)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 600 {
			t.Errorf("Compile(%.40q) = %v, want %q on one line", source, err, want)
		}
	}
}

func TestEvalErrors(t *testing.T) {
	for source, want := range map[string][]string{
		`true && input.nope == 1`:       {"nope", "1:"},
		`input.args[7] == "x"`:          {"index out of bounds", "1:"},
		`input.command + 1`:             {"no such overload", "input.command + 1"},
		`1 / (input.timeout - 30)`:      {"division by zero", "1 / (input.timeout - 30)"},
		"true &&\n  input.n / 0 == 1":   {"division by zero", "2:"},
		`int(input.command)`:            {"int(input.command)"},
		`input.timeout / 0.0 > 1.0`:     {"no such overload"},
		`double(input.timeout) / 0.0`:   {"cannot be a JSON number"},
		`input.yes ? input.command : 1`: nil,
	} {
		_, err := compile(t, source).Eval(t.Context(), input(t, small))
		if want == nil {
			if err != nil {
				t.Errorf("Eval(%s): %v, want no error", source, err)
			}
			continue
		}
		if !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("Eval(%s) = %v, want InvalidArgument", source, err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Eval(%s) = %v, want %q", source, err, w)
			}
		}
	}
}

func TestTypedResults(t *testing.T) {
	x := compile(t, `input.command`)
	_, err := x.Bool(t.Context(), input(t, small))
	if !errors.Is(err, errdefs.ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "gives a string, not true or false") {
		t.Errorf("Bool of a string = %v, want InvalidArgument", err)
	}
	if _, err = x.Number(t.Context(), input(t, small)); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("Number of a string = %v, want InvalidArgument", err)
	}
	if s, err := x.Text(t.Context(), input(t, small)); err != nil || s != "git push" {
		t.Errorf("Text = %q, %v; want git push", s, err)
	}
	if n, err := compile(t, `input.cost`).Number(t.Context(), input(t, small)); err != nil || n != 2.5 {
		t.Errorf("Number = %v, %v; want 2.5", n, err)
	}
	b, err := compile(t, `{"b": "<&>", "a": [1, 2.5, null]}`).JSON(t.Context(), nil)
	if want := `{"a":[1,2.5,null],"b":"<&>"}`; err != nil || string(b) != want {
		t.Errorf("JSON = %s, %v; want %s", b, err, want)
	}
}

func TestEvalIsBounded(t *testing.T) {
	doubled := "[1]" + strings.Repeat(".map(a, [a, a])", 25)
	nested := strings.Repeat("cel.bind(a, ", 30) + "'xxxxxxxxxx'" + strings.Repeat(", a + a + a)", 30)
	long, _ := json.Marshal(map[string]any{"s": strings.Repeat("a", 1<<20), "m": strings.Repeat("a", 1<<17),
		"l": make([]int, 2000)})
	vars := input(t, string(long))
	for _, source := range []string{
		doubled, nested,
		`input.l.all(a, input.l.all(b, input.l.all(c, c == 0)))`,
		`input.l.map(a, input.l.map(b, input.l))`,
		`lists.range(1000000000).size() > 0`,
		`lists.range(10000).all(a, lists.range(10000).all(b, a != b - 10000))`,
		`input.l.all(a, !input.m.matches("(a+)+$" + string(a)))`,
		`input.l.all(a, input.s.replace("a", input.s) == "")`,
		`input.s.split("").map(a, input.s.split("")).size() > 0`,
		`input.s.replace("a", input.s).size() > 0`,
		`input.l.map(a, "").join(input.s).size() > 0`,
		`regex.replace(input.s, "a", input.s).size() > 0`,
		`input.s.indexOf(input.s + "b") > 0`,
		`sets.equivalent(input.s.split(""), input.s.split(""))`,
		`input.s.split("").distinct().size() > 0`,
		"[[1]]" + strings.Repeat(".map(a, [a, a])", 25) + `.flatten(100).size() > 0`,
		"[1]" + strings.Repeat(".map(a, [a, a])", 40) + " == [1]" + strings.Repeat(".map(a, [a, a])", 40),
		strings.Repeat("cel.bind(a, ", 45) + "[1]" + strings.Repeat(", [a, a])", 45),
		`"` + strings.Repeat("%s", 4000) + `".format([` + strings.Repeat("input.s,", 1000) + `])`,
		`input.s.replace("a", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa").replace("a", ` +
			`"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa").size() > 0`,
	} {
		x, err := Compile(source, "input")
		if err != nil {
			continue // refused by Compile: fine
		}
		start := time.Now()
		_, err = x.Eval(t.Context(), vars)
		took := time.Since(start)
		t.Logf("%8s %.60s: %v", took.Round(time.Millisecond), source, err)
		if took > 120*MaxTime {
			t.Errorf("Eval(%.60s) took %s, want at most %s", source, took, 120*MaxTime)
		}
		if err == nil {
			t.Errorf("Eval(%.60s) succeeded, want an error", source)
		} else if len(err.Error()) > 600 {
			t.Errorf("error of Eval(%.60s) has %d bytes, want at most 600", source, len(err.Error()))
		}
	}
}

func TestEvalCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("cancelled by the test")
	cancel(why)
	vars := input(t, fmt.Sprintf(`{"l":[0%s]}`, strings.Repeat(",0", 4000)))
	if _, err := compile(t, `input.l.all(a, a == 0)`).Eval(ctx, vars); !errors.Is(err, why) {
		t.Fatalf("Eval = %v, want the cause of the context", err)
	}
}

func TestConcurrentEval(t *testing.T) {
	x := compile(t, `input.args.exists(a, a == call.caller) && input.timeout / (input.n + 3) == 1`)
	vars := input(t, small)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if _, err := x.Bool(t.Context(), vars); err == nil ||
					!strings.Contains(err.Error(), "division by zero") {
					t.Errorf("Bool = %v, want division by zero", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestMissingVariables(t *testing.T) {
	if _, err := compile(t, `call.trust > 1`).Eval(t.Context(), map[string]any{"input": nil}); !errors.Is(err,
		errdefs.ErrInvalidArgument) {
		t.Fatalf("Eval = %v, want InvalidArgument", err)
	}
	if _, err := Compile("true", "not a name", "not a name"); err != nil &&
		!errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Fatalf("Compile = %v, want InvalidArgument", err)
	}
}

func FuzzEval(f *testing.F) {
	for _, s := range []string{`input.a + 1`, `input.map(a, a)`, `{?"a": input.?b}`, `"%s %d".format([input, 2])`,
		`lists.range(10).all(x, x > input)`, `cel.bind(a, input, [a, a])`} {
		f.Add(s, small)
	}
	f.Fuzz(func(t *testing.T, source, text string) {
		x, err := Compile(source, "input")
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("Compile: %q, want one line", err)
			}
			return
		}
		var v any
		if json.Unmarshal([]byte(text), &v) != nil {
			return
		}
		got, err := x.Eval(t.Context(), map[string]any{"input": v})
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("Eval: %q, want one line", err)
			}
			return
		}
		if _, err := json.Marshal(got); err != nil {
			t.Fatalf("result is not valid JSON: %v", err)
		}
	})
}

func BenchmarkBool(b *testing.B) {
	x := compile(b, `input.command.startsWith("git ") && input.timeout > 10 && call.trust >= 2`)
	vars := input(b, small)
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := x.Bool(b.Context(), vars); err != nil || !ok {
			b.Fatalf("Bool = %t, %v; want true", ok, err)
		}
	}
}

func BenchmarkJSON(b *testing.B) {
	x := compile(b, `{"success": !has(input.nope), "command": input.command, "args": input.args, ?"t": input.?timeout}`)
	vars := input(b, small)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.JSON(b.Context(), vars); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		compile(b, `input.command.startsWith("git ") && input.timeout > 10 && call.trust >= 2`)
	}
}

func BenchmarkMaxCost(b *testing.B) {
	x := compile(b, `input.l.all(a, input.l.all(b, input.l.all(c, c == 0)))`)
	long, _ := json.Marshal(map[string]any{"l": make([]int, 5000)})
	vars := input(b, string(long))
	for b.Loop() {
		if _, err := x.Eval(b.Context(), vars); !errors.Is(err, errdefs.ErrResourceExhausted) {
			b.Fatalf("Eval: %v, want ResourceExhausted", err)
		}
	}
}
