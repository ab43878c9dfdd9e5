package argv

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// readOnlyRules returns the rules of the profile readonly for another root. They refuse the
// arguments with which a program would write, run a program or read outside the root.
func readOnlyRules(tb testing.TB, root string) Rules {
	tb.Helper()
	data, err := os.ReadFile("../../profile/data/readonly.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	var file struct {
		Policy struct {
			Argv Rules `json:"argv"`
		} `json:"policy"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		tb.Fatal(err)
	}
	file.Policy.Argv.Root = root
	return file.Policy.Argv
}

func TestReadOnlyRulesHave23Programs(t *testing.T) {
	rules := readOnlyRules(t, "/workspace")
	if len(rules.Programs) != 23 {
		t.Errorf("the readonly rules have %d programs, want 23", len(rules.Programs))
	}
	if err := rules.Validate(); err != nil {
		t.Errorf("Validate: %v", err)
	}
}

// Each line is a command for Split; the workspace is /workspace.
func TestReadOnlyAllows(t *testing.T) {
	for _, line := range []string{
		"ls", "ls -la", "ls -la src /workspace/src", "cat a b -", "cat ./a", "cat a/../b", "cat -- -x", "head -n 5 a",
		"head -5 a", "tail -n +3 a", "tail -f log", "tail --pid 1 -f a",
		"less a", "less -N a", "less a -N", "less -b 5 -x4 a", "less -p x a", "ls --color a", "ls --color=auto a",
		"grep --color x a", "uniq --group=both a", "awk 1 a x=1 -", "awk -e 1 a", "file a", "file -b a", "stat a",
		"stat -c %n a", "find .", "find . -name *.go", "find src -type f -newer a -print0", "find . -path ./x/* -prune",
		"find . ( -name a ) -ls", "find /workspace -maxdepth 2",
		"find . -printf %p/x", "grep x a", "grep -rn TODO .", "grep /etc/passwd a", "grep -e /etc -r .",
		"grep --regexp=/etc a", "grep -A3 x a", "grep --include=*.go -r x .", "rg x", "rg -n TODO src",
		"rg -e ../x src", "rg --files src", "rg -t go x",
		"awk {print} a", "awk -F: {print} a", "awk -F , {print} a", "awk '/x/ || /y/' a", "awk 'NR > 5' a",
		"awk -v x=1 'NR==x' a", "sed -n 5p a", "sed s/a/b/ a", "sed s/a/b/g a", "sed -n '1,5p;10q' a",
		"sed -e s/a/b/ -e s/c/d/2p a", "sed '/x/d' a", "sed '/a/,/b/{s/x/y/;p}' a",
		"sed 's|/etc/passwd|x|' a", `sed 's/\//x/' a`, "sed y/abc/xyz/ a", "sed '$!N;P;D' a", "sed ':a;N;ba' a",
		"sed 1~2d a", "sed -E 's/(a)/\\1/' a", "sed -s 5p a b",
		"wc -l a", "sort a", "sort -u -k2,2n a", "sort -t/ -k2 a", "uniq -c a", "uniq", "cut -d: -f1 a",
		"cut -d / -f1 a", "tr a-z A-Z", "tr -d /", "diff a b", "diff -u a b", "diff --unified=5 a b",
		"diff --label /x a b", "pwd", "pwd -P", "which ls", "which -a /bin/ls",
		"whoami", "date", "date -u", "date +%F/%T", "date -d yesterday", "date -r a", "env", "env A=b", "env -u PATH",
		"env -i", "env -0",
	} {
		words, err := Split(line)
		if err != nil {
			t.Fatalf("Split(%q): %v", line, err)
		}
		if no := readOnlyRules(t, "/workspace").Check(words); no != nil {
			t.Errorf("Check(%s) = %q, want nil", line, no.Message)
		}
	}
}

// refusedCommands lists commands by the class of their refusal, one or several per line with |
// between them.
var refusedCommands = map[string]string{
	ClassArgument: `find . -delete
find . -exec rm {} ;|find . -execdir x ;|find . -ok x ;|find . -okdir x ;|find . -fprint x
find . -fprint0 x|find . -fprintf x y|find . -fls x|find -files0-from x|find -L .|find . -follow|find -Dexec .
sed -i s/a/b/ a|sed -i.bak s/a/b/ a|sed -ni p a|sed --in-place s/a/b/ a|sed --in-pl=x p a|sed -n -i p a
sed -f x a|sed -fx a|sed --file=x a|sed 'w x' a|sed 'W x' a|sed 'r /etc/passwd' a|sed R/etc/passwd a|sed e a
sed '1e id' a|sed s/a/b/e a|sed 's/a/id/ge' a
sed 's/a/b/w x' a|sed 's/a/b/gw x' a|sed -e p -e 'w x' a|sed -ne 'w x' a|sed --expression=e a|sed --expr 'w x' a
sed '/a/w x' a|sed '$!{p;w x' a|sed '1,5w x' a|sed ';;w x' a|sed 's,a,b,;w x' a|sed '\,a,w x' a|sed '{w x' a
sed '{e}' a|sed ':a;w x' a|sed 'ba;w x' a|sed 'q;e' a|sed 'y/a/b/;w x' a|sed 's/[/]/w x/' a|sed 'k' a|sed p;w
awk 'BEGIN{system("id")}'|awk '{print > "x"}'|awk '{print>>"x"}'|awk '{print,1;printf "a" > "x"}'
awk '"id" | getline'|awk '{getline < "/etc/passwd"}'|awk 'BEGIN{ARGV[1]="/etc/passwd";ARGC=2}{print}' a
awk '@include "x"'|awk '@load "x"'|awk '{print | "id"}'|awk '{print |& "id"}'|awk -f x|awk -fx|awk --file=x
awk -i inplace {} a|awk --include=x {} a|awk -l x|awk --load x|awk -W exec=x|awk -e 'BEGIN{system("id")}'
awk -o {} a|awk -dx {} a|awk -px {} a|awk 'BEGIN{f="system";@f("id")}'|awk -E x
env sh|env A=b sh|env -S "sh -c id"|env -Ssh|env -iS sh|env --split-string=sh|env --split sh|env -C / pwd
env -u X sh|env -- sh|env ./a=b
sort -o x a|sort -ox a|sort --output=x a|sort --out x a|sort -uo x a|sort a -o x|sort --compress-program=sh a
sort -T /tmp a|sort --files0-from=x|sort --random-source=x a
rg --pre sh x|rg --pre=sh x|rg --pre-glob x y|rg --hostname-bin=x y|rg -z x|rg --search-zip x|rg -nz x
rg --follow x|rg -L x|rg --ignore-file x y
less -o x a|less -ox a|less -O x a|less -k x a|less --lesskey-src=x a|less --log-file=x a|less +!id a|less +F a
less -t x|less -T x a|less -Nox a
file -m x a|file -C -m x|file --compile|file -f x|file -z a|date -s now|date --set=now|date -f x|date --file=x
date -us now|diff -l a b|diff --paginate a b|diff --to-file=x a|diff --from-file=x a|diff -r a b|diff -ur a b
diff -X x a b
awk 'BEGIN{system("id")}' -e 1|awk 'BEGIN{system("id")}' a --source=1|env PATH=/workspace --
env PATH=/workspace -x|env A=b -u|env -u PATH PATH=. --help|less -b5ox a|less -h5kx a|less -x4tx a|less a -o x
ls -L a|ls -lL .|ls --dereference a
uniq a b|uniq -c a b|uniq -- a b|wc --files0-from=x|wc --files0=x|grep -R x .|grep --dereference-recursive x .
pwd x|whoami x`,
	ClassPath: `cat /etc/passwd|cat ../x
cat a/../../x|cat ~/x|cat ~root/x|cat /workspace/../etc/passwd|cat /workspacex|cat /
ls /|ls ..|ls -la /etc|head -n 5 /etc/passwd|tail /etc/passwd|less /etc/passwd|stat /etc|file /etc/passwd|find /
find / -name x|find .. -name x|find . -newer /etc/passwd|find . -neweram /etc/x|find . -samefile /etc/x
grep x /etc/passwd|grep -e x /etc/passwd|grep -f /etc/passwd a|grep -f/etc/passwd a|grep --file=/etc/passwd a
grep --fil=/etc/passwd a|grep -rf ../x .|grep --exclude-from=/etc/x y a|grep -ie x /etc/passwd|rg x /etc
rg -f /etc/passwd a|rg --files /etc|rg -e x ../y|awk {print} /etc/passwd|awk -F: {print} /etc/passwd
sed -n p /etc/passwd|sed -e p /etc/passwd|sed p a /etc/passwd|wc /etc/passwd|sort /etc/passwd|sort a ../b
uniq /etc/passwd|cut -f1 /etc/passwd|diff a /etc/passwd|date -r /etc/passwd|date --reference=/etc/passwd
ls --color /etc|ls --col /etc|grep --color x /etc/passwd|grep --colour x /etc/passwd|uniq --group /etc/passwd
diff --context /etc/passwd a|diff --unified /etc/passwd a|awk 1 a -v /etc/passwd|awk 1 -F /etc/passwd
awk 1 -- /etc/passwd|less a -b /etc/passwd|less a -P /etc/passwd|less a -- /etc/passwd|less -b /etc/passwd
ls --foo=/etc/passwd|cat --x=../y|ls -x/etc|stat -x../y`,
	ClassAllowList: `rm x|/bin/ls|./ls|bash|sh -c id|LS|python3|ls; rm|sudo ls|cd /|echo x|busybox ls|xargs ls`,
}

func TestReadOnlyRefuses(t *testing.T) {
	for class, lines := range refusedCommands {
		for _, line := range strings.FieldsFunc(lines, func(c rune) bool { return c == '\n' }) {
			for _, l := range splitBars(line) {
				words, err := Split(l)
				if err != nil {
					t.Fatalf("Split(%q): %v", l, err)
				}
				no := readOnlyRules(t, "/workspace").Check(words)
				if no == nil || no.Class != class {
					t.Errorf("Check(%s) = %+v, want class %s", l, no, class)
				}
			}
		}
	}
}

// splitBars splits s at bars outside single quotes.
func splitBars(s string) []string {
	var out []string
	start, quoted := 0, false
	for i := range len(s) {
		switch {
		case s[i] == '\'':
			quoted = !quoted
		case s[i] == '|' && !quoted:
			out = append(out, s[start:i])
			start = i + 1
		}
	}
	return append(out, s[start:])
}

func TestUnknownProgramListsAllowed(t *testing.T) {
	no := readOnlyRules(t, "/workspace").Check([]string{"rm", "x"})
	const want = `command "rm" is not allowed. Allowed: awk, cat, cut, date, diff, env, file, find, grep, head, ` +
		`less, ls, pwd, rg, sed, sort, stat, tail, tr, uniq, wc, which, whoami`
	if no == nil || no.Message != want {
		t.Errorf("Check = %+v, want message %q", no, want)
	}
}

func TestCheckHereResolvesLinks(t *testing.T) {
	outside := t.TempDir()
	base := t.TempDir()
	root := filepath.Join(base, "ws")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(root, "sub"), 0o755))
	must(os.WriteFile(filepath.Join(root, "file"), nil, 0o644))
	must(os.Symlink("/etc/passwd", filepath.Join(root, "link")))
	must(os.Symlink(outside, filepath.Join(root, "dir")))
	must(os.Symlink("sub", filepath.Join(root, "in")))
	must(os.Symlink("loop", filepath.Join(root, "loop")))
	must(os.Symlink(root, filepath.Join(base, "alias")))
	rules := readOnlyRules(t, root)
	for line, allowed := range map[string]bool{
		"cat file": true, "cat sub/../file": true, "cat in/x": true, "cat missing": true, "cat " + root + "/file": true,
		"ls": true, "grep -f file x": true,
		"cat link": false, "cat ./link": false, "cat dir/x": false, "cat dir": false, "cat in/../../x": false,
		"grep -f link x": false, "find dir -name x": false, "cat loop": false, "cat " + root + "/link": false,
		"cat dir/../file": false, "cat --x=link": false, "cat ../ws/file": true, "cat ../../x": false,
	} {
		words, err := Split(line)
		must(err)
		if no := rules.CheckHere(words, root); (no == nil) != allowed {
			t.Errorf("CheckHere(%s) = %v, want allowed %v", line, no, allowed)
		}
	}
	if no := rules.CheckHere([]string{"cat", "../file"}, filepath.Join(root, "sub")); no != nil {
		t.Errorf("CheckHere(cat ../file) in sub = %v, want nil", no)
	}
	if no := rules.CheckHere([]string{"ls"}, outside); no == nil || no.Class != ClassPath {
		t.Errorf("CheckHere outside the root = %v, want class path", no)
	}
	if no := readOnlyRules(t, filepath.Join(base, "alias")).CheckHere([]string{"cat", "file"}, root); no != nil {
		t.Errorf("CheckHere with a linked root = %v, want nil", no)
	}
}

// A program that reads the files of a directory follows the links in it.
func TestFilesOnlyRefusesDirectories(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("two", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	for line, allowed := range map[string]bool{
		"diff file file": true, "diff file missing": true, "diff - file": true, "ls one": true,
		"diff one two": false, "diff file two": false, "diff one file": false, "diff file link": false,
		"diff -q . one": false,
	} {
		words, err := Split(line)
		if err != nil {
			t.Fatalf("Split(%q): %v", line, err)
		}
		if no := readOnlyRules(t, root).CheckHere(words, root); (no == nil) != allowed {
			t.Errorf("CheckHere(%s) = %+v, want allowed %v", line, no, allowed)
		}
	}
}

func TestSplit(t *testing.T) {
	for line, want := range map[string][]string{
		"a b":           {"a", "b"},
		"  a\t'b c' ":   {"a", "b c"},
		`a "b \" c" ''`: {"a", `b " c`, ""},
		`a\ b c\d`:      {"a b", "cd"},
		`"a\b"`:         {`a\b`},
		"":              nil,
		" \n ":          nil,
		"a#b # c":       {"a#b", "#", "c"},
		`a'b'"c"d`:      {"abcd"},
	} {
		got, err := Split(line)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Split(%q) = %q, %v; want %q", line, got, err, want)
		}
	}
	for line, want := range map[string]error{"a 'b": ErrQuotation, `a "b`: ErrQuotation, `a\`: ErrEscape,
		`"a\`: ErrEscape} {
		if _, err := Split(line); !errors.Is(err, want) {
			t.Errorf("Split(%q) = %v, want %v", line, err, want)
		}
	}
}

func TestCheckBounds(t *testing.T) {
	rules := readOnlyRules(t, "")
	for _, v := range [][]string{append([]string{"ls"}, make([]string, MaxArgs)...),
		{"ls", strings.Repeat("a", MaxBytes)}} {
		if no := rules.Check(v); no == nil || no.Class != ClassLimit {
			t.Errorf("Check(%d words) = %v, want class limit", len(v), no)
		}
	}
	for _, v := range [][]string{nil, {""}} {
		if no := rules.Check(v); no == nil || no.Class != ClassEmpty {
			t.Errorf("Check(%q) = %v, want class empty", v, no)
		}
	}
	if no := rules.Check([]string{"ls", "a\x00b"}); no == nil || no.Index != 1 {
		t.Errorf("Check with NUL = %v, want index 1", no)
	}
}

func TestValidateInvalidRules(t *testing.T) {
	for want, r := range map[string]Rules{
		"programs is empty":               {},
		"root":                            {Root: "x", Programs: map[string]Program{"ls": {}}},
		`programs has "a/b"`:              {Programs: map[string]Program{"a/b": {}}},
		"programs.ls.operands":            {Programs: map[string]Program{"ls": {Operands: "x"}}},
		"programs.ls.script":              {Programs: map[string]Program{"ls": {Script: "x"}}},
		"programs.ls.deny_flags[0]":       {Programs: map[string]Program{"ls": {DenyFlags: []string{"x"}}}},
		"programs.ls.value_flags[0]":      {Programs: map[string]Program{"ls": {ValueFlags: []string{"-xyz"}}}},
		"programs.ls.max_operands":        {Programs: map[string]Program{"ls": {MaxOperands: -1}}},
		"programs.ls.deny_operands[0] is": {Programs: map[string]Program{"ls": {DenyOperands: []string{""}}}},
	} {
		if err := r.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Validate(%+v) = %v, want %s...", r, err, want)
		}
	}
}

func FuzzArgv(f *testing.F) {
	for _, line := range []string{"ls -la", "sed -n 's/a/b/w x' a", "find . -exec x ;", "awk {print>x}", "cat ../x",
		"env -S sh"} {
		f.Add(line)
	}
	rules := readOnlyRules(f, "/workspace")
	f.Fuzz(func(t *testing.T, line string) {
		words, err := Split(line)
		if err != nil || len(words) == 0 {
			return
		}
		no := rules.Check(words)
		again := rules.Check(words)
		if (no == nil) != (again == nil) {
			t.Fatalf("Check(%q) = %+v, then %+v; want the same", words, no, again)
		}
		if no != nil {
			if no.Message == "" || no.Class == "" || no.Index < 0 || no.Index >= len(words) {
				t.Fatalf("Check(%q) = %+v, want message, class and valid index", words, no)
			}
			return
		}
		if _, ok := rules.Programs[words[0]]; !ok {
			t.Fatalf("Check(%q) = nil for an unlisted program, want a refusal", words[0])
		}
		// A file outside the workspace is never allowed if operands are files.
		if p := rules.Programs[words[0]]; p.Operands == "" && !p.SingleDash && p.Script == "" {
			if no := rules.Check([]string{words[0], "--", "/etc/passwd"}); no == nil {
				t.Fatalf("Check(%q -- /etc/passwd) = nil, want a refusal", words[0])
			}
		}
	})
}
