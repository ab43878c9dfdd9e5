package client_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
)

// TestArtifactsReadsAllPieces lists artifacts of a server that answers with one at a time.
func TestArtifactsReadsAllPieces(t *testing.T) {
	next := map[string]string{
		"":               `{"index":0,"path":"a b","size":1}`,
		"after=a+b":      `{"index":1,"path":"c","size":2}`,
		"after=c&from=1": ``,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		item, known := next[r.URL.Query().Encode()]
		if !known {
			t.Errorf("request for %s, want one of the pages", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"items":[%s]}`, item)
	}))
	defer srv.Close()
	cl, err := client.New(client.Options{Address: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	got, err := cl.Jobs.Artifacts(t.Context(), "j")
	if want := "[{0 a b 1} {1 c 2}]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("Artifacts = %v, %v; want %s", got, err, want)
	}
}
