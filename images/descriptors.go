package images

import (
	"bytes"
	"encoding/json"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// MaxDescriptors is how many entries of a list are kept; each has a hundred
// times the room of what it takes to write one.
const MaxDescriptors = 512

// Descriptors are a list in a foreign document: of indexes its manifests, of
// manifests their layers.
type Descriptors struct {
	List  []imagespec.Descriptor // the first MaxDescriptors
	Count int                    // all of them
}

// UnmarshalJSON counts all entries and keeps the first.
func (d *Descriptors) UnmarshalJSON(raw []byte) error {
	*d = Descriptors{}
	if string(raw) == "null" {
		return nil
	}
	list := json.NewDecoder(bytes.NewReader(raw))
	if open, err := list.Token(); err != nil || open != json.Delim('[') {
		return invalid("it has no list where one has to be")
	}
	for ; list.More(); d.Count++ {
		if d.Count >= MaxDescriptors {
			if err := list.Decode(&struct{}{}); err != nil {
				return err
			}
			continue
		}
		var one imagespec.Descriptor
		if err := list.Decode(&one); err != nil {
			return err
		}
		d.List = append(d.List, one)
	}
	return nil
}

// Index and Manifest are what matters of an image's documents.
type (
	Index struct {
		Manifests Descriptors `json:"manifests"`
	}
	Manifest struct {
		Config imagespec.Descriptor `json:"config"`
		Layers Descriptors          `json:"layers"`
	}
)
