package audit

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// The secrets are composed here, so that secret scanners do not find them in this file.
var (
	aws    = "AKIA" + "ABCDEFGHIJKLMNOP"
	github = "ghp_" + strings.Repeat("a1", 18)
	slack  = "xoxb-" + "123456789012-abcdefghij"
	openai = "sk-" + "proj-" + strings.Repeat("Zz9", 10)
	jwtOf  = "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0." + "c2lnbmF0dXJlMTIz"
	pem    = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIabc\ndef==\n-----END RSA PRIVATE KEY-----"
)

var markers = regexp.MustCompile(`\[redacted \d+ bytes mac:[0-9a-f]{12}\]`)

// short writes markers as "[redacted]".
func short(s string) string { return markers.ReplaceAllString(s, "[redacted]") }

// wantShort reports an error if text is not want with its markers shortened.
func wantShort(t *testing.T, text, want string) {
	t.Helper()
	if got := short(text); got != want {
		t.Errorf("redacted text = %q, want %q", got, want)
	}
}

// textFor returns s as a record of the caller shows it.
func textFor(r *Redactor, caller, s string) string {
	v := r.record(caller)
	return v.redactText(s)
}

func jsonFor(r *Redactor, caller, raw string) string {
	v := r.record(caller)
	return string(v.redactJSON(json.RawMessage(raw)))
}

func inputOf(r *Redactor, raw []byte) (json.RawMessage, int, string) {
	v := r.record("")
	return v.redactInput(raw)
}

func TestRedactPatterns(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		// Tokens of services.
		{"key " + aws + " end", "key [redacted] end"},
		{"ASIA" + strings.Repeat("Q", 16), "[redacted]"},
		{"git clone " + github, "git clone [redacted]"},
		{"github_pat_" + strings.Repeat("b2_", 10), "[redacted]"},
		{"glpat-" + strings.Repeat("c", 20), "[redacted]"},
		{"(" + slack + ")", "([redacted])"},
		{"'" + openai + "'", "'[redacted]'"},
		{"sk_live_" + strings.Repeat("d", 24), "[redacted]"},
		{"AIza" + strings.Repeat("e", 35), "[redacted]"},
		{"npm_" + strings.Repeat("f", 36), "[redacted]"},
		{"https://hooks.slack.com/services/T000/B000/" + strings.Repeat("g", 24), "https://[redacted]"},
		{"x " + jwtOf + ".", "x [redacted]"},
		{"a\n" + pem + "\nb", "a\n[redacted]\nb"},
		{"-----BEGIN OPENSSH " + "PRIVATE KEY-----\nabc", "[redacted]"},
		// Headers.
		{"-H 'Authorization: Bearer abc.def-123'", "-H 'Authorization: [redacted]'"},
		{`-H "authorization: Basic dXNlcjpwYXNz" -v`, `-H "authorization: [redacted]" -v`},
		{"bearer abcdefgh1234", "bearer [redacted]"},
		{"X-Api-Key: abc123", "X-Api-Key: [redacted]"},
		{"Cookie: a=b; c=d\nHost: x", "Cookie: [redacted]\nHost: x"},
		// Assignments and flags.
		{"PGPASSWORD=hunter2 psql", "PGPASSWORD=[redacted] psql"},
		{"export API_KEY='a b c'; ls", "export API_KEY='[redacted]'; ls"},
		{"password: hunter2", "password: [redacted]"},
		{`token := "abc"`, `token := "[redacted]"`},
		{"--password hunter2 -v", "--password [redacted] -v"},
		{"--api-key=abc -v", "--api-key=[redacted] -v"},
		{"-secret abc", "-secret [redacted]"},
		{"AWS_SECRET_ACCESS_KEY=abc/def+ghi aws s3 ls", "AWS_SECRET_ACCESS_KEY=[redacted] aws s3 ls"},
		{"DB_PASS=x make", "DB_PASS=[redacted] make"},
		{"client_secret=abc&x=1", "client_secret=[redacted]&x=1"},
		{`{"password": "a\"b", "x": 1}`, `{"password": "[redacted]", "x": 1}`},
		{`curl -d "{\"token\":\"abc\",\"x\":1}"`, `curl -d "{\"token\":\"[redacted]\",\"x\":1}"`},
		{"{'secret': 'abc'}", "{'secret': '[redacted]'}"},
		{"curl -u ann:hunter2 x", "curl -u ann:[redacted] x"},
		{"curl --user 'ann:hunter 2' x", "curl --user 'ann:[redacted]' x"},
		{"curl -uann:hunter2 x", "curl -uann:[redacted] x"},
		// Addresses.
		{"postgres://ann:p@ss@db:5432/x", "postgres://[redacted]@db:5432/x"},
		{"git clone https://abcdef@example.com/r", "git clone https://[redacted]@example.com/r"},
		{"https://b.example/o?X-Amz-Expires=60&X-Amz-Signature=0123456789abcdef",
			"https://b.example/o?X-Amz-Expires=60&X-Amz-Signature=[redacted]"},
		{"https://b.example/o?sp=r&sig=ab%2Bcdefg%3D&se=1", "https://b.example/o?sp=r&sig=[redacted]&se=1"},
		{
			"curl 'https://m.example/geo?key=abcdefghij0123456789#top'",
			"curl 'https://m.example/geo?key=[redacted]#top'",
		},
		{
			"https://a.example/cb?state=x&code=4/abcdefghijklmnopq&x=1",
			"https://a.example/cb?state=x&code=[redacted]&x=1",
		},
		// Several and overlapping secrets.
		{aws + " " + aws, "[redacted] [redacted]"},
		{"token=" + github + " x", "token=[redacted] x"},
		// Not secrets.
		{"ssh://git@example.com/r", ""},
		{"https://example.com/a@b?c=d", ""},
		{"password=$PASSWORD make", ""},
		{"token=${TOKEN}", ""},
		{`TOKEN="$(cat file)" x`, ""},
		{"max_tokens=5", ""},
		{"https://a.example/?key=name&sig=1&code=404", ""},
		{"key=abcdefghij0123456789", ""},
		{"https://a.example/?key=$KEY_OF_THE_SERVICE", ""},
		{"task-" + strings.Repeat("a", 30), ""},
		{"monkey=banana", ""},
		{"std::token::next", ""},
		{"echo 12:30 = x", ""},
		{"bypass=1", ""},
		{"password=", ""},
		{"token: true", ""},
		{"the bearer of news", ""},
		{"-----BEGIN CERTIFICATE-----\nabc", ""},
		{"sort -u -k3", ""},
		{"", ""},
		{"=", ""},
		{"-u", ""},
		{"://", ""},
	} {
		if c.want == "" {
			c.want = c.in
		}
		if got := short(textFor(NewRedactor(), "", c.in)); got != c.want {
			t.Errorf("redacted %q\n got %q\nwant %q", c.in, got, c.want)
		}
	}
}

func TestRedactJSONKeepsShape(t *testing.T) {
	r := NewRedactor(regexp.MustCompile(`ticket-\d+`))
	r.Add("correct horse")
	r.Add(`with "quotes" and \`)
	r.Add("987654321")
	r.Add(`{"a":"b","c":1}`)
	for _, c := range []struct{ in, want string }{
		{`{"a": 1,  "b" : [true, null, "x"]}`, ""},
		{`{"command":"echo a && b > c"}`, ""},
		{`{"password":"x"}`, `{"password":"[redacted]"}`},
		{`{"Api-Key" : 12, "n": 12}`, `{"Api-Key" : "[redacted]", "n": 12}`},
		{`{"token":null,"secret":true,"password":""}`, ""},
		{`{"credentials":{"user":"u","n":[1,{"x":"y"}]},"after":"z"}`,
			`{"credentials":{"user":"[redacted]","n":["[redacted]",{"x":"[redacted]"}]},"after":"z"}`},
		{`{"argv":["mysql","--password","x","-v"]}`, `{"argv":["mysql","--password","[redacted]","-v"]}`},
		{`{"argv":["x","--token"],"b":"c"}`, ""},
		{`{"env":{"GH_TOKEN":"x","HOME":"/"}}`, `{"env":{"GH_TOKEN":"[redacted]","HOME":"/"}}`},
		{`{"env":["GH_TOKEN=x","HOME=/"]}`, `{"env":["GH_TOKEN=[redacted]","HOME=/"]}`},
		{`{"a":"correct horse"}`, `{"a":"[redacted]"}`},
		{`{"correct horse":1}`, `{"[redacted]":1}`},
		{`{"a":"\u0063orrect\u0020horse\n"}`, `{"a":"[redacted]\n"}`},
		{`{"a":"with \"quotes\" and \\"}`, `{"a":"[redacted]"}`},
		{`{"a":"{\"b\":\"with \\\"quotes\\\" and \\\\\"}"}`, `{"a":"{\"b\":\"[redacted]\"}"}`},
		{`{"n":987654321,"m":-9876543210,"x":98765432}`, `{"n":"[redacted]","m":"[redacted]","x":98765432}`},
		{`[{"a":"b","c":1}]`, ""}, // a value never matches across syntax
		{`["{\"a\":\"b\",\"c\":1}"]`, `["[redacted]"]`},
		{`{"a":"ticket-12"}`, `{"a":"[redacted]"}`},
		{`{"a":"\ud83d\ude00 correct horse"}`, `{"a":"😀 [redacted]"}`},
		{`"password=abc"`, `"password=[redacted]"`},
		{`{"password":"x"`, `"{\"password\":\"[redacted]\""`},
		{"\xff correct horse", "\"\\ufffd [redacted]\""},
		{``, `""`},
	} {
		if c.want == "" {
			c.want = c.in
		}
		raw := jsonFor(r, "", c.in)
		got := short(raw)
		if got != c.want {
			t.Errorf("redacted input %s\n got %s\nwant %s", c.in, got, c.want)
		}
		if !json.Valid([]byte(raw)) {
			t.Errorf("redacted input = %s, want valid JSON", raw)
		}
	}
}

// written returns the forms in which a value is searched for.
func written(v string) map[string]string {
	j, _ := json.Marshal(v)
	jj, _ := json.Marshal(string(j))
	return map[string]string{
		"as it is": v, "JSON": string(j), "JSON in JSON": string(jj), "query": url.QueryEscape(v),
		"path":                   url.PathEscape(v),
		"component":              strings.ReplaceAll(url.QueryEscape(v), "+", "%20"),
		"lower case escapes":     lowerEscapes(url.QueryEscape(v)),
		"hex":                    hex.EncodeToString([]byte(v)),
		"upper case hex":         strings.ToUpper(hex.EncodeToString([]byte(v))),
		"base64":                 base64.StdEncoding.EncodeToString([]byte(v)),
		"base64 for URLs":        base64.RawURLEncoding.EncodeToString([]byte(v)),
		"base64 behind one byte": base64.StdEncoding.EncodeToString([]byte(":" + v)),
		"base64 behind two":      base64.StdEncoding.EncodeToString([]byte("a:" + v + "\n")),
		"base64 behind four":     base64.URLEncoding.EncodeToString([]byte("ann:" + v + "xy")),
	}
}

// Bytes that are not valid UTF-8 do not break the export.
func TestRedactJSONIsValidUTF8(t *testing.T) {
	for _, in := range []string{"{\"a\":\"\xff\xfeb\"}", "{\"\xc3\":1}", "no json \xff", "\xff"} {
		r := NewRedactor()
		if out := []byte(jsonFor(r, "", in)); !utf8.Valid(out) || !json.Valid(out) {
			t.Errorf("%q becomes %q, want valid JSON in UTF-8", in, out)
		}
		if out, _, _ := inputOf(r, []byte(in)); !utf8.Valid(out) || !json.Valid(out) {
			t.Errorf("%q is recorded as %q, want valid JSON in UTF-8", in, out)
		}
	}
}

func TestKnownValueIsFoundInEveryForm(t *testing.T) {
	for _, v := range []string{"sixsix", "correct horse/battery+staple", "a<b>&c\"d\\e\tf", "zeilen\nüber zeilen",
		"\x01\x02\x03\x04\x05\x06", "?>?>?>~~~"} {
		r := NewRedactor()
		r.Add("  " + v + "\n")
		for form, s := range written(v) {
			if got := textFor(r, "", "<<"+s+">>"); !markers.MatchString(got) || strings.Contains(got, s) {
				t.Errorf("%q as %s: %q becomes %q, want it redacted", v, form, s, got)
			}
		}
	}
}

func TestLargeInputIsTruncatedWithoutSecrets(t *testing.T) {
	r := NewRedactor()
	secret := strings.Repeat("correct horse ", 20) + "battery"
	r.Add(secret)
	for at := MaxInput - len(secret) - 20; at < MaxInput+20; at += 23 {
		for _, before := range []string{"x", `\n`, `\u0078`} {
			fill := strings.Repeat(before, at/len(before))
			raw := json.RawMessage(`{"c":"` + fill + secret + strings.Repeat("y", 2*MaxInput) + `"}`)
			out, size, sum := inputOf(r, raw)
			whole := sha256.Sum256(raw)
			if !json.Valid(out) || len(out) > MaxInput || size != len(raw) || sum != hex.EncodeToString(whole[:]) {
				t.Fatalf("recorded %d bytes of %d, hash %s; want JSON of at most %d, with size %d and hash %x",
					len(out), size, sum, MaxInput, len(raw), whole)
			}
			if strings.Contains(string(out), "correct horse") {
				t.Fatalf("secret at byte %d: recorded %.100q, want no part of the secret", at, out)
			}
		}
	}
	if out, size, sum := inputOf(r, []byte(`{"a":1}`)); string(out) != `{"a":1}` || size != 0 || sum != "" {
		t.Errorf("small input = %s, %d, %s; want it unchanged", out, size, sum)
	}
	grows := json.RawMessage(`["` + strings.TrimSuffix(strings.Repeat(`token=a","`, MaxInput/11), `,"`) + `]`)
	if !json.Valid(grows) {
		t.Fatal("the input is not valid JSON")
	}
	if out, size, _ := inputOf(r, grows); len(out) > MaxInput || size != len(grows) || !json.Valid(out) {
		t.Errorf("recorded %d bytes of %d, want valid JSON of at most %d of %d", len(out), size, MaxInput, len(grows))
	}
}
