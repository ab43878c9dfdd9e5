package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestApprovalsAreListedInPages(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	ctx, hangUp := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer hangUp()
	list := func(query string) v1.List[v1.Approval] {
		var got v1.List[v1.Approval]
		ask(t, srv, "GET", "/v1/approvals?"+query, "").into(t, &got)
		return got
	}
	for i := range 3 {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/tools/system.bash/call",
			strings.NewReader(fmt.Sprintf(`{"input":{"command":"rm -f %d"}}`, i)))
		if err != nil {
			t.Fatal(err)
		}
		calls.Go(func() { // waits for its answer until hangUp
			if res, err := srv.Client().Do(req); err == nil {
				res.Body.Close()
			}
		})
		eventually(t, "the approval request", func() bool { return len(list("state=pending").Items) == i+1 })
	}
	all := list("").Items
	if all[0].CreatedAt.Before(all[2].CreatedAt) {
		t.Errorf("list = %+v, want the newest first", all)
	}
	before := ""
	for i, want := range all {
		got := list("limit=1&state=pending&before=" + before)
		if len(got.Items) != 1 || got.Items[0].ID != want.ID || got.Truncated {
			t.Errorf("page %d = %+v, want %s alone", i, got, want.ID)
		}
		before = want.ID
	}
	if got := list("before=" + before); len(got.Items) != 0 || got.Truncated {
		t.Errorf("page after the last = %+v, want none", got)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/approvals?limit=-1", ""), http.StatusBadRequest, "invalid_argument", "limit")
	problemIs(t, ask(t, srv, "GET", "/v1/approvals?before=none", ""), http.StatusNotFound, "not_found", "")
	ann := bearerOf(t, srv, `{"caller":"ann"}`)
	problemIs(t, ask(t, srv, "GET", "/v1/approvals?before="+before, "", ann...), http.StatusNotFound, "not_found", "")
}
