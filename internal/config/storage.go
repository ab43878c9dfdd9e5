package config

import (
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
)

// Workspaces configures persistent workspaces.
type Workspaces struct {
	// Quota is the default size of a workspace, and MaxQuota the maximum.
	Quota    Size `json:"quota"`
	MaxQuota Size `json:"max_quota"`
	// Mechanism enforces quotas: auto, loop (a file that contains a file system), project (project
	// quotas of the host's file system) or none.
	Mechanism string   `json:"mechanism"`
	Overlays  Overlays `json:"overlays"`
	// Snapshots limits the snapshots of a workspace.
	Snapshots int `json:"snapshots"`
}

// Overlays limits the overlays that are kept for review.
type Overlays struct {
	// Keep is how long the changes of an ended lease are kept.
	Keep Duration `json:"keep"`
	// Max limits the overlays of a workspace, live and kept.
	Max int `json:"max"`
}

// Images configures where images come from and how long they are kept.
type Images struct {
	// Allow lists patterns of references that may be pulled or built from (see ref.Pattern). Empty
	// allows all.
	Allow []string `json:"allow"`
	// RequireDigest refuses references without a digest.
	RequireDigest bool `json:"require_digest"`
	// Insecure lists registries, as host or host:port, that are contacted without TLS.
	Insecure []string `json:"insecure"`
	// Signatures configures the keys of which one must have signed a pulled image.
	Signatures Signatures `json:"signatures"`
	// Prepull pulls missing images of templates at startup.
	Prepull bool `json:"prepull"`
	// Budget limits the images' disk space; 0 means unlimited. Images that were unused for MaxAge
	// are removed; 0 means never. Images that a template or sandbox needs are always kept.
	Budget Size     `json:"budget"`
	MaxAge Duration `json:"max_age"`
}

// Signatures configures which images must be signed, and by which keys.
type Signatures struct {
	// Keys lists files with public keys in PEM.
	Keys []string `json:"keys"`
	// For lists patterns of the repositories whose images must be signed, as in Images.Allow. If
	// empty and there is a key, all must be.
	For []string `json:"for"`
}

func defaultWorkspaces() Workspaces {
	return Workspaces{
		Quota: 10 << 30, MaxQuota: 100 << 30, Mechanism: "auto", Snapshots: 16,
		Overlays: Overlays{Keep: Duration(24 * time.Hour), Max: 32},
	}
}

func defaultImages() Images {
	return Images{Allow: []string{}, Insecure: []string{}, Signatures: Signatures{Keys: []string{}, For: []string{}},
		Prepull: true}
}

// MinQuota is the minimum size of a workspace, in bytes: a file system and a few files.
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
		return bad("workspaces.snapshots", w.Snapshots, "must not be negative; 0 allows none")
	}
	return nil
}

func (i Images) validate() error {
	for _, file := range i.Signatures.Keys {
		if !isAbsolute(file) {
			return bad("images.signatures.keys", quoted(file), "must be an absolute path")
		}
	}
	for key, patterns := range map[string][]string{"images.allow": i.Allow, "images.signatures.for": i.Signatures.For} {
		for _, text := range patterns {
			p, err := ref.ParsePattern(text)
			if err != nil {
				return bad(key, quoted(text),
					"must be a pattern of image references: "+strings.TrimSuffix(err.Error(), ": "+errdefs.ErrInvalidArgument.Error()))
			}
			// A pattern for a digest would not apply to a request by tag.
			if key == "images.signatures.for" && !p.MatchesRepository() {
				return bad(key, quoted(text), "must match repositories: remove the tag or digest")
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
		return bad("images.signatures.for", i.Signatures.For, "needs images.signatures.keys, which is empty")
	case i.Budget < 0:
		return bad("images.budget", i.Budget, "must not be negative; 0 is unlimited")
	case i.MaxAge < 0:
		return bad("images.max_age", i.MaxAge, "must not be negative; 0 keeps images indefinitely")
	}
	return nil
}
