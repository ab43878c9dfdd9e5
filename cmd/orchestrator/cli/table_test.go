package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestShortIDsAreUnique(t *testing.T) {
	ids := []string{
		"01a20a2c-e5fa-7351-b648-bc94ba838137", // the next one is of the same millisecond
		"01a20a2c-e5fa-7a8f-8f02-25848fbcab1d",
		"01a20a2d-0000-7a8f-8f02-25848fbcab1d",
		"sha256:2655e7a21093e8ff3b99e2b032479db387513879633ee45325463c17aa87fa20",
		"d49cf582a198caa6",
		"",
	}
	want := []string{"01a20a2c-e5fa-73", "01a20a2c-e5fa-7a", "01a20a2d-0000", "2655e7a21093", "d49cf582a198caa6", ""}
	if got := ShortIDs(ids); !slices.Equal(got, want) {
		t.Errorf("ShortIDs = %q, want %q", got, want)
	}
	if got := ShortIDs([]string{ids[0], ids[0]}); got[0] != "01a20a2c-e5fa" {
		t.Errorf("ShortIDs of the same id twice = %q, want 01a20a2c-e5fa", got)
	}
}

// TestTableFitsTerminal checks that no line is wider than the terminal, that ids stay whole, and
// that optional columns are left out in their order.
func TestTableFitsTerminal(t *testing.T) {
	table := &Table{
		Head:     []string{"ID", "NAME", "TEMPLATE", "CLASS", "CALLER", "ERROR"},
		Optional: []string{"CLASS", "CALLER"},
	}
	const id = "01a20a2c-e5fa-7351-b648-bc94ba838137"
	table.Add(id, "web", "default", "container", "somebody-with-a-long-name", strings.Repeat("why ", 30))
	for columns := 20; columns < 200; columns++ {
		var b bytes.Buffer
		if err := table.WriteFitted(&b, columns); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
				t.Errorf("%d columns: line of %d: %q", columns, n, line)
			}
		}
		if columns >= 40 && !strings.Contains(b.String(), id[:shortLen]) {
			t.Errorf("%d columns: no id %s in\n%s", columns, id[:shortLen], b.String())
		}
		class, caller := strings.Contains(b.String(), "CLASS"), strings.Contains(b.String(), "CALLER")
		if class && !caller || columns == 80 && class || columns == 80 && !caller {
			t.Errorf("%d columns: CLASS %t, CALLER %t; want CLASS left out first:\n%s", columns, class, caller, b.String())
		}
	}
}

func TestObjectWrapsValues(t *testing.T) {
	table := &Table{}
	table.Add("IMAGE", "sha256:"+strings.Repeat("a", 64))
	table.Add("DETAIL", "words that do not fit on this line")
	want := "IMAGE   sha256:aaaaaaaaaaaaa\n        " + strings.Repeat("a", 20) + "\n        " + strings.Repeat("a", 20) +
		"\n        aaaaaaaaaaa\nDETAIL  words that do not\n        fit on this line\n"
	var b bytes.Buffer
	if err := table.WriteFitted(&b, 28); err != nil || b.String() != want {
		t.Errorf("WriteFitted(28) = %q, %v; want %q", b.String(), err, want)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 1500 * time.Millisecond: "1s", 90 * time.Second: "90s", 2 * time.Minute: "2m",
		119 * time.Minute: "119m", 36 * time.Hour: "36h", 9 * 24 * time.Hour: "9d",
	} {
		if got := Span(d); got != want {
			t.Errorf("Span(%s) = %s, want %s", d, got, want)
		}
	}
}

func TestFormat(t *testing.T) {
	type item struct {
		ID   string
		Tags []string
	}
	list := struct{ Items []item }{[]item{{"a", []string{"x", "y"}}, {"b\x1b", nil}}}
	for format, want := range map[string]string{
		`{{.ID}}\t{{join .Tags ","}}`: "a\tx,y\nb\\x1b\t\n",
		"{{upper .ID}}":               "A\nB\\x1b\n",
		"{{json .Tags}}":              "[\"x\",\"y\"]\nnull\n",
		"json":                        "{\"ID\":\"a\",\"Tags\":[\"x\",\"y\"]}\n{\"ID\":\"b\\u001b\",\"Tags\":null}\n",
	} {
		var b strings.Builder
		a := &App{Stdout: &b, Flags: globalFlags{Output: "json", Format: format}}
		if err := a.Print(list, nil); err != nil || b.String() != want {
			t.Errorf("Print with --format %s = %q, %v; want %q", format, b.String(), err, want)
		}
	}
	a := &App{Stdout: &strings.Builder{}, Flags: globalFlags{Output: "json", Format: "{{.Nope}}"}}
	if err := a.Print(list, nil); ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), "unknown field .Nope: use .ID, .Tags") {
		t.Errorf("Print of an unknown field = %v, want a usage error that lists the fields", err)
	}
}
