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

// seal says which records a part of the log has. It is written when the part
// ends, and stays when the part is removed.
type seal struct {
	Part int `json:"part"`
	// First and Last are the numbers of its records, and Records is how many they are.
	First   int64 `json:"first"`
	Last    int64 `json:"last"`
	Records int64 `json:"records"`
	// Prev is the hash before the first record and Hash that of the last one, as hex.
	Prev   string    `json:"prev"`
	Hash   string    `json:"hash"`
	Sealed time.Time `json:"sealed"`
	// Removed is when the service deleted the part.
	Removed *time.Time `json:"removed,omitempty"`
	// MAC is a code over all of this that only the log's key makes, as hex.
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

// body is what the code is made of.
func (s seal) body() ([]byte, error) {
	s.MAC = ""
	return json.Marshal(s)
}

// sign is the seal as it is stored.
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

// parseSeal reads the seal of a part. One that the key did not make is an error.
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
		return seal{}, fmt.Errorf("the seal of part %d was changed, or is of another log", part)
	}
	return s, nil
}

// follows says whether the first record of the part stands right behind h.
func (s seal) follows(h head) bool {
	b := s.before()
	return b.Seq == h.Seq && bytes.Equal(b.Hash, h.Hash)
}
