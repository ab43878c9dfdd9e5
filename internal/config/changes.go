package config

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Reloadable reports whether a running service applies a change of the key when it reloads its
// configuration.
func Reloadable(key string) bool {
	for _, prefix := range []string{
		"egress.allow", "log.level", "profiles", "templates", "templates_dir", "tls.clients", "token_file",
	} {
		if rest, ok := strings.CutPrefix(key, prefix); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// Changes returns the keys whose values differ, sorted. A list is one key.
func Changes(a, b Config) ([]string, error) {
	before, err := leaves(a)
	if err != nil {
		return nil, err
	}
	after, err := leaves(b)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(before)
	maps.Copy(all, after)
	maps.DeleteFunc(all, func(key string, _ any) bool { return reflect.DeepEqual(before[key], after[key]) })
	return slices.Sorted(maps.Keys(all)), nil
}

// leaves returns the values of a configuration by key.
func leaves(c Config) (map[string]any, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	out := map[string]any{}
	flatten(out, "", tree)
	return out, nil
}

func flatten(out map[string]any, at string, tree map[string]any) {
	for key, value := range tree {
		path := strings.TrimPrefix(at+"."+key, ".")
		if below, ok := value.(map[string]any); ok && len(below) > 0 {
			flatten(out, path, below)
			continue
		}
		out[path] = value
	}
}
