package runtime

import (
	"context"
	"io"
)

// ImageForgetter is for drivers that keep a copy of their own of an image that
// Prepare was given.
type ImageForgetter interface {
	// Forget removes the driver's copy of an image. Nothing there is success; one
	// that a container still uses is an error of class FailedPrecondition, and
	// stays usable. Prepare brings it back.
	Forget(ctx context.Context, image Image) error
}

// Build is one build from a Dockerfile.
type Build struct {
	// Context is a tar, File the Dockerfile's path in it.
	Context io.Reader
	File    string
	// Bases are the images that it names; the engine has them for the time of the
	// build.
	Bases []Base
	Args  map[string]string
	// Target is the stage to stop at, Network what RUN has: empty is the engine's
	// default.
	Target, Network string
	// Log gets what the build writes.
	Log io.Writer
}

// Base is an image by the name that one build has for it, and no other: who
// ends first takes names away.
type Base struct {
	Name  string
	Image Image
}

// ImageBuilder is what can build from a Dockerfile.
type ImageBuilder interface {
	// Build returns the image as a docker-archive, to be closed by the caller.
	// Nothing of the build is left in the engine then, nor when it fails or ctx
	// ends. A build that fails is of class InvalidArgument, an engine that is not
	// there of class Unavailable.
	Build(ctx context.Context, b Build) (io.ReadCloser, error)
}
