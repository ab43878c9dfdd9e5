// Command web is the guest's program for what is on the web: a request on stdin,
// its answer on stdout, see package web. It is a binary of its own so that what
// parses pages costs the first process of a sandbox nothing.
package main

import (
	"context"
	"os"

	"github.com/sandbox-orchestrator/orchestrator/internal/web/program"
)

func main() { os.Exit(program.Main(context.Background(), os.Stdin, os.Stdout)) }
