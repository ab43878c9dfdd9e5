package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"slices"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/egress"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
)

// settings reads the configuration file, the environment and the flags, and validates the result.
// allowRemote says that the flag of that name is given.
func (o serveOptions) settings(a *cli.App, allowRemote bool) (config.Config, error) {
	c, err := a.Settings()
	if err != nil {
		return c, err
	}
	cli.SetIfGiven(&c.Listen, o.listen)
	cli.SetIfGiven(&c.Runtime, o.runtime)
	cli.SetIfGiven(&c.Log.Level, o.logLevel)
	cli.SetIfGiven(&c.Log.Format, o.logFormat)
	cli.SetIfGiven(&c.TokenFile, a.Flags.TokenFile)
	if allowRemote {
		c.AllowRemote = o.allowRemote
	}
	return c, c.Validate()
}

// fresh is a configuration that was read and checked, with the files that it names. Applying it
// cannot fail.
type fresh struct {
	config   config.Config
	token    string
	level    slog.Level
	profiles *profile.Set
	digest   string // of the profiles
	allow    []egress.Allowance
	certs    []caller.Certificate
}

// readFresh reads the configuration with environment and flags, and checks everything that reload
// applies.
func (s *service) readFresh() (*fresh, error) {
	c, err := s.settings()
	if err != nil {
		return nil, err
	}
	f := &fresh{config: c, certs: certificates(c.TLS)}
	if err := checkListen(c); err != nil {
		return nil, err
	}
	if c.TokenFile != "" {
		if f.token, err = cli.ReadToken(c.TokenFile); err != nil {
			return nil, err
		}
	}
	if err := f.level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		return nil, err
	}
	if f.profiles, err = standalone.OpenProfiles(c); err != nil {
		return nil, err
	}
	if f.digest, err = digestProfiles(f.profiles); err != nil {
		return nil, err
	}
	options, err := standalone.EgressOptions(c.Egress, s.log)
	if err != nil {
		return nil, err
	}
	if options != nil {
		f.allow = options.Allow
	}
	if s.tls != nil {
		if err := s.tls.Check(); err != nil {
			return nil, err
		}
	}
	if _, err := c.Sources(s.app.ConfigFile()); err != nil {
		return nil, err
	}
	return f, nil
}

// digestProfiles returns a text that changes with the profiles.
func digestProfiles(set *profile.Set) (string, error) {
	h := sha256.New()
	e := json.NewEncoder(h)
	for _, p := range set.List() {
		if err := e.Encode(p.Profile); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// reload reads the configuration again and applies what can change in a running service. If it
// cannot be used, nothing changes. live is what is in use, and reload returns what is then.
func (s *service) reload(ctx context.Context, live *fresh) *fresh {
	next, err := s.readFresh()
	if err == nil {
		err = s.engine.Callers.CheckCertificates(next.certs)
	}
	if err != nil {
		s.log.Error("failed to reload the configuration; nothing has changed", "error", cli.WithoutClass(err.Error()))
		return live
	}
	changed, err := config.Changes(live.config, next.config)
	if err != nil {
		s.log.Error("failed to compare configurations; nothing has changed", "error", err)
		return live
	}
	// The listener in use may be open to everybody who has the token, so it needs one to its end.
	withdrawn := live.token != "" && next.token == ""
	if withdrawn {
		next.token, next.config.TokenFile = live.token, live.config.TokenFile
	}
	var applied, restart []string
	for _, key := range changed {
		if config.Reloadable(key) && (key != "token_file" || !withdrawn) {
			applied = append(applied, key)
		} else {
			restart = append(restart, key)
		}
	}
	note := func(key string, changed bool) {
		if changed && !slices.Contains(applied, key) {
			applied = append(applied, key)
		}
	}
	note("token_file", next.token != live.token)
	note("profiles", next.digest != live.digest)
	note("tls", s.apply(live, next))
	_, _ = s.engine.Templates.Reload(ctx) // it has logged its errors
	s.log.Info("reloaded the configuration", "changed", texts(applied), "needs_restart", texts(restart))
	return keep(live, next)
}

// apply puts everything into use but the templates. It reports whether files of TLS changed.
func (s *service) apply(live, next *fresh) (tlsChanged bool) {
	s.level.Set(next.level)
	s.api.SetToken(next.token)
	if live.token != "" && next.token != live.token {
		s.api.EndToken("") // connections of the operator that the earlier token identified
	}
	s.governed.SetProfiles(next.profiles, next.config.Profiles.Default)
	s.engine.Egress.SetAllow(next.allow)
	s.engine.Callers.SetCertificates(next.certs)
	if !slices.Equal(live.certs, next.certs) { // their order decides, too
		s.api.EndCertificates()
	}
	if s.tls == nil {
		return false
	}
	changed, err := s.tls.Reload()
	if err != nil {
		s.log.Warn("failed to reload TLS files; keeping the earlier certificate", "error", err, "expires", s.tls.Expires())
	}
	return changed
}

// keep returns next with the values of live where a change needs a restart, so that the next reload
// reports them again.
func keep(live, next *fresh) *fresh {
	c := live.config
	c.Egress.Allow, c.Log.Level, c.Profiles = next.config.Egress.Allow, next.config.Log.Level, next.config.Profiles
	c.Templates, c.TemplatesDir = next.config.Templates, next.config.TemplatesDir
	c.TLS.Clients, c.TokenFile = next.config.TLS.Clients, next.config.TokenFile
	out := *next
	out.config = c
	return &out
}

// texts returns a list that is logged as [] if it is empty.
func texts(list []string) []string { return append([]string{}, list...) }
