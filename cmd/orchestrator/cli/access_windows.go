package cli

import "github.com/sandbox-orchestrator/orchestrator/client"

// ExplainAccess returns why this account may not connect to a server's socket, and how it gets
// access.
func ExplainAccess(e *client.AccessError) (fact, remedy string) {
	return "no permission for the server's socket " + e.Address, "use its TCP address with --address and --token-file"
}
