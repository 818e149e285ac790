package chat

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Bounds on one rendering, far above what a conversation needs.
const (
	maxSteps  = 1_000_000 // loop iterations and macro calls
	maxRange  = 100_000   // elements of a range, as in jinja2's sandbox
	maxBytes  = 64 << 20  // of output, macros' included, and of any one variable
	maxTime   = 10 * time.Second
	maxFrames = 5_000 // of the Go stack, in a macro that calls itself
)

// A run holds what one rendering has used up, and implements the functions that a template may call.
type run struct {
	started time.Time
	now     time.Time
	steps   int
	output  int // bytes
}

func (r *run) functions() map[string]jinja.Value {
	functions := make(map[string]jinja.Value)
	for name, fn := range map[string]func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error){
		fnOutput: r.print, fnKeep: r.keep, fnStep: r.step, fnCall: r.call, fnToJSON: toJSON,
		"raise_exception": raise, "range": rangeOf, "strftime_now": r.strftimeNow,
	} {
		functions[name] = jinja.NewCallable(name, fn)
	}
	return functions
}

// step is called at the start of every loop iteration.
func (r *run) step([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	if r.steps++; r.steps > maxSteps {
		return jinja.Undefined(), fmt.Errorf("it did not end within %d loop iterations and macro calls", maxSteps)
	}
	if time.Since(r.started) > maxTime {
		return jinja.Undefined(), fmt.Errorf("it did not end within %v", maxTime)
	}
	return jinja.NewString(""), nil
}

// call is called at the start of every macro. A stack that overflows ends the program, so its depth is looked at.
func (r *run) call([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	var pc [1]uintptr
	if runtime.Callers(maxFrames, pc[:]) > 0 {
		return jinja.Undefined(), errors.New("a macro calls itself without end")
	}
	return r.step(nil, nil)
}

// print is given what an output tag evaluates to, and returns what is written: as Python writes it, where the engine does not.
func (r *run) print(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	v := args[0]
	switch {
	case v.IsNone():
		v = jinja.NewString("None")
	case v.IsFloat():
		v = jinja.NewString(formatFloat(v.AsFloat()))
	}
	r.output += size(v, nil, maxBytes)
	if r.output > maxBytes {
		return v, fmt.Errorf("it wrote more than %d MiB", maxBytes>>20)
	}
	return v, nil
}

// keep is given the value of an assignment, and the namespace it is a member of if it is, and returns the value. A namespace that contains
// itself is refused because the engine would follow it without end.
func (r *run) keep(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var namespace *jinja.Dict
	if len(args) > 1 && args[1].IsDict() {
		namespace = args[1].AsDict()
	}
	if size(args[0], namespace, maxBytes) > maxBytes {
		return args[0], fmt.Errorf("a variable grew past %d MiB or contains itself", maxBytes>>20)
	}
	return args[0], nil
}

// size returns about how many bytes a value has, or some number above limit if it has more or contains the given dictionary.
func size(v jinja.Value, without *jinja.Dict, limit int) int {
	const overhead = 32 // of a value, at least
	total := overhead
	switch {
	case v.IsString():
		return len(v.AsString())
	case v.IsList():
		for _, item := range v.AsList().Items {
			if total > limit {
				break
			}
			total += size(item, without, limit-total)
		}
	case v.IsDict():
		d := v.AsDict()
		if d == without {
			return math.MaxInt32
		}
		for _, key := range d.Keys {
			if total > limit {
				break
			}
			total += len(key) + size(d.Data[key], without, limit-total)
		}
	}
	return total
}

func raise(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var message string
	if len(args) > 0 && args[0].IsString() {
		message = args[0].AsString()
	}
	return jinja.Undefined(), &RefusedError{Message: message}
}

func rangeOf(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var n []int64
	for _, a := range args {
		if !a.IsInt() {
			return jinja.Undefined(), errors.New("range of something that is not an integer")
		}
		n = append(n, a.AsInt())
	}
	var start, stop, step int64 = 0, 0, 1
	switch len(n) {
	case 1:
		stop = n[0]
	case 2:
		start, stop = n[0], n[1]
	case 3:
		start, stop, step = n[0], n[1], n[2]
	}
	if len(n) < 1 || len(n) > 3 || step == 0 {
		return jinja.Undefined(), errors.New("range wants an end; or a start, an end and a step other than 0")
	}
	var items []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(items) == maxRange {
			return jinja.Undefined(), fmt.Errorf("a range has more than %d elements", maxRange)
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}

// strftimeLayouts maps the letters of Python's strftime to Go's layouts.
var strftimeLayouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'j': "002", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
	'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'Z': "MST", 'z': "-0700",
	'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04",
}

func (r *run) strftimeNow(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsString() {
		return jinja.Undefined(), errors.New("strftime_now wants a format")
	}
	format := args[0].AsString()
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		unpadded := format[i] == '-' && i+1 < len(format)
		if unpadded {
			i++
		}
		layout, known := strftimeLayouts[format[i]]
		switch {
		case format[i] == '%':
			b.WriteByte('%')
		case !known:
			return jinja.Undefined(), fmt.Errorf("strftime_now does not know %%%c", format[i])
		case unpadded:
			b.WriteString(cmp.Or(strings.TrimLeft(r.now.Format(layout), "0 "), "0"))
		default:
			b.WriteString(r.now.Format(layout))
		}
	}
	return jinja.NewString(b.String()), nil
}

// toJSON is Hugging Face's filter tojson: Python's json.dumps with ensure_ascii off.
func toJSON(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	e := jsonEncoder{item: ", ", key: ": ", sort: named["sort_keys"].IsTruthy(), ascii: named["ensure_ascii"].IsTruthy()}
	indent := named["indent"]
	if len(args) > 1 {
		indent = args[1]
	}
	if indent.IsInt() {
		e.indent = strings.Repeat(" ", int(max(0, min(indent.AsInt(), maxNesting))))
		e.item, e.lines = ",", true
	}
	if s := named["separators"]; s.IsList() {
		items := s.AsList().Items
		if len(items) != 2 || !items[0].IsString() || !items[1].IsString() {
			return jinja.Undefined(), errors.New("tojson: separators must be two strings")
		}
		e.item, e.key = items[0].AsString(), items[1].AsString()
	}
	if err := e.encode(args[0], "\n"); err != nil {
		return jinja.Undefined(), err
	}
	return jinja.NewString(e.out.String()), nil
}

type jsonEncoder struct {
	out               strings.Builder
	item, key, indent string
	lines             bool // one element a line
	sort, ascii       bool
}

// encode appends v; newLine is a line break with the present indentation.
func (e *jsonEncoder) encode(v jinja.Value, newLine string) error {
	if e.out.Len() > maxBytes {
		return errors.New("tojson: the value is too large")
	}
	switch {
	case v.IsBool():
		e.out.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		e.out.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		e.out.WriteString(formatFloat(v.AsFloat()))
	case v.IsString():
		e.string(v.AsString())
	case v.IsList():
		items := v.AsList().Items
		return e.sequence('[', ']', len(items), newLine, func(i int, newLine string) error { return e.encode(items[i], newLine) })
	case v.IsDict():
		d := v.AsDict()
		keys := d.Keys
		if e.sort {
			keys = slices.Sorted(slices.Values(keys))
		}
		return e.sequence('{', '}', len(keys), newLine, func(i int, newLine string) error {
			e.string(keys[i])
			e.out.WriteString(e.key)
			return e.encode(d.Data[keys[i]], newLine)
		})
	case v.IsNone():
		e.out.WriteString("null")
	default:
		return errors.New("tojson: the value is undefined or a function")
	}
	return nil
}

func (e *jsonEncoder) sequence(open, end byte, n int, newLine string, element func(i int, newLine string) error) error {
	e.out.WriteByte(open)
	inner := ""
	if e.lines {
		inner = newLine + e.indent
	}
	for i := range n {
		if i > 0 {
			e.out.WriteString(e.item)
		}
		e.out.WriteString(inner)
		if err := element(i, inner); err != nil {
			return err
		}
	}
	if n > 0 && e.lines {
		e.out.WriteString(newLine)
	}
	e.out.WriteByte(end)
	return nil
}

func (e *jsonEncoder) string(s string) {
	e.out.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			e.out.WriteString(`\` + string(c))
		case c == '\n':
			e.out.WriteString(`\n`)
		case c == '\r':
			e.out.WriteString(`\r`)
		case c == '\t':
			e.out.WriteString(`\t`)
		case c == '\b':
			e.out.WriteString(`\b`)
		case c == '\f':
			e.out.WriteString(`\f`)
		case c < ' ' || e.ascii && c > '~' && c <= 0xffff:
			fmt.Fprintf(&e.out, `\u%04x`, c)
		case e.ascii && c > 0xffff && !isMark(c):
			fmt.Fprintf(&e.out, `\u%04x\u%04x`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
		default:
			e.out.WriteRune(c)
		}
	}
	e.out.WriteByte('"')
}

// formatFloat writes a number as Python does: the shortest digits that read back, and always a point or an exponent.
func formatFloat(f float64) string {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+"))
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
