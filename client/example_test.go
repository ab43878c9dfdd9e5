package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// startServer returns a client of a server that gives the same answer to every request.
func startServer(status int, answer any) (c *client.Client, closeAll func()) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			log.Print(err)
		}
	}))
	c, err := client.New(client.Options{Address: s.URL})
	if err != nil {
		log.Fatal(err)
	}
	return c, func() { c.Close(); s.Close() }
}

// Run a command in a sandbox that is destroyed afterwards.
func Example() {
	c, closeAll := startServer(http.StatusOK, v1.ExecResult{Ending: "exited", Stdout: "42\n"})
	defer closeAll()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := c.Run(ctx, v1.Run{Exec: v1.Exec{Command: "echo $((6*7))"}})
	if err != nil {
		log.Fatal(err) // the command did not run, or its end was not observed
	}
	fmt.Print(r.Ending, " ", r.ExitCode, ": ", r.Stdout)
	// Output: exited 0: 42
}

// Connect to a server over TCP with a token.
func ExampleNew() {
	c, err := client.New(
		client.Options{Address: "https://sandboxes.example.com:8443", Token: os.Getenv("ORCHESTRATOR_TOKEN")},
	)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println(c.Address())
	// Output: https://sandboxes.example.com:8443
}

// Distinguish a server that is not running from a connection that broke.
func ExampleErrNoServer() {
	c, err := client.New(client.Options{Address: "unix:/nonexistent/orchestrator.sock"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	_, err = c.Version(context.Background())
	switch {
	case errors.Is(err, client.ErrNoServer):
		fmt.Println("not running: nothing was sent")
	case errors.Is(err, client.ErrLost):
		fmt.Println("cut: the operation may have happened")
	}
	// Output: not running: nothing was sent
}

// Read the class and the details of an error that the server returned.
func ExampleClient_Sandbox_notFound() {
	c, closeAll := startServer(
		http.StatusNotFound,
		v1.Problem{Status: 404, Code: "not_found", Detail: `sandbox "s1" not found`},
	)
	defer closeAll()

	_, err := c.Sandbox(context.Background(), "s1")
	if problem, ok := errors.AsType[*v1.Problem](err); ok {
		fmt.Println(problem.Code, problem.Detail)
	}
	fmt.Println(errdefs.IsNotFound(err))
	// Output:
	// not_found sandbox "s1" not found
	// true
}

// Lease a sandbox, use it for several commands, and destroy it.
func ExampleClient_CreateSandbox() {
	c, err := client.New(client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	sb, err := c.CreateSandbox(ctx, v1.SandboxRequest{Workspace: "project", TTLMS: time.Hour.Milliseconds()})
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := c.RemoveSandbox(ctx, sb.ID); err != nil {
			log.Print(err)
		}
	}()
	for _, command := range []string{"make", "make test"} {
		r, err := c.Exec(ctx, sb.ID, v1.Exec{Command: command, TimeoutMS: time.Minute.Milliseconds()})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(command, r.Ending, r.ExitCode)
	}
}

// Retry a request safely: the repeated request with the same key does not run the command again.
func ExampleIdempotencyKey() {
	c, closeAll := startServer(http.StatusOK, v1.ExecResult{Ending: "exited"})
	defer closeAll()

	ctx, key := context.Background(), client.IdempotencyKey(client.NewKey())
	r, err := c.Run(ctx, v1.Run{Exec: v1.Exec{Command: "make release"}}, key)
	if errors.Is(err, client.ErrLost) {
		r, err = c.Run(ctx, v1.Run{Exec: v1.Exec{Command: "make release"}}, key)
	}
	fmt.Println(r.Ending, err)
	// Output: exited <nil>
}

// Copy a command's input and output while it runs.
func ExampleClient_ExecStream() {
	c, err := client.New(client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	r, err := c.ExecStream(context.Background(), "SANDBOX", v1.Exec{Argv: []string{"sort"}}, client.Streams{
		Stdin: strings.NewReader("b\na\n"), Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Ending, r.ExitCode)
}

// Keep a shell's state between commands.
func ExampleClient_StartSession() {
	c, err := client.New(client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	session, _, err := c.StartSession(ctx, "SANDBOX", v1.ShellSessionRequest{})
	if err != nil {
		log.Fatal(err)
	}
	for _, command := range []string{"cd src && export MODE=debug", `echo "$PWD $MODE"`} {
		r, err := session.Run(ctx, command)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(r.Stdout)
	}
}

// Start a background command and follow its output, across restarts of the server.
func ExampleClient_Follow() {
	c, err := client.New(client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	shell, err := c.StartShell(ctx, "SANDBOX", v1.ShellRequest{Exec: v1.Exec{Command: "make watch"}})
	if err != nil {
		log.Fatal(err)
	}
	end, err := c.Follow(ctx, shell.ID, client.FollowRequest{
		Gap: func(from, to int64) { log.Printf("%d bytes are no longer kept", to-from) },
	}, os.Stdout)
	fmt.Println(end, err)
}

// Write and read files of a sandbox.
func ExampleClient_SandboxFiles() {
	c, err := client.New(client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, files := context.Background(), c.SandboxFiles("SANDBOX")
	if _, err := files.Write(ctx, "main.py", strings.NewReader("print(6*7)"), client.WriteOptions{Mode: "0755"}); err != nil {
		log.Fatal(err)
	}
	f, err := files.Read(ctx, "main.py", client.Range{Limit: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(os.Stdout, f); err != nil {
		log.Print(err)
	}
}

// Send HTTP requests to a server that listens on a port inside a sandbox.
func ExampleClient_PortTransport() {
	c, err := client.New(client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	transport := c.PortTransport("SANDBOX")
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://localhost:8080/")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
}
