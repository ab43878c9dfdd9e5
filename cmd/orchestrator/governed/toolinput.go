package governed

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// jsonObject checks that b is a JSON object.
func jsonObject(cmd *cobra.Command, flag string, b []byte) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(b, &object); err != nil || object == nil {
		why := "it is null"
		if err != nil {
			why = err.Error()
		}
		return nil, cli.Usage(cmd, "%s is not a JSON object: %s", flag, why)
	}
	return b, nil
}

// schema is the part of a JSON Schema that is needed to read a value from a command line.
type schema struct {
	Type       typeNames         `json:"type"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
}

// typeNames holds one type name or several.
type typeNames []string

// UnmarshalJSON accepts a string or a list.
func (t *typeNames) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*t = typeNames{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// UnmarshalJSON accepts true and false as well, which are valid schemas.
func (s *schema) UnmarshalJSON(b []byte) error {
	if string(b) == "true" || string(b) == "false" {
		return nil
	}
	type plain schema
	return json.Unmarshal(b, (*plain)(s))
}

// pairsInput builds an input from KEY=VALUE and KEY:=JSON, with the types of the tool's schema.
func pairsInput(cmd *cobra.Command, t v1.Tool, pairs []string) ([]byte, error) {
	var s schema
	if err := json.Unmarshal(t.Input, &s); err != nil {
		return nil, fmt.Errorf("the input schema of %s: %w", t.Name, err)
	}
	in := map[string]any{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, cli.Usage(cmd, "%q is not KEY=VALUE", pair)
		}
		if literal, ok := strings.CutSuffix(key, ":"); ok && literal != "" {
			if !json.Valid([]byte(value)) {
				return nil, cli.Usage(cmd, "%s is not JSON: %q", literal, value)
			}
			in[literal] = json.RawMessage(value)
			continue
		}
		property, ok := s.Properties[key]
		if !ok {
			return nil, cli.Usage(
				cmd,
				"%s takes no %q: it takes %s",
				t.Name,
				key,
				strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", "),
			)
		}
		if err := property.set(in, key, value); err != nil {
			return nil, cli.Usage(cmd, "%s %s", key, err)
		}
	}
	return json.Marshal(in)
}

// set reads a value and sets it, or appends it to a list.
func (s schema) set(in map[string]any, key, value string) error {
	list, has := in[key].([]any)
	if slices.Contains(s.Type, "array") && !strings.HasPrefix(value, "[") {
		item := schema{Type: typeNames{"string"}}
		if s.Items != nil {
			item = *s.Items
		}
		v, err := item.value(value)
		if err != nil {
			return err
		}
		in[key] = append(list, v)
		return nil
	}
	if _, twice := in[key]; twice || has {
		return fmt.Errorf("is given more than once")
	}
	v, err := s.value(value)
	if err != nil {
		return err
	}
	in[key] = v
	return nil
}

// value reads a value. If several types are allowed, a string is the last choice.
func (s schema) value(word string) (any, error) {
	types := s.Type
	if len(types) == 0 {
		types = typeNames{"string"}
	}
	for _, name := range types {
		switch name {
		case "integer":
			if n, err := strconv.ParseInt(word, 10, 64); err == nil {
				return n, nil
			}
		case "number":
			if n, err := strconv.ParseFloat(word, 64); err == nil && json.Valid([]byte(word)) {
				return n, nil
			}
		case "boolean":
			if word == "true" || word == "false" {
				return word == "true", nil
			}
		case "array", "object":
			if json.Valid([]byte(word)) {
				return json.RawMessage(word), nil
			}
		}
	}
	if slices.Contains(types, "string") {
		return word, nil
	}
	return nil, fmt.Errorf("is %q and must be of type %s", word, strings.Join(types, " or "))
}
