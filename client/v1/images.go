package v1

import "time"

// Image is an image in the store, under one of its names.
type Image struct {
	// Ref is empty for one that has no name.
	Ref       string    `json:"ref"`
	ID        string    `json:"id"`
	SizeBytes int64     `json:"size_bytes"` // of its layers, uncompressed
	CreatedAt time.Time `json:"created_at"` // when it came
	// UsedAt is when it was last of use, UsedBy what needs it now: "template:NAME",
	// "sandbox:ID". For operators.
	UsedAt time.Time `json:"used_at,omitzero"`
	UsedBy []string  `json:"used_by,omitempty"`
	// Pinned ones are never collected.
	Pinned bool `json:"pinned,omitempty"`
	// Digests are the manifests it was pulled by: "host/path@sha256:…".
	Digests []string `json:"digests,omitempty"`
}

// PullRequest brings an image from its registry.
type PullRequest struct {
	// Ref is "NAME", "NAME:TAG" or "NAME@sha256:…", with a registry before it or
	// without.
	Ref string `json:"ref"`
	// Keep pins the image: it is not collected.
	Keep bool `json:"keep,omitempty"`
}

// PullEvent is one server-sent event of a pull or a build. Of Layers only those
// are told that have changed since the event before.
type PullEvent struct {
	// Type is "progress", "log" or, the last, "end".
	Type string `json:"type"`
	// Log is what a build writes.
	Log string `json:"log,omitempty"`
	// Ref is the base that a build pulls, on "progress".
	Ref string `json:"ref,omitempty"`
	// Phase is "resolving", "fetching", "importing" or "done".
	Phase string `json:"phase,omitempty"`
	// Digest is what the reference names in the registry.
	Digest string      `json:"digest,omitempty"`
	Layers []PullLayer `json:"layers,omitempty"`
	// Images come with the end.
	Images []Image `json:"images,omitempty"`
}

// PullLayer is how far one layer has come.
type PullLayer struct {
	Digest    string `json:"digest"`
	SizeBytes int64  `json:"size_bytes"`
	HaveBytes int64  `json:"have_bytes"`
	// Here says that its content was here already.
	Here bool `json:"here,omitempty"`
}

// ImageCollection is what a collection of images did, or would do.
type ImageCollection struct {
	// Items are all images, the longest unused first.
	Items []CollectedImage `json:"items"`
	// FreedBytes went, of which BlobBytes were left downloads; UsedBytes are
	// there. BudgetBytes and MaxAgeMS are what the service is configured with.
	FreedBytes  int64 `json:"freed_bytes"`
	BlobBytes   int64 `json:"blob_bytes"`
	UsedBytes   int64 `json:"used_bytes"`
	BudgetBytes int64 `json:"budget_bytes,omitempty"`
	MaxAgeMS    int64 `json:"max_age_ms,omitempty"`
	DryRun      bool  `json:"dry_run,omitempty"`
}

// CollectedImage is what becomes of an image, and why.
type CollectedImage struct {
	ID        string    `json:"id"`
	Refs      []string  `json:"refs"`
	DiskBytes int64     `json:"disk_bytes"`
	UsedAt    time.Time `json:"used_at"`
	Removed   bool      `json:"removed"`
	Why       string    `json:"why"`
}

// BuildRequest describes a build from a Dockerfile; the context is the request's
// body, a tar.
type BuildRequest struct {
	// Ref is the name the image gets.
	Ref string `json:"ref"`
	// File is the Dockerfile's path in the context; empty is "Dockerfile".
	File string `json:"file,omitempty"`
	// Target is the stage to stop at, Network what RUN has: empty is the engine's
	// default.
	Target  string            `json:"target,omitempty"`
	Network string            `json:"network,omitempty"`
	Args    map[string]string `json:"args,omitempty"`
	Keep    bool              `json:"keep,omitempty"`
}
