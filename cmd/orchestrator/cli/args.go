package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// UsageError is a command line that cannot be carried out.
type UsageError struct{ message, hint string }

// Error is one line with what to do.
func (e *UsageError) Error() string { return e.message + "; " + e.hint }

// Usage returns a UsageError that points to the help of cmd.
func Usage(cmd *cobra.Command, format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...), "see `" + cmd.CommandPath() + " --help`"}
}

// UnknownCommand is what a command that only has others does.
func UnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return &UsageError{fmt.Sprintf("unknown command %q", cmd.CommandPath()+" "+args[0]), fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), MostSimilar(like, args[0]))}
	}
	return Usage(cmd, "unknown command %q", cmd.CommandPath()+" "+args[0])
}

// MostSimilar is the name that begins most like word; of several, the first.
func MostSimilar(names []string, word string) string {
	alike := func(name string) (n int) {
		for n < min(len(name), len(word)) && name[n] == word[n] {
			n++
		}
		return n
	}
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(alike(a), alike(b)) })
}

// Group is a command that only has others.
func Group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: example, Args: cobra.ArbitraryArgs, RunE: UnknownCommand}
	c.AddCommand(commands...)
	return c
}

// ExactArgs asks for exactly these arguments; one in brackets may be missing.
func ExactArgs(want ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range want {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return Usage(cmd, "%s is missing", name)
			}
			if i < len(args) && args[i] == "" {
				return Usage(cmd, "%s is empty", strings.Trim(name, "[]"))
			}
		}
		if len(args) > len(want) {
			return Usage(cmd, "unexpected argument %q", args[len(want)])
		}
		return nil
	}
}

// Environment reads --env: KEY=VALUE, or KEY for what we have ourselves.
func (a *App) Environment(cmd *cobra.Command, list []string) (map[string]string, error) {
	full := make([]string, 0, len(list))
	for _, e := range list {
		if !strings.Contains(e, "=") {
			v, ok := a.Lookup(e)
			if !ok {
				return nil, Usage(cmd, "--env %s is not set here: give it as %s=VALUE", e, e)
			}
			e += "=" + v
		}
		full = append(full, e)
	}
	return ParsePairs(cmd, "--env", full)
}

// ParsePairs reads values of the form KEY=VALUE. flag names them in errors.
func ParsePairs(cmd *cobra.Command, flag string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(list))
	for _, e := range list {
		k, v, ok := strings.Cut(e, "=")
		if !ok || k == "" {
			return nil, Usage(cmd, "%s %q is not KEY=VALUE", flag, e)
		}
		out[k] = v
	}
	return out, nil
}

// SetIfGiven puts what was given over what was configured.
func SetIfGiven(value *string, given string) {
	if given != "" {
		*value = given
	}
}
