package expr

import (
	"fmt"
	"slices"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
	"github.com/containerd/errdefs"
)

// library returns the environment without variables. It is shared, because creating it takes longer
// than compiling an expression.
var library = sync.OnceValues(func() (*cel.Env, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	env, err := cel.NewEnv(
		cel.CustomTypeAdapter(adapter{registry}),
		cel.CustomTypeProvider(registry),
		cel.ParserExpressionSizeLimit(MaxSource),
		cel.ParserRecursionLimit(maxNesting),
		cel.ParserErrorRecoveryLimit(4),
		cel.ExpressionNodeLimit(maxNodes),
		cel.RegexProgramSizeLimit(maxRegexp),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.OptionalTypes(),
		ext.Strings(), ext.Lists(ext.ListsMaxRangeSize(maxRange)), ext.Sets(), ext.Math(), ext.Encoders(),
		ext.Bindings(), ext.TwoVarComprehensions(), ext.Regex(),
	)
	if err != nil {
		return nil, err
	}
	return withSizeChecks(env)
})

func environment(vars []string) (*cel.Env, error) {
	base, err := library()
	if err != nil {
		return nil, err
	}
	opts := make([]cel.EnvOption, 0, len(vars))
	for _, v := range vars {
		opts = append(opts, cel.Variable(v, cel.DynType))
	}
	env, err := base.Extend(opts...)
	if err != nil {
		return nil, fmt.Errorf("variables %q: %s: %w", vars, line(err.Error()), errdefs.ErrInvalidArgument)
	}
	return env, nil
}

// heavy lists functions whose work or result can be the product of the sizes of two arguments. CEL
// counts the cost of a call only afterwards, when it could have exhausted memory.
var heavy = []string{"replace", "join", "indexOf", "lastIndexOf", "distinct", "regex.replace",
	"regex.extract", "regex.extractAll", "sets.contains", "sets.equivalent", "sets.intersects"}

// withSizeChecks adds a check of the argument sizes to the heavy functions.
func withSizeChecks(env *cel.Env) (*cel.Env, error) {
	var opts []cel.EnvOption
	for _, name := range heavy {
		decl, ok := env.Functions()[name]
		if !ok {
			return nil, fmt.Errorf("expression library has no function %s: %w", name, errdefs.ErrInternal)
		}
		bindings, err := decl.Bindings()
		if err != nil {
			return nil, err
		}
		for _, o := range decl.OverloadDecls() {
			i := slices.IndexFunc(bindings, func(b *functions.Overload) bool { return b.Operator == o.ID() })
			if i < 0 {
				return nil, fmt.Errorf("function %s has no implementation of %s: %w", name, o.ID(), errdefs.ErrInternal)
			}
			as := cel.Overload
			if o.IsMemberFunction() {
				as = cel.MemberOverload
			}
			opts = append(opts,
				cel.Function(name, as(o.ID(), o.ArgTypes(), o.ResultType(),
					sizeCheck(name, bindings[i], len(o.ArgTypes())))))
		}
	}
	return env.Extend(opts...)
}

func sizeCheck(name string, f *functions.Overload, args int) cel.OverloadOpt {
	switch {
	case args == 1 && f.Unary != nil:
		return cel.UnaryBinding(func(a ref.Val) ref.Val {
			if cost(a) > maxProduct {
				return tooMuch(name)
			}
			return f.Unary(a)
		})
	case args == 2 && f.Binary != nil:
		return cel.BinaryBinding(func(a, b ref.Val) ref.Val {
			if cost(a, b) > maxProduct {
				return tooMuch(name)
			}
			return f.Binary(a, b)
		})
	}
	return cel.FunctionBinding(func(args ...ref.Val) ref.Val {
		if cost(args...) > maxProduct {
			return tooMuch(name)
		}
		return f.Function(args...)
	})
}

func tooMuch(name string) ref.Val {
	return types.NewErr("arguments of %s are too large", name)
}

// cost returns the product of the two largest argument sizes, in bytes or elements. For a single
// list, it is the square.
func cost(args ...ref.Val) int {
	first, second := 1, 1
	for _, a := range args {
		n := 0
		switch a := a.(type) {
		case types.String:
			n = len(a)
		case types.Bytes:
			n = len(a)
		case traits.Lister:
			n = size(a)
			if len(args) == 1 {
				second = max(n, 1)
			}
		}
		if n > first {
			first, n = n, first
		}
		second = max(second, n)
	}
	return first * second
}
