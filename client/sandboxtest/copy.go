package sandboxtest

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// copyIn copies the content of a local directory to /workspace.
func (s *Sandbox) copyIn(ctx context.Context, from string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		switch {
		case e.IsDir():
			_, err := s.Files().MakeDir(ctx, name)
			return err
		case e.Type() == fs.ModeSymlink:
			target, err := root.Readlink(name)
			if err != nil {
				return err
			}
			return s.link(ctx, target, name)
		case !e.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory nor a symbolic link", filepath.Join(from, name))
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		return s.write(ctx, name, f, info.Mode().Perm())
	})
}

// link creates a symbolic link with a command, because the files interface cannot.
func (s *Sandbox) link(ctx context.Context, target, name string) error {
	r, err := s.Client.Exec(ctx, s.ID, v1.Exec{Argv: []string{"ln", "-s", "--", target, name}})
	if err == nil && (r.Ending != "exited" || r.ExitCode != 0) {
		err = fmt.Errorf("link %s: %s %d: %s", name, r.Ending, r.ExitCode, r.Stderr)
	}
	return err
}

func (s *Sandbox) write(ctx context.Context, name string, content io.Reader, mode fs.FileMode) error {
	if dir := path.Dir(name); dir != "." && dir != "/" {
		if _, err := s.Files().MakeDir(ctx, dir); err != nil {
			return err
		}
	}
	_, err := s.Files().Write(ctx, name, content, client.WriteOptions{Mode: octal(mode)})
	return err
}

// octal formats mode for the interface; mode 0 takes the server's default.
func octal(mode fs.FileMode) string {
	if mode == 0 {
		return ""
	}
	return fmt.Sprintf("%04o", mode)
}
