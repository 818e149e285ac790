package actors

import (
	"fmt"
	"io"
	"reflect"
	"runtime/debug"
	"strings"

	"github.com/coli-moe/coli/messages"
)

// Failure is what ended an actor's life, or one of its lives. Formatted with %+v it shows the stack of a panic.
type Failure struct {
	Actor, Resource string
	What            string // one line: "panicked on Issue: index out of range"
	Err             error  // the panic value if it is an error, or New's error; may be nil
	Stack           []byte // of a panic
}

func (f *Failure) Error() string { return fmt.Sprintf("actor %s (%s) %s", f.Actor, f.Resource, f.What) }

func (f *Failure) Unwrap() error { return f.Err }

// Format implements fmt.Formatter.
func (f *Failure) Format(s fmt.State, verb rune) {
	if verb == 'q' {
		fmt.Fprintf(s, "%q", f.Error())
		return
	}
	io.WriteString(s, f.Error())
	if verb == 'v' && s.Flag('+') && len(f.Stack) > 0 {
		fmt.Fprintf(s, "\n%s", f.Stack)
	}
}

// panicked describes a panic while m was handled. It must be called by the recovering function, for the stack.
func panicked(spec *Spec, value, m any) *Failure {
	f := &Failure{Actor: spec.Name, Resource: spec.Resource, Stack: debug.Stack()}
	f.What = oneLine(fmt.Sprintf("panicked on %s: %v", messageName(m), value))
	f.Err, _ = value.(error)
	return f
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// messageName is a message's type without pointer and package.
func messageName(m any) string {
	name := reflect.TypeOf(m).String()
	return name[strings.LastIndexByte(name, '.')+1:]
}

// fail tells whoever waits for m, if anybody can. A message that its receiver has put back in its pool may not stand being failed: that
// panic ends here.
func fail(m any, err error) {
	f, ok := m.(messages.Failer)
	if !ok {
		return
	}
	defer func() { _ = recover() }()
	f.Fail(err)
}

// Kind of an event.
type Kind uint8

// The kinds.
const (
	Restarted Kind = iota // the actor failed and was started again with new state
	GaveUp                // the actor failed and is gone
)

// Event is what happened to an actor.
type Event struct {
	Kind    Kind
	Failure *Failure
}

// String is the line to show to the user.
func (e Event) String() string {
	if e.Kind == Restarted {
		return e.Failure.Error() + "; started again"
	}
	return fmt.Sprintf("actor %s (%s) stopped: %s; coli goes on without it", e.Failure.Actor, e.Failure.Resource, e.Failure.What)
}
