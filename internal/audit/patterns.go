package audit

import "strings"

// maxPattern bounds what one pattern looks at, in bytes, so that no text makes
// the search slow. Tokens and private keys go on to their end.
const maxPattern = 4 << 10

// pattern finds secrets that begin in a known way. A letter or digit before
// the beginning means that it is another word, if word is set.
type pattern struct {
	begin string // lower case if fold
	fold  bool
	word  bool
	// once: what it finds has nothing else of it inside.
	once bool
	// find gets the text and where it begins; ok is false if it is none.
	find func(s string, i int) (span, bool)
}

// patterns by their first byte. The forms are those that the services document.
var patterns = index([]pattern{
	token("AKIA", upper, 16), token("ASIA", upper, 16), token("AGPA", upper, 16), token("AIDA", upper, 16), token("AROA", upper, 16),
	token("ghp_", alnum, 20), token("gho_", alnum, 20), token("ghu_", alnum, 20), token("ghs_", alnum, 20), token("ghr_", alnum, 20),
	token("github_pat_", name, 20), token("glpat-", name, 16), token("npm_", alnum, 30), token("pypi-", name, 16), token("hf_", alnum, 30),
	token("xoxa-", name, 10), token("xoxb-", name, 10), token("xoxe-", name, 10), token("xoxe.", name, 10), token("xoxo-", name, 10), token("xoxp-", name, 10), token("xoxr-", name, 10), token("xoxs-", name, 10), token("xapp-", name, 10),
	token("hooks.slack.com/services/", path, 20),
	token("sk-", name, 20), token("sk_live_", alnum, 16), token("sk_test_", alnum, 16), token("rk_live_", alnum, 16), token("rk_test_", alnum, 16), token("whsec_", alnum, 16),
	token("AIza", name, 30), token("ya29.", name, 20), token("SG.", dotted, 30), token("dop_v1_", alnum, 32), token("eyJ", dotted, 20, jwt),
	{begin: "-----begin ", fold: true, once: true, find: privateKey},
	{begin: "bearer", fold: true, word: true, find: bearer},
	{begin: "://", find: userinfo},
	userFlag("-u"), userFlag("--user"), userFlag("--proxy-user"),
	{begin: "-", word: true, find: flag},
	{begin: "=", find: assignment}, {begin: ":", find: assignment}, {begin: "=", find: parameter},
})

func index(all []pattern) (byFirst [256][]pattern) {
	for _, p := range all {
		c := p.begin[0]
		byFirst[c] = append(byFirst[c], p)
		if upper := c - 'a' + 'A'; p.fold && c >= 'a' && c <= 'z' {
			byFirst[upper] = append(byFirst[upper], p)
		}
	}
	return byFirst
}

// findPatterns adds where in s something looks like a secret.
func findPatterns(spans []span, s string) []span {
	last, lastEnd := "", 0
	for i := 0; i < len(s); i++ {
		for _, p := range patterns[s[i]] {
			if len(s)-i < len(p.begin) || p.word && i > 0 && isWord(s[i-1]) || p.once && i < lastEnd && p.begin == last {
				continue
			}
			begin := s[i : i+len(p.begin)]
			if begin != p.begin && !(p.fold && strings.EqualFold(begin, p.begin)) {
				continue
			}
			found, ok := p.find(s, i)
			if !ok {
				continue
			}
			spans = append(spans, found)
			if p.once {
				last, lastEnd = p.begin, found.to
			}
		}
	}
	return spans
}

// class is a set of bytes.
type class [256]bool

func classOf(s string) (c class) {
	for i := 0; i < len(s); i++ {
		if i+2 < len(s) && s[i+1] == '-' {
			for b := int(s[i]); b <= int(s[i+2]); b++ {
				c[b] = true
			}
			i += 2
			continue
		}
		c[s[i]] = true
	}
	return c
}

var (
	upper      = classOf("A-Z0-9")
	alnum      = classOf("A-Za-z0-9")
	name       = classOf("A-Za-z0-9_-")
	dotted     = classOf("A-Za-z0-9_.-")
	path       = classOf("A-Za-z0-9_/-")
	credential = classOf("A-Za-z0-9_.~+/=-")
)

func isWord(c byte) bool { return alnum[c] || c == '_' }

// run is where the bytes of a class that begin at i end, at most limit of them.
func run(s string, i int, c *class, limit int) int {
	end := i + min(len(s)-i, limit)
	for i < end && c[s[i]] {
		i++
	}
	return i
}

// token is a beginning and at least n bytes of a class; all of checks hold.
func token(begin string, c class, n int, checks ...func(string) bool) pattern {
	return pattern{begin: begin, word: true, once: true, find: func(s string, i int) (span, bool) {
		body := i + len(begin)
		end := run(s, body, &c, len(s))
		if end-body < n {
			return span{}, false
		}
		for _, check := range checks {
			if !check(s[i:end]) {
				return span{}, false
			}
		}
		return span{i, end}, true
	}}
}

func jwt(s string) bool {
	header, rest, ok := strings.Cut(s, ".")
	return ok && len(header) >= 10 && len(rest) >= 8
}

// privateKey is a PEM block up to its end, or that of the text.
func privateKey(s string, i int) (span, bool) {
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

// bearer is what stands behind the word, with a space or what a URL or JSON
// makes of it.
func bearer(s string, i int) (span, bool) {
	i += len("bearer")
	from := i
	for from < len(s) && from < i+8 && (s[from] == ' ' || s[from] == '\t' || s[from] == '+') {
		from++
	}
	if strings.HasPrefix(s[from:], "%20") {
		from += 3
	}
	end := run(s, from, &credential, maxPattern)
	return span{from, end}, from > i && end-from >= 8
}

// userinfo is what stands between "://" and "@".
func userinfo(s string, i int) (span, bool) {
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

// userFlag is the password in curl's -u NAME:PASSWORD and its longer forms.
func userFlag(flag string) pattern {
	return pattern{begin: flag, word: true, find: func(s string, i int) (span, bool) {
		i += len(flag)
		if i < len(s) && s[i] == '=' {
			i++
		}
		from, end := valueAt(s, skipSpaces(s, i))
		colon := strings.IndexByte(s[from:end], ':')
		if colon < 1 || from+colon+1 == end || strings.HasPrefix(s[from+colon:], "://") {
			return span{}, false
		}
		from += colon + 1
		return span{from, end}, !isReference(s[from:end])
	}}
}

// flag is the value behind a flag such as --api-key, with a space between.
func flag(s string, i int) (span, bool) {
	end := run(s, i, &name, maxSecretName+1)
	if end == len(s) || (s[end] != ' ' && s[end] != '\t') || end-i > maxSecretName || !isSecretFlag(s[i:end]) {
		return span{}, false
	}
	from, to := valueAt(s, skipSpaces(s, end))
	if from == to || s[from] == '-' || isReference(s[from:to]) {
		return span{}, false
	}
	return span{from, to}, true
}

// assignment is the value behind "=" or ":", if what stands before has the
// name of a secret.
func assignment(s string, i int) (span, bool) {
	before := i
	if s[i] == '=' && before > 0 && s[before-1] == ':' {
		before-- // Go's :=
	}
	for before > 0 && i-before < 8 && (s[before-1] == ' ' || s[before-1] == '"' || s[before-1] == '\'' || s[before-1] == '\\') {
		before--
	}
	start := before
	for start > 0 && before-start <= maxSecretName && dotted[s[start-1]] {
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
	from, to := valueAt(s, i)
	if spansLine(word) && from == i {
		to = lineEnd(s, from)
	}
	if from == to || isReference(s[from:to]) || isLiteral(s[from:to]) {
		return span{}, false
	}
	return span{from, to}, true
}

// parameters of a URL's query that give whoever has the URL a right, with the
// fewest bytes of such a value: words as "key" name much else too.
var parameters = map[string]int{
	"sig": 8, "signature": 8, "xamzsignature": 8, "xgoogsignature": 8, "hmac": 8,
	"key": 16, "code": 16, "auth": 16, "jwt": 16, "assertion": 16, "ticket": 16,
}

// parameter is the value of such a parameter: of a signed address, or a key of
// a service.
func parameter(s string, i int) (span, bool) {
	var buf [maxParameter]byte
	word, start := buf[:0], i
	for start > 0 && i-start < maxParameter && name[s[start-1]] {
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
	from, to := valueAt(s, i+1)
	if j := strings.IndexByte(s[from:to], '#'); j >= 0 {
		to = from + j
	}
	return span{from, to}, to-from >= least && !isReference(s[from:to])
}

// maxParameter is longer than each of the parameters' names.
const maxParameter = 24

// spansLine names headers whose value has several words.
func spansLine(word string) bool {
	return hasFoldSuffix(word, "authorization") || hasFoldSuffix(word, "cookie")
}

func hasFoldSuffix(s, suffix string) bool {
	return len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix)
}

func lineEnd(s string, from int) int {
	end := from + min(len(s)-from, maxPattern)
	if i := strings.IndexAny(s[from:end], "\"'\r\n\\`"); i >= 0 {
		return from + i
	}
	return end
}

func skipSpaces(s string, i int) int {
	for end := min(len(s), i+32); i < end && (s[i] == ' ' || s[i] == '\t'); i++ {
	}
	return i
}

// valueAt is the value that begins at i, without its quotes: up to the same
// quote, or to what ends a word in a shell.
func valueAt(s string, i int) (from, to int) {
	escapes := 0
	for i+escapes < len(s) && escapes < 4 && s[i+escapes] == '\\' {
		escapes++
	}
	if q := i + escapes; q < len(s) && (s[q] == '"' || s[q] == '\'' || s[q] == '`') {
		from = q + 1
		if to = quoteEnd(s, from, s[q], escapes); to >= 0 {
			return from, to
		}
		return from, wordEnd(s, from)
	}
	return i, wordEnd(s, i)
}

// quoteEnd is where the quote q that is escaped n times comes again, or -1.
func quoteEnd(s string, i int, q byte, n int) int {
	end := min(len(s), i+maxPattern)
	slashes := 0
	for ; i < end; i++ {
		switch {
		case s[i] == '\\':
			slashes++
			continue
		case s[i] == q && (slashes <= n || q == '\''):
			return i - min(slashes, n)
		}
		slashes = 0
	}
	return -1
}

func wordEnd(s string, i int) int {
	for end := min(len(s), i+maxPattern); i < end; i++ {
		switch s[i] {
		case ' ', '\t', '\r', '\n', '"', '\'', '`', ';', '&', '|', '<', '>':
			return i
		case ')', '}':
			return i
		case '\\':
			if i+1 < end && (s[i+1] == '"' || s[i+1] == '\'') {
				return i
			}
			i++
		}
	}
	return min(i, len(s))
}

// isReference says whether a value only names where the secret is: $NAME,
// ${NAME} or the beginning of $(command).
func isReference(s string) bool {
	if len(s) < 2 || s[0] != '$' {
		return false
	}
	if s[1] == '(' {
		return true
	}
	s = strings.TrimPrefix(s[1:], "{")
	for i := range len(s) {
		if s[i] != '_' && !upper[s[i]] {
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

// secretNames end the names of what is secret, without separators.
var secretNames = []string{
	"password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "apikey", "accesskey", "accesskeyid", "privatekey", "secretkey", "secretkeybase",
	"signingkey", "encryptionkey", "clientkey", "credential", "credentials", "authorization", "cookie", "connectionstring", "authkey", "sessionkey", "masterkey",
}

// isSecretName says whether a variable, member or header with this name holds
// a secret.
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
		return n == 0 || !alnum[s[n-1]]
	}
	for _, n := range secretNames {
		if len(b) >= len(n) && b[len(b)-1] == n[len(n)-1] && string(b[len(b)-len(n):]) == n {
			return true
		}
	}
	return false
}

// isSecretFlag says whether an argument is a flag whose value is in the next.
func isSecretFlag(s string) bool {
	return len(s) > 2 && s[0] == '-' && isSecretName(strings.TrimLeft(s, "-"))
}
