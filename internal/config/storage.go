package config

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
)

// Workspaces configures what outlives sandboxes.
type Workspaces struct {
	// Quota is what a workspace holds that was asked for without a size, MaxQuota
	// the most that can be asked for.
	Quota    Size `json:"quota"`
	MaxQuota Size `json:"max_quota"`
	// Mechanism enforces quotas: auto, loop (a file with a file system in it),
	// project (project quotas of the host's file system) or none.
	Mechanism string   `json:"mechanism"`
	Overlays  Overlays `json:"overlays"`
	// Snapshots is how many a workspace can have.
	Snapshots int `json:"snapshots"`
}

// Overlays bounds what overlay leases leave to be looked at.
type Overlays struct {
	// Keep is how long the changes of a lease that has ended are kept.
	Keep Duration `json:"keep"`
	// Max is how many overlays, live and kept, a workspace can have.
	Max int `json:"max"`
}

// Images configures where images come from and how long they are kept.
type Images struct {
	// Allow are the references that may be pulled or built from, as patterns (see
	// ref.Pattern); empty is every one.
	Allow []string `json:"allow"`
	// RequireDigest refuses references without a digest.
	RequireDigest bool `json:"require_digest"`
	// Insecure are registries, host or host:port, that are spoken to without TLS.
	Insecure []string `json:"insecure"`
	// Signatures are keys, of which one must have signed what is pulled.
	Signatures Signatures `json:"signatures"`
	// Prepull fetches templates' images that are missing at the start.
	Prepull bool `json:"prepull"`
	// Budget is what images may take of the disk; 0 is no bound. MaxAge removes
	// those that nothing used for so long; 0 is never. What a template or a
	// sandbox needs is never removed.
	Budget Size     `json:"budget"`
	MaxAge Duration `json:"max_age"`
}

// Signatures says whose signatures count.
type Signatures struct {
	// Keys are files with public keys in PEM.
	Keys []string `json:"keys"`
	// For are the repositories whose images need one, as in Images.Allow; empty is
	// every one as soon as there is a key.
	For []string `json:"for"`
}

func defaultWorkspaces() Workspaces {
	return Workspaces{
		Quota: 10 << 30, MaxQuota: 100 << 30, Mechanism: "auto", Snapshots: 16,
		Overlays: Overlays{Keep: Duration(24 * time.Hour), Max: 32},
	}
}

func defaultImages() Images {
	return Images{Allow: []string{}, Insecure: []string{}, Signatures: Signatures{Keys: []string{}, For: []string{}}, Prepull: true}
}

// MinQuota is the smallest workspace: a file system and a few files.
const MinQuota = 1 << 20

func (w Workspaces) validate() error {
	switch {
	case w.Quota < MinQuota:
		return bad("workspaces.quota", w.Quota, "must be at least 1MiB")
	case w.MaxQuota < w.Quota:
		return bad("workspaces.max_quota", w.MaxQuota, "must not be less than workspaces.quota")
	case !slices.Contains([]string{"auto", "loop", "project", "none"}, w.Mechanism):
		return bad("workspaces.mechanism", quoted(w.Mechanism), "must be auto, loop, project or none")
	case w.Overlays.Keep < 0:
		return bad("workspaces.overlays.keep", w.Overlays.Keep, "must not be negative")
	case w.Overlays.Max < 1:
		return bad("workspaces.overlays.max", w.Overlays.Max, "must be at least 1")
	case w.Snapshots < 0:
		return bad("workspaces.snapshots", w.Snapshots, "must not be negative; 0 is none")
	}
	return nil
}

func (i Images) validate() error {
	for _, file := range i.Signatures.Keys {
		if !filepath.IsAbs(file) {
			return bad("images.signatures.keys", quoted(file), "must be an absolute path")
		}
	}
	for key, patterns := range map[string][]string{"images.allow": i.Allow, "images.signatures.for": i.Signatures.For} {
		for _, text := range patterns {
			p, err := ref.ParsePattern(text)
			if err != nil {
				return bad(key, quoted(text), "cannot be used: "+strings.TrimSuffix(err.Error(), ": "+errdefs.ErrInvalidArgument.Error()))
			}
			// A digest can be asked for by itself: it would get by a tag.
			if key == "images.signatures.for" && !p.Whole() {
				return bad(key, quoted(text), "must name repositories, without tag and digest")
			}
		}
	}
	for _, host := range i.Insecure {
		if r, err := ref.Parse(host + "/x"); err != nil || r.Registry != host {
			return bad("images.insecure", quoted(host), "must be a host or host:port")
		}
	}
	switch {
	case len(i.Signatures.For) > 0 && len(i.Signatures.Keys) == 0:
		return bad("images.signatures.for", i.Signatures.For, "needs images.signatures.keys")
	case i.Budget < 0:
		return bad("images.budget", i.Budget, "must not be negative; 0 is no bound")
	case i.MaxAge < 0:
		return bad("images.max_age", i.MaxAge, "must not be negative; 0 is never")
	}
	return nil
}
