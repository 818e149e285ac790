package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coli-moe/coli/messages"
)

// job is a message that somebody waits for.
type job struct {
	messages.Header
	messages.Join
	id   int
	do   string        // what the receiver does: "" (answer), "panic", "hold" (neither answers nor fails)
	gate chan struct{} // if not nil the receiver waits for it first
}

func newJob(id int, do string) *job {
	j := &job{id: id, do: do}
	j.Reset()
	return j
}

// notice is a message that nobody waits for.
type notice struct{ messages.Header }

// worker is a receiver that does what jobs tell it, and counts for its test.
type worker struct {
	log  *log
	life int
}

type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, " ")
}

func (w *worker) Receive(m messages.Message) {
	j, ok := m.(*job)
	if !ok {
		w.log.add("%s", messageName(m))
		return
	}
	if j.gate != nil {
		<-j.gate
	}
	switch j.do {
	case "panic":
		panic(fmt.Sprint("boom ", j.id))
	case "panic error":
		panic(errBoom)
	case "answer, then panic":
		j.Done()
		panic("late boom")
	}
	w.log.add("%d:%d", w.life, j.id)
	if j.do != "hold" {
		j.Done()
	}
}

func (w *worker) Close() error {
	w.log.add("close%d", w.life)
	return nil
}

var errBoom = errors.New("boom")

// bench is a runtime with one actor and what it did.
type bench struct {
	*Runtime
	ref    *Ref
	log    *log // of the receivers
	events *log
}

func start(t testing.TB, spec Spec) *bench {
	t.Helper()
	b := &bench{log: &log{}, events: &log{}}
	b.Runtime = Start(Options{OnEvent: func(e Event) { b.events.add("%v.", e) }})
	if spec.New == nil {
		life := 0
		spec.New = func() (Receiver, error) {
			life++
			return &worker{b.log, life}, nil
		}
	}
	spec.Name, spec.Resource = "tier", "expert RAM"
	var err error
	if b.ref, err = b.Spawn(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.stop(t) })
	return b
}

func (b *bench) stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func (b *bench) send(jobs ...*job) {
	for _, j := range jobs {
		b.ref.Send(j)
	}
}

// outcome is how a wait ended.
func (b *bench) outcome(j *job) string {
	select {
	case err := <-j.C():
		return fmt.Sprint(err)
	case <-time.After(5 * time.Second):
		return "nobody answers"
	}
}

func TestPanic(t *testing.T) {
	const stopped = "the actor has stopped: actor tier (expert RAM) panicked on job: boom 2"
	for _, tt := range []struct {
		name     string
		spec     Spec
		do       string
		outcomes []string // of the jobs 1 to 4, of which 2 panics, and of one sent later
		log      string
		events   string
	}{
		{
			name: "restart", spec: Spec{Policy: Restart}, do: "panic",
			outcomes: []string{"<nil>", "actor tier (expert RAM) panicked on job: boom 2", "<nil>", "<nil>", "<nil>"},
			log:      "1:1 close1 2:3 2:4 2:5",
			events:   "actor tier (expert RAM) panicked on job: boom 2; started again.",
		},
		{
			name: "give up", spec: Spec{Policy: GiveUp}, do: "panic",
			outcomes: []string{"<nil>", "actor tier (expert RAM) panicked on job: boom 2", stopped, stopped, stopped},
			log:      "1:1 close1",
			events:   "actor tier (expert RAM) stopped: panicked on job: boom 2; coli goes on without it.",
		},
		{
			name: "an answer that was given stands", spec: Spec{Policy: Restart}, do: "answer, then panic",
			outcomes: []string{"<nil>", "<nil>", "<nil>", "<nil>", "<nil>"},
			log:      "1:1 close1 2:3 2:4 2:5",
			events:   "actor tier (expert RAM) panicked on job: late boom; started again.",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := start(t, tt.spec)
			jobs := []*job{newJob(1, ""), newJob(2, tt.do), newJob(3, ""), newJob(4, "")}
			jobs[0].gate = make(chan struct{})
			b.send(jobs...)
			close(jobs[0].gate) // all are queued before the panic
			jobs = append(jobs, newJob(5, ""))
			for i, j := range jobs {
				if i == 4 {
					if tt.spec.Policy == GiveUp {
						<-b.ref.Dead()
					}
					b.send(j)
				}
				if got := b.outcome(j); got != tt.outcomes[i] {
					t.Errorf("job %d: %s, want %s", j.id, got, tt.outcomes[i])
				}
			}
			if got := b.log.String(); got != tt.log {
				t.Errorf("the receivers did %q, want %q", got, tt.log)
			}
			if got := b.events.String(); got != tt.events {
				t.Errorf("events %q, want %q", got, tt.events)
			}
			if err := b.ref.Err(); (err != nil) != (tt.spec.Policy == GiveUp) || err != nil && !errors.Is(err, messages.ErrStopped) {
				t.Errorf("the address says %v", err)
			}
		})
	}
}

func TestPanicValueAndStack(t *testing.T) {
	b := start(t, Spec{})
	j := newJob(1, "panic error")
	b.send(j)
	err := <-j.C()
	if !errors.Is(err, errBoom) {
		t.Errorf("%v does not wrap the error that Receive panicked with", err)
	}
	if s := fmt.Sprintf("%+v", err); !strings.Contains(s, "(*worker).Receive") {
		t.Errorf("%%+v shows no stack with the place of the panic:\n%s", s)
	}
	if s := fmt.Sprintf("%v", err); strings.Contains(s, "\n") {
		t.Errorf("%%v has more than a line:\n%s", s)
	}
}

// A message that the receiver had recycled when it panicked cannot be failed, which must not end the process.
type recycled struct {
	messages.Header
	step *messages.Step
}

func (m *recycled) Fail(err error) { m.step.Split.Fail(err) }

func TestPanicOnRecycledMessage(t *testing.T) {
	b := start(t, Spec{})
	// worker.Receive does not know the type; a receiver of its own does.
	ref, err := b.Spawn(Spec{Name: "other", Resource: "nothing", New: func() (Receiver, error) {
		return receiverFunc(func(m messages.Message) { panic("after recycling") }), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ref.Send(&recycled{})
	b.stop(t)
	if want := "actor other (nothing) panicked on recycled: after recycling; started again."; b.events.String() != want {
		t.Errorf("events %q, want %q", b.events, want)
	}
}

type receiverFunc func(m messages.Message)

func (f receiverFunc) Receive(m messages.Message) { f(m) }

func TestMaxRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Spec{MaxRestarts: 2})
		fail := func() {
			j := newJob(0, "panic")
			b.send(j)
			<-j.C()
			synctest.Wait()
		}
		for range 3 { // far enough apart: any number of times
			fail()
			time.Sleep(31 * time.Second)
		}
		if err := b.ref.Err(); err != nil {
			t.Fatalf("given up after one failure in half a minute: %v", err)
		}
		time.Sleep(time.Minute)
		for i := range 3 {
			if err := b.ref.Err(); err != nil {
				t.Fatalf("given up before failure %d: %v", i+1, err)
			}
			fail()
		}
		<-b.ref.Dead()
		want := "actor tier (expert RAM) stopped: panicked on job: boom 0, after 2 restarts within 1m0s; coli goes on without it."
		if got := b.events.lines[len(b.events.lines)-1]; got != want {
			t.Errorf("last event %q, want %q", got, want)
		}
		b.stop(t)
	})
}

func TestRestartThatFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		new  func() (Receiver, error)
		want string
	}{
		{"error", func() (Receiver, error) { return nil, errors.New("file gone") }, "file gone"},
		{"panic", func() (Receiver, error) { panic("no memory") }, "making the receiver panicked: no memory"},
		{"nothing", func() (Receiver, error) { return nil, nil }, "making the receiver gave none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, lives := &log{}, 0
			b := start(t, Spec{New: func() (Receiver, error) {
				if lives++; lives == 1 {
					return &worker{l, lives}, nil
				}
				return tt.new()
			}})
			jobs := []*job{newJob(1, "panic"), newJob(2, "")}
			jobs[0].gate = make(chan struct{})
			b.send(jobs...)
			close(jobs[0].gate)
			text := "panicked on job: boom 1; it cannot be started again: " + tt.want
			if got, want := b.outcome(jobs[1]), "the actor has stopped: actor tier (expert RAM) "+text; got != want {
				t.Errorf("the queued job: %s, want %s", got, want)
			}
			<-b.ref.Dead()
			if got, want := b.events.String(), "actor tier (expert RAM) stopped: "+text+"; coli goes on without it."; got != want {
				t.Errorf("events %q, want %q", got, want)
			}
		})
	}
}

func TestSpawnErrors(t *testing.T) {
	b := start(t, Spec{})
	if _, err := b.Spawn(Spec{Name: "a", Resource: "r", New: func() (Receiver, error) { return nil, errBoom }}); !errors.Is(err, errBoom) {
		t.Errorf("New's error: %v", err)
	}
	l := &log{}
	_, err := b.Spawn(Spec{Name: "tier", New: func() (Receiver, error) { return &worker{l, 1}, nil }})
	if err == nil || l.String() != "close1" {
		t.Errorf("a second actor of a name: error %v, receiver %q", err, l)
	}
	if _, err := b.Declare("tier"); err == nil {
		t.Error("declaring a name in use: no error")
	}
	b.stop(t)
	if _, err := b.Spawn(Spec{Name: "late", New: func() (Receiver, error) { return &worker{l, 2}, nil }}); err == nil {
		t.Error("spawning after Stop: no error")
	}
}

func TestDeclare(t *testing.T) {
	b := start(t, Spec{})
	l := &log{}
	later, err := b.Declare("later")
	if err != nil {
		t.Fatal(err)
	}
	never, err := b.Declare("never")
	if err != nil {
		t.Fatal(err)
	}
	queued, lost := newJob(1, ""), newJob(2, "")
	later.Send(queued)
	never.Send(lost)
	ref, err := b.Spawn(Spec{Name: "later", Resource: "r", New: func() (Receiver, error) { return &worker{l, 1}, nil }})
	if err != nil || ref != later {
		t.Fatalf("Spawn gives address %p and error %v, want the declared one %p", ref, err, later)
	}
	if got := b.outcome(queued); got != "<nil>" {
		t.Errorf("sent before Spawn: %s", got)
	}
	b.stop(t)
	if got, want := b.outcome(lost), "actor never was never started: the actor has stopped"; got != want {
		t.Errorf("sent to an actor that never was: %s, want %s", got, want)
	}
	<-never.Dead()
}

func TestStopHandlesTheQueueFirst(t *testing.T) {
	b := start(t, Spec{})
	first := newJob(0, "")
	first.gate = make(chan struct{})
	b.send(first)
	var jobs []*job
	for i := range 100 {
		jobs = append(jobs, newJob(i+1, ""))
	}
	b.send(jobs...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.stop(t)
	}()
	close(first.gate)
	<-done
	for _, j := range jobs {
		if got := b.outcome(j); got != "<nil>" {
			t.Fatalf("job %d, sent before Stop: %s", j.id, got)
		}
	}
	late := newJob(101, "")
	b.ref.Send(&notice{}) // dropped
	b.send(late)
	if got, want := b.outcome(late), "actor tier (expert RAM): the actor has stopped"; got != want {
		t.Errorf("sent after Stop: %s, want %s", got, want)
	}
	if b.events.String() != "" {
		t.Errorf("an ordinary stop is no event: %q", b.events)
	}
	if !strings.HasSuffix(b.log.String(), "1:100 close1") {
		t.Errorf("the receiver was not closed after the last job: %q", b.log)
	}
}

func TestStopOrder(t *testing.T) {
	l := &log{}
	r := Start(Options{})
	refs := map[string]*Ref{}
	for _, name := range []string{"prefetcher", "cpuexperts", "tier", "uploader"} {
		var err error
		stopped := closer(func() error { l.add("%s", name); return nil })
		refs[name], err = r.Spawn(Spec{Name: name, New: func() (Receiver, error) { return stopped, nil }})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Stop(t.Context(), refs["tier"], refs["prefetcher"]); err != nil {
		t.Fatal(err)
	}
	if want := "tier prefetcher cpuexperts uploader"; l.String() != want {
		t.Errorf("stopped in the order %q, want %q", l, want)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Errorf("stopping again: %v", err)
	}
}

type closer func() error

func (closer) Receive(messages.Message) {}
func (c closer) Close() error           { return c() }

func TestCloseErrors(t *testing.T) {
	for name, c := range map[string]closer{"error": func() error { return errBoom }, "panic": func() error { panic("boom") }} {
		t.Run(name, func(t *testing.T) {
			r := Start(Options{})
			if _, err := r.Spawn(Spec{Name: "a", Resource: "r", New: func() (Receiver, error) { return c, nil }}); err != nil {
				t.Fatal(err)
			}
			err := r.Stop(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), "actor a (r): closing: ") || !strings.Contains(err.Error(), "boom") {
				t.Errorf("Stop's error is %v", err)
			}
		})
	}
}

// An actor that does not come back from a message cannot be ended; all who wait for it must be freed nevertheless.
func TestStopOutOfTime(t *testing.T) {
	b := start(t, Spec{})
	hand, queued, late := newJob(1, ""), newJob(2, ""), newJob(3, "")
	hand.gate = make(chan struct{})
	b.send(hand, queued)
	for b.ref.box.UserMessageCount() > 1 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := b.Stop(ctx)
	if want := "actor tier (expert RAM) is still busy with a message: context canceled"; err == nil || err.Error() != want {
		t.Errorf("Stop's error is %v, want %s", err, want)
	}
	b.send(late)
	for _, j := range []*job{queued, late} {
		if got, want := b.outcome(j), "actor tier (expert RAM) did not come to an end: the actor has stopped"; got != want {
			t.Errorf("job %d: %s, want %s", j.id, got, want)
		}
	}
	if err := hand.Wait(b.ref.Dead()); !errors.Is(err, messages.ErrStopped) {
		t.Errorf("waiting for the message in hand: %v", err)
	}
	close(hand.gate)
	b.stop(t) // now it comes to an end
	if want := "1:1 close1"; b.log.String() != want {
		t.Errorf("the receiver did %q, want %q", b.log, want)
	}
}

// Whatever is sent while actors fail, restart, give up and stop is answered.
func TestNobodyWaitsForever(t *testing.T) {
	for _, policy := range []Policy{Restart, GiveUp} {
		b := start(t, Spec{Policy: policy, MaxRestarts: 3, Spin: 20 * time.Microsecond})
		var senders sync.WaitGroup
		for s := range 4 {
			senders.Go(func() {
				for i := range 300 {
					do := ""
					if s == 0 && i%50 == 49 {
						do = "panic"
					}
					j := newJob(i, do)
					b.send(j)
					if i%3 > 0 {
						continue
					}
					if got := b.outcome(j); got == "nobody answers" {
						t.Errorf("policy %d, sender %d, job %d: %s", policy, s, i, got)
						return
					}
				}
			})
		}
		if policy == GiveUp {
			<-b.ref.Dead()
		}
		senders.Wait()
		b.stop(t)
	}
}

func TestNoGoroutineIsLeft(t *testing.T) {
	before := stacks()
	for _, policy := range []Policy{Restart, GiveUp} {
		b := start(t, Spec{Policy: policy, Spin: maxSpin})
		b.send(newJob(1, ""), newJob(2, "panic"), newJob(3, ""))
		b.stop(t)
		b.send(newJob(4, ""))
	}
	deadline := time.Now().Add(500 * time.Millisecond) // less than the library's timers keep theirs
	for {
		left := slices.DeleteFunc(stacks(), func(s string) bool { return slices.Contains(before, s) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
		}
		time.Sleep(time.Millisecond)
	}
}

// stacks are the goroutines of this moment but the caller's, each from the function that made it.
func stacks() []string {
	buf := make([]byte, 1<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")[1:]
	for i, s := range all {
		_, all[i], _ = strings.Cut(s, "created by ")
	}
	// The library's default pool begins with the process and is nobody's.
	return slices.DeleteFunc(all, func(s string) bool {
		return strings.HasPrefix(s, "github.com/panjf2000/ants") && strings.Contains(s, " in goroutine 1\n")
	})
}

func TestSendReceiveJoinAllocatesNothing(t *testing.T) {
	for _, spin := range []time.Duration{0, 20 * time.Microsecond} {
		for _, trace := range []bool{false, true} {
			r := Start(Options{Trace: trace})
			ref, err := r.Spawn(Spec{Name: "echo", Spin: spin, New: newEcho})
			if err != nil {
				t.Fatal(err)
			}
			j := newJob(1, "")
			n := testing.AllocsPerRun(1000, func() {
				j.Reset()
				ref.Send(j)
				if err := j.Wait(ref.Dead()); err != nil {
					t.Fatal(err)
				}
			})
			if n != 0 {
				t.Errorf("spin %v, trace %v: %v allocations a round trip", spin, trace, n)
			}
			if err := r.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

func newEcho() (Receiver, error) {
	return receiverFunc(func(m messages.Message) { m.(*job).Done() }), nil
}

func BenchmarkRoundTrip(b *testing.B) {
	for _, v := range []struct {
		name  string
		spin  time.Duration
		trace bool
	}{{"park", 0, false}, {"spin", maxSpin, false}, {"park, traced", 0, true}, {"spin, traced", maxSpin, true}} {
		b.Run(v.name, func(b *testing.B) {
			r := Start(Options{Trace: v.trace})
			defer r.Stop(context.Background())
			ref, err := r.Spawn(Spec{Name: "echo", Spin: v.spin, New: newEcho})
			if err != nil {
				b.Fatal(err)
			}
			j := newJob(1, "")
			b.ReportAllocs()
			for b.Loop() {
				j.Reset()
				ref.Send(j)
				if err := j.Wait(ref.Dead()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMessage measures what a message costs that nobody waits for: a thousand are sent, and the last is waited for.
func BenchmarkMessage(b *testing.B) {
	for _, v := range []struct {
		name string
		opts Options
	}{{"plain", Options{}}, {"measured", Options{Measure: true}}, {"traced", Options{Trace: true}}} {
		b.Run(v.name, func(b *testing.B) {
			r := Start(v.opts)
			defer r.Stop(context.Background())
			ref, err := r.Spawn(Spec{Name: "sink", New: func() (Receiver, error) {
				return receiverFunc(func(m messages.Message) {
					if j, ok := m.(*job); ok {
						j.Done()
					}
				}), nil
			}})
			if err != nil {
				b.Fatal(err)
			}
			notices, last := make([]notice, 999), newJob(0, "")
			b.ReportAllocs()
			for b.Loop() {
				for i := range notices {
					ref.Send(&notices[i])
				}
				last.Reset()
				ref.Send(last)
				if err := last.Wait(ref.Dead()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*(len(notices)+1)), "ns/message")
		})
	}
}

// BenchmarkStartDelay measures how late an actor begins when its sender goes on computing.
func BenchmarkStartDelay(b *testing.B) {
	for _, spin := range []time.Duration{0, maxSpin} {
		b.Run(fmt.Sprintf("spin=%v", spin), func(b *testing.B) {
			r := Start(Options{})
			defer r.Stop(context.Background())
			var began time.Time
			ref, err := r.Spawn(Spec{Name: "a", Spin: spin, New: func() (Receiver, error) {
				return receiverFunc(func(m messages.Message) {
					began = time.Now()
					m.(*job).Done()
				}), nil
			}})
			if err != nil {
				b.Fatal(err)
			}
			j := newJob(1, "")
			var delays []time.Duration
			for b.Loop() {
				j.Reset()
				sent := time.Now()
				ref.Send(j)
				for time.Since(sent) < 60*time.Microsecond {
				}
				if err := j.Wait(ref.Dead()); err != nil {
					b.Fatal(err)
				}
				delays = append(delays, began.Sub(sent))
			}
			slices.Sort(delays)
			b.ReportMetric(float64(delays[len(delays)/2].Nanoseconds()), "ns/delay-p50")
		})
	}
}

// TestStopOne: an actor stops alone, after what is queued; the others go on, and stop with the runtime.
func TestStopOne(t *testing.T) {
	b := start(t, Spec{})
	l := &log{}
	other, err := b.Spawn(Spec{Name: "other", New: func() (Receiver, error) { return &worker{l, 1}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	queued, late, elsewhere := newJob(1, ""), newJob(2, ""), newJob(3, "")
	b.send(queued)
	for range 2 {
		if err := b.ref.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	b.send(late)
	other.Send(elsewhere)
	if got := [3]string{b.outcome(queued), b.outcome(late), b.outcome(elsewhere)}; got[0] != "<nil>" || got[2] != "<nil>" ||
		!strings.Contains(got[1], messages.ErrStopped.Error()) {
		t.Errorf("queued before, sent after, sent to another: %q", got)
	}
	if b.log.String() != "1:1 close1" || l.String() != "1:3" {
		t.Errorf("the actor did %q, the other %q", b.log, l)
	}
}

// TestOwnEvents: an actor's events go where it says, instead of to the runtime's listener.
func TestOwnEvents(t *testing.T) {
	own := &log{}
	b := start(t, Spec{Policy: GiveUp, OnEvent: func(e Event) { own.add("%s", e.Failure.Actor) }})
	b.send(newJob(1, "panic"))
	<-b.ref.Dead()
	b.stop(t)
	if own.String() != "tier" || b.events.String() != "" {
		t.Errorf("the actor's listener heard %q, the runtime's %q", own, b.events)
	}
}
