package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// engine talks to a Docker Engine by plain HTTP over its socket, so that no client library is
// measured.
type engine struct {
	host string // unix://PATH
	http *http.Client
	made []string // containers to remove
}

// newEngine returns a client for the engine at a unix socket.
func newEngine(host string) (*engine, error) {
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return nil, fmt.Errorf("engine %q is not at a unix socket", host)
	}
	var d net.Dialer
	return &engine{host: host, http: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 8,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", path)
		},
	}}}, nil
}

// ask sends a request and reads the whole answer; out may be nil.
func (e *engine) ask(ctx context.Context, method, path string, body, out any) error {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://engine/v1.40"+path, content)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode > 299 {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, b)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// object is a JSON object.
type object = map[string]any

// version returns the engine's name and version.
func (e *engine) version(ctx context.Context) (string, error) {
	var v struct{ Version string }
	err := e.ask(ctx, http.MethodGet, "/version", nil, &v)
	return "Docker " + v.Version, err
}

// exec runs a program in a container through the engine and reads all its output.
func (e *engine) exec(ctx context.Context, container string, argv ...string) error {
	var made struct{ Id string }
	err := e.ask(ctx, http.MethodPost, "/containers/"+container+"/exec",
		object{"AttachStdout": true, "AttachStderr": true, "Cmd": argv}, &made)
	if err != nil {
		return err
	}
	return e.ask(ctx, http.MethodPost, "/exec/"+made.Id+"/start", object{"Detach": false, "Tty": false}, nil)
}

// createStart creates and starts a container that sleeps.
func (e *engine) createStart(ctx context.Context, image string) (id string, err error) {
	var made struct{ Id string }
	err = e.ask(ctx, http.MethodPost, "/containers/create", object{
		"Image":      image,
		"Entrypoint": []string{"/bin/sleep"},
		"Cmd":        []string{"600"},
		"Labels":     object{"orchestrator.bench": "control"},
		"HostConfig": object{"NetworkMode": "none", "LogConfig": object{"Type": "none"}},
	}, &made)
	if err != nil {
		return "", err
	}
	e.made = append(e.made, made.Id)
	return made.Id, e.ask(ctx, http.MethodPost, "/containers/"+made.Id+"/start", nil, nil)
}

// remove removes a container.
func (e *engine) remove(ctx context.Context, id string) error {
	return e.ask(ctx, http.MethodDelete, "/containers/"+id+"?force=true&v=true", nil, nil)
}

// clear removes the containers of createStart.
func (e *engine) clear(ctx context.Context) error {
	for len(e.made) > 0 {
		if err := e.remove(ctx, e.made[0]); err != nil {
			return err
		}
		e.made = e.made[1:]
	}
	return nil
}
