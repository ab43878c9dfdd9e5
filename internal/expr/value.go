package expr

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/containerd/errdefs"
)

// maxWhole bounds the range in which every whole float64 is exact.
const maxWhole = 1 << 53

// adapter converts values decoded by encoding/json to CEL values.
type adapter struct{ types.Adapter }

// NativeToValue implements types.Adapter. Whole numbers become ints, because JSON does not
// distinguish them and CEL does not mix int and double in arithmetic.
func (a adapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case string:
		return types.String(v)
	case bool:
		return types.Bool(v)
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= maxWhole {
			return types.Int(v)
		}
		return types.Double(v)
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case map[string]string:
		return types.NewStringStringMap(a, v)
	case []any:
		return types.NewList(a, v)
	case []string:
		return types.NewStringList(a, v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return types.Int(n)
		}
		f, err := v.Float64()
		if err != nil {
			return types.NewErr("%q is not a number", string(v))
		}
		return types.Double(f)
	case json.RawMessage:
		var plain any
		if err := json.Unmarshal(v, &plain); err != nil {
			return types.NewErr("a value is not valid JSON")
		}
		return a.NativeToValue(plain)
	}
	return a.Adapter.NativeToValue(v)
}

// plain converts results to plain Go values, within the bounds.
type plain struct {
	values int
	bytes  int
}

func (p *plain) count(bytes int) error {
	p.values++
	p.bytes += bytes
	if p.values > MaxValues || p.bytes > MaxBytes {
		return fmt.Errorf("result is too large: over %d values or %d bytes: %w", MaxValues, MaxBytes,
			errdefs.ErrResourceExhausted)
	}
	return nil
}

func (p *plain) value(v ref.Val, depth int) (any, error) {
	if depth > MaxDepth {
		return nil, fmt.Errorf("result is nested more than %d levels: %w", MaxDepth, errdefs.ErrResourceExhausted)
	}
	switch v := v.(type) {
	case types.Null:
		return nil, p.count(0)
	case types.Bool:
		return bool(v), p.count(0)
	case types.Int:
		return int64(v), p.count(0)
	case types.Uint:
		if v > math.MaxInt64 {
			return nil, fmt.Errorf("number %d is too large: %w", uint64(v), errdefs.ErrInvalidArgument)
		}
		return int64(v), p.count(0)
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, fmt.Errorf("%v cannot be a JSON number: %w", float64(v), errdefs.ErrInvalidArgument)
		}
		return float64(v), p.count(0)
	case types.String:
		return string(v), p.count(len(v))
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), p.count(base64.StdEncoding.EncodedLen(len(v)))
	case types.Timestamp:
		s := v.Format(time.RFC3339Nano)
		return s, p.count(len(s))
	case types.Duration:
		s := v.Duration.String()
		return s, p.count(len(s))
	case *types.Optional:
		if !v.HasValue() {
			return nil, p.count(0)
		}
		return p.value(v.GetValue(), depth+1)
	case traits.Mapper:
		return p.object(v, depth)
	case traits.Lister:
		return p.list(v, depth)
	case *types.Err:
		return nil, fmt.Errorf("%s: %w", line(v.Error()), errdefs.ErrInvalidArgument)
	}
	return nil, fmt.Errorf("type %s cannot be converted to JSON: %w", v.Type().TypeName(), errdefs.ErrInvalidArgument)
}

func (p *plain) object(m traits.Mapper, depth int) (any, error) {
	if err := p.count(0); err != nil {
		return nil, err
	}
	out := make(map[string]any, min(size(m), MaxValues))
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, err := name(key)
		if err != nil {
			return nil, err
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("duplicate name %q: %w", quote(name), errdefs.ErrInvalidArgument)
		}
		p.bytes += len(name)
		if out[name], err = p.value(m.Get(key), depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// name returns a map key as a JSON name.
func name(key ref.Val) (string, error) {
	switch k := key.(type) {
	case types.String:
		return string(k), nil
	case types.Int:
		return strconv.FormatInt(int64(k), 10), nil
	case types.Uint:
		return strconv.FormatUint(uint64(k), 10), nil
	case types.Bool:
		return strconv.FormatBool(bool(k)), nil
	}
	return "", fmt.Errorf("type %s cannot be a field name: %w", key.Type().TypeName(), errdefs.ErrInvalidArgument)
}

func (p *plain) list(l traits.Lister, depth int) (any, error) {
	if err := p.count(0); err != nil {
		return nil, err
	}
	out := make([]any, 0, min(size(l), MaxValues))
	for it := l.Iterator(); it.HasNext() == types.True; {
		v, err := p.value(it.Next(), depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func size(s traits.Sizer) int {
	n, ok := s.Size().(types.Int)
	if !ok || n < 0 {
		return 0
	}
	return int(n)
}

// encode encodes v without escaping <, > and &: the result is not embedded in HTML.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
