package audit

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestListEndsAtItsByteBound(t *testing.T) {
	w := newWorld(t)
	input := json.RawMessage(`"` + strings.Repeat("a ", 7<<10) + `"`)
	const records = 100 // together over listBytes
	for range records {
		if err := w.log.Event(t.Context(), Record{Caller: "ann", Action: "x", Input: input}); err != nil {
			t.Fatal(err)
		}
	}
	w.flush()
	for _, newest := range []bool{false, true} {
		all, more, err := w.log.List(t.Context(), Filter{Limit: 1 << 30, Newest: newest})
		if err != nil || !more || len(all) < records/2 || len(all) == records {
			t.Fatalf("List(newest=%t) = %d records, more %t, %v; want a part of %d", newest, len(all), more, err, records)
		}
		first, last := all[0].Seq, all[len(all)-1].Seq
		if got := first == 1; got == newest {
			t.Errorf("List(newest=%t) begins with record %d, want the first only without newest", newest, first)
		}
		if got := last == records; got != newest {
			t.Errorf("List(newest=%t) ends with record %d, want the last only with newest", newest, last)
		}
	}
	if all, more, err := w.log.List(t.Context(), Filter{After: records - 3}); err != nil || more || len(all) != 3 {
		t.Errorf("List(after) = %d records, more %t, %v; want 3", len(all), more, err)
	}
}
