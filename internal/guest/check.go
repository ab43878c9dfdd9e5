package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	maxID     = 128
	maxDetail = 512
	maxSignal = 64
)

func checkID(id string) error {
	if id == "" || len(id) > maxID || cleanText(id, maxID) != id {
		return fmt.Errorf("invalid id %.200q", id)
	}
	return nil
}

// checkResult checks that a guest can know the result, and limits the length of its text.
func checkResult(r *runtime.Result) error {
	switch r.Ending {
	case runtime.Exited, runtime.Signalled, runtime.Timeout, runtime.Cancelled, runtime.OOM, runtime.Pids, runtime.Disk,
		runtime.OutputLimit, runtime.SandboxLost:
	default:
		return fmt.Errorf("invalid ending %.64q from the guest", string(r.Ending))
	}
	u := r.Usage
	switch {
	case r.ExitCode < -1 || r.ExitCode > 255:
		return fmt.Errorf("invalid exit code %d", r.ExitCode)
	case r.Ending == runtime.Exited && r.ExitCode < 0:
		return errors.New("exited without an exit code")
	case r.Signal < 0 || r.Signal > maxSignal:
		return fmt.Errorf("invalid signal %d", r.Signal)
	case r.Duration < 0 || u.CPUUser < 0 || u.CPUSystem < 0 || u.MemoryBytes < 0 || u.Pids < 0:
		return errors.New("negative number in a result")
	}
	r.Detail = cleanText(r.Detail, maxDetail)
	return nil
}

func checkShell(sh *wire.Shell) error {
	if err := checkID(sh.ID); err != nil {
		return err
	}
	if len(sh.Argv) > wire.MaxArgs {
		return fmt.Errorf("shell with too many arguments: %d", len(sh.Argv))
	}
	for _, span := range []wire.Span{sh.Stdout, sh.Stderr} {
		if span.Start < 0 || span.End < span.Start {
			return fmt.Errorf("invalid output range from %d to %d", span.Start, span.End)
		}
	}
	if sh.TTY != nil {
		if f := sh.TTY.Check(); f != nil {
			return fmt.Errorf("invalid terminal: %w", f)
		}
	}
	if sh.Result != nil {
		return checkResult(sh.Result)
	}
	return nil
}

func checkFile(i *wire.FileInfo) error {
	switch i.Type {
	case "file", "dir", "symlink", "other":
	default:
		return fmt.Errorf("invalid file type %.32q", i.Type)
	}
	switch {
	case i.Size < 0:
		return fmt.Errorf("invalid file size %d", i.Size)
	case i.Name == "" || i.Name == ".." || len(i.Name) > wire.MaxPathBytes || strings.ContainsAny(i.Name, "/\x00"):
		return fmt.Errorf("invalid file name %.300q", i.Name)
	case len(i.Target) > 4*wire.MaxPathBytes:
		return fmt.Errorf("link target too long: %d bytes", len(i.Target))
	case i.Mode&^0o7777 != 0:
		return fmt.Errorf("invalid file mode %#o", i.Mode)
	}
	return checkPath(i.Path)
}

// checkPath checks that a path is below the workspace or /tmp.
func checkPath(p string) error {
	local := p
	if p == wire.Tmp {
		local = "."
	} else if rest, ok := strings.CutPrefix(p, wire.Tmp+"/"); ok {
		local = rest
	}
	if !filepath.IsLocal(local) || len(p) > 4*wire.MaxPathBytes || strings.IndexByte(p, 0) >= 0 {
		return fmt.Errorf("invalid file path %.300q", p)
	}
	return nil
}

// list decodes an array of at most limit items, one by one: many small items would need much more
// memory than their frame.
func list[T any](raw []byte, limit int, check func(*T) error) ([]T, error) {
	items := []T{}
	if len(raw) == 0 || string(raw) == "null" {
		return items, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.New("expected a list")
	}
	for d.More() {
		if len(items) == limit {
			return nil, fmt.Errorf("list has more than %d items", limit)
		}
		var item T
		if err := d.Decode(&item); err != nil {
			return nil, fmt.Errorf("decode a list: %w", err)
		}
		if err := check(&item); err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("decode a list: %w", err)
	}
	return items, nil
}
