// Command web is guest-web: it reads a request on stdin and writes the answer to stdout; see
// package web. It is a separate binary so that its parsers cost the guest no memory.
package main

import (
	"context"
	"os"

	"github.com/sandbox-orchestrator/orchestrator/internal/web/program"
)

func main() { os.Exit(program.Main(context.Background(), os.Stdin, os.Stdout)) }
