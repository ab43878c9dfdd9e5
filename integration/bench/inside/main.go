// Command inside makes the load that the bench measures, in a sandbox and on the host.
//
//	inside fork N PROGRAM [ARGUMENT]...   fork and exec with pipes, one after the other
//	inside get N URL [PROXY]              requests over one connection, one after the other
//	inside pull TARGET [PROXY]            what a server sends until it closes, through CONNECT
//	inside hold N TARGET PROXY            as many tunnels, until standard input ends
//
// fork, get and pull print times in nanoseconds as a JSON list; pull prints the bytes first. hold
// prints "held" when all tunnels are open. It starts no goroutines but those of os/exec and
// net/http.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: inside fork N PROGRAM [ARGUMENT]... | get N URL [PROXY] | " +
	"pull TARGET [PROXY] | hold N TARGET PROXY")

func run(args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	switch n, err := strconv.Atoi(args[1]); {
	case args[0] == "pull" && len(args) <= 3:
		return pull(args[1], append(args, "")[2])
	case err != nil || len(args) < 3:
		return errUsage
	case args[0] == "fork":
		return list(n, func() error { return fork(args[2:]) })
	case args[0] == "get" && len(args) <= 4:
		return get(n, args[2], append(args, "")[3])
	case args[0] == "hold" && len(args) == 4:
		return hold(n, args[2], args[3])
	}
	return errUsage
}

// list prints how long each of n took.
func list(n int, do func() error) error {
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if err := do(); err != nil {
			return err
		}
		took[i] = time.Since(began)
	}
	return json.NewEncoder(os.Stdout).Encode(took)
}

func fork(argv []string) error {
	var out, errOut bytes.Buffer
	c := exec.Command(argv[0], argv[1:]...)
	c.Stdout, c.Stderr = &out, &errOut // not files: so these are pipes, read to their end
	return c.Run()
}

func get(n int, target, proxy string) error {
	t := &http.Transport{}
	if proxy != "" {
		t.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})
	}
	client := &http.Client{Transport: t, Timeout: time.Minute}
	one := func() error {
		resp, err := client.Get(target)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	}
	if err := one(); err != nil { // the connection's
		return err
	}
	return list(n, one)
}

// dial connects, through a proxy if there is one.
func dial(target, proxy string) (io.ReadCloser, error) {
	if proxy == "" {
		return net.Dial("tcp", target)
	}
	nc, err := net.Dial("tcp", proxy)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(nc, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	head := bufio.NewReaderSize(nc, 16)
	for first := true; ; first = false {
		line, err := head.ReadString('\n')
		switch {
		case err != nil:
			return nil, err
		case first && !bytes.Contains([]byte(line), []byte(" 200 ")):
			return nil, errors.New(line)
		case line == "\r\n":
			rest, _ := head.Peek(head.Buffered())
			return struct {
				io.Reader
				io.Closer
			}{io.MultiReader(bytes.NewReader(rest), nc), nc}, nil
		}
	}
}

func pull(target, proxy string) error {
	from, err := dial(target, proxy)
	if err != nil {
		return err
	}
	defer from.Close()
	began := time.Now()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{from}, make([]byte, 256<<10))
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode([]int64{n, int64(time.Since(began))})
}

func hold(n int, target, proxy string) error {
	held := make([]io.Closer, 0, n) // until the end of the program
	for range n {
		nc, err := dial(target, proxy)
		if err != nil {
			return err
		}
		held = append(held, nc)
	}
	fmt.Println("held")
	_, err := io.Copy(io.Discard, os.Stdin)
	for _, nc := range held {
		nc.Close()
	}
	return err
}
