package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/images/build"
)

type buildOptions struct {
	v1.BuildRequest
	args     []string
	quiet    bool
	packages []string
	from     string
}

func newImageBuild(a *cli.App) *cobra.Command {
	var o buildOptions
	c := &cobra.Command{
		Use:   "build -t NAME [CONTEXT]",
		Short: "Build an image from a Dockerfile or a list of packages",
		Long: `Build an image from a Dockerfile with the Docker Engine of the server's host. Every
runtime can use it. Base images come from the store, or are pulled into it by the
rules for pulls; the engine pulls none itself. It uses the classic builder: no
BuildKit syntax, no cache. The engine runs RUN commands with its own network, so
build only what you trust.

With --packages or --list, no engine is needed: debootstrap makes a Debian root
filesystem with these packages on this host, as root.`,
		Example: `  orchestrator image build -t tools:1 .
  orchestrator image build -t tools:1 -f build/Dockerfile --build-arg V=2 .
  orchestrator image build -t py:1 --packages python3,git
  orchestrator image build -t py:1 --list packages.yaml`,
		Args: cli.ExactArgs("[CONTEXT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Ref == "" {
				return cli.Usage(cmd, "-t NAME is missing")
			}
			packages := o.from != "" || len(o.packages) > 0
			switch {
			case packages && len(args) > 0:
				return cli.Usage(cmd, "--packages and --list take no CONTEXT")
			case packages:
				return runPackages(cmd.Context(), a, o)
			case len(args) == 0:
				return cli.Usage(cmd, "CONTEXT is missing")
			}
			return runImageBuild(cmd.Context(), a, args[0], o)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.Ref, "tag", "t", "", "`NAME` of the image")
	f.StringVarP(&o.File, "file", "f", "Dockerfile", "the Dockerfile's `PATH` in CONTEXT")
	f.StringArrayVar(&o.args, "build-arg", nil, "`NAME=VALUE` of an ARG")
	f.StringVar(&o.Target, "target", "", "`STAGE` to stop at")
	f.StringVar(&o.Network, "network", "", "`NETWORK` of RUN commands, such as none or host (default: the engine's)")
	f.BoolVar(&o.Keep, "pin", false, "pin the image, so that it is never collected")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only the image's id")
	f.StringSliceVar(&o.packages, "packages", nil, "`NAMES` of Debian packages, for a build without an engine")
	f.StringVar(&o.from, "list", "", "`FILE` that lists packages, for a build without an engine")
	return c
}

func runImageBuild(ctx context.Context, a *cli.App, dir string, o buildOptions) error {
	o.Args = map[string]string{}
	for _, arg := range o.args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return cli.Refuse(errdefs.ErrInvalidArgument, "--build-arg %q is not NAME=VALUE", arg)
		}
		o.Args[name] = value
	}
	show := newBuildProgress(a, o.quiet)
	packing, stop := context.WithCancel(ctx)
	defer stop()
	in, out := io.Pipe()
	packed := make(chan error, 1)
	go func() { // waited for below
		err := build.Pack(packing, dir, o.File, out)
		out.CloseWithError(err)
		packed <- err
	}()
	var list []v1.Image
	err := withImages(ctx, a, standalone.ImageNeeds{Registry: true}, func(cl *client.Client) (err error) {
		list, err = cl.Images.Build(ctx, o.BuildRequest, in, show)
		return err
	})
	in.CloseWithError(errors.New("the build has ended"))
	stop()
	if packErr := <-packed; packErr != nil && err != nil && !errors.Is(packErr, io.ErrClosedPipe) && ctx.Err() == nil &&
		strings.HasPrefix(packErr.Error(), "build context") {
		err = packErr // this is why the server got no context
	}
	if err != nil {
		return err
	}
	return printNew(a, list, o.quiet)
}

func printNew(a *cli.App, list []v1.Image, quiet bool) error {
	if quiet && a.Flags.Output != "json" {
		for _, i := range list[:min(1, len(list))] {
			fmt.Fprintln(a.Stdout, i.ID)
		}
		return nil
	}
	return printImages(a, list)
}

// newBuildProgress returns a function that prints the output of a build and the progress of its
// pulls.
func newBuildProgress(a *cli.App, quiet bool) func(v1.PullEvent) {
	var pulls *pullProgress
	base := ""
	return func(e v1.PullEvent) {
		switch {
		case quiet:
		case e.Type == "log":
			for line := range strings.Lines(e.Log) {
				text, ended := strings.CutSuffix(line, "\n")
				fmt.Fprint(a.Stderr, cli.Escape(text))
				if ended {
					fmt.Fprintln(a.Stderr)
				}
			}
		case e.Type == "progress":
			if pulls == nil || e.Ref != base {
				pulls, base = newPullProgress(a, false), e.Ref
				fmt.Fprintln(a.Stderr, "pulling", cli.Escape(base))
			}
			pulls.event(e)
		}
	}
}
