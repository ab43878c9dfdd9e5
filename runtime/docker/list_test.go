package docker

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// answering returns a driver whose engine answers requests from paths, and others with 404.
func answering(t *testing.T, paths map[string]string) *Driver {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch body, ok := paths[path]; {
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"message":"no such thing"}`)
		case body == "":
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"message":"something broke"}`)
		default:
			_, _ = io.WriteString(w, body)
		}
	}))
	t.Cleanup(srv.Close)
	api, err := client.New(client.WithHost("tcp://"+srv.Listener.Addr().String()), client.WithAPIVersion("1.41"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	return &Driver{api: api, host: "test", dir: t.TempDir(), log: slog.New(slog.DiscardHandler),
		held: map[string]*Sandbox{}}
}

func listed(id, name, state string) string {
	return fmt.Sprintf(`{"Id":"c-%s","Names":[%s],"State":%q,"Labels":{%q:%q,%q:"owner-0001",%q:"default"}}`, id, name,
		state, labelID, id, labelOwner, labelTemplate)
}

func TestListShowsOwnSandboxesInAnyState(t *testing.T) {
	all := []string{
		listed("sandbox-0001", `"/orchestrator-sandbox-0001"`, "running"),
		listed("sandbox-0002", `"/orchestrator-sandbox-0002"`, "created"),
		listed("sandbox-0003", `"/orchestrator-sandbox-0003"`, "dead"),
		listed("sandbox-0004", ``, "removing"),
		listed("ghost-0001", ``, "removing"),
		listed("sandbox-0005", `"/somebody-elses"`, "running"), // the labels of its image
		listed("../../etc", `"/orchestrator-../../etc"`, "running"),
	}
	d := answering(t, map[string]string{
		"containers/json":                "[" + strings.Join(all, ",") + "]",
		"containers/c-sandbox-0003/json": "{}", "containers/c-sandbox-0004/json": "{}",
	})
	if err := d.writeNote(runtime.Spec{ID: "sandbox-0006", Owner: "owner-0001"}); err != nil {
		t.Fatal(err)
	}
	got, err := d.List(t.Context(), "owner-0001")
	want := []runtime.Found{
		{ID: "sandbox-0001", Template: "default", Running: true}, {ID: "sandbox-0002", Template: "default"},
		{ID: "sandbox-0003", Template: "default"}, {ID: "sandbox-0004", Template: "default"}, {ID: "sandbox-0006"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("List = %+v, %v; want %+v and no error", got, err, want)
	}
}

func TestFailingEngineIsUnavailable(t *testing.T) {
	d := answering(t, map[string]string{"containers/json": "", "containers/orchestrator-sandbox-0001/json": ""})
	_, listErr := d.List(t.Context(), "owner-0001")
	_, adoptErr := d.Adopt(t.Context(), "sandbox-0001")
	for what, err := range map[string]error{"list": listErr, "adopt": adoptErr,
		"remove": d.Remove(t.Context(), "sandbox-0001")} {
		if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "something broke") {
			t.Errorf("%s: %v; want Unavailable with the engine's message", what, err)
		}
	}
	if _, err := d.Adopt(t.Context(), "sandbox-0002"); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of a sandbox unknown to the engine: %v, want NotFound", err)
	}
	if _, err := d.Adopt(t.Context(), "../x"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Adopt of an invalid id: %v, want InvalidArgument", err)
	}
}
