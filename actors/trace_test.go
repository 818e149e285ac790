package actors

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/messages"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestTraceGolden writes a step as the pipeline records it: a track of the engine, two actors, a reader.
func TestTraceGolden(t *testing.T) {
	tr := newTracer(nil)
	tr.size = 4
	engine, tier, prefetcher := tr.track("engine", "layer", "rows"), tr.track("tier"), tr.track("prefetcher")
	reader := tr.track("reader 0", "bytes", "layer", "expert")

	handle := func(k *Track, m messages.Message, sent, began, ended int64, behind int, panicked bool) {
		m.Head().Enqueued = sent
		k.join(m.Head())
		span := k.open(m, behind, began)
		span.panicked = panicked
		k.close(span, ended)
	}
	const step = 7
	handle(tier, &messages.Tokens{}, 100, 300, 450, 0, false)
	handle(tier, &messages.Issue{Header: messages.Header{Flow: step}}, 1000, 1500, 4000, 2, false)
	handle(prefetcher, &messages.Read{Header: messages.Header{Flow: step}}, 3000, 3500, 3600, 0, false)
	reader.Span("read", 3700, 903_700, step, [4]int64{2_764_800, 3, 0})
	handle(tier, &messages.Landed{Header: messages.Header{Flow: step}}, 904_000, 905_000, 906_000, 0, true)
	engine.Span("step", 900, 1_000_000, step, [4]int64{3, 1})
	for i := range int64(6) { // more than the ring holds
		prefetcher.Span("idle", 1_000_000+i, 1_000_001+i, 0, [4]int64{})
	}

	var got bytes.Buffer
	if err := tr.write(&got); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(got.Bytes()) {
		t.Fatalf("not JSON:\n%s", &got)
	}
	const file = "testdata/trace.json"
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("the trace differs from %s:\n%s", file, d)
	}
}

// parsed is a trace as a reader of it sees it.
type parsed struct {
	TraceEvents []struct {
		Ph, Name, ID string
		Tid          int
		Ts, Dur      float64
		Args         map[string]any
	}
}

func parse(t *testing.T, r *Runtime) parsed {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteTrace(&b); err != nil {
		t.Fatal(err)
	}
	var p parsed
	if err := json.Unmarshal(b.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestTraceOfActors runs actors and checks what must hold of any trace.
func TestTraceOfActors(t *testing.T) {
	r := Start(Options{Trace: true})
	second, err := r.Spawn(Spec{Name: "second", New: newEcho})
	if err != nil {
		t.Fatal(err)
	}
	first, err := r.Spawn(Spec{Name: "first", New: func() (Receiver, error) {
		return receiverFunc(func(m messages.Message) {
			j := m.(*job)
			if j.do == "panic" {
				panic("boom")
			}
			second.Send(j) // with the flow in its header
		}), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	const steps = 50
	for i := range steps {
		j := newJob(i, "")
		j.Flow = uint64(i + 1)
		first.Send(j)
		if err := j.Wait(second.Dead()); err != nil {
			t.Fatal(err)
		}
	}
	bad := newJob(0, "panic")
	first.Send(bad)
	if err := bad.Wait(first.Dead()); err == nil {
		t.Fatal("the panic is no error")
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}

	threads := map[string]int{}
	slices, flows, waits := map[string]int{}, map[string][]string{}, map[string][]float64{}
	end := map[int]float64{}
	for _, e := range parse(t, r).TraceEvents {
		switch e.Ph {
		case "M":
			if e.Name == "thread_name" {
				threads[e.Args["name"].(string)] = e.Tid
			}
		case "X":
			slices[fmt.Sprint(e.Tid, e.Name, e.Args["panic"] != nil)]++
			if e.Ts < end[e.Tid]-0.0005 || e.Dur < 0 {
				t.Errorf("%s at %v for %v µs begins before the last one's end", e.Name, e.Ts, e.Dur)
			}
			end[e.Tid] = e.Ts + e.Dur
			if q, ok := e.Args["queued_us"].(float64); e.Name == "job" && (!ok || q < 0 || math.IsNaN(q)) {
				t.Errorf("a job waited %v", e.Args["queued_us"])
			}
		case "s", "t", "f":
			flows[e.ID] = append(flows[e.ID], e.Ph)
		case "b", "e":
			waits[e.ID] = append(waits[e.ID], e.Ts)
		}
	}
	for _, want := range []struct {
		actor string
		panic bool
		n     int
	}{{"first", false, steps}, {"first", true, 1}, {"second", false, steps}} {
		if n := slices[fmt.Sprint(threads[want.actor], "job", want.panic)]; n != want.n {
			t.Errorf("%s has %d jobs (panic: %v), want %d", want.actor, n, want.panic, want.n)
		}
	}
	if len(flows) != steps {
		t.Errorf("%d flows, want one for each step that went through both actors, %d", len(flows), steps)
	}
	for id, phases := range flows {
		if fmt.Sprint(phases) != "[s f]" {
			t.Errorf("flow %s consists of %v, want a start and an end", id, phases)
		}
	}
	if len(waits) != 2*steps+1 {
		t.Errorf("%d waits, want %d", len(waits), 2*steps+1)
	}
	for id, ts := range waits {
		if len(ts) != 2 || ts[0] > ts[1] {
			t.Errorf("wait %s is from and to %v", id, ts)
		}
	}
}

func TestNothingIsTraced(t *testing.T) {
	r := Start(Options{})
	if err := r.WriteTrace(&bytes.Buffer{}); err == nil {
		t.Error("a trace of nothing: no error")
	}
	k := r.Track("engine", "layer")
	k.Span("step", k.Now(), k.Now(), 1, [4]int64{}) // must not panic
	if k.Now() != 0 {
		t.Error("a clock without a trace runs")
	}
	m := &messages.Tokens{}
	b := start(t, Spec{})
	b.ref.Send(m)
	b.stop(t)
	if m.Header != (messages.Header{}) {
		t.Errorf("the header was stamped %+v without a trace", m.Header)
	}
}

func TestSpanAllocatesNothing(t *testing.T) {
	r := Start(Options{Trace: true})
	k := r.Track("reader", "bytes")
	if n := testing.AllocsPerRun(100, func() { k.Span("read", k.Now(), k.Now(), 3, [4]int64{4096}) }); n != 0 {
		t.Errorf("%v allocations a span", n)
	}
}

// A reader of the ring sees whole records only, in order, however fast they are written over.
func TestRingWhileWritten(t *testing.T) {
	r := newRing(8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range int64(20_000) {
			r.put(record{name: uint64(i), start: i, end: i, flow: uint64(i), args: [4]int64{i, i, i, i}})
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		all, _ := r.records()
		for i, e := range all {
			if want := e.start; e != (record{name: uint64(want), start: want, end: want, flow: uint64(want), args: [4]int64{want, want, want, want}}) {
				t.Fatalf("torn record %+v", e)
			}
			if i > 0 && e.start <= all[i-1].start {
				t.Fatalf("record %d after %d", e.start, all[i-1].start)
			}
		}
	}
	all, lost := r.records()
	if len(all) != 7 || lost != 19_993 || !slices.IsSortedFunc(all, func(a, b record) int { return int(a.start - b.start) }) {
		t.Errorf("%d records left and %d lost of 20000 in a ring of 8", len(all), lost)
	}
}

func BenchmarkSpan(b *testing.B) {
	k := Start(Options{Trace: true}).Track("reader", "bytes")
	b.ReportAllocs()
	for b.Loop() {
		k.Span("read", 1, 2, 3, [4]int64{4096})
	}
}
