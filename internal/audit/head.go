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

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

const keyLength = 32

// HeadFile and KeyFile are the names of the log's files in a state directory. Package store keeps
// its files beside them.
const (
	HeadFile = "audit.head"
	KeyFile  = "audit.key"
)

// head identifies the last record.
type head struct {
	Seq  int64
	Hash []byte
}

// genesis returns the head that the first record follows.
func genesis() head {
	sum := sha256.Sum256([]byte("orchestrator audit log, version 1"))
	return head{Hash: sum[:]}
}

// newMAC returns the hash for chain. Only one goroutine may use it.
func newMAC(key []byte) hash.Hash { return hmac.New(sha256.New, key) }

// chain returns the hash of a record that follows a record with the hash prev.
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
		return head{}, fmt.Errorf("invalid head: want SEQ:HASH with a hash of 64 hex digits, as printed by verify: %w",
			errdefs.ErrInvalidArgument)
	}
	return head{Seq: n, Hash: b}, nil
}

// headFile stores the head and an authentication code as "SEQ:HASH:CODE". The code needs the log's
// key. Each write replaces the whole file.
type headFile struct {
	path string
	key  []byte

	mu      sync.Mutex
	changed chan struct{} // closed by the next write
	seq     int64         // sequence number of the last write
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
		return head{}, fmt.Errorf("%s was changed or belongs to another log", f.path)
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

// write replaces the file. Only one goroutine may call it.
func (f *headFile) write(h head) error {
	err := hostfile.Replace(f.path, []byte(h.String()+":"+f.code(h)+"\n"), 0o600)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq, f.err = h.Seq, err
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
	return err
}

// wait returns when the head of seq or a later one was written, or failed to be written.
func (f *headFile) wait(ctx context.Context, seq int64) error {
	for {
		changed, err := f.writeResult(seq)
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

// writeResult returns the result of writing the head of seq, or a channel that the next write
// closes.
func (f *headFile) writeResult(seq int64) (<-chan struct{}, error) {
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

// loadKey reads the key or creates one. fresh reports that it was created.
func loadKey(path string) (key []byte, fresh bool, err error) {
	key, err = os.ReadFile(path)
	switch {
	case err == nil && len(key) == keyLength:
		return key, false, nil
	case err == nil:
		return nil, false,
			fmt.Errorf("invalid audit log key %s: %d bytes, want %d: restore the right key, "+
				"or remove the file to create a new one: %w", path, len(key), keyLength, errdefs.ErrFailedPrecondition)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, fmt.Errorf("load the audit log's key: %w", err)
	}
	key = make([]byte, keyLength)
	_, _ = rand.Read(key) // Read never fails
	if err := hostfile.Replace(path, key, 0o600); err != nil {
		return nil, false, fmt.Errorf("load the audit log's key: %w", err)
	}
	return key, true, nil
}
