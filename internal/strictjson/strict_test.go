package strictjson

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

type common struct {
	Wait int64 `json:"wait"`
}

type doc struct {
	common
	In   struct{ common }  `json:"in"`
	Name string            `json:"name"`
	N    int64             `json:"n"`
	L    []string          `json:"l"`
	Env  map[string]string `json:"env"`
}

func TestErrorsNameTheField(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"nam":"x"}`, "nam is not known here"},
		{`{"name":1}`, "name is a JSON number and must be a string"},
		{`{"n":"1"}`, "n is a JSON string and must be a whole number"},
		{`{"n":1.5}`, "n is a JSON number 1.5 and must be a whole number"},
		{`{"l":"x"}`, "l is a JSON string and must be a list"},
		{`{"env":[1]}`, "env is a JSON array and must be an object"},
		{`{"wait":"x"}`, "wait is a JSON string and must be a whole number"},
		{`{"in":{"wait":"x"}}`, "in.wait is a JSON string and must be a whole number"},
		{`[]`, "body is a JSON array and must be an object"},
		{`{"n":1}{}`, "body has more than one JSON value"},
		{`{"n":1`, "body is not a whole JSON value"},
		{``, "body is not a whole JSON value"},
		{"{\"name\":\"\xff\"}", "body is not valid UTF-8"},
		{`nonsense`, "body is not JSON"},
	} {
		err := Decode([]byte(c.in), &doc{})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: got %v, want %s", c.in, err, c.want)
		}
	}
	if err := Decode([]byte(`{"name":"x","n":3}`), &doc{}); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := Decode(b, &doc{}); err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Fatal(err)
		}
	})
}
