package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

type common struct {
	Wait int64 `json:"wait"`
}

type rule struct {
	N     int    `json:"n"`
	Rules []rule `json:"rules"`
}

type doc struct {
	common
	*rule
	Rules []rule            `json:"rules"`
	Raw   json.RawMessage   `json:"raw"`
	What  any               `json:"what"`
	At    time.Time         `json:"at"`
	More  map[string]*rule  `json:"more"`
	Skip  string            `json:"-"`
	In    struct{ common }  `json:"in"`
	Name  string            `json:"name"`
	N     int64             `json:"n"`
	L     []string          `json:"l"`
	Env   map[string]string `json:"env"`
}

func TestDecodeErrors(t *testing.T) {
	long := strings.Repeat("9", 1<<20)
	for _, c := range []struct{ in, want string }{
		{`{"n":` + long + `}`, "n is a JSON number 999"},
		{`{"` + long + `":1}`, "999"},
		{`{"nam":1,"n":"1"}`, "nam is unknown"},
		{`{"n":"1","nam":1}`, "n is a JSON string"},
		{`{"nam":"x"}`, "nam is unknown"},
		{`{"name":1}`, "name is a JSON number and must be a string"},
		{`{"n":"1"}`, "n is a JSON string and must be a whole number"},
		{`{"n":1.5}`, "n is a JSON number 1.5 and must be a whole number"},
		{`{"l":"x"}`, "l is a JSON string and must be a list"},
		{`{"env":[1]}`, "env is a JSON array and must be an object"},
		{`{"wait":"x"}`, "wait is a JSON string and must be a whole number"},
		{`{"in":{"wait":"x"}}`, "in.wait is a JSON string and must be a whole number"},
		{`[]`, "body is a JSON array and must be an object"},
		{`{"n":1}{}`, "body has more than one JSON value"},
		{`{"n":1`, "body is an incomplete JSON value"},
		{``, "body is an incomplete JSON value"},
		{"{\"name\":\"\xff\"}", "body is not valid UTF-8"},
		{`nonsense`, "body is invalid JSON"},
	} {
		err := Decode([]byte(c.in), &doc{})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, errdefs.ErrInvalidArgument) ||
			len(err.Error()) > 1000 {
			t.Errorf("Decode(%.100s) = %.2000v, want %s", c.in, err, c.want)
		}
	}
	if err := Decode([]byte(`{"name":"x","n":3}`), &doc{}); err != nil {
		t.Errorf("Decode = %v", err)
	}
}

// decodeWithDecoder is Decode with a json.Decoder, which copies the document.
func decodeWithDecoder(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"name":"x"}`, `{"NAME":"x","n":1}`, `{"in":{"wait":1,"no":[{"a":"\\\""}]}}`, `{"rules":[{"n":1},{"m":2}]}`,
		`{"env":{"a":"b","c":1}}`,
		`{"raw":{"any":["thing",{"x":1}]},"what":{"y":[]},"at":"2026-01-02T15:04:05Z"}`, ` [ ] `, `{"n":"1","nam":2}`,
		`{"nam":2,"n":"1"}`, `{"\u006e":1}`, `{}{}`, `{"rules":null,"more":{"rules":[{"rules":[{"x":1}]}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := Decode(b, &doc{})
		if err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Fatal(err)
		}
		if Values(b) > len(b) {
			t.Fatalf("Values = %d of %d bytes", Values(b), len(b))
		}
		if !utf8.Valid(b) {
			return
		}
		if want := decodeWithDecoder(b, &doc{}); (err == nil) != (want == nil) {
			t.Fatalf("Decode(%q) = %v, want as the Decoder: %v", b, err, want)
		}
	})
}

// Decode does not copy the document.
func TestDecodeAllocatesOnlyTheValue(t *testing.T) {
	text := strings.Repeat("x", 8<<20)
	data := []byte(`{"in":{"wait":1},"name":"` + text + `","nothing":1}`)
	var d doc
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := Decode(data, &d)
	runtime.ReadMemStats(&after)
	if err == nil || err.Error() != "nothing is unknown" || d.Name != text {
		t.Fatalf("Decode = %v, want the error \"nothing is unknown\" and the text", err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > uint64(len(data)+len(data)/8) {
		t.Errorf("Decode allocated %d bytes for a document of %d bytes, want at most 1/8 more", got, len(data))
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		in   string
		want int
	}{{``, 0}, {`"a,b[c{d"`, 0}, {`[1,2,3]`, 3}, {`{"a\",":[],"b":"\\"}`, 3}, {`"\`, 0}, {`{"a":"`, 1}} {
		if got := Values([]byte(c.in)); got != c.want {
			t.Errorf("Values(%s) = %d, want %d", c.in, got, c.want)
		}
	}
}
