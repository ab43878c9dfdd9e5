package audit

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
)

const keyLength = 32

// HeadFile and KeyFile are the names of the log's files in a state directory,
// beside those of package store.
const (
	HeadFile = "audit.head"
	KeyFile  = "audit.key"
)

// head names the last record.
type head struct {
	Seq  int64
	Hash []byte
}

// genesis is what the first record follows.
func genesis() head {
	sum := sha256.Sum256([]byte("orchestrator audit log, version 1"))
	return head{Hash: sum[:]}
}

// newMAC makes what chain needs; it is for one goroutine.
func newMAC(key []byte) hash.Hash { return hmac.New(sha256.New, key) }

// chain is the hash of a record behind the one with the hash prev.
func chain(mac hash.Hash, prev, record []byte) []byte {
	mac.Reset()
	mac.Write(prev)
	mac.Write(record)
	return mac.Sum(nil)
}

// parseHead reads "SEQ:HASH".
func parseHead(s string) (head, error) {
	seq, sum, ok := strings.Cut(strings.TrimSpace(s), ":")
	n, err := strconv.ParseInt(seq, 10, 64)
	b, err2 := hex.DecodeString(sum)
	if !ok || err != nil || err2 != nil || n < 0 || len(b) != sha256.Size {
		return head{}, fmt.Errorf("head is not of the form SEQ:HASH, with a hash of 64 hex digits, as verify prints it: %w", errdefs.ErrInvalidArgument)
	}
	return head{Seq: n, Hash: b}, nil
}

// headFile is where the head is kept, with a code that only the key makes:
// "SEQ:HASH:CODE". Each write replaces it whole.
type headFile struct {
	path string
	key  []byte

	mu      sync.Mutex
	changed chan struct{} // closed at the next write
	seq     int64         // of the last write
	err     error
}

func (f *headFile) code(h head) string {
	mac := newMAC(f.key)
	mac.Write([]byte("head " + h.String()))
	return hex.EncodeToString(mac.Sum(nil))
}

func (f *headFile) read() (head, error) {
	b, err := os.ReadFile(f.path)
	if err != nil {
		return head{}, err
	}
	line := strings.TrimSuffix(string(b), "\n")
	text, code, ok := cutLast(line, ":")
	h, err := parseHead(text)
	if !ok || err != nil {
		return head{}, fmt.Errorf("%s is damaged", f.path)
	}
	if !hmac.Equal([]byte(code), []byte(f.code(h))) {
		return head{}, fmt.Errorf("%s was changed, or is of another log", f.path)
	}
	return h, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// write replaces the file. It is for one goroutine.
func (f *headFile) write(h head) error {
	temp := f.path + ".new"
	err := os.WriteFile(temp, []byte(h.String()+":"+f.code(h)+"\n"), 0o600)
	if err == nil {
		err = os.Rename(temp, f.path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq, f.err = h.Seq, err
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
	return err
}

// wait returns once the head of seq, or a later one, was written or could not be.
func (f *headFile) wait(ctx context.Context, seq int64) error {
	for {
		changed, err := f.state(seq)
		if changed == nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// state is what became of the head of seq, or a channel that the next write
// closes.
func (f *headFile) state(seq int64) (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seq >= seq {
		return nil, f.err
	}
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed, nil
}

// loadKey reads the key, or makes one: fresh says that there was none.
func loadKey(path string) (key []byte, fresh bool, err error) {
	key, err = os.ReadFile(path)
	switch {
	case err == nil && len(key) == keyLength:
		return key, false, nil
	case err == nil:
		return nil, false, fmt.Errorf("the audit log's key %s has %d bytes instead of %d: put the right one back, or remove it to begin anew: %w", path, len(key), keyLength, errdefs.ErrFailedPrecondition)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, fmt.Errorf("the audit log's key: %w", err)
	}
	key = make([]byte, keyLength)
	_, _ = rand.Read(key) // it never fails
	temp := path + ".new"
	if err := os.WriteFile(temp, key, 0o600); err != nil {
		return nil, false, fmt.Errorf("the audit log's key: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return nil, false, fmt.Errorf("the audit log's key: %w", err)
	}
	return key, true, nil
}
