package policy

import (
	"strings"
	"testing"
)

// typical is a realistic command of about 200 characters.
const typical = `cd /workspace/project && export PATH="$PWD/bin:$PATH" && for f in src/*.go; ` +
	`do gofmt -l "$f" | grep -v vendor || true; done; ` +
	`go test -race -count=1 ./... 2>&1 | tee build/test.log | tail -n 40 && git st`

func BenchmarkCommandOf200Characters(b *testing.B) {
	if len(typical) < 195 || len(typical) > 205 {
		b.Fatalf("the command has %d characters, want 195 to 205", len(typical))
	}
	p := policies(b)["phase2"]
	b.ReportAllocs()
	for b.Loop() {
		p.Command(typical)
	}
}

func BenchmarkCommandOf200CharactersUniversal(b *testing.B) {
	p := policies(b)["universal"]
	b.ReportAllocs()
	for b.Loop() {
		p.Command(strings.TrimSpace(typical))
	}
}
