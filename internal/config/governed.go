package config

import (
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"time"
)

// Callers limits each caller with a token, unless its token sets other limits. Zero means
// unlimited. The local operator is not limited.
type Callers struct {
	// Sandboxes limits a caller's concurrent sandboxes, Memory their total memory, and Calls its
	// tool calls per day (UTC).
	Sandboxes int   `json:"sandboxes"`
	Memory    Size  `json:"memory"`
	Calls     int64 `json:"calls"`
	// Disk limits the total quota of a caller's workspaces.
	Disk Size `json:"disk"`
	// MaxWaiting limits how many calls of one caller wait for a sandbox. MaxPending limits its
	// pending approval requests.
	MaxWaiting int `json:"max_waiting"`
	MaxPending int `json:"max_pending"`
	// MaxRequests limits a caller's concurrent requests. MaxStreams limits the long-lived ones:
	// events, followed output, terminals, tunnels.
	MaxRequests int `json:"max_requests"`
	MaxStreams  int `json:"max_streams"`
}

// Profiles configures where profiles are and which one is the default.
type Profiles struct {
	// Dir is a directory with profile files in addition to the built-in ones, or "".
	Dir string `json:"dir"`
	// Default is the profile of the local caller, and of tokens that name none.
	Default string `json:"default"`
}

// Approvals configures approval requests.
type Approvals struct {
	// Webhook is a URL that receives approval events. SecretFile contains the key that signs
	// deliveries. Both may be "".
	Webhook    string `json:"webhook"`
	SecretFile string `json:"secret_file"`
	// MaxPending limits the pending requests of all callers.
	MaxPending int `json:"max_pending"`
	// Expiry is how long a request waits if its rule does not say.
	Expiry Duration `json:"expiry"`
}

// Audit configures the audit log.
type Audit struct {
	Redact Redact `json:"redact"`
	// CallerDailyBytes limits what is recorded for one caller in a day (UTC). Above it, its calls
	// are refused. 0 means unlimited. Operators are not limited.
	CallerDailyBytes Size `json:"caller_daily_bytes"`
	// PartSize and PartAge end a part of the log. KeepAge and KeepSize delete sealed parts. 0 means
	// never.
	PartSize Size     `json:"part_size"`
	PartAge  Duration `json:"part_age"`
	KeepAge  Duration `json:"keep_age"`
	KeepSize Size     `json:"keep_size"`
}

// Idempotency limits the stored answers to each caller's requests with an Idempotency-Key. Answers
// are kept for an hour at most. The oldest are evicted first.
type Idempotency struct {
	// Answers limits the number of a caller's answers, and Bytes their size.
	Answers int  `json:"answers"`
	Bytes   Size `json:"bytes"`
}

// Redact configures values to hide in records in addition to detected secrets. Each line of Files
// is a value, and each of Patterns a regular expression.
type Redact struct {
	// Each line of Files is a value to hide. Patterns are regular expressions of such values.
	Files    []string `json:"files"`
	Patterns []string `json:"patterns"`
}

// ReadonlyShell configures POST /shell, which requires no token.
type ReadonlyShell struct {
	// Enabled serves POST /shell.
	Enabled bool `json:"enabled"`
	// Caller owns the sandboxes and workspaces that it uses.
	Caller string `json:"caller"`
	// Workspaces maps a path in requests to a workspace of Caller.
	Workspaces map[string]string `json:"workspaces"`
}

func defaultCallers() Callers {
	return Callers{
		Sandboxes: 20, Memory: 16 << 30, Disk: 100 << 30, Calls: 100_000,
		MaxWaiting: 100, MaxPending: 100, MaxRequests: 512, MaxStreams: 256,
	}
}

func defaultAudit() Audit {
	return Audit{Redact: Redact{Files: []string{}, Patterns: []string{}}, CallerDailyBytes: 256 << 20, PartSize: 64 << 20}
}

func defaultApprovals() Approvals {
	return Approvals{MaxPending: 10_000, Expiry: Duration(10 * time.Minute)}
}

// names matches the names of callers, profiles and workspaces.
var names = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

const namesText = "must be 1 to 63 lower-case letters, digits, '.', '_' or '-', and start with a letter or digit"

func (c Callers) validate() error {
	switch {
	case c.Sandboxes < 0:
		return bad("callers.sandboxes", c.Sandboxes, "must not be negative; 0 is unlimited")
	case c.Disk < 0:
		return bad("callers.disk", c.Disk, "must not be negative; 0 is unlimited")
	case c.Memory < 0:
		return bad("callers.memory", c.Memory, "must not be negative; 0 is unlimited")
	case c.Calls < 0:
		return bad("callers.calls", c.Calls, "must not be negative; 0 is unlimited")
	case c.MaxWaiting < 0:
		return bad("callers.max_waiting", c.MaxWaiting, "must not be negative; 0 is limited only by admission.queue")
	case c.MaxPending < 0:
		return bad("callers.max_pending", c.MaxPending, "must not be negative; 0 is limited only by approvals.max_pending")
	case c.MaxRequests < 0:
		return bad("callers.max_requests", c.MaxRequests,
			"must not be negative; 0 is limited only by a share of the connections")
	case c.MaxStreams < 0:
		return bad("callers.max_streams", c.MaxStreams,
			"must not be negative; 0 is limited only by a share of the connections")
	}
	return nil
}

func (p Profiles) validate() error {
	switch {
	case p.Dir != "" && !isAbsolute(p.Dir):
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
			return bad("approvals.webhook", quoted(a.Webhook), "must be an http or https URL")
		}
	}
	switch {
	case a.SecretFile != "" && !isAbsolute(a.SecretFile):
		return bad("approvals.secret_file", a.SecretFile, "must be an absolute path")
	case a.SecretFile != "" && a.Webhook == "":
		return bad("approvals.secret_file", a.SecretFile, "needs approvals.webhook, which is empty")
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
		return bad("idempotency.bytes", i.Bytes, "must be at least 1MiB, the size that one answer can have")
	}
	return nil
}

// minPart is the minimum of PartSize, in bytes. An empty part has about 50 KiB.
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
		if !isAbsolute(f) {
			return bad("audit.redact.files", quoted(f), "must be absolute paths")
		}
	}
	for _, p := range a.Redact.Patterns {
		re, err := regexp.Compile(p)
		if err != nil {
			return bad("audit.redact.patterns", quoted(p), "must be Go regular expressions: "+err.Error())
		}
		if re.MatchString("") {
			return bad("audit.redact.patterns", quoted(p), "must not match the empty string: it would hide everything")
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
		case !isAbsolute(path) || !isClean(path):
			return bad("readonly_shell.workspaces", quoted(path), "must have clean absolute paths as keys")
		case !names.MatchString(r.Workspaces[path]):
			return bad("readonly_shell.workspaces."+path, quoted(r.Workspaces[path]), namesText)
		}
	}
	switch {
	case !r.Enabled:
		return nil
	case !onlyHere(listen):
		return bad("readonly_shell.enabled", true, "needs a unix socket or loopback address in listen: clients send no token")
	case len(r.Workspaces) == 0:
		return bad("readonly_shell.workspaces", "empty", "must map a path to each workspace that clients may name")
	}
	return nil
}

// onlyHere reports whether an address is reachable only from this host.
func onlyHere(listen string) bool {
	network, address := SplitListen(listen)
	if network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
