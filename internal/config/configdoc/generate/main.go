// Command generate writes docs/configuration.md. Run it with "go generate ./internal/config".
package main

import (
	"fmt"
	"os"

	"github.com/sandbox-orchestrator/orchestrator/internal/config/configdoc"
)

func main() {
	page, err := configdoc.Page(".")
	if err == nil {
		err = os.WriteFile("../../docs/configuration.md", page, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
