package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
}

// The commented file without its comment marks parses to the default.
func TestCommentedFileEqualsDefault(t *testing.T) {
	var b strings.Builder
	for line := range strings.Lines(string(Commented)) {
		if rest, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "  ") {
			b.WriteString(rest)
		}
	}
	got, err := Parse([]byte(b.String()))
	if err != nil {
		t.Fatalf("Parse: %v in\n%s", err, b.String())
	}
	if d := cmp.Diff(Default(), got, cmpopts.IgnoreUnexported(Config{})); d != "" {
		t.Fatalf("default.yaml is not the default (-code +file):\n%s", d)
	}
	for _, key := range []string{"listen", "ttl", "max_output", "queue", "orphan_timeout", "open_files", "max_age",
		"calls", "max_waiting", "max_pending", "dir", "webhook", "secret_file", "expiry", "patterns", "enabled",
		"workspaces"} {
		if !strings.Contains(b.String(), key+":") {
			t.Errorf("default.yaml has no key %s, want it shown", key)
		}
	}
}

func TestParseErrorsNameTheKey(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"unknown key", "lisen: x", `unknown key lisen; did you mean "listen"?`},
		{"unknown nested key", "templates: {a: {limits: {memroy: 1g}}}",
			`unknown key templates.a.limits.memroy; did you mean "memory"?`},
		{"renamed key", "guest: {alone: 1m}", `key guest.alone was renamed: use "orphan_timeout"`},
		{"renamed key of a template", "templates: {a: {pool: {settle: 1s}}}",
			`key templates.a.pool.settle was renamed: use "refill_delay"`},
		{"far from all", "zzzzzzzz: 1", "unknown key zzzzzzzz:"},
		{"duplicate", "runtime: oci\nruntime: docker", "already set"},
		{"bad duration", "leases: {ttl: soon}", `"soon" is not a duration`},
		{"bare duration", "leases: {ttl: 5}", "5 is not a duration"},
		{"bad size", "exec: {max_output: lots}", `"lots" is not a size`},
		{"wrong type", "admission: {queue: [1]}", "queue"},
		{"a list for a map", "templates: [1]", "templates"},
		{"not yaml", ":\n-", "yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.yaml))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Parse: %v, want an error with %q", err, c.want)
			}
			if !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Fatalf("Parse: %v, want InvalidArgument", err)
			}
		})
	}
}

// withClients returns a configuration with TLS and one entry of tls.clients.
func withClients(entry string) string {
	return "{listen: ':80', tls: {cert_file: /c, key_file: /k, client_ca_file: /a, clients: [" + entry + "]}}"
}

func TestValidateNamesTheKey(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"listen: nowhere", "listen"},
		{"listen: 'unix:relative'", "listen"},
		{"listen: 'localhost:99999'", "listen"},
		{"tls: {cert_file: x}", "tls.cert_file"},
		{"tls: {cert_file: /x, key_file: /y}", "tls.cert_file"}, // on a unix socket
		{"{listen: ':80', tls: {cert_file: /x}}", "tls.key_file"},
		{"{listen: ':80', tls: {key_file: /x}}", "tls.cert_file"},
		{"{listen: ':80', tls: {client_ca_file: /x}}", "tls.client_ca_file"},
		{"tls: {client_auth: maybe}", "tls.client_auth"},
		{"tls: {client_auth: required}", "tls.client_auth"},
		{"tls: {clients: [{name: 'dns:a', caller: a}]}", "tls.clients"},
		{withClients("{name: ci.example, caller: a}"), "tls.clients[0].name"},
		{withClients("{name: 'dns:', caller: a}"), "tls.clients[0].name"},
		{withClients("{name: 'cn:a', caller: A}"), "tls.clients[0].caller"},
		{withClients("{name: 'cn:a', caller: local}"), "tls.clients[0].caller"},
		{withClients("{name: 'cn:a', caller: a, profile: A}"), "tls.clients[0].profile"},
		{withClients("{name: 'cn:a', caller: a, trust: 4}"), "tls.clients[0].trust"},
		{"state_dir: x", "state_dir"},
		{"runtime: podman", "runtime"},
		{"leases: {ttl: 25h}", "leases.max_ttl"},
		{"exec: {max_output: 1g}", "exec.max_output"},
		{"templates: {default: {pool: {min: 9, max: 3}}}", "templates.default.pool.max"},
		{"templates: {a: {limits: {memory: 1m}}}", "templates.a.limits.memory_bytes"},
		{"templates: {a: {entrypoint: [x]}}", "templates.a.entrypoint"},
		{"requests: {caller_bodies: 32MiB}", "requests.caller_bodies"},
		{"requests: {bodies: 100MiB}", "requests.bodies"},
		{"callers: {sandboxes: -1}", "callers.sandboxes"},
		{"callers: {memory: -1}", "callers.memory"},
		{"callers: {calls: -1}", "callers.calls"},
		{"callers: {max_waiting: -1}", "callers.max_waiting"},
		{"callers: {max_pending: -1}", "callers.max_pending"},
		{"callers: {max_requests: -1}", "callers.max_requests"},
		{"callers: {max_streams: -1}", "callers.max_streams"},
		{"profiles: {dir: x}", "profiles.dir"},
		{"profiles: {default: ''}", "profiles.default"},
		{"approvals: {webhook: 'ftp://x'}", "approvals.webhook"},
		{"approvals: {webhook: 'https:///x'}", "approvals.webhook"},
		{"approvals: {secret_file: x}", "approvals.secret_file"},
		{"approvals: {secret_file: /x}", "approvals.secret_file"},
		{"approvals: {max_pending: 0}", "approvals.max_pending"},
		{"approvals: {expiry: 1ms}", "approvals.expiry"},
		{"audit: {redact: {files: [x]}}", "audit.redact.files"},
		{"audit: {redact: {patterns: ['(']}}", "audit.redact.patterns"},
		{"audit: {redact: {patterns: ['a*']}}", "audit.redact.patterns"},
		{"audit: {caller_daily_bytes: -1}", "audit.caller_daily_bytes"},
		{"audit: {part_size: 1k}", "audit.part_size"},
		{"audit: {part_age: 1s}", "audit.part_age"},
		{"audit: {keep_age: -1s}", "audit.keep_age"},
		{"audit: {keep_size: -1}", "audit.keep_size"},
		{"idempotency: {answers: 0}", "idempotency.answers"},
		{"jobs: {max_commands: 0}", "jobs.max_commands"},
		{"jobs: {max_commands: 100001}", "jobs.max_commands"},
		{"jobs: {max_active: -1}", "jobs.max_active"},
		{"jobs: {max_kept: 0}", "jobs.max_kept"},
		{"jobs: {max_active: 20, max_kept: 10}", "jobs.max_kept"},
		{"jobs: {max_native: 1001}", "jobs.max_native"},
		{"jobs: {caller_bytes: 1k}", "jobs.caller_bytes"},
		{"jobs: {max_deadline: 0s}", "jobs.max_deadline"},
		{"jobs: {max_ttl: -1h}", "jobs.max_ttl"},
		{"idempotency: {bytes: 1k}", "idempotency.bytes"},
		{"images: {allow: ['*']}", "images.allow"},
		{"images: {insecure: ['http://x']}", "images.insecure"},
		{"images: {signatures: {keys: [/k], for: ['x:1']}}", "images.signatures.for"},
		{"images: {signatures: {keys: [k]}}", "images.signatures.keys"},
		{"images: {budget: -1}", "images.budget"},
		{"egress: {resolver: [ns.example]}", "egress.resolver[0]"},
		{"egress: {private: [{hosts: [a.example], ranges: [10.0.0.1]}]}", "egress.private[0].ranges[0]"},
		{"egress: {private: [{hosts: ['*'], ranges: [10.0.0.0/8]}]}", "egress.private[0].hosts[0]"},
		{"egress: {allow: [{host: a.example}, {host: a.example, protocol: tcp}]}", "egress.allow[1].ports"},
		{"egress: {allow: [{host: a.example, callers: ['a b']}]}", "egress.allow[0].callers"},
		{"egress: {allow: [{host: a.example, profiles: ['']}]}", "egress.allow[0].profiles"},
		{"egress: {secrets: [{name: A, hosts: [a.example], header: X, value_file: /x}]}", "egress.secrets[0].name"},
		{"egress: {secrets: [{name: a, hosts: ['*'], header: X, value_file: /x}]}", "egress.secrets[0].hosts[0]"},
		{"egress: {secrets: [{name: a, hosts: [a.example], header: Host, value_file: /x}]}", "egress.secrets[0].header"},
		{"egress: {secrets: [{name: a, hosts: [a.example], header: X, value_file: x}]}", "egress.secrets[0].value_file"},
		{"egress: {secrets: [{name: a, hosts: [a.example], header: X, value_file: /x, env: 1A}]}", "egress.secrets[0].env"},
		{"egress: {secrets: [{name: a, hosts: [a.example], header: X, value_file: /x, callers: [A]}]}",
			"egress.secrets[0].callers"},
		{"egress: {ca_file: x}", "egress.ca_file"},
		{"egress: {limits: {connections: 0}}", "egress.limits.connections"},
		{"egress: {limits: {bytes: -1}}", "egress.limits.bytes"},
		{"egress: {limits: {idle: 0s}}", "egress.limits.idle"},
		{"egress: {limits: {connect: 2m}}", "egress.limits.connect"},
		{"egress: {limits: {max_time: -1s}}", "egress.limits.max_time"},
		{"readonly_shell: {caller: A}", "readonly_shell.caller"},
		{"readonly_shell: {workspaces: {x: a}}", "readonly_shell.workspaces"},
		{"readonly_shell: {workspaces: {/x/: a}}", "readonly_shell.workspaces"},
		{"readonly_shell: {workspaces: {/x: ''}}", "readonly_shell.workspaces./x"},
		{"readonly_shell: {enabled: true}", "readonly_shell.workspaces"},
		{"{listen: ':80', readonly_shell: {enabled: true, workspaces: {/x: a}}}", "readonly_shell.enabled"},
	} {
		got, err := Parse([]byte(c.yaml))
		if err != nil {
			t.Errorf("Parse(%s): %v", c.yaml, err)
			continue
		}
		if err := got.Validate(); err == nil || !strings.Contains(err.Error(), c.want+" ") {
			t.Errorf("Validate of %s: %v, want an error about %s", c.yaml, err, c.want)
		}
	}
}

func TestEgressAllowanceParsesRuleAndCallers(t *testing.T) {
	c, err := Parse([]byte("egress: {allow: [{host: a.example, protocol: tcp, ports: [22], callers: [ann], profiles: " +
		"[universal]}]}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if a := c.Egress.Allow[0]; a.Host != "a.example" || len(a.Ports) != 1 || len(a.Callers) != 1 || len(a.Profiles) != 1 {
		t.Errorf("allowance = %+v, want a.example with one port, one caller and one profile", a)
	}
	if _, err := Parse([]byte("egress: {allow: [{hots: a.example}]}")); err == nil ||
		!strings.Contains(err.Error(), `unknown key egress.allow[0].hots; did you mean "host"?`) {
		t.Errorf("Parse with an unknown key = %v, want an error with a suggestion", err)
	}
}

func TestReadonlyShellRequiresLocalListener(t *testing.T) {
	for listen, ok := range map[string]bool{
		"unix:/x": true, "127.0.0.1:80": true, "[::1]:80": true, "localhost:80": true,
		":80": false, "0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:80": false, "example.org:80": false,
	} {
		c := Default()
		c.Listen = listen
		c.ReadonlyShell.Enabled, c.ReadonlyShell.Workspaces = true, map[string]string{"/srv/a": "a"}
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("Validate with listen %s: %v, want success %t", listen, err, ok)
		}
	}
}

func TestEnvironmentOverridesFile(t *testing.T) {
	c, err := Parse([]byte("runtime: docker"))
	if err != nil {
		t.Fatal(err)
	}
	c.ApplyEnvironment(func(key string) (string, bool) {
		return "oci", key == "ORCHESTRATOR_RUNTIME"
	})
	if c.Runtime != "oci" {
		t.Fatalf("Runtime = %q, want oci", c.Runtime)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("listen: unix:/x"))
	f.Add([]byte("templates: {a: {pool: {min: 1}}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := Parse(text); err == nil {
			_ = c.Validate()
		} else if !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Fatalf("Parse: %v, want InvalidArgument", err)
		}
	})
}
