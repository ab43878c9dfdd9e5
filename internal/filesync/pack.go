package filesync

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Known holds hashes of files as they were unpacked, so that unchanged files need not be sent back.
// It uses about 50 bytes per file.
type Known map[uint64]uint64

// nameKey returns the hash of a name in Known.
func nameKey(name string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name)
	return h.Sum64()
}

// fileStamp returns a hash that changes with a file's content or mode. It includes the change time,
// which no command can set. 0 means not known.
func fileStamp(info fs.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	h := fnv.New64a()
	var b []byte
	for _, n := range []int64{
		int64(st.Ino), st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, int64(st.Mode),
	} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	_, _ = h.Write(b)
	return h.Sum64()
}

// Remember returns the current stamps of the regular files in dir.
func Remember(ctx context.Context, dir string) (Known, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("remember files: %w", err)
	}
	defer func() { _ = root.Close() }()
	known := Known{}
	err = walk(ctx, root, func(name string, info fs.FileInfo) (bool, error) {
		if info.Mode().IsRegular() && len(known) < MaxEntries {
			known[nameKey(name)] = fileStamp(info)
		}
		return true, nil
	})
	return known, err
}

// Measure returns the size of dir, and *TooLargeError if it exceeds the limits.
func Measure(ctx context.Context, dir string, limits Limits) (Sum, error) {
	root, err := openRoot(dir)
	if err != nil {
		return Sum{}, fmt.Errorf("measure files: %w", err)
	}
	defer func() { _ = root.Close() }()
	t := counter{limits: limits}
	err = walk(ctx, root, func(name string, info fs.FileInfo) (bool, error) {
		if kindOf(info.Mode()) == 0 {
			return false, nil
		}
		return true, t.add(name, contentSize(info))
	})
	return t.sum, err
}

func contentSize(info fs.FileInfo) int64 {
	if info.Mode().IsRegular() {
		return info.Size()
	}
	return 0
}

// Pack writes the files in dir as a stream. Files that match known are sent without content. If a
// file changes during the read, Pack sends as many bytes as it had when it was opened, and pads it with
// zeros.
func Pack(ctx context.Context, w io.Writer, dir string, limits Limits, known Known) (Sum, error) {
	root, err := openRoot(dir)
	if err != nil {
		return Sum{}, fmt.Errorf("pack files: %w", err)
	}
	defer func() { _ = root.Close() }()
	buffered := bufio.NewWriterSize(w, 64<<10)
	p := packer{ctx: ctx, root: root, out: tar.NewWriter(buffered), counter: counter{limits: limits}, known: known}
	if err := walk(ctx, root, p.packEntry); err != nil {
		return p.counter.sum, fmt.Errorf("pack files: %w", err)
	}
	end := &tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "end",
		PAXRecords: map[string]string{endRecord: fmt.Sprint(p.counter.sum.Entries)}}
	if err := p.out.WriteHeader(end); err != nil {
		return p.counter.sum, fmt.Errorf("pack files: %w", err)
	}
	if err := errors.Join(p.out.Close(), buffered.Flush()); err != nil {
		return p.counter.sum, fmt.Errorf("pack files: %w", err)
	}
	return p.counter.sum, nil
}

type packer struct {
	ctx     context.Context
	root    *os.Root
	out     *tar.Writer
	counter counter
	known   Known
	buf     []byte
}

// packEntry writes one entry and reports whether to enter it.
func (p *packer) packEntry(name string, info fs.FileInfo) (bool, error) {
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch kindOf(info.Mode()) {
	case 'd':
		h.Typeflag = tar.TypeDir
	case 'l':
		target, err := p.root.Readlink(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read link %.200q: %w", name, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case 'f':
		return false, p.packFile(name, info, h)
	default:
		return false, nil
	}
	if err := p.counter.add(name, 0); err != nil {
		return false, err
	}
	return true, p.out.WriteHeader(h)
}

// packFile writes a regular file, without content if it matches known.
func (p *packer) packFile(name string, info fs.FileInfo, h *tar.Header) error {
	h.Typeflag = tar.TypeReg
	if was, ok := p.known[nameKey(name)]; ok && was != 0 && was == fileStamp(info) {
		if err := p.counter.add(name, info.Size()); err != nil {
			return err
		}
		p.counter.sum.Kept++
		h.PAXRecords = map[string]string{keepRecord: fmt.Sprint(info.Size())}
		return p.out.WriteHeader(h)
	}
	f, err := openFile(p.root, name, info.Mode())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %.200q: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	now, err := f.Stat()
	if err != nil {
		return fmt.Errorf("stat %.200q: %w", name, err)
	}
	if !now.Mode().IsRegular() {
		return nil
	}
	if err := p.counter.add(name, now.Size()); err != nil {
		return err
	}
	h.Size, h.ModTime = now.Size(), now.ModTime()
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	return p.writeFile(f, name, now.Size())
}

// writeFile writes size bytes of a file's content. It pads a shorter file with zeros.
func (p *packer) writeFile(f io.Reader, name string, size int64) error {
	if p.buf == nil {
		p.buf = make([]byte, 128<<10)
	}
	short := false
	for size > 0 {
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		b := p.buf[:min(size, int64(len(p.buf)))]
		n := len(b)
		if short {
			clear(b)
		} else {
			m, err := io.ReadFull(f, b)
			if short = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && !short {
				return fmt.Errorf("read %.200q: %w", name, err)
			}
			clear(b[m:])
		}
		if _, err := p.out.Write(b[:n]); err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}
