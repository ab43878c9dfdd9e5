package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// UsageError reports an invalid command line.
type UsageError struct{ message, hint string }

// Error implements error. It is one line, with what to do.
func (e *UsageError) Error() string { return e.message + "; " + e.hint }

// Usage returns a UsageError that points to the help of cmd.
func Usage(cmd *cobra.Command, format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...), "see `" + cmd.CommandPath() + " --help`"}
}

// UnknownCommand is the RunE of a command that only groups others. It shows the help, or refuses an
// unknown name and suggests a similar one.
func UnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return &UsageError{
			fmt.Sprintf("unknown command %q", cmd.CommandPath()+" "+args[0]),
			fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), MostSimilar(like, args[0])),
		}
	}
	return Usage(cmd, "unknown command %q", cmd.CommandPath()+" "+args[0])
}

// MostSimilar returns the name that shares the longest prefix with word, the first of several.
func MostSimilar(names []string, word string) string {
	alike := func(name string) (n int) {
		for n < min(len(name), len(word)) && name[n] == word[n] {
			n++
		}
		return n
	}
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(alike(a), alike(b)) })
}

// Group returns a command that only groups others.
func Group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: example, Args: cobra.ArbitraryArgs, RunE: UnknownCommand}
	c.AddCommand(commands...)
	return c
}

// ExactArgs requires the named arguments. A name in brackets is optional.
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

// FirstArgs requires the named arguments. Others may follow.
func FirstArgs(want ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		return ExactArgs(want...)(cmd, args[:min(len(args), len(want))])
	}
}

// Environment reads values of --env: KEY=VALUE, or KEY to pass on a variable of this process.
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

// SetIfGiven replaces a configured value unless given is "".
func SetIfGiven(value *string, given string) {
	if given != "" {
		*value = given
	}
}
