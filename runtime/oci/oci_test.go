package oci

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// atEnd removes what all tests share.
var atEnd = func() {}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		atEnd()
		os.Exit(code)
	}))
}

func goodRecord() record {
	return record{
		ID: "sandbox-01", Owner: "owner-0001", Template: "base", Created: time.Unix(1e9, 0).UTC(),
		Limits: runtime.Limits{}.WithDefaults(), BootID: "b", Pid: 42, Started: 7,
	}
}

func TestRecordIsReadAsItWasWritten(t *testing.T) {
	d := &Driver{dir: t.TempDir()}
	want := goodRecord()
	if err := os.Mkdir(d.bundle(want.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.write(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.read(want.ID)
	if err != nil || got != want {
		t.Errorf("read = %+v, %v; want %+v and no error", got, err, want)
	}
}

func TestRecordIsReadStrictly(t *testing.T) {
	good, err := json.Marshal(goodRecord())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseRecord(good); err != nil {
		t.Fatalf("a good record: %v", err)
	}
	change := func(old, with string) string {
		s := strings.Replace(string(good), old, with, 1)
		if s == string(good) {
			t.Fatalf("the record lacks %q, want it in\n%s", old, good)
		}
		return s
	}
	for what, text := range map[string]string{
		"empty":             "",
		"cut short":         string(good[:len(good)/2]),
		"unknown field":     change(`"pid"`, `"surprise":1,"pid"`),
		"two":               string(good) + string(good),
		"process 1":         change(`"pid":42`, `"pid":1`),
		"negative process":  change(`"pid":42`, `"pid":-42`),
		"no start time":     change(`,"started":7`, ``),
		"no boot":           change(`"boot_id":"b"`, `"boot_id":""`),
		"an id like a path": change(`sandbox-01`, `../../etc`),
		"no limits":         change(`"memory_bytes":536870912`, `"memory_bytes":0`),
	} {
		if _, err := parseRecord([]byte(text)); err == nil {
			t.Errorf("parseRecord with %s succeeds, want an error", what)
		}
	}
}

func FuzzRecord(f *testing.F) {
	good, _ := json.Marshal(goodRecord())
	f.Add(good)
	f.Fuzz(func(t *testing.T, text []byte) {
		rec, err := parseRecord(text)
		if err == nil && (!runtime.ValidID(rec.ID) || rec.Pid < 0 || rec.Pid == 1) {
			t.Errorf("parseRecord = %+v, want a valid id, and a pid of 0 or over 1", rec)
		}
	})
}

func TestEveryCapabilityHasAnAnswer(t *testing.T) {
	caps := (&Driver{}).Capabilities("")
	for _, c := range runtime.AllCapabilities() {
		if caps[c] == "" {
			t.Errorf("capability %s is empty, want an answer", c)
		}
	}
}

// Writing never blocks, and the kept text is safe to print.
func TestWordsAreBoundedAndHarmless(t *testing.T) {
	w, err := newWords()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if got := w.Annotate("ended"); got != "ended" {
		t.Errorf("Annotate before any output = %q, want %q", got, "ended")
	}
	cmd := exec.Command("sh", "-c",
		`printf 'bad \033[2J\377 thing\n' >&2; head -c 1000000 /dev/zero | tr '\0' x >&2; exit 3`)
	w.Set(cmd)
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("the writer ended with %v, want its own code", err)
	}
	got := w.String()
	if !strings.HasPrefix(got, "bad [2J? thing xxx") || len(got) > 1100 {
		t.Errorf("kept output = %.60q, %d bytes; want the escaped start, at most 1100 bytes", got, len(got))
	}
	info, err := w.file.Stat()
	if err != nil || info.Size() != wordsBytes {
		t.Errorf("file of the output = %v, %v; want %d bytes and no error", info, err, wordsBytes)
	}
}

func TestImagesThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for root, class := range map[string]func(error) bool{
		"":                 errdefs.IsInvalidArgument,
		"relative":         errdefs.IsInvalidArgument,
		file:               errdefs.IsInvalidArgument,
		file + ".gone":     errdefs.IsNotFound,
		filepath.Dir(file): func(err error) bool { return err == nil },
	} {
		if err := (&Driver{}).Prepare(t.Context(), runtime.Image{Ref: "x", Root: root}); !class(err) {
			t.Errorf("Prepare of the root %q: %v; want no error for a directory, NotFound if missing, else InvalidArgument",
				root, err)
		}
	}
}

func TestTrialRemembersSuccessForGoodAndFailureForAWhile(t *testing.T) {
	tries, busy := 0, errors.New("host is busy")
	var answer error
	tr := trial{try: func() error { tries++; return answer }}
	start := time.Unix(0, 0)
	for _, c := range []struct {
		after  time.Duration
		answer error
		want   error
		tries  int
	}{
		{0, busy, busy, 1},
		{trialPause - 1, nil, busy, 1},
		{trialPause, busy, busy, 2},
		{3*trialPause - 1, nil, busy, 2}, // the pause doubled
		{3 * trialPause, nil, nil, 3},
		{time.Hour, busy, nil, 3},
	} {
		answer = c.answer
		if err := tr.do(start.Add(c.after)); !errors.Is(err, c.want) || tries != c.tries {
			t.Errorf("do after %s = %v with %d tries, want %v with %d", c.after, err, tries, c.want, c.tries)
		}
	}
}
