package images

import (
	"bytes"
	"encoding/json"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// MaxDescriptors is the maximum number of kept entries of a list. A decoded entry can be a hundred
// times larger than its text.
const MaxDescriptors = 512

// Descriptors is a list in an untrusted document: the manifests of an index or the layers of a
// manifest.
type Descriptors struct {
	List  []imagespec.Descriptor // up to MaxDescriptors entries
	Count int                    // number of entries in the document
}

// UnmarshalJSON implements json.Unmarshaler. It keeps the first MaxDescriptors entries.
func (d *Descriptors) UnmarshalJSON(raw []byte) error {
	*d = Descriptors{}
	if string(raw) == "null" {
		return nil
	}
	list := json.NewDecoder(bytes.NewReader(raw))
	if open, err := list.Token(); err != nil || open != json.Delim('[') {
		return invalid("want a list")
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

// Index and Manifest are the used parts of the image documents.
type (
	Index struct {
		Manifests Descriptors `json:"manifests"`
	}
	Manifest struct {
		Config imagespec.Descriptor `json:"config"`
		Layers Descriptors          `json:"layers"`
	}
)
