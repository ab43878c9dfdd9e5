package v1

import "time"

// Image is an image in the store, under one of its names.
type Image struct {
	// Ref is the image's name, or "" if it has none.
	Ref       string    `json:"ref"`
	ID        string    `json:"id"`
	SizeBytes int64     `json:"size_bytes"` // of its layers, uncompressed
	CreatedAt time.Time `json:"created_at"` // when it was imported
	// UsedAt is when the image was last used. UsedBy lists its current users as "template:NAME" or
	// "sandbox:ID". Both are set for operators only.
	UsedAt time.Time `json:"used_at,omitzero"`
	UsedBy []string  `json:"used_by,omitempty"`
	// Pinned images are never collected.
	Pinned bool `json:"pinned,omitempty"`
	// Digests are the manifests it was pulled by, as "host/path@sha256:…".
	Digests []string `json:"digests,omitempty"`
}

// PullRequest asks to pull an image from its registry.
type PullRequest struct {
	// Ref is "NAME", "NAME:TAG" or "NAME@sha256:…", with or without a registry.
	Ref string `json:"ref"`
	// Keep pins the image, so that it is not collected.
	Keep bool `json:"keep,omitempty"`
}

// PullEvent is one server-sent event of a pull or a build.
type PullEvent struct {
	// Type is "progress", "log" or, for the last event, "end".
	Type string `json:"type"`
	// Log is output of a build.
	Log string `json:"log,omitempty"`
	// Ref is the base image that a build pulls. It is set for type "progress".
	Ref string `json:"ref,omitempty"`
	// Phase is "resolving", "fetching", "importing" or "done".
	Phase string `json:"phase,omitempty"`
	// Digest is the manifest that the reference resolved to. Layers are those that changed since
	// the event before.
	Digest string      `json:"digest,omitempty"`
	Layers []PullLayer `json:"layers,omitempty"`
	// Images are the resulting images. They are set for type "end".
	Images []Image `json:"images,omitempty"`
}

// PullLayer is the download progress of one layer.
type PullLayer struct {
	Digest    string `json:"digest"`
	SizeBytes int64  `json:"size_bytes"`
	HaveBytes int64  `json:"have_bytes"`
	// Here reports that the layer was already stored.
	Here bool `json:"here,omitempty"`
}

// ImageCollection is the result of a collection of images, or of its dry run.
type ImageCollection struct {
	// Items are all images, longest unused first.
	Items []CollectedImage `json:"items"`
	// FreedBytes is the space freed, of which BlobBytes were leftover downloads. UsedBytes is the
	// space still used. BudgetBytes and MaxAgeMS are the configured limits.
	FreedBytes  int64 `json:"freed_bytes"`
	BlobBytes   int64 `json:"blob_bytes"`
	UsedBytes   int64 `json:"used_bytes"`
	BudgetBytes int64 `json:"budget_bytes,omitempty"`
	MaxAgeMS    int64 `json:"max_age_ms,omitempty"`
	DryRun      bool  `json:"dry_run,omitempty"`
}

// CollectedImage reports whether an image was removed, and why.
type CollectedImage struct {
	ID        string    `json:"id"`
	Refs      []string  `json:"refs"`
	DiskBytes int64     `json:"disk_bytes"`
	UsedAt    time.Time `json:"used_at"`
	Removed   bool      `json:"removed"`
	Why       string    `json:"why"`
}

// BuildRequest describes a build from a Dockerfile. The request body is the build context as a tar.
type BuildRequest struct {
	// Ref is the name of the built image.
	Ref string `json:"ref"`
	// File is the path of the Dockerfile in the context (default: "Dockerfile").
	File string `json:"file,omitempty"`
	// Target is the stage to build. Network is the network of RUN steps (default: the engine's).
	// Keep pins the image.
	Target  string            `json:"target,omitempty"`
	Network string            `json:"network,omitempty"`
	Args    map[string]string `json:"args,omitempty"`
	Keep    bool              `json:"keep,omitempty"`
}
