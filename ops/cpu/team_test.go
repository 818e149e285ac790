package cpu

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

func TestTeamCoversRangeOnce(t *testing.T) {
	for _, size := range []int{1, 2, 3, 8} {
		team := NewTeam(size)
		for _, n := range []int{0, 1, 2, 7, 64, 1000} {
			for _, grain := range []int{0, 1, 3, 64, 5000} {
				hits := make([]atomic.Int32, n)
				team.Run(n, grain, func(worker, from, to int) {
					if worker < 0 || worker >= size {
						t.Errorf("worker %d of %d", worker, size)
					}
					for i := from; i < to; i++ {
						hits[i].Add(1)
					}
				})
				for i := range hits {
					if got := hits[i].Load(); got != 1 {
						t.Fatalf("size %d n %d grain %d: index %d ran %d times", size, n, grain, i, got)
					}
				}
			}
		}
		team.Close()
	}
}

func TestTeamWakesParkedWorkers(t *testing.T) {
	team := NewTeam(3)
	defer team.Close()
	for range 20 {
		time.Sleep(2 * spinFor)
		var sum atomic.Int64
		team.Run(100, 1, func(_, from, _ int) { sum.Add(int64(from)) })
		if sum.Load() != 4950 {
			t.Fatalf("sum %d, want 4950", sum.Load())
		}
	}
}

func TestTeamParksWorkersThatGetNothing(t *testing.T) {
	team := NewTeam(4)
	defer team.Close()
	// A job of two ranges that end together has work for the caller and for one worker.
	for begin := time.Now(); team.parked.Load() < 2; {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%d of 3 workers have parked, want 2", team.parked.Load())
		}
		var met atomic.Int32
		team.Run(2, 1, func(_, _, _ int) {
			for met.Add(1); met.Load() < 2; {
				runtime.Gosched()
			}
		})
	}
}

// TestTeamClaimSaysWhetherItWorked: a worker's spinning time runs on from its last range.
func TestTeamClaimSaysWhetherItWorked(t *testing.T) {
	for name, fn := range map[string]func(_, _, _ int){"a job": func(_, _, _ int) {}, "a panic": func(_, _, _ int) { panic("boom") }} {
		team := NewTeam(1)
		team.n, team.grain, team.ranges, team.fn = 2, 1, 2, fn
		team.left.Store(2)
		team.todo.Store(2)
		if !team.claim(0) {
			t.Errorf("%s of two ranges: claim says that it got none", name)
		}
		if team.claim(0) {
			t.Errorf("%s that is over: claim says that it got a range", name)
		}
		if _, came := team.watch(0, time.Now().Add(-2*spinFor)); came {
			t.Error("a job came from nowhere")
		}
	}
}

func TestTeamRaisesPanicInCaller(t *testing.T) {
	team := NewTeam(2)
	defer team.Close()
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("recovered %v, want boom", p)
			}
		}()
		team.Run(100, 1, func(_, from, _ int) {
			if from == 50 {
				panic("boom")
			}
		})
	}()
	var n atomic.Int32
	team.Run(10, 1, func(_, _, _ int) { n.Add(1) })
	if n.Load() != 10 {
		t.Errorf("after a panic %d of 10 ranges ran", n.Load())
	}
}

func TestTeamCloseTwice(t *testing.T) {
	team := NewTeam(4)
	team.Close()
	team.Close()
}

func BenchmarkTeamRun(b *testing.B) {
	team := NewTeam(2)
	defer team.Close()
	fn := func(_, _, _ int) {}
	for b.Loop() {
		team.Run(2, 1, fn)
	}
}
