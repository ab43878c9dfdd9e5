package images

import (
	"encoding/json"
	"strings"
	"testing"
)

// A document of maximum size with the shortest entries keeps only MaxDescriptors of them.
func TestDescriptorsAreBounded(t *testing.T) {
	n := maxDocument / len("{},")
	var m Manifest
	if err := json.Unmarshal([]byte(`{"config":{"size":7},"layers":[`+strings.Repeat("{},", n-1)+`{}]}`),
		&m); err != nil {
		t.Fatal(err)
	}
	if m.Layers.Count != n || len(m.Layers.List) != MaxDescriptors || m.Config.Size != 7 {
		t.Errorf("kept %d of %d descriptors, want %d of %d", len(m.Layers.List), m.Layers.Count, MaxDescriptors, n)
	}
	for text, ok := range map[string]bool{
		`{"layers":null}`: true, `{"layers":[]}`: true, `{}`: true, `{"layers":[{"digest":"x"},null]}`: true,
		`{"layers":{}}`: false, `{"layers":"x"}`: false, `{"layers":[1]}`: false,
		`{"layers":[` + strings.Repeat("{},", MaxDescriptors) + `1]}`: false,
	} {
		if err := json.Unmarshal([]byte(text), &m); (err == nil) != ok {
			t.Errorf("Unmarshal(%.60s) = %v, want success %v", text, err, ok)
		}
	}
}
