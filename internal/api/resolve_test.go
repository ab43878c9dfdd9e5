package api

import (
	"net/http"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestSandboxIsFoundByNameAndPrefix(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	ann, bob := bearer(t, srv, `{"caller":"ann","trust":3}`), bearer(t, srv, `{"caller":"bob","trust":3}`)
	var first, second v1.Sandbox
	ask(t, srv, "POST", "/v1/sandboxes", `{"name":"first"}`, ann...).into(t, &first)
	ask(t, srv, "POST", "/v1/sandboxes", `{}`, ann...).into(t, &second)
	if first.Name != "first" || second.Name != "" {
		t.Fatalf("names = %q and %q, want first and none", first.Name, second.Name)
	}
	unique := first.ID[:18]
	if strings.HasPrefix(second.ID, unique) {
		t.Fatalf("ids %s and %s share 18 characters", first.ID, second.ID)
	}
	for _, ref := range []string{"first", unique, first.ID} {
		var got v1.Sandbox
		if ask(t, srv, "GET", "/v1/sandboxes/"+ref, "", ann...).into(t, &got); got.ID != first.ID {
			t.Errorf("GET of %q = %q, want %q", ref, got.ID, first.ID)
		}
	}
	short := ask(t, srv, "GET", "/v1/sandboxes/"+first.ID[:4], "", ann...)
	problemIs(t, short, http.StatusBadRequest, "invalid_argument", "")
	if want := "is ambiguous: 2 of your sandboxes begin with it"; !strings.Contains(string(short.body), want) {
		t.Errorf("GET of an ambiguous prefix = %s, want %q", short.body, want)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/sandboxes/"+unique[:3], "", ann...), http.StatusNotFound, "not_found", "")

	// Another caller learns nothing: its answers are those for what does not exist.
	for _, ref := range []string{"first", unique, first.ID[:4], first.ID} {
		got := ask(t, srv, "GET", "/v1/sandboxes/"+ref, "", bob...)
		problemIs(t, got, http.StatusNotFound, "not_found", "")
		statusIs(t, ask(t, srv, "DELETE", "/v1/sandboxes/"+ref, "", bob...), http.StatusNotFound)
	}
	statusIs(t, ask(t, srv, "POST", "/v1/sandboxes", `{"name":"first"}`, bob...), http.StatusCreated)
	taken := ask(t, srv, "POST", "/v1/sandboxes", `{"name":"first"}`, ann...)
	problemIs(t, taken, http.StatusConflict, "already_exists", "")

	statusIs(t, ask(t, srv, "DELETE", "/v1/sandboxes/first", "", ann...), http.StatusNoContent)
	statusIs(t, ask(t, srv, "GET", "/v1/sandboxes/first", "", ann...), http.StatusNotFound)
	var ended v1.Sandbox
	if ask(t, srv, "GET", "/v1/sandboxes/"+unique, "", ann...).into(t, &ended); ended.Reason != "removed" {
		t.Errorf("GET of an ended sandbox by its prefix = %+v, want it with reason removed", ended)
	}
	statusIs(t, ask(t, srv, "POST", "/v1/sandboxes", `{"name":"first"}`, ann...), http.StatusCreated)
}

func TestPrefixOfLiveAndEndedSandboxIsAmbiguousForChanges(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var ended, live v1.Sandbox
	ask(t, srv, "POST", "/v1/sandboxes", `{}`).into(t, &ended)
	ask(t, srv, "POST", "/v1/sandboxes", `{}`).into(t, &live)
	statusIs(t, ask(t, srv, "DELETE", "/v1/sandboxes/"+ended.ID, ""), http.StatusNoContent)
	both := live.ID[:4]
	if !strings.HasPrefix(ended.ID, both) {
		t.Fatalf("ids %s and %s do not share 4 characters", ended.ID, live.ID)
	}
	var got v1.Sandbox
	if ask(t, srv, "GET", "/v1/sandboxes/"+both, "").into(t, &got); got.ID != live.ID {
		t.Errorf("GET of the prefix = %q, want the live sandbox %q", got.ID, live.ID)
	}
	for _, r := range [][3]string{
		{"DELETE", "/v1/sandboxes/" + both, ""},
		{"POST", "/v1/sandboxes/" + both + "/exec", `{"argv":["true"]}`},
		{"GET", "/v1/sandboxes/" + both + "/pty", ""},
		{"POST", "/v1/tools/system.bash/call", `{"input":{"command":"true"},"sandbox":"` + both + `"}`},
	} {
		res := ask(t, srv, r[0], r[1], r[2])
		problemIs(t, res, http.StatusBadRequest, "invalid_argument", "")
		if want := "is ambiguous: 2 of your sandboxes"; !strings.Contains(string(res.body), want) {
			t.Errorf("%s %s = %s, want %q", r[0], r[1], res.body, want)
		}
	}
}

func TestSandboxNameIsValidated(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	for _, name := range []string{"a b", "-a", "a/b", "ü", strings.Repeat("a", 64), "01a20a2c-e5fa-7351-b648-bc94ba838137"} {
		got := ask(t, srv, "POST", "/v1/sandboxes", `{"name":"`+name+`"}`)
		problemIs(t, got, http.StatusBadRequest, "invalid_argument", "name")
	}
}
