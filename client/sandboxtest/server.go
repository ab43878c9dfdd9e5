package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
)

const (
	// answerTime bounds a request that checks whether a server is up.
	answerTime = 5 * time.Second
	// startTime bounds starting a server, including the import of its image.
	startTime = 5 * time.Minute
	// stopTime bounds stopping a server, including the destruction of all sandboxes.
	stopTime = 2 * time.Minute
	// maxSaid bounds how much output of a failed program is shown, in bytes.
	maxSaid = 2 << 10
)

// server is shared by all tests of this process.
//
//nolint:gochecknoglobals // tests of a binary can share a server only in this way
var server struct {
	sync.Mutex
	client *client.Client
	err    error // of the first start, which is not retried
	own    *own
}

// own is a server that this process started.
type own struct {
	dir   string
	pipe  io.Closer // closing it stops the server
	ended chan struct{}
	err   error // written before ended is closed
}

// connect returns a client for a running server. It starts a server if necessary.
func connect(ctx context.Context) (*client.Client, error) {
	server.Lock()
	defer server.Unlock()
	if server.client == nil && server.err == nil {
		server.client, server.err = find(ctx)
	}
	return server.client, server.err
}

// find looks for a running server and starts one if there is none.
func find(ctx context.Context) (*client.Client, error) {
	address := os.Getenv("ORCHESTRATOR_ADDRESS")
	token, err := token()
	if err != nil {
		return nil, err
	}
	cl, err := client.New(client.Options{Address: address, Token: token})
	if err != nil {
		return nil, fmt.Errorf("ORCHESTRATOR_ADDRESS: %w", err)
	}
	ask, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, err = cl.Version(ask)
	switch {
	case err == nil:
		return cl, nil
	case address != "":
		return nil, fmt.Errorf("the server at ORCHESTRATOR_ADDRESS failed: %w", err)
	case !errors.Is(err, client.ErrNoServer):
		return nil, fmt.Errorf("the server at %s failed: %w", cl.Address(), err)
	}
	return start(ctx)
}

func token() (string, error) {
	if v := os.Getenv("ORCHESTRATOR_TOKEN"); v != "" {
		return v, nil
	}
	path := os.Getenv("ORCHESTRATOR_TOKEN_FILE")
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("ORCHESTRATOR_TOKEN_FILE: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// start starts a server with a temporary state directory.
func start(ctx context.Context) (_ *client.Client, err error) {
	bin, archive, err := needs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sandboxtest-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && server.own == nil { // otherwise the server removes it
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	listen := "unix:" + filepath.Join(dir, "o.sock")
	for name, text := range map[string]string{
		"ephemeral": "", // allows the server to remove the directory
		"config.yaml": "listen: " + listen + "\nruntime: " + runtimeName() + "\n" +
			"templates:\n  default:\n    pool: {min: 1, max: 50, rate: 20, parallel: 2}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	args := []string{"--config", filepath.Join(dir, "config.yaml"), "--state-dir", dir}
	if archive != "" {
		load := exec.CommandContext(ctx, bin, append(slices.Clone(args), "image", "import", "--shared", sharedImages(), archive)...)
		load.Env = environment()
		if said, err := load.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("import the image %s: %w: %s", archive, err, tail(said))
		}
	}
	o, err := launch(bin, dir, append(args, "serve", "--ephemeral"))
	if err != nil {
		return nil, err
	}
	server.own = o
	cl, err := client.New(client.Options{Address: listen})
	if err != nil {
		return nil, err
	}
	return cl, o.await(ctx, cl)
}

// needs returns the program and the image archive for a new server, or an error that says what is
// missing.
func needs() (bin, archive string, err error) {
	const how = "no server answers, and none can be started: "
	if os.Geteuid() != 0 {
		return "", "",
			errors.New(how + "that needs root; start `orchestrator serve` and give its address in ORCHESTRATOR_ADDRESS")
	}
	if bin = os.Getenv("ORCHESTRATOR_BIN"); bin == "" {
		if bin, err = exec.LookPath("orchestrator"); err != nil {
			return "", "", errors.New(how + "`orchestrator` not found in PATH: set ORCHESTRATOR_BIN")
		}
	}
	if archive = os.Getenv("ORCHESTRATOR_IMAGE_ARCHIVE"); archive != "" {
		return bin, archive, nil
	}
	found, err := filepath.Glob(filepath.Join(cacheDir(), "sandbox-*", "sandbox.tar"))
	if err != nil || len(found) == 0 {
		return "", "", fmt.Errorf("%simage not found: set the path of an archive with orchestrator/sandbox:latest "+
			"in ORCHESTRATOR_IMAGE_ARCHIVE, or make one with `make image`", how)
	}
	slices.SortFunc(found, func(a, b string) int { return modified(b).Compare(modified(a)) })
	return bin, found[0], nil
}

func cacheDir() string {
	if dir := os.Getenv("ORCHESTRATOR_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/orchestrator"
}

// sharedImages returns the directory of the images that the servers of all test processes share.
// Importing one takes seconds.
func sharedImages() string { return filepath.Join(cacheDir(), "sandboxtest") }

func modified(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// runtimeName returns ORCHESTRATOR_RUNTIME, or the embedded runtime.
func runtimeName() string {
	if v := os.Getenv("ORCHESTRATOR_RUNTIME"); v != "" {
		return v
	}
	return "oci"
}

// environment returns this process's environment without variables that would configure the server.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return strings.HasPrefix(name, "ORCHESTRATOR_") && name != "ORCHESTRATOR_OCI_RUNTIME" &&
			name != "ORCHESTRATOR_DOCKER_HOST" && name != "ORCHESTRATOR_DOCKER_MODE"
	})
}

// launch starts the server in a separate session: a Ctrl-C for the test must not reach it. The end
// of the pipe stops it instead.
func launch(bin, dir string, args []string) (*own, error) {
	log, err := os.Create(filepath.Join(dir, "serve.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command(bin, args...)
	cmd.Dir, cmd.Env = "/", environment()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a server: %w", err), w.Close())
	}
	o := &own{dir: dir, pipe: w, ended: make(chan struct{})}
	go func() { // ends with the server, which Stop waits for
		o.err = cmd.Wait()
		close(o.ended)
	}()
	return o, nil
}

// await waits until the server answers.
func (o *own) await(ctx context.Context, cl *client.Client) error {
	for {
		ask, cancel := context.WithTimeout(ctx, answerTime)
		_, err := cl.Version(ask)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-o.ended:
			said, _ := os.ReadFile(filepath.Join(o.dir, "serve.log"))
			return fmt.Errorf("the started server has ended: %w: %s", o.err, tail(said))
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the started server does not answer: %w", err), o.pipe.Close())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail returns the end of a program's output.
func tail(said []byte) string {
	return strings.TrimSpace(string(said[max(0, len(said)-maxSaid):]))
}

// Stop stops the server that this process started, if any, and waits until it has removed
// everything. Call it from TestMain to get an error of the shutdown; otherwise the server stops
// after the process has ended. No test may use a sandbox afterwards.
func Stop() error {
	server.Lock()
	defer server.Unlock()
	o := server.own
	if o == nil {
		return nil
	}
	server.own, server.client, server.err = nil, nil, errors.New("the server of these tests was stopped")
	err := o.pipe.Close()
	select {
	case <-o.ended:
		if o.err != nil {
			err = errors.Join(err, fmt.Errorf("end the server: %w", o.err))
		}
		return err
	case <-time.After(stopTime):
		return errors.Join(err,
			fmt.Errorf("the server with the state directory %s did not end within %s", o.dir, stopTime))
	}
}
