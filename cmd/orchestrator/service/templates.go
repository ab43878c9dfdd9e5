package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/templates"
)

// loadTemplates reads the templates of the configuration and its directory again. All else stays as
// it was at the start.
func (s *service) loadTemplates() ([]templates.Source, error) {
	file := s.app.ConfigFile()
	c, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	c.Guest.OrphanTimeout = s.config.Guest.OrphanTimeout
	return standalone.TemplateSources(file, c)
}

// watchInterval is how often the files of templates are checked. Changed files must stay the same
// for one interval before they are read: an editor may still be writing.
const watchInterval = time.Second

// watchConfig reloads the configuration when SIGHUP arrives, and templates also when their files
// change, until ctx ends. Problems are logged, and those of templates are shown by "template ls".
func (s *service) watchConfig(ctx context.Context, hung <-chan struct{}) {
	t := time.NewTicker(watchInterval)
	defer t.Stop()
	live, err := s.readFresh()
	if err != nil { // a file changed since the start
		s.log.Warn("failed to read the configuration again; a reload reports all keys", "error", cli.WithoutClass(err.Error()))
		live = &fresh{config: s.config, token: s.token}
	}
	live.config = s.config
	read := s.templateFingerprint() // as of the last reload
	seen := read
	for {
		select {
		case <-ctx.Done():
			return
		case <-hung:
			read = s.templateFingerprint()
			live = s.reload(ctx, live)
			continue
		case <-t.C:
			was := seen
			if seen = s.templateFingerprint(); seen == read || seen != was {
				continue
			}
		}
		read = s.templateFingerprint()
		_, _ = s.engine.Templates.Reload(ctx) // it has logged its errors
	}
}

// templateFingerprint changes when a file of a template is changed, added or removed. It uses the
// directory that the configuration names now.
func (s *service) templateFingerprint() string {
	var b strings.Builder
	stamp := func(path string) {
		info, err := os.Stat(path)
		if err != nil {
			fmt.Fprintf(&b, "%s\x00-\n", path)
			return
		}
		inode := uint64(0)
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = sys.Ino
		}
		fmt.Fprintf(&b, "%s\x00%d\x00%d\x00%d\n", path, inode, info.Size(), info.ModTime().UnixNano())
	}
	dir := s.config.TemplatesDir
	if file := s.app.ConfigFile(); file != "" {
		stamp(file)
		if c, err := config.Load(file); err == nil {
			dir = c.TemplatesDir
		}
	}
	if dir == "" {
		return b.String()
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		fmt.Fprintf(&b, "%s\x00-\n", dir)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			stamp(filepath.Join(dir, e.Name()))
		}
	}
	return b.String()
}
