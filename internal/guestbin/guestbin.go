// Package guestbin holds the guest, the binary that becomes PID 1 of every
// sandbox, and puts it where sandboxes can be given it. Building it comes
// first: `make build` does both. It starts no goroutine.
package guestbin

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed bin/*
var files embed.FS

// ErrNone says that this binary was built without a guest.
var ErrNone = errors.New("this binary was built without a guest: build it with `make build`")

// Bytes returns the guest, or ErrNone.
func Bytes() ([]byte, error) {
	b, err := files.ReadFile("bin/guest")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	return b, err
}

// Write puts the guest at dir/<hash>/guest, with mode 0555, and returns that
// path and the hash. It appears there whole or not at all; one that is there
// already is checked and kept. Concurrent calls are fine.
func Write(dir string) (path, hash string, err error) {
	b, err := Bytes()
	if err != nil {
		return "", "", err
	}
	return write(dir, b)
}

func write(dir string, b []byte) (path, hash string, err error) {
	sum := sha256.Sum256(b)
	hash = hex.EncodeToString(sum[:])
	folder := filepath.Join(dir, hash)
	path = filepath.Join(folder, "guest")
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		return path, hash, os.Chmod(path, 0o555)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", "", fmt.Errorf("write the guest: %w", err)
	}
	tmp, err := os.CreateTemp(folder, ".guest-*")
	if err != nil {
		return "", "", fmt.Errorf("write the guest: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Chmod(0o555), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return "", "", fmt.Errorf("write the guest: %w", err)
	}
	return path, hash, nil
}
