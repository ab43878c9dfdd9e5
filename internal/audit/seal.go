package audit

import (
	"bytes"
	"crypto/hmac"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// seal describes the records of a part of the log. It is written when the part ends, and it stays
// when the part is removed.
type seal struct {
	Part int `json:"part"`
	// First and Last are the sequence numbers of its first and last record. Records is their count.
	First   int64 `json:"first"`
	Last    int64 `json:"last"`
	Records int64 `json:"records"`
	// Prev is the hash before the first record, and Hash is the hash of the last one, in hex.
	Prev   string    `json:"prev"`
	Hash   string    `json:"hash"`
	Sealed time.Time `json:"sealed"`
	// Removed is when the service deleted the part.
	Removed *time.Time `json:"removed,omitempty"`
	// MAC authenticates all other fields with the log's key, in hex.
	MAC string `json:"mac,omitempty"`
}

func (s seal) head() head {
	sum, _ := hex.DecodeString(s.Hash) // parseSeal has checked it
	return head{Seq: s.Last, Hash: sum}
}

func (s seal) before() head {
	sum, _ := hex.DecodeString(s.Prev)
	return head{Seq: s.First - 1, Hash: sum}
}

// body returns the text that the code covers.
func (s seal) body() ([]byte, error) {
	s.MAC = ""
	return json.Marshal(s)
}

// sign returns the seal as it is stored.
func (s seal) sign(key []byte) ([]byte, error) {
	body, err := s.body()
	if err != nil {
		return nil, err
	}
	s.MAC = hex.EncodeToString(sealCode(key, body))
	b, err := json.Marshal(s)
	return append(b, '\n'), err
}

func sealCode(key, body []byte) []byte {
	mac := newMAC(key)
	mac.Write([]byte("seal "))
	mac.Write(body)
	return mac.Sum(nil)
}

// parseSeal reads the seal of a part. It returns an error if the seal was not made with key.
func parseSeal(key []byte, part int, text []byte) (seal, error) {
	var s seal
	if err := strictjson.Decode(text, &s); err != nil {
		return seal{}, fmt.Errorf("the seal of part %d is damaged", part)
	}
	body, err := s.body()
	if err != nil {
		return seal{}, err
	}
	mac, err := hex.DecodeString(s.MAC)
	if err != nil || !hmac.Equal(mac, sealCode(key, body)) || s.Part != part {
		return seal{}, fmt.Errorf("the seal of part %d was changed or belongs to another log", part)
	}
	return s, nil
}

// follows reports whether the first record of the part directly follows h.
func (s seal) follows(h head) bool {
	b := s.before()
	return b.Seq == h.Seq && bytes.Equal(b.Hash, h.Hash)
}
