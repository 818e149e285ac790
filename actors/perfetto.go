package actors

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// WriteTrace writes what the tracks hold as a timeline in the JSON of the Trace Event Format, which ui.perfetto.dev opens;
// docs/tracing.md says what is in it. The actors may run on meanwhile. It is an error to ask for it when nothing is traced.
func (r *Runtime) WriteTrace(w io.Writer) error {
	if r.tracer == nil {
		return errors.New("actors: nothing was traced: the runtime was started without Options.Trace")
	}
	return r.tracer.write(w)
}

func (t *tracer) write(w io.Writer) error {
	t.mu.Lock()
	tracks := slices.Clone(t.tracks)
	t.mu.Unlock()

	e := &export{w: bufio.NewWriter(w), lost: map[string]uint64{}}
	e.w.WriteString(`{"displayTimeUnit":"ns","traceEvents":[`)
	e.emit(event{Phase: "M", Name: "process_name", Thread: 1, Args: args{"name": "coli"}})
	for i, k := range tracks {
		e.track(i+1, k)
	}
	e.arrows()
	lost, err := json.Marshal(e.lost)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.w, "\n],\"otherData\":{\"lost_records\":%s}}\n", lost)
	return cmp.Or(e.err, e.w.Flush())
}

// event is an event of the Trace Event Format, its fields in the format's terms.
type event struct {
	Phase    string  `json:"ph"` // X slice, b and e ends of an asynchronous slice, C counter, s t f flow, i instant, M metadata
	Name     string  `json:"name"`
	Category string  `json:"cat,omitempty"`
	Process  int     `json:"pid"`
	Thread   int     `json:"tid"`
	Time     micros  `json:"ts"`
	Duration *micros `json:"dur,omitempty"` // of X
	ID       string  `json:"id,omitempty"`
	Binding  string  `json:"bp,omitempty"`
	Scope    string  `json:"s,omitempty"`
	Args     args    `json:"args,omitempty"`
}

type args map[string]any

// micros are nanoseconds that are written as microseconds.
type micros int64

// MarshalJSON implements json.Marshaler.
func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", m/1000, m%1000), nil
}

// export is a trace being written.
type export struct {
	w      *bufio.Writer
	err    error
	events int
	queued int         // asynchronous slices so far, for their ids
	points []flowPoint // starts of what belongs to a flow
	lost   map[string]uint64
}

type flowPoint struct {
	flow   uint64
	start  int64
	thread int
}

func (e *export) emit(v event) {
	v.Process = 1
	line, err := json.Marshal(v)
	e.err = cmp.Or(e.err, err)
	if e.events > 0 {
		e.w.WriteByte(',')
	}
	e.events++
	e.w.WriteByte('\n')
	e.w.Write(line)
}

// track writes a track: its name, and for each record a slice; for a message also its wait, from the sender's moment to the handler's,
// and the length of the queue when that changes.
func (e *export) track(thread int, k *Track) {
	e.emit(event{Phase: "M", Name: "thread_name", Thread: thread, Args: args{"name": k.name}})
	e.emit(event{Phase: "M", Name: "thread_sort_index", Thread: thread, Args: args{"sort_index": thread}})
	records, lost := k.ring.records()
	k.tracer.mu.Lock() // after reading the records, whose names are all known by now
	names := slices.Clone(k.tracer.names)
	k.tracer.mu.Unlock()
	if lost > 0 && len(records) > 0 {
		e.lost[k.name] = lost
		text := fmt.Sprintf("%d older records are lost", lost)
		e.emit(event{Phase: "i", Name: text, Thread: thread, Time: micros(records[0].start), Scope: "t"})
	}
	queue := int64(-1)
	for _, r := range records {
		duration := micros(r.end - r.start)
		slice := event{
			Phase: "X", Name: names[r.name], Category: "span", Thread: thread,
			Time: micros(r.start), Duration: &duration, Args: args{},
		}
		switch r.kind {
		case kindSpan:
			for i, name := range k.args {
				slice.Args[name] = r.args[i]
			}
		case kindMessage, kindPanic:
			slice.Category = "message"
			slice.Args["queued_us"] = micros(r.start - r.args[argEnqueued])
			slice.Args["qlen"] = r.args[argQueue]
			if r.kind == kindPanic {
				slice.Args["panic"] = true
			}
			e.wait(thread, k.name, slice.Name, r)
			if queue != r.args[argQueue] {
				queue = r.args[argQueue]
				e.emit(event{Phase: "C", Name: "queue of " + k.name, Thread: thread, Time: slice.Time, Args: args{"messages": queue}})
			}
		}
		if r.flow != 0 {
			if r.flow < ownFlow {
				slice.Args["flow"] = r.flow
			}
			e.points = append(e.points, flowPoint{r.flow, r.start, thread})
		}
		e.emit(slice)
	}
}

func (e *export) wait(thread int, actor, message string, r record) {
	e.queued++
	v := event{Name: "waiting for " + actor, Category: "queue", Thread: thread, ID: fmt.Sprintf("0x%x", e.queued)}
	v.Phase, v.Time, v.Args = "b", micros(r.args[argEnqueued]), args{"message": message}
	e.emit(v)
	v.Phase, v.Time, v.Args = "e", micros(r.start), nil
	e.emit(v)
}

// arrows writes the flows that join two slices or more.
func (e *export) arrows() {
	slices.SortStableFunc(e.points, func(a, b flowPoint) int {
		return cmp.Or(cmp.Compare(a.flow, b.flow), cmp.Compare(a.start, b.start))
	})
	for i, p := range e.points {
		first := i == 0 || e.points[i-1].flow != p.flow
		last := i == len(e.points)-1 || e.points[i+1].flow != p.flow
		v := event{Phase: "t", Name: "flow", Category: "flow", Thread: p.thread, Time: micros(p.start), ID: fmt.Sprintf("0x%x", p.flow)}
		switch {
		case first && last:
			continue
		case first:
			v.Phase = "s"
		case last:
			v.Phase, v.Binding = "f", "e"
		}
		e.emit(v)
	}
}
