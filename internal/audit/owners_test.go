package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
)

// own registers values of a caller until the test ends.
func own(tb testing.TB, r *Redactor, caller string, list ...string) (release func()) {
	tb.Helper()
	release, err := r.Own(tb.Context(), caller, list)
	if err != nil {
		tb.Fatalf("Own(%q, %d values): %v", caller, len(list), err)
	}
	return release
}

func TestOwnHidesOnlyInCallersRecords(t *testing.T) {
	r := NewRedactor()
	r.Add("of the operator")
	own(t, r, "ann", "redacted", `{"comm`, "rm -r /work", "victimsecret123")
	for _, c := range []struct{ caller, in, want string }{
		{"bob", `{"command":"rm -r /work"}`, ""},
		{"bob", `{"command":"echo redacted password1 victimsecret123"}`, ""},
		{"", `{"command":"echo victimsecret123"}`, ""},
		{"ann", `{"command":"echo victimsecret123"}`, `{"command":"echo [redacted]"}`},
		{"ann", `{"command":"ls"}`, ""}, // `{"comm` is syntax
		{"bob", `{"a":"of the operator"}`, `{"a":"[redacted]"}`},
		{"ann", `{"a":"of the operator"}`, `{"a":"[redacted]"}`},
	} {
		if c.want == "" {
			c.want = c.in
		}
		if got := short(jsonFor(r, c.caller, c.in)); got != c.want {
			t.Errorf("record of %q: %s\n got %s\nwant %s", c.caller, c.in, got, c.want)
		}
	}
}

func TestMarkersShowLengthAndCallersHash(t *testing.T) {
	r := NewRedactor()
	r.Add("of the operator")
	own(t, r, "ann", "rm -r /work")
	a := textFor(r, "ann", "rm -r /work")
	if !strings.HasPrefix(a, "[redacted 11 bytes mac:") || !markers.MatchString(a) {
		t.Errorf("marker = %s, want one of 11 bytes with a MAC", a)
	}
	if b := textFor(r, "ann", "x rm -r /work"); b != "x "+a {
		t.Errorf("redacted text = %s, want x and the marker %s", b, a)
	}
	own(t, r, "bob", "rm -r /work")
	if b := textFor(r, "bob", "rm -r /work"); b == a {
		t.Errorf("marker of bob = ann's %s, want another", a)
	}
	if a, b := textFor(r, "ann", "of the operator"), textFor(r, "bob", "of the operator"); a == b {
		t.Errorf("marker of a service's secret is %s for two callers, want two markers", a)
	}
	if again := textFor(r, "ann", a); again != a {
		t.Errorf("marker %s becomes %s, want it unchanged", a, again)
	}
	other := NewRedactor()
	own(t, other, "ann", "rm -r /work")
	if b := textFor(other, "ann", "rm -r /work"); b == a {
		t.Errorf("marker of two installations is %s, want two markers", a)
	}
	r.useKey([]byte("k"))
	other.useKey([]byte("k"))
	if a, b := textFor(r, "ann", "rm -r /work"), textFor(other, "ann", "rm -r /work"); a != b {
		t.Errorf("markers with the same key = %s and %s; want the same", a, b)
	}
}

func TestMarkersSurviveRestart(t *testing.T) {
	w := newWorld(t)
	write := func() string {
		t.Helper()
		w.red.Add("correct horse")
		if err := w.log.Event(t.Context(), Record{Action: "a", Caller: "ann", Error: "correct horse"}); err != nil {
			t.Fatal(err)
		}
		all := w.list(Filter{Action: "a"})
		return all[len(all)-1].Error
	}
	first := write()
	w.red = NewRedactor()
	w.close()
	w.open()
	if second := write(); second != first || !markers.MatchString(first) {
		t.Errorf("marker = %s, after a restart %s; want the same", first, second)
	}
}

func TestForApproverShowsOwnedValues(t *testing.T) {
	r := NewRedactor()
	r.Add("of the operator")
	own(t, r, "ann", "rm -r /work", "command", "redacted")
	for _, c := range []struct{ in, want string }{
		{`{"command":"rm -r /work","env":{"A_TOKEN":"rm -r /work"}}`, ""},
		{`{"command":"X_TOKEN=\"a $(rm -r /work)\"; echo"}`, ""},
		{`{"command":"TOKEN='rm -r /work'; eval $TOKEN"}`, ""},
		{`{"command":": -----BEGIN PRIVATE KEY-----\nrm -r /work"}`, ""},
		{`{"command":"curl -H 'Authorization: $(rm -r /work)' x"}`, ""},
		{`{"command":"git clone https://$(rm${IFS}-r${IFS}work1)@h/"}`, ""},
		{`{"command":"rm -r --token /work1234567"}`, ""},
		{`{"command":"password=hunter2 reboot"}`, ""},
		{`{"secret":{"command":"rm -r /work","n":12345678}}`, ""},
		{`{"argv":["sh","--token","rm -r /work"]}`, ""},
		{`{"command":"echo of the operator"}`, `{"command":"echo [redacted]"}`},
		{`{"command":"echo ` + github + `"}`, `{"command":"echo [redacted]"}`},
		{`{"command":"echo ` + jwtOf + `"}`, `{"command":"echo [redacted]"}`},
		{`{"command":"PASSWORD=a1b2-c3d4 make; rm -r x","env":{"A_KEY":"x","A_TOKEN":"0a1b2c3d4e5f"}}`,
			`{"command":"PASSWORD=[redacted] make; rm -r x","env":{"A_KEY":"x","A_TOKEN":"[redacted]"}}`},
		{`{"command":"curl -H 'Authorization: Bearer a1b2c3d4' -u ann:a1b2c3d4 https://u:a1b2c3d4@h/"}`,
			`{"command":"curl -H 'Authorization: Bearer [redacted]' -u ann:[redacted] https://[redacted]@h/"}`},
		{`{"argv":["x","--token","a1b2c3d4"]}`, `{"argv":["x","--token","[redacted]"]}`},
	} {
		if c.want == "" {
			c.want = c.in
		}
		if got := short(string(r.ForApprover("ann", json.RawMessage(c.in)))); got != c.want {
			t.Errorf("an approver reads of %s\n got %s\nwant %s", c.in, got, c.want)
		}
	}
}

func TestOwnedValuesKeepNamesReadable(t *testing.T) {
	w := newWorld(t)
	words := []string{
		"annnnn", "action", "session", "workspace", "profile", "sandbox", "example.com", "connect", "10.0.0.1:443",
		"reason", "image-1", "approval",
		"rule-1", "caller", "token-1", "method", "path-secret", "error-secret",
	}
	own(t, w.red, "annnnn", words...)
	in := Record{
		Caller: "annnnn", Token: "token-1", Profile: "profile", Session: "session", Via: "method", Action: "action",
		Rule:     "rule-1",
		Approval: "approval", By: "caller", Sandbox: "sandbox", Workspace: "workspace", Image: "image-1",
		Error: "an error-secret",
		Egress: &Egress{Host: "example.com", Protocol: "connect", Method: "method", Address: "10.0.0.1:443",
			Reason: "reason", Path: "/path-secret"},
	}
	if err := w.log.Event(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	got := w.list(Filter{Caller: "annnnn"})
	if len(got) != 1 {
		t.Fatalf("%d records of the caller, want 1", len(got))
	}
	r := got[0]
	if short(r.Error) != "an [redacted]" || short(r.Egress.Path) != "/[redacted]" {
		t.Errorf("error %q, path %q; want the value redacted in both", r.Error, r.Egress.Path)
	}
	r.Error, r.Egress.Path = in.Error, in.Egress.Path
	if b, _ := json.Marshal(r); strings.Contains(string(b), "[redacted") {
		t.Errorf("record = %s, want the other fields not redacted", b)
	}
}

func TestOwnReleaseForgetsValues(t *testing.T) {
	r := NewRedactor()
	a := own(t, r, "ann", "correct horse", " correct horse\n", "short", "")
	b := own(t, r, "ann", "correct horse")
	c := own(t, r, "ann", "correct horse battery")
	wantShort(t, textFor(r, "ann", "correct horse, short, correct horse battery"), "[redacted], short, [redacted]")
	a()
	a() // a second release has no effect
	wantShort(t, textFor(r, "ann", "correct horse"), "[redacted]")
	b()
	wantShort(t, textFor(r, "ann", "correct horse, correct horse battery"), "correct horse, [redacted]")
	c()
	if len(r.own.live) != 0 {
		t.Errorf("values of %d callers are kept, want 0", len(r.own.live))
	}
}

func TestOwnIsBoundedPerCaller(t *testing.T) {
	r := NewRedactor()
	releases := make([]func(), 0, 3)
	large := func(i int) []string { return []string{fmt.Sprint(i, strings.Repeat("x", MaxOwned/4))} }
	for i := range 3 {
		releases = append(releases, own(t, r, "ann", large(i)...))
	}
	if _, err := r.Own(t.Context(), "ann", large(3)); !errdefs.IsResourceExhausted(err) {
		t.Errorf("Own over the bound = %v, want ResourceExhausted", err)
	}
	own(t, r, "ann", large(0)...) // an equal set costs nothing
	own(t, r, "bob", large(3)...)
	many := make([]string, MaxOwned/ownedCost)
	for i := range many {
		many[i] = fmt.Sprintf("value %d", i)
	}
	if _, err := r.Own(t.Context(), "carl", many); !errdefs.IsResourceExhausted(err) {
		t.Errorf("Own of %d values = %v, want ResourceExhausted", len(many), err)
	}
	releases[1]()
	own(t, r, "ann", large(3)...)
}

func TestOwnIsSafeDuringRedaction(t *testing.T) {
	r := NewRedactor()
	r.Add("correct horse")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			v := fmt.Sprint("value number ", i/2)
			for range 50 {
				release, err := r.Own(t.Context(), "ann", []string{v})
				if err != nil {
					t.Error(err)
					return
				}
				wantShort(t, textFor(r, "ann", "correct horse "+v), "[redacted] [redacted]")
				release()
			}
		})
	}
	wg.Wait()
	if len(r.own.live) != 0 {
		t.Errorf("values of %d callers are kept, want 0", len(r.own.live))
	}
}

func TestOwnIndexesPerCallerAreBounded(t *testing.T) {
	r := NewRedactor()
	const sets = 3 * maxIndexes
	secret := func(i int) string { return fmt.Sprintf("hunter-number-%04d", i) }
	release := make([]func(), sets)
	for i := range sets {
		var err error
		if release[i], err = r.Own(t.Context(), "ann", []string{secret(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(r.own.valuesOf("ann")); got != maxIndexes {
		t.Errorf("%d sets are in %d indexes, want %d", sets, got, maxIndexes)
	}
	hidden := func(i int) bool {
		v := r.record("ann")
		return !strings.Contains(v.redactText("x "+secret(i)+" y"), secret(i))
	}
	for i := range sets {
		if !hidden(i) {
			t.Errorf("value %d is readable, want it redacted", i)
		}
	}
	for i := range sets {
		if i%3 != 0 {
			release[i]()
		}
	}
	for i := range sets {
		if got, want := hidden(i), i%3 == 0; got != want {
			t.Errorf("value %d: hidden = %t after releases, want %t", i, got, want)
		}
		if i%3 == 0 {
			release[i]()
		}
	}
	if len(r.own.live) != 0 {
		t.Errorf("%d callers hold values after all releases, want 0", len(r.own.live))
	}
}
