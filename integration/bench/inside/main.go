// Inside is what the bench runs in a sandbox for comparison: fork and exec of a
// program with pipes, many times over, with nothing of ours in between.
//
//	inside N PROGRAM [ARGUMENT]...
//
// It prints the time of each run in nanoseconds, as a JSON list. It starts no
// goroutines but those of os/exec that read the pipes.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("usage: inside N PROGRAM [ARGUMENT]")
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	took := make([]time.Duration, n)
	for i := range took {
		var out, errOut bytes.Buffer
		began := time.Now()
		c := exec.Command(args[2], args[3:]...)
		c.Stdout, c.Stderr = &out, &errOut // not files: so these are pipes, read to their end
		if err := c.Run(); err != nil {
			return err
		}
		took[i] = time.Since(began)
	}
	return json.NewEncoder(os.Stdout).Encode(took)
}
