package runtime

import (
	"context"
	"io"
)

// ImageForgetter is implemented by drivers that keep their own copy of an image that Prepare was
// given.
type ImageForgetter interface {
	// Forget removes the driver's copy of an image. It succeeds if there is none. If a container
	// still uses the image, Forget returns an error of class FailedPrecondition and the image stays
	// usable. Prepare restores a copy.
	Forget(ctx context.Context, image Image) error
}

// ImageResolver is implemented by drivers whose engine pulls images itself. Their images need not
// be in the orchestrator's store.
type ImageResolver interface {
	// ResolveImage returns the image that Create gets for a reference.
	ResolveImage(ctx context.Context, ref string) (Image, error)
}

// Build is one build from a Dockerfile.
type Build struct {
	// Context is a tar archive; File is the path of the Dockerfile in it.
	Context io.Reader
	File    string
	// Bases are the images that the Dockerfile names. The engine holds them for the duration of the
	// build.
	Bases []Base
	Args  map[string]string
	// Target is the stage to stop at. Network is the network of RUN; empty means the engine's
	// default.
	Target, Network string
	// Log receives the output of the build.
	Log io.Writer
}

// Base is an image under a name that only one build uses, so that the end of one build cannot
// remove the name of another.
type Base struct {
	Name  string
	Image Image
}

// ImageBuilder builds images from a Dockerfile.
type ImageBuilder interface {
	// Build returns the image as a docker-archive, which the caller closes. Nothing of the build is
	// left in the engine then, nor when the build fails or ctx ends. A failed build is of class
	// InvalidArgument, an unreachable engine of class Unavailable.
	Build(ctx context.Context, b Build) (io.ReadCloser, error)
}
