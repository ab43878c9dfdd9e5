package images

import (
	"encoding/json"
	"strings"
	"testing"
)

// A list of the shortest entries, as long as a document can be, takes room for
// few of them.
func TestDescriptorsAreCountedAndNotKept(t *testing.T) {
	n := maxDocument / len("{},")
	var m Manifest
	if err := json.Unmarshal([]byte(`{"config":{"size":7},"layers":[`+strings.Repeat("{},", n-1)+`{}]}`), &m); err != nil {
		t.Fatal(err)
	}
	if m.Layers.Count != n || len(m.Layers.List) != MaxDescriptors || m.Config.Size != 7 {
		t.Errorf("%d of %d are kept, not %d of %d", len(m.Layers.List), m.Layers.Count, MaxDescriptors, n)
	}
	for text, ok := range map[string]bool{
		`{"layers":null}`: true, `{"layers":[]}`: true, `{}`: true, `{"layers":[{"digest":"x"},null]}`: true,
		`{"layers":{}}`: false, `{"layers":"x"}`: false, `{"layers":[1]}`: false, `{"layers":[` + strings.Repeat("{},", MaxDescriptors) + `1]}`: false,
	} {
		if err := json.Unmarshal([]byte(text), &m); (err == nil) != ok {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}
