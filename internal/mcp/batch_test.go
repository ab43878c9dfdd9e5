package mcp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCheckMessagesBoundsBatches(t *testing.T) {
	many := func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(`{"jsonrpc":"2.0"},`, n), ",") + "]"
	}
	long := strings.Repeat("x", maxOther)
	for body, ok := range map[string]bool{
		`{"id":1,"method":"tools/call","params":"` + long + `"}`:                     true,
		`[{"id":1,"method":"tools/call","params":"` + long + `"}]`:                   true,
		`{"id":1,"result":"` + long + `"}`:                                           true,
		`{"method":"tools/call","params":"` + long + `"}`:                            false,
		`{"id":null,"method":"tools/call","params":"` + long + `"}`:                  false,
		`{"id":1,"method":"resources/read","params":"` + long + `"}`:                 false,
		`[{"id":1,"method":"tools/call"},{"method":"x","params":"` + long + `"}]`:    false,
		`{"method":"x","Method":"tools/call","ID":1,"id":1,"params":"` + long + `"}`: false,
		`{"method":"x","id":1,"params":"` + long + `","` + long + `":"tools/call"}`:  false,
		`{"method":"` + long + `","id":1,"params":"` + long + `"}`:                   false,
		``: true, `{"jsonrpc":"2.0","params":[1,2]}`: true, `[`: true, `garbage`: true, "[]": true,
		many(maxBatch): true, many(maxBatch + 1): false, " \r\n\t" + many(maxBatch+1): false,
		"[" + strings.Repeat("1,", maxBatch+1): false,
	} {
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
		_, err := checkMessages(r)
		if (err == nil) != ok {
			t.Errorf("checkMessages(%.40q): %v, want success %t", body, err, ok)
		}
		if err != nil {
			continue
		}
		if left, err := io.ReadAll(r.Body); err != nil || string(left) != strings.TrimLeft(body, " \r\n\t") {
			t.Errorf("after checkMessages, body %.40q is %.40q, %v; want it without leading space", body, left, err)
		}
	}
}
