package governed

import (
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
)

func TestApprovalPageIsBounded(t *testing.T) {
	large := approval.Request{Modified: make([]byte, approvalBytes)}
	for name, c := range map[string]struct {
		list      []approval.Request
		limit     int
		want      int
		truncated bool
	}{
		"nothing":                     {nil, 0, 0, false},
		"a few":                       {make([]approval.Request, 3), 0, 3, false},
		"as many as asked for":        {make([]approval.Request, 3), 3, 3, false},
		"the largest page":            {make([]approval.Request, approval.MaxList), approval.MaxList, approval.MaxList, false},
		"the largest page by default": {make([]approval.Request, approval.MaxList), 0, approval.MaxList, true},
		"more than a page asked for":  {make([]approval.Request, approval.MaxList), 5000, approval.MaxList, true},
		"a large one alone":           {[]approval.Request{large}, 0, 1, false},
		"two large ones":              {[]approval.Request{large, {}, {Input: []byte("1")}}, 0, 2, true},
	} {
		if got := approvalPage(c.list, c.limit); len(got.Items) != c.want || got.Truncated != c.truncated {
			t.Errorf("%s: approvalPage = %d requests, truncated %t; want %d, %t",
				name, len(got.Items), got.Truncated, c.want, c.truncated)
		}
	}
}
