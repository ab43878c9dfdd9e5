package config

import (
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// Callers bounds each caller that has a token, unless the token says otherwise.
// Zero is no bound of its own. The local operator has none of them.
type Callers struct {
	// Sandboxes is how many a caller has at once, Memory what they may use
	// together, Calls how many tools a caller may call in a day (UTC).
	Sandboxes int   `json:"sandboxes"`
	Memory    Size  `json:"memory"`
	Calls     int64 `json:"calls"`
	// Disk is what the quotas of a caller's workspaces come to.
	Disk Size `json:"disk"`
	// MaxWaiting is how many calls of one caller wait for a sandbox at once,
	// MaxPending how many of its questions wait for an answer.
	MaxWaiting int `json:"max_waiting"`
	MaxPending int `json:"max_pending"`
	// MaxRequests is how many requests one caller has at once, MaxStreams how many
	// of them last: events, output that is followed, terminals, tunnels.
	MaxRequests int `json:"max_requests"`
	MaxStreams  int `json:"max_streams"`
}

// Profiles says where profiles are and which one is used.
type Profiles struct {
	// Dir is a folder with profile files beside the built-in ones; "" is none.
	Dir string `json:"dir"`
	// Default is the profile of the local caller, and of tokens that name none.
	Default string `json:"default"`
}

// Approvals configures questions about calls.
type Approvals struct {
	// Webhook is an address that is told of questions; SecretFile holds the key
	// that what is sent is signed with. Both may be "".
	Webhook    string `json:"webhook"`
	SecretFile string `json:"secret_file"`
	// MaxPending is how many questions of all callers wait at once.
	MaxPending int `json:"max_pending"`
	// Expiry is how long a question waits whose rule says nothing.
	Expiry Duration `json:"expiry"`
}

// Audit configures the audit log.
type Audit struct {
	Redact Redact `json:"redact"`
	// CallerDailyBytes is how much may be recorded of one caller in a day (UTC);
	// then its calls are refused. 0 is unlimited. Operators are not bound.
	CallerDailyBytes Size `json:"caller_daily_bytes"`
	// PartSize and PartAge end a part of the log, KeepAge and KeepSize delete
	// sealed parts. 0 is never.
	PartSize Size     `json:"part_size"`
	PartAge  Duration `json:"part_age"`
	KeepAge  Duration `json:"keep_age"`
	KeepSize Size     `json:"keep_size"`
}

// Idempotency bounds what is kept of each caller's answers to requests with an
// Idempotency-Key, within the hour that they are kept. The oldest go first.
type Idempotency struct {
	Answers int  `json:"answers"`
	Bytes   Size `json:"bytes"`
}

// Redact names what is hidden in records beside what is found by itself: each
// line of Files is a value, and each of Patterns a regular expression.
type Redact struct {
	Files    []string `json:"files"`
	Patterns []string `json:"patterns"`
}

// ReadonlyShell configures POST /shell, which takes no token.
type ReadonlyShell struct {
	Enabled bool `json:"enabled"`
	// Caller is whose sandboxes and workspaces it uses.
	Caller string `json:"caller"`
	// Workspaces maps a path that clients name to a workspace of Caller.
	Workspaces map[string]string `json:"workspaces"`
}

func defaultCallers() Callers {
	return Callers{Sandboxes: 20, Memory: 16 << 30, Disk: 100 << 30, Calls: 100_000, MaxWaiting: 100, MaxPending: 100, MaxRequests: 512, MaxStreams: 256}
}

func defaultAudit() Audit {
	return Audit{Redact: Redact{Files: []string{}, Patterns: []string{}}, CallerDailyBytes: 256 << 20, PartSize: 64 << 20}
}

func defaultApprovals() Approvals {
	return Approvals{MaxPending: 10_000, Expiry: Duration(10 * time.Minute)}
}

// names are those of callers, profiles and workspaces.
var names = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

const namesText = "must be lower-case letters, digits, '.', '_' or '-', at most 63 of them, and begin with a letter or a digit"

func (c Callers) validate() error {
	switch {
	case c.Sandboxes < 0:
		return bad("callers.sandboxes", c.Sandboxes, "must not be negative; 0 is no bound")
	case c.Disk < 0:
		return bad("callers.disk", c.Disk, "must not be negative; 0 is no bound")
	case c.Memory < 0:
		return bad("callers.memory", c.Memory, "must not be negative; 0 is no bound")
	case c.Calls < 0:
		return bad("callers.calls", c.Calls, "must not be negative; 0 is no bound")
	case c.MaxWaiting < 0:
		return bad("callers.max_waiting", c.MaxWaiting, "must not be negative; 0 is no bound but admission.queue")
	case c.MaxPending < 0:
		return bad("callers.max_pending", c.MaxPending, "must not be negative; 0 is no bound but approvals.max_pending")
	case c.MaxRequests < 0:
		return bad("callers.max_requests", c.MaxRequests, "must not be negative; 0 is no bound but a share of the connections")
	case c.MaxStreams < 0:
		return bad("callers.max_streams", c.MaxStreams, "must not be negative; 0 is no bound but a share of the connections")
	}
	return nil
}

func (p Profiles) validate() error {
	switch {
	case p.Dir != "" && !filepath.IsAbs(p.Dir):
		return bad("profiles.dir", p.Dir, "must be an absolute path")
	case !names.MatchString(p.Default):
		return bad("profiles.default", quoted(p.Default), namesText)
	}
	return nil
}

func (a Approvals) validate() error {
	if a.Webhook != "" {
		u, err := url.Parse(a.Webhook)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return bad("approvals.webhook", quoted(a.Webhook), "must be an http or https address")
		}
	}
	switch {
	case a.SecretFile != "" && !filepath.IsAbs(a.SecretFile):
		return bad("approvals.secret_file", a.SecretFile, "must be an absolute path")
	case a.SecretFile != "" && a.Webhook == "":
		return bad("approvals.secret_file", a.SecretFile, "is for approvals.webhook, which is empty")
	case a.MaxPending < 1:
		return bad("approvals.max_pending", a.MaxPending, "must be at least 1")
	case a.Expiry < Duration(time.Second):
		return bad("approvals.expiry", a.Expiry, "must be at least 1s")
	}
	return nil
}

func (i Idempotency) validate() error {
	switch {
	case i.Answers < 1:
		return bad("idempotency.answers", i.Answers, "must be at least 1")
	case i.Bytes < 1<<20:
		return bad("idempotency.bytes", i.Bytes, "must be at least 1MiB: one answer may have that")
	}
	return nil
}

// minPart is the least that a part of the audit log may have: an empty one has
// some 50 KiB.
const minPart = 1 << 20

func (a Audit) validate() error {
	switch {
	case a.CallerDailyBytes < 0:
		return bad("audit.caller_daily_bytes", a.CallerDailyBytes, "must not be negative; 0 is unlimited")
	case a.PartSize != 0 && a.PartSize < minPart:
		return bad("audit.part_size", a.PartSize, "must be at least 1MiB, or 0 for any size")
	case a.PartAge != 0 && a.PartAge < Duration(time.Minute):
		return bad("audit.part_age", a.PartAge, "must be at least 1m, or 0 for any age")
	case a.KeepAge < 0:
		return bad("audit.keep_age", a.KeepAge, "must not be negative; 0 keeps all")
	case a.KeepSize < 0:
		return bad("audit.keep_size", a.KeepSize, "must not be negative; 0 keeps all")
	}
	for _, f := range a.Redact.Files {
		if !filepath.IsAbs(f) {
			return bad("audit.redact.files", quoted(f), "must be absolute paths")
		}
	}
	for _, p := range a.Redact.Patterns {
		re, err := regexp.Compile(p)
		if err != nil {
			return bad("audit.redact.patterns", quoted(p), "must be regular expressions of Go: "+err.Error())
		}
		if re.MatchString("") {
			return bad("audit.redact.patterns", quoted(p), "must not match nothing at all: it would hide everything")
		}
	}
	return nil
}

func (r ReadonlyShell) validate(listen string) error {
	if !names.MatchString(r.Caller) {
		return bad("readonly_shell.caller", quoted(r.Caller), namesText)
	}
	for _, path := range slices.Sorted(maps.Keys(r.Workspaces)) {
		switch {
		case !filepath.IsAbs(path) || filepath.Clean(path) != path:
			return bad("readonly_shell.workspaces", quoted(path), "must have clean absolute paths as keys")
		case !names.MatchString(r.Workspaces[path]):
			return bad("readonly_shell.workspaces."+path, quoted(r.Workspaces[path]), namesText)
		}
	}
	switch {
	case !r.Enabled:
		return nil
	case !onlyHere(listen):
		return bad("readonly_shell.enabled", true, "its clients send no token, so listen must be a unix socket or a loopback address")
	case len(r.Workspaces) == 0:
		return bad("readonly_shell.workspaces", "empty", "needs a path for each workspace that clients may name")
	}
	return nil
}

// onlyHere says whether nobody outside this host reaches an address.
func onlyHere(listen string) bool {
	network, address := SplitListen(listen)
	if network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
