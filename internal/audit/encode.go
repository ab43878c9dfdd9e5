package audit

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// seqPrefix is the start of every stored record. The sequence number follows.
const seqPrefix = `{"seq":`

// maxText bounds free text in a record, and maxName bounds names, in bytes.
const (
	maxText = 4 << 10
	maxName = 512
)

// plain is a Record without the fields that the writer adds.
type plain Record

// encode returns a record as a JSON object that starts with its kind.
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

// sanitize redacts and truncates what comes from callers. A caller's own values hide text in its
// input, paths and errors. They do not hide the caller, action, place or rule: otherwise a caller
// could choose what its records show.
func (l *Log) sanitize(r Record) Record {
	all := l.redact.record(r.Caller)
	names := all.withoutOwn()
	if len(r.Input) > 0 {
		size, sum := r.InputBytes, r.InputHash
		r.Input, r.InputBytes, r.InputHash = all.redactInput(r.Input)
		if size > r.InputBytes {
			r.InputBytes, r.InputHash = size, sum // the input was truncated before it reached the log
		}
	}
	for _, s := range []*string{&r.Caller, &r.Token, &r.Via, &r.Call, &r.Trace} { // written by the service
		*s = clip.Text(*s, maxName)
	}
	for _, s := range []*string{
		&r.Profile, &r.Session, &r.Action, &r.Approval, &r.By, &r.Sandbox, &r.Workspace, &r.Image,
	} {
		*s = names.redactTruncated(*s, maxName)
	}
	r.Rule = names.redactTruncated(r.Rule, maxText)
	r.Error = all.redactTruncated(r.Error, maxText)
	if r.Egress != nil {
		e := *r.Egress
		for _, s := range []*string{&e.Host, &e.Protocol, &e.Method, &e.Address, &e.Reason} {
			*s = names.redactTruncated(*s, maxName)
		}
		e.Path = all.redactTruncated(e.Path, maxText)
		r.Egress = &e
	}
	return r
}

// RedactPath returns the path of a request as records of the caller show it.
func (l *Log) RedactPath(caller, path string) string {
	all := l.redact.record(caller)
	return all.redactTruncated(path, maxText)
}

// redactTruncated returns s without secrets, truncated to about limit bytes.
func (v *view) redactTruncated(s string, limit int) string {
	return clip.Text(v.redactPrefix(s, limit), limit)
}

// closeRecord returns the record that closes a call. Fields that outcome leaves empty come from
// open.
func closeRecord(open, outcome Record) Record {
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
		{&r.Trace, open.Trace},
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
