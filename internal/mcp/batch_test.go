package mcp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCheckBatchBoundsMessages(t *testing.T) {
	many := func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(`{"jsonrpc":"2.0"},`, n), ",") + "]"
	}
	for body, ok := range map[string]bool{
		``: true, `{"jsonrpc":"2.0","params":[1,2]}`: true, `[`: true, `garbage`: true, "[]": true,
		many(maxBatch): true, many(maxBatch + 1): false, " \r\n\t" + many(maxBatch+1): false,
		"[" + strings.Repeat("1,", maxBatch+1): false,
	} {
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
		_, err := checkBatch(r)
		if (err == nil) != ok {
			t.Errorf("%.40q: %v", body, err)
		}
		if err != nil {
			continue
		}
		if left, err := io.ReadAll(r.Body); err != nil || string(left) != strings.TrimLeft(body, " \r\n\t") {
			t.Errorf("body %.40q is left as %.40q, %v", body, left, err)
		}
	}
}
