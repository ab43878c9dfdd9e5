package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"text/template"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

// formatJSON is the value of --format for one JSON object on a line for each item.
const formatJSON = "json"

// CheckOutput checks --output and --format. With --format, commands print as with --output json,
// and PrintJSON applies the format.
func (a *App) CheckOutput(cmd *cobra.Command) error {
	if a.Flags.Output != "table" && a.Flags.Output != "json" {
		return Usage(cmd, "--output is %q: use table or json", a.Flags.Output)
	}
	if a.Flags.Format == "" {
		return nil
	}
	if f := cmd.Flag("output"); f != nil && f.Changed {
		return Usage(cmd, "--output and --format are both given: use one of them")
	}
	if a.Flags.Format != formatJSON {
		if _, err := newFormat(a.Flags.Format); err != nil {
			return Usage(cmd, "--format is %q: use json or a Go template: %v", a.Flags.Format, err)
		}
	}
	a.Flags.Output = "json"
	return nil
}

// newFormat parses a template of --format. Tab and newline can be written as \t and \n, as Docker
// allows.
func newFormat(text string) (*template.Template, error) {
	text = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(text)
	t, err := template.New("format").Option("missingkey=error").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			b, err := json.Marshal(v)
			return string(b), err
		},
		"join":  strings.Join,
		"upper": strings.ToUpper,
		"lower": strings.ToLower,
	}).Parse(text)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: format:"))
	}
	return t, nil
}

// printFormatted prints v, or each of its items, as --format says.
func (a *App) printFormatted(v any) error {
	for _, item := range itemsOf(v) {
		if a.Flags.Format == formatJSON {
			if err := a.jsonLines().Encode(item); err != nil {
				return err
			}
			continue
		}
		t, err := newFormat(a.Flags.Format)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, item); err != nil {
			return Refuse(errdefs.ErrInvalidArgument, "--format: %s: %s", formatFault(err), fieldsOf(item))
		}
		if _, err := fmt.Fprint(a.Stdout, EscapeText(b.String())); err != nil {
			return err
		}
	}
	return nil
}

// formatFault returns what is wrong, without the position in the template and the type's name.
func formatFault(err error) string {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "can't evaluate field "); ok {
		field, _, _ := strings.Cut(after, " ")
		return "unknown field ." + field
	}
	return strings.TrimPrefix(text, "template: ")
}

// fieldsOf lists what a template can use.
func fieldsOf(v any) string {
	t := reflect.TypeOf(v)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return "use json to see its fields"
	}
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if f.IsExported() && !f.Anonymous {
			names = append(names, "."+f.Name)
		}
	}
	return "use " + strings.Join(names, ", ")
}

// itemsOf returns the Items of a list, or v alone.
func itemsOf(v any) []any {
	value := reflect.Indirect(reflect.ValueOf(v))
	if value.Kind() != reflect.Struct {
		return []any{v}
	}
	items := value.FieldByName("Items")
	if !items.IsValid() || items.Kind() != reflect.Slice {
		return []any{v}
	}
	out := make([]any, items.Len())
	for i := range out {
		out[i] = items.Index(i).Interface()
	}
	return out
}

// AddTableFlags adds the flags of commands that print a list.
func AddTableFlags(a *App, c *cobra.Command) {
	c.Flags().BoolVarP(&a.Flags.Quiet, "quiet", "q", false, "print only the first column: full ids or names")
	c.Flags().BoolVar(&a.Flags.NoTrunc, "no-trunc", false, "print whole ids and texts, whatever the terminal's width")
}
