package passages

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

const manual = `# Widget manual

Widgets are made of brass.

## Installing

Put the widget on the table. Turn it twice.

~~~sh
# not a heading
widget --install
~~~

## Warranty

The warranty lasts two years from the day of purchase.

### Refunds

Refunds are paid within 14 days, if the widget was not opened.

## Ελληνικά

Η εγγύηση διαρκεί δύο χρόνια.

## 日本語

保証期間は購入日から二年間です。返金は十四日以内に行われます。
`

func TestBest(t *testing.T) {
	for _, c := range []struct{ question, want, not string }{
		{"How do I get a refund?", "Refunds are paid", "brass"},
		{"WARRANTIES", "two years", "brass"},
		{"how to install it", "widget --install", "purchase"},
		{"ΕΓΓΥΗΣΗ", "δύο χρόνια", "brass"},
		{"返金はいつ", "十四日以内", "brass"},
		{"café 証", "保証期間", "brass"},
		{"nothing that is there: zzz", "brass", "Refunds"}, // no match: the beginning
		{"", "brass", "Refunds"},
	} {
		best := Best(manual, c.question, 160)
		got := Join(best)
		if !strings.Contains(got, c.want) || strings.Contains(got, c.not) {
			t.Errorf("Best(%q) = %q, want %q and not %q", c.question, got, c.want, c.not)
		}
		if n := utf8.RuneCountInString(got); n > 160 {
			t.Errorf("Best(%q) has %d characters, want at most 160", c.question, n)
		}
	}
	both := Best(manual, "refund brass", 400)
	if len(both) != 2 || !strings.Contains(both[0].Text, "brass") ||
		strings.Join(both[1].Headings, "/") != "Widget manual/Warranty/Refunds" {
		t.Errorf("Best = %+v, want brass first and Warranty/Refunds second", both)
	}
}

func TestSplitLongText(t *testing.T) {
	for _, text := range []string{strings.Repeat("word ", 2000), strings.Repeat("字", 3000),
		strings.Repeat("A line.\n", 2000)} {
		total := 0
		for _, p := range Split(text) {
			if len(p.Text) > most || !utf8.ValidString(p.Text) {
				t.Fatalf("passage = %d bytes, valid UTF-8 %v; want at most %d, true", len(p.Text), utf8.ValidString(p.Text), most)
			}
			total += len(p.Text)
		}
		if total < len(text)*9/10 {
			t.Errorf("passages have %d of %d bytes, want at least 90 %%", total, len(text))
		}
	}
}

// Long headings over very many passages take no longer than other text.
func TestHostileHeadings(t *testing.T) {
	var b strings.Builder
	for level := range 5 {
		// Each character expands to eighteen letters.
		b.WriteString(strings.Repeat("#", level+1) + " " + strings.Repeat("\ufdfa", 200) + "\n")
	}
	for b.Len() < 1_000_000 {
		b.WriteString("###### a\nb\n")
	}
	began := time.Now()
	if best := Best(b.String(), "what is b", 10_000); len(best) == 0 {
		t.Error("Best found nothing, want a passage")
	}
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("Best took %s, want at most 2 minutes", took)
	}
}

func FuzzPassages(f *testing.F) {
	f.Add(manual, "refund", 100)
	f.Add("```\n", "\xff", 0)
	f.Add("###### a\n####### b\n#", "́", -1)
	f.Fuzz(func(t *testing.T, text, question string, size int) {
		best := Best(text, question, size)
		if n := utf8.RuneCountInString(Join(best)); n > max(size, 0) {
			t.Errorf("Best returned %d characters, want at most %d", n, size)
		}
		at := 0
		clean := strings.ToValidUTF8(text, "")
		for _, p := range best {
			first, _, _ := strings.Cut(p.Text, "\n")
			i := strings.Index(clean[at:], first)
			if i < 0 {
				t.Fatalf("passage %q is missing or out of order, want all in order", first)
			}
			at += i
		}
	})
}
