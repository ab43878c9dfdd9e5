package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// seqPrefix begins every record as it is stored; the number follows.
const seqPrefix = `{"seq":`

// maxText bounds what a record says in words, maxName what it names, in bytes.
const (
	maxText = 4 << 10
	maxName = 512
)

// plain is a Record without what the writer puts in front.
type plain Record

// encode is a record from its kind on, as a JSON object.
func encode(r Record) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // commands stay readable
	body := struct {
		Seq  *int64 `json:"seq,omitempty"`
		Time *int64 `json:"time,omitempty"`
		plain
	}{plain: plain(r)}
	if err := enc.Encode(body); err != nil {
		return nil, fmt.Errorf("encode an audit record: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func decode(b []byte) (Record, error) {
	var r Record
	err := json.Unmarshal(b, &r)
	return r, err
}

// clean redacts and bounds what comes from callers. The values of a caller hide text in its input,
// in paths and in errors. They hide neither who called nor what, where or by which rule: else a
// caller would choose what its records are about.
func (l *Log) clean(r Record) Record {
	all := l.redact.record(r.Caller)
	names := all.names()
	if len(r.Input) > 0 {
		size, sum := r.InputBytes, r.InputHash
		r.Input, r.InputBytes, r.InputHash = all.input(r.Input)
		if size > r.InputBytes {
			r.InputBytes, r.InputHash = size, sum // it was cut before it came here
		}
	}
	for _, s := range []*string{&r.Caller, &r.Token, &r.Via, &r.Call} { // the service's own words
		*s = cut(*s, maxName)
	}
	for _, s := range []*string{
		&r.Profile, &r.Session, &r.Action, &r.Approval, &r.By, &r.Sandbox, &r.Workspace, &r.Image,
	} {
		*s = names.bounded(*s, maxName)
	}
	r.Rule = names.bounded(r.Rule, maxText)
	r.Error = all.bounded(r.Error, maxText)
	if r.Egress != nil {
		e := *r.Egress
		for _, s := range []*string{&e.Host, &e.Protocol, &e.Method, &e.Address, &e.Reason} {
			*s = names.bounded(*s, maxName)
		}
		e.Path = all.bounded(e.Path, maxText)
		r.Egress = &e
	}
	return r
}

// bounded is s without secrets and at most about limit bytes long.
func (v *view) bounded(s string, limit int) string { return cut(v.beginning(s, limit), limit) }

// cut is s as valid UTF-8 and at most about limit bytes long.
func cut(s string, limit int) string {
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// closing is the record that closes a call.
func closing(open, outcome Record) Record {
	r := outcome
	r.Kind, r.Call, r.Uncharged = KindClose, open.Call, open.Uncharged
	for _, f := range []struct {
		to   *string
		from string
	}{
		{&r.Caller, open.Caller},
		{&r.Token, open.Token},
		{&r.Profile, open.Profile},
		{&r.Session, open.Session},
		{&r.Via, open.Via},
		{&r.Action, open.Action},
		{&r.Verdict, open.Verdict},
		{&r.Rule, open.Rule},
		{&r.Approval, open.Approval},
		{&r.By, open.By},
		{&r.Sandbox, open.Sandbox},
		{&r.Workspace, open.Workspace},
		{&r.Image, open.Image},
	} {
		if *f.to == "" {
			*f.to = f.from
		}
	}
	if r.Trust == 0 {
		r.Trust = open.Trust
	}
	return r
}
