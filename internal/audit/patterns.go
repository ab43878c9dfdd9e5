package audit

import "strings"

// maxPattern bounds how far one pattern looks ahead, in bytes. Tokens and private keys extend to
// their end.
const maxPattern = 4 << 10

// pattern finds secrets with a known prefix. If word is set, a letter or digit before the prefix
// prevents a match.
type pattern struct {
	begin string // lower case if fold is set
	fold  bool
	word  bool
	// once: a match cannot contain another match of this pattern.
	once bool
	// plain: a match is one word of letters, digits and characters without a meaning to a shell.
	plain bool
	// find matches at index i of the text. ok is false without a match.
	find func(t *scan, i int) (span, bool)
	id   int
}

// patternIndex holds the patterns by their first byte. The formats are those that the services
// document.
var patternIndex = indexPatterns([]pattern{
	token("AKIA", upperChars, 16), token("ASIA", upperChars, 16), token("AGPA", upperChars, 16),
	token("AIDA", upperChars, 16),
	token("AROA", upperChars, 16),
	token("ghp_", alnumChars, 20), token("gho_", alnumChars, 20), token("ghu_", alnumChars, 20),
	token("ghs_", alnumChars, 20),
	token("ghr_", alnumChars, 20),
	token("github_pat_", nameChars, 20), token("glpat-", nameChars, 16), token("npm_", alnumChars, 30),
	token("pypi-", nameChars, 16),
	token("hf_", alnumChars, 30),
	token("xoxa-", nameChars, 10), token("xoxb-", nameChars, 10), token("xoxe-", nameChars, 10),
	token("xoxe.", nameChars, 10),
	token("xoxo-", nameChars, 10), token("xoxp-", nameChars, 10), token("xoxr-", nameChars, 10),
	token("xoxs-", nameChars, 10),
	token("xapp-", nameChars, 10),
	token("hooks.slack.com/services/", pathChars, 20),
	token("sk-", nameChars, 20), token("sk_live_", alnumChars, 16), token("sk_test_", alnumChars, 16),
	token("rk_live_", alnumChars, 16),
	token("rk_test_", alnumChars, 16), token("whsec_", alnumChars, 16),
	token("AIza", nameChars, 30), token("ya29.", nameChars, 20), token("SG.", dottedChars, 30),
	token("dop_v1_", alnumChars, 32),
	token("eyJ", dottedChars, 20, jwt),
	{begin: "-----begin ", fold: true, once: true, find: privateKey},
	{begin: "bearer", fold: true, word: true, find: bearer},
	{begin: "://", find: userinfo},
	userFlag("-u"), userFlag("--user"), userFlag("--proxy-user"),
	{begin: "-", word: true, find: flag},
	{begin: "=", find: assignment}, {begin: ":", find: assignment}, {begin: "=", find: parameter},
})

// maxPatterns bounds the number of pattern ids.
const maxPatterns = 64

// patternGroup holds the patterns that share a first byte, and the bytes that may follow it. nil
// means any byte.
type patternGroup struct {
	second   *[256]bool
	patterns []pattern
}

func indexPatterns(all []pattern) (firsts [256]*patternGroup) {
	for i, p := range all {
		p.id = i
		c := p.begin[0]
		firsts[c] = firsts[c].add(p)
		if upper := strings.ToUpper(p.begin)[0]; p.fold && upper != c {
			firsts[upper] = firsts[upper].add(p)
		}
	}
	return firsts
}

// add returns f with p. f is nil before the first pattern.
func (f *patternGroup) add(p pattern) *patternGroup {
	if f == nil {
		f = &patternGroup{second: new([256]bool)}
	}
	f.patterns = append(f.patterns, p)
	switch {
	case len(p.begin) == 1:
		f.second = nil
	case f.second != nil:
		f.second[p.begin[1]] = true
		if p.fold {
			f.second[strings.ToUpper(p.begin)[1]] = true
		}
	}
	return f
}

// token matches a prefix and at least n bytes of a class that pass all checks.
func token(begin string, c *class, n int, checks ...func(string) bool) pattern {
	return pattern{begin: begin, word: true, once: true, plain: true, find: func(t *scan, i int) (span, bool) {
		body := i + len(begin)
		end := t.classEnd(body, c)
		if end-body < n {
			return span{}, false
		}
		for _, check := range checks {
			if !check(t.s[i:end]) {
				return span{}, false
			}
		}
		return span{i, end}, true
	}}
}

func jwt(s string) bool {
	dot := strings.IndexByte(s[:min(len(s), maxPattern)], '.')
	return dot >= 10 && len(s)-dot > 8
}

// privateKey matches a PEM block to its end, or to the end of the text.
func privateKey(t *scan, i int) (span, bool) {
	s := t.s
	title := s[i : i+min(len(s)-i, 80)]
	if !strings.Contains(title, "PRIVATE KEY") {
		return span{}, false
	}
	const end, dashes = "-----END ", "-----"
	j := strings.Index(s[i:], end)
	if j < 0 {
		return span{i, len(s)}, true
	}
	j += i + len(end)
	if k := strings.Index(s[j:j+min(len(s)-j, 80)], dashes); k >= 0 {
		j += k + len(dashes)
	}
	return span{i, j}, true
}

// bearer matches what follows the word, after a space or its URL or JSON encoding.
func bearer(t *scan, i int) (span, bool) {
	s := t.s
	i += len("bearer")
	from := i
	for from < len(s) && from < i+8 && (s[from] == ' ' || s[from] == '\t' || s[from] == '+') {
		from++
	}
	if strings.HasPrefix(s[from:], "%20") {
		from += 3
	}
	end := min(t.classEnd(from, credentialChars), from+maxPattern)
	return span{from, end}, from > i && end-from >= 8
}

// userinfo matches the text between "://" and "@".
func userinfo(t *scan, i int) (span, bool) {
	s := t.s
	from := i + len("://")
	at := -1
	for j := from; j < len(s) && j < from+maxPattern/8; j++ {
		switch s[j] {
		case '@':
			at = j
		case '/', '?', '#', ' ', '\t', '\n', '\r', '"', '\'', '`', '<', '>', '\\':
			return span{from, at}, at > from && s[from:at] != "git"
		}
	}
	return span{from, at}, at > from && s[from:at] != "git"
}

// maxUser bounds a user name, in bytes.
const maxUser = 256

// userFlag matches the password in curl's -u NAME:PASSWORD and its long forms.
func userFlag(flag string) pattern {
	return pattern{begin: flag, word: true, find: func(t *scan, i int) (span, bool) {
		s := t.s
		i += len(flag)
		if i < len(s) && s[i] == '=' {
			i++
		}
		from, end := t.valueAt(skipSpaces(s, i))
		colon := strings.IndexByte(s[from:min(end, from+maxUser)], ':')
		if colon < 1 || from+colon+1 == end || strings.HasPrefix(s[from+colon:], "://") {
			return span{}, false
		}
		from += colon + 1
		return span{from, end}, !isReference(s[from:end])
	}}
}

// flag matches the value after a flag such as --api-key and a space.
func flag(t *scan, i int) (span, bool) {
	s := t.s
	end := t.classEnd(i, nameChars)
	if end == len(s) || (s[end] != ' ' && s[end] != '\t') || end-i > maxSecretName || !isSecretFlag(s[i:end]) {
		return span{}, false
	}
	from, to := t.valueAt(skipSpaces(s, end))
	if from == to || s[from] == '-' || isReference(s[from:to]) {
		return span{}, false
	}
	return span{from, to}, true
}

// assignment matches the value after "=" or ":" if the name before it is that of a secret.
func assignment(t *scan, i int) (span, bool) {
	s := t.s
	before := i
	if s[i] == '=' && before > 0 && s[before-1] == ':' {
		before-- // Go's :=
	}
	for before > 0 && i-before < 8 && (s[before-1] == ' ' || s[before-1] == '"' || s[before-1] == '\'' ||
		s[before-1] == '\\') {
		before--
	}
	start := before
	for start > 0 && before-start <= maxSecretName && dottedChars.has[s[start-1]] {
		start--
	}
	word := s[start:before]
	if !isSecretName(word) || i+1 < len(s) && s[i] == ':' && (s[i+1] == ':' || s[i+1] == '=') {
		return span{}, false
	}
	i++
	for i < len(s) && (s[i] == '=' || s[i] == '>') {
		i++ // ==, =>
	}
	i = skipSpaces(s, i)
	from, to := t.valueAt(i)
	if spansLine(word) && from == i {
		to = t.lineEnd(from)
	}
	if from == to || isReference(s[from:to]) || isLiteral(s[from:to]) {
		return span{}, false
	}
	return span{from, to}, true
}

// parameters lists URL query parameters that grant access to the URL's holder, and the minimum
// length of their values. Names such as "key" have many other uses.
var parameters = map[string]int{
	"sig": 8, "signature": 8, "xamzsignature": 8, "xgoogsignature": 8, "hmac": 8,
	"key": 16, "code": 16, "auth": 16, "jwt": 16, "assertion": 16, "ticket": 16,
}

// parameter matches the value of a parameter: of a signed URL, or a service's key.
func parameter(t *scan, i int) (span, bool) {
	s := t.s
	var buf [maxParameter]byte
	word, start := buf[:0], i
	for start > 0 && i-start < maxParameter && nameChars.has[s[start-1]] {
		start--
	}
	if start == i || start == 0 || s[start-1] != '?' && s[start-1] != '&' {
		return span{}, false
	}
	for _, c := range []byte(s[start:i]) {
		switch {
		case c == '_' || c == '-':
			continue
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		}
		word = append(word, c)
	}
	least, ok := parameters[string(word)]
	if !ok {
		return span{}, false
	}
	from, to := t.valueAt(i + 1)
	if j := strings.IndexByte(s[from:to], '#'); j >= 0 {
		to = from + j
	}
	return span{from, to}, to-from >= least && !isReference(s[from:to])
}

// maxParameter exceeds the length of every parameter name.
const maxParameter = 24

// spansLine reports whether word names a header whose value has several words.
func spansLine(word string) bool {
	return hasFoldSuffix(word, "authorization") || hasFoldSuffix(word, "cookie")
}

func hasFoldSuffix(s, suffix string) bool {
	return len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix)
}

// isReference reports whether a value only refers to a secret: $NAME, ${NAME} or the start of
// $(command).
func isReference(s string) bool {
	if len(s) < 2 || s[0] != '$' {
		return false
	}
	if s[1] == '(' {
		return true
	}
	s = strings.TrimPrefix(s[1:], "{")
	for i := range len(s) {
		if s[i] != '_' && !upperChars.has[s[i]] {
			return false
		}
	}
	return s != ""
}

func isLiteral(s string) bool {
	switch s {
	case "true", "false", "null", "nil", "None", "undefined":
		return true
	}
	return false
}

const maxSecretName = 64

// secretNames lists suffixes of names that hold secrets, without separators.
var secretNames = []string{
	"password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "apikey", "accesskey",
	"accesskeyid", "privatekey", "secretkey", "secretkeybase",
	"signingkey", "encryptionkey", "clientkey", "credential", "credentials", "authorization", "cookie",
	"connectionstring", "authkey", "sessionkey", "masterkey",
}

// isSecretName reports whether a variable, member or header of this name holds a secret.
func isSecretName(s string) bool {
	if len(s) < 3 || len(s) > maxSecretName {
		return false
	}
	var buf [maxSecretName]byte
	b := buf[:0]
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '_' || c == '-' || c == '.' || c == ' ':
			continue
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	if n := len(s) - len("pass"); n >= 0 && strings.EqualFold(s[n:], "pass") {
		return n == 0 || !alnumChars.has[s[n-1]]
	}
	for _, n := range secretNames {
		if len(b) >= len(n) && b[len(b)-1] == n[len(n)-1] && string(b[len(b)-len(n):]) == n {
			return true
		}
	}
	return false
}

// isSecretFlag reports whether an argument is a flag whose value, in the next argument, is a
// secret.
func isSecretFlag(s string) bool {
	return len(s) > 2 && s[0] == '-' && isSecretName(strings.TrimLeft(s, "-"))
}
