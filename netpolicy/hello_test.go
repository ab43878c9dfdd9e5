package netpolicy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
)

// realHello returns a ClientHello of crypto/tls.
func realHello(tb testing.TB, name string) []byte {
	tb.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""}).Handshake()
		_ = client.Close()
	}()
	header := make([]byte, recordHeader)
	if _, err := io.ReadFull(server, header); err != nil {
		tb.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(header[3:]))
	if _, err := io.ReadFull(server, body); err != nil {
		tb.Fatal(err)
	}
	return slices.Concat(header, body)
}

// split divides the record of a hello into records of n bytes each.
func split(hello []byte, n int) []byte {
	var out []byte
	for part := range slices.Chunk(hello[recordHeader:], n) {
		out = append(out, 22, 3, 1, byte(len(part)>>8), byte(len(part)))
		out = append(out, part...)
	}
	return out
}

func vector(size int, parts ...[]byte) []byte {
	body := slices.Concat(parts...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)))[4-size:], body...)
}

func extension(kind uint16, body []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, kind), vector(2, body)...)
}

func names(list ...[]byte) []byte { return extension(extensionServerName, vector(2, list...)) }

func name(s string) []byte { return append([]byte{0}, vector(2, []byte(s))...) }

// madeHello returns a minimal ClientHello with these extensions.
func madeHello(extensions ...[]byte) []byte {
	body := slices.Concat([]byte{3, 3}, make([]byte, 32), []byte{0}, vector(2, []byte{0x13, 1}), []byte{1, 0},
		vector(2, extensions...))
	message := append([]byte{1}, vector(3, body)...)
	return append([]byte{22, 3, 1}, vector(2, message)...)
}

// feed passes a hello to ParseHello in pieces of the required size.
func feed(b []byte) (name string, ech bool, read int, err error) {
	for read <= len(b) {
		name, ech, need, err := ParseHello(b[:read])
		if need == 0 || err != nil {
			return name, ech, read, err
		}
		read += need
	}
	return "", false, read, io.ErrUnexpectedEOF
}

func TestParseHello(t *testing.T) {
	whole := realHello(t, "Example.COM")
	for _, b := range [][]byte{whole, split(whole, 1), split(whole, 3), split(whole, 100),
		append(slices.Clip(whole), "more"...), realHello(t, "example.com"), madeHello(names(name("example.com")))} {
		got, ech, need, err := ParseHello(b)
		if got != "example.com" || ech || need != 0 || err != nil {
			t.Errorf("ParseHello = %q, ech %v, need %d, %v; want \"example.com\" and no error", got, ech, need, err)
		}
		if got, _, _, err := feed(b); got != "example.com" || err != nil {
			t.Errorf("ParseHello piece by piece = %q, %v; want \"example.com\" and no error", got, err)
		}
	}
	if got, _, _, err := ParseHello(realHello(t, "")); got != "" || err != nil {
		t.Errorf("ParseHello of a hello without a name = %q, %v; want no name and no error", got, err)
	}
	if b := split(whole, 1); testing.AllocsPerRun(10, func() { _, _, _, _ = ParseHello(b[:len(b)-1]) }) > 0 {
		t.Error("ParseHello of a partial hello allocates, want no allocation")
	}
}

func TestParseHelloRefuses(t *testing.T) {
	ok := name("a.com")
	truncated := madeHello(names(ok))
	truncated = truncated[:len(truncated)-2]
	binary.BigEndian.PutUint16(truncated[3:], uint16(len(truncated)-recordHeader))
	truncated[8] -= 2
	trailing := append(madeHello(names(ok)), 0)
	trailing[4]++
	for about, c := range map[string]struct {
		b    []byte
		says string
		is   error
	}{
		"HTTP":                   {[]byte("GET / HTTP/1.1\r\n"), "", ErrNotTLS},
		"SSH":                    {[]byte("S"), "", ErrNotTLS},
		"SSL 2":                  {[]byte{0x80, 0x2e, 1, 0, 2}, "", ErrNotTLS},
		"an alert":               {[]byte{21, 3, 1, 0, 2, 1, 0}, "", ErrNotTLS},
		"another version":        {[]byte{22, 4}, "", ErrNotTLS},
		"an empty record":        {[]byte{22, 3, 1, 0, 0}, "0 bytes", ErrNotTLS},
		"a record too large":     {[]byte{22, 3, 1, 0x40, 1}, "16385", ErrNotTLS},
		"a ServerHello":          {[]byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, "not a ClientHello", ErrNotTLS},
		"an alert between":       {append(split(madeHello(names(ok)), 9)[:14], 21, 3, 1), "", ErrNotTLS},
		"a message too large":    {[]byte{22, 3, 1, 0, 4, 1, 1, 0, 0}, "65536", nil},
		"many records":           {bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, MaxHello/6), "65536", nil},
		"ECH":                    {madeHello(names(ok), extension(extensionECH, []byte{0})), "", ErrECH},
		"ECH before the name":    {madeHello(extension(extensionECH, nil), names(ok)), "", ErrECH},
		"ESNI":                   {madeHello(names(ok), extension(extensionESNI, []byte{0})), "", ErrECH},
		"two names":              {madeHello(names(ok, name("b.com"))), "more than one", nil},
		"two lists":              {madeHello(names(ok), names(ok)), "two lists", nil},
		"another type of name":   {madeHello(names(append([]byte{1}, ok[1:]...))), "not a host name", nil},
		"an empty name":          {madeHello(names(name(""))), "malformed", nil},
		"an empty list":          {madeHello(names()), "malformed", nil},
		"an address":             {madeHello(names(name("8.8.8.8"))), "8.8.8.8", nil},
		"a last dot":             {madeHello(names(name("a.com."))), "final dot", nil},
		"unicode":                {madeHello(names(name("bücher.de"))), "ASCII", nil},
		"a zero byte":            {madeHello(names(name("a.com\x00.b.com"))), "control", nil},
		"a short extension":      {madeHello([]byte{0, 0, 0, 9, 1}), "malformed", nil},
		"a short message":        {truncated, "malformed", nil},
		"more behind the hello":  {trailing, "contains other messages", nil},
		"nothing but the header": {[]byte{22, 3, 1, 0, 4, 1, 0, 0, 0}, "malformed", nil},
	} {
		_, ech, need, err := ParseHello(c.b)
		if err == nil || need != 0 || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) ||
			ech != errors.Is(err, ErrECH) {
			t.Errorf("%s: ParseHello = ech %v, need %d, %v; want need 0 and an error with %q, wrapping %v", about, ech, need,
				err, c.says, c.is)
		}
	}
}

// FuzzHello checks that ParseHello does not panic and that the result does not depend on how a
// hello arrives: at once, in pieces, or in records of another size.
func FuzzHello(f *testing.F) {
	f.Add(realHello(f, "example.com"), uint16(1))
	f.Add(madeHello(names(name("a.com"), name("b.com"))), uint16(7))
	f.Add(madeHello(extension(extensionECH, nil)), uint16(300))
	f.Add(split(madeHello(names(name("a.com"))), 2), uint16(5))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		name, ech, need, err := ParseHello(b)
		if need < 0 || need > MaxHello || err != nil && need != 0 || need > 0 && (name != "" || ech) {
			t.Fatalf("ParseHello = %q, ech %v, need %d, %v; want a name, an error or a need up to %d", name, ech, need, err,
				MaxHello)
		}
		slow, slowECH, read, slowErr := feed(b)
		if strings.Contains(text(err)+text(slowErr), "has more than") {
			return // the error can occur earlier or later
		}
		unfinished := slowErr == io.ErrUnexpectedEOF
		if unfinished && need == 0 && err == nil || !unfinished && need > 0 {
			t.Fatalf("need at once = %d, %v; piece by piece %v after %d bytes; want both finished or both unfinished", need,
				err, slowErr, read)
		}
		if !unfinished && (slow != name || slowECH != ech || text(slowErr) != text(err)) {
			t.Fatalf("ParseHello piece by piece = %q, ech %v, %v; want as at once: %q, %v, %v", slow, slowECH, slowErr, name,
				ech, err)
		}
		size, bad := recordSize(b)
		if need > 0 || err != nil || bad != nil || n == 0 || len(b) != recordHeader+size ||
			size/int(n)*(int(n)+recordHeader) > MaxHello-1000 {
			return
		}
		if again, _, _, err := ParseHello(split(b, int(n))); again != name || err != nil {
			t.Fatalf("ParseHello in records of %d bytes = %q, %v; want %q", n, again, err, name)
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
