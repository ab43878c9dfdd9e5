package quotadir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

// maxToolOutput limits how many bytes of a tool's output an error quotes.
const maxToolOutput = 400

// findTool returns the path of an e2fsprogs program, which is not in every PATH.
func findTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err == nil && fi.Mode()&0o111 != 0 {
			return filepath.Join(dir, name), nil
		}
	}
	return "", fmt.Errorf("program %s not found: install e2fsprogs: %w", name, errdefs.ErrUnavailable)
}

// exitError reports a tool's exit code other than 0.
type exitError struct {
	tool   string
	code   int
	output string
}

func (e *exitError) Error() string {
	return fmt.Sprintf("%s exited with code %d: %s", e.tool, e.code, e.output)
}

// e2tool runs a program of e2fsprogs.
func e2tool(ctx context.Context, name string, args ...string) error {
	path, err := findTool(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{
		"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"MKE2FS_CONFIG=/dev/null", "E2FSCK_CONFIG=/dev/null",
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		words := strings.Join(strings.Fields(out.String()), " ")
		return &exitError{tool: name, code: exit.ExitCode(), output: words[:min(len(words), maxToolOutput)]}
	}
	return err
}

// repair repairs a detached image's file system. Files without a known directory go to lost+found,
// beside the root.
func repair(ctx context.Context, image string) error {
	const mended = 1 | 2 // errors corrected; reboot requested, which only concerns root file systems
	err := e2tool(ctx, "e2fsck", "-f", "-y", image)
	if exit, ok := errors.AsType[*exitError](err); ok && exit.code&^mended == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("repair the file system: %w", err)
	}
	return nil
}
