package filesync

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
)

// encodeNames encodes the names of an entry as base64, because JSON strings cannot hold arbitrary
// bytes.
func encodeNames(e entry) entry {
	e.Name = base64.StdEncoding.EncodeToString([]byte(e.Name))
	e.Link = base64.StdEncoding.EncodeToString([]byte(e.Link))
	return e
}

// decodeNames reverses encodeNames.
func decodeNames(e entry) (entry, error) {
	name, err1 := base64.StdEncoding.DecodeString(e.Name)
	link, err2 := base64.StdEncoding.DecodeString(e.Link)
	e.Name, e.Link = string(name), string(link)
	return e, errors.Join(err1, err2)
}

// finishApply makes the directory match the list, however far an earlier call got, and removes the
// stage.
func finishApply(ctx context.Context, dir string, root *os.Root, owner Owner) error {
	list, err := readList(root)
	if err != nil {
		return fmt.Errorf("apply files: %w", err)
	}
	if err := removeUnlisted(ctx, dir, root, list); err != nil {
		return fmt.Errorf("apply files: %w", err)
	}
	failpoint.Hit("carry.apply.cleaned")
	if err := ignoreNotExist(root.Remove(reserveName)); err != nil {
		return fmt.Errorf("apply files: %w", err)
	}
	for i, e := range list {
		if i == len(list)/2 {
			failpoint.Hit("carry.apply.half")
		}
		if err := placeEntry(root, e, owner); err != nil {
			return fmt.Errorf("apply files: %.200q: %w", e.Name, err)
		}
	}
	for i := len(list) - 1; i >= 0; i-- {
		e := list[i]
		if e.Kind != "d" {
			continue
		}
		err := errors.Join(root.Lchown(e.Name, owner.UID, owner.GID),
			root.Chmod(e.Name, fs.FileMode(e.Mode)), root.Chtimes(e.Name, e.Time, e.Time))
		if err != nil {
			return fmt.Errorf("apply files: %.200q: %w", e.Name, err)
		}
	}
	failpoint.Hit("carry.apply.placed")
	return dropStage(ctx, dir)
}

// readList reads and checks the list of the stage.
func readList(root *os.Root) ([]entry, error) {
	f, err := root.Open(listName)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var list []entry
	dec := json.NewDecoder(bufio.NewReader(f))
	for {
		var e entry
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		if e, err = decodeNames(e); err == nil {
			err = checkName(e.Name)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
}

// removeUnlisted removes what the list does not have or has as another type. FIFOs, sockets and
// devices are never copied, and stay.
func removeUnlisted(ctx context.Context, dir string, root *os.Root, list []entry) error {
	want := make(map[string]string, len(list))
	for _, e := range list {
		want[e.Name] = e.Kind
	}
	r, err := safefile.Open(dir, safefile.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	return walk(ctx, root, func(name string, info fs.FileInfo) (bool, error) {
		is, should := string(rune(kindOf(info.Mode()))), want[name]
		if is == should || kindOf(info.Mode()) == 0 && should == "" {
			return true, nil
		}
		return false, removeTree(ctx, r, root, name, info)
	})
}

// removeTree removes a file or directory. safefile rejects names that are not UTF-8, so a directory
// with such a name is removed with os.Root.
func removeTree(ctx context.Context, r *safefile.Root, root *os.Root, name string, info fs.FileInfo) error {
	if !info.IsDir() {
		return ignoreNotExist(root.Remove(name))
	}
	err := r.Remove(ctx, name, true)
	if errdefs.IsInvalidArgument(err) {
		err = root.RemoveAll(name)
	}
	if isNotFound(err) {
		return nil
	}
	return err
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func isNotFound(err error) bool { return errors.Is(err, fs.ErrNotExist) || errdefs.IsNotFound(err) }

// placeEntry moves one entry from the stage to its place, unless it is there already.
func placeEntry(root *os.Root, e entry, owner Owner) error {
	switch {
	case e.Kind == "d" && isDir(root, e.Name):
		return nil
	case e.Kind == "d" && e.Index == 0:
		return root.Mkdir(e.Name, 0o700)
	case e.Kind == "l" && isLink(root, e.Name, e.Link):
		return nil
	case e.Kind == "l" && e.Index == 0: // An earlier version's list.
		if err := ignoreNotExist(root.Remove(e.Name)); err != nil {
			return err
		}
		if err := root.Symlink(e.Link, e.Name); err != nil {
			return err
		}
		return root.Lchown(e.Name, owner.UID, owner.GID)
	case e.Keep:
		return nil
	}
	return ignoreNotExist(root.Rename(contentName(e.Index), e.Name)) // A missing source is already in its place.
}

func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
