package gpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// parse reads dispatches as "a b>c": reads a and b, writes c; a letter is a tensor of 16 bytes.
func parse(list string) (ds []touches) {
	for _, d := range strings.Split(list, ", ") {
		reads, writes, _ := strings.Cut(d, ">")
		spans := func(s string) (out []span) {
			for _, f := range strings.Fields(s) {
				at := uint64(f[0]) * 16
				out = append(out, span{at, at + 16})
			}
			return out
		}
		ds = append(ds, touches{spans(reads), spans(writes)})
	}
	return ds
}

func TestSchedule(t *testing.T) {
	for _, c := range []struct{ name, list, want string }{
		{"independent dispatches share a stage", "x>a, x>b, x>c", "[[0 1 2]]"},
		{"a reader waits for the writer", "x>a, a>b, b>c", "[[0] [1] [2]]"},
		{"a writer waits for the readers", "a>b, x>a", "[[0] [1]]"},
		{"writers of the same keep their order", "x>a, y>a", "[[0] [1]]"},
		{"readers of the same do not wait", "x>a, a>b, a>c", "[[0] [1 2]]"},
		{"an independent chain runs beside", "x>a, a>b, y>c, c>d", "[[0 2] [1 3]]"},
		{"projections, then their join", "x>n, n>q, n>k, n>v, q k v>o, o x>x", "[[0] [1 2 3] [4] [5]]"},
		{"in place", "a>a, a>a", "[[0] [1]]"},
	} {
		if got := fmt.Sprint(schedule(parse(c.list))); got != c.want {
			t.Errorf("%s: %s gives %s, want %s", c.name, c.list, got, c.want)
		}
	}
	if got := schedule(nil); got != nil {
		t.Errorf("nothing gives %v", got)
	}
}

// TestScheduleKeepsOrder: whatever the list, dispatches that conflict run in different stages, in the list's order, and every stage but
// the first has one that depends on the stage before.
func TestScheduleKeepsOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	random := func(most int) (out []span) {
		for range rng.IntN(most + 1) {
			lo := uint64(rng.IntN(60))
			out = append(out, span{lo, lo + 1 + uint64(rng.IntN(6))})
		}
		return out
	}
	for range 200 {
		ds := make([]touches, 1+rng.IntN(40))
		for i := range ds {
			ds[i] = touches{random(3), random(2)}
		}
		at := make([]int, len(ds))
		seen := 0
		stages := schedule(ds)
		for s, stage := range stages {
			if !slices.IsSorted(stage) {
				t.Fatalf("stage %v is not in order", stage)
			}
			for _, i := range stage {
				at[i] = s
				seen++
			}
		}
		if seen != len(ds) {
			t.Fatalf("%d of %d dispatches are scheduled", seen, len(ds))
		}
		for i := range ds {
			forced := at[i] == 0
			for j := range i {
				if ds[i].conflicts(&ds[j]) {
					forced = forced || at[j] == at[i]-1
					if at[j] >= at[i] {
						t.Fatalf("%d depends on %d: stages %d and %d", i, j, at[i], at[j])
					}
				}
			}
			if !forced {
				t.Fatalf("%d could run before stage %d", i, at[i])
			}
		}
	}
}

// TestDelay: what only the host waits for runs beside the costliest stage, after what it reads is written and before that is written again.
func TestDelay(t *testing.T) {
	memory := func(name string) (s []span) {
		for _, c := range name {
			s = append(s, span{uint64(c), uint64(c) + 1})
		}
		return s
	}
	for _, c := range []struct {
		list string // reads>writes, a dispatch a word
		late []int
		cost []float64
		want string
	}{
		{">a a>b a> b>c c>d", []int{2}, []float64{9, 1, 1, 3, 2}, "[[0] [1] [2 3] [4]]"},
		{">a a>b a> b>c c>a", []int{2}, []float64{9, 1, 1, 3, 7}, "[[0] [1] [2 3] [4]]"},
		{">a a>b a> b>a a>c", []int{2}, []float64{9, 1, 1, 3, 7}, "[[0] [2 1] [3] [4]]"},
		{">a a>b a> b>c c> c>d d>e", []int{2, 4}, []float64{1, 2, 1, 1, 1, 8, 9}, "[[0] [2 1] [3] [5] [4 6]]"},
		{">a a>", []int{1}, []float64{1, 1}, "[[0] [1]]"},
		{">a > a>", []int{1, 2}, []float64{1, 1, 1}, "[[1 0] [2]]"},
	} {
		var ds []touches
		for word := range strings.FieldsSeq(c.list) {
			r, w, _ := strings.Cut(word, ">")
			ds = append(ds, touches{memory(r), memory(w)})
		}
		stages := schedule(ds)
		delay(stages, ds, c.cost, c.late)
		if got := fmt.Sprint(stages); got != c.want {
			t.Errorf("%s: %s, want %s", c.list, got, c.want)
		}
	}
}

func TestSlice(t *testing.T) {
	stages := [][]int{{0, 1}, {2}, {3, 4, 5}}
	cost := []float64{1, 1, 1, 2, 2, 2}
	for _, c := range []struct {
		limit float64
		want  string
	}{
		{100, "[[[0 1] [2] [3 4 5]]]"},
		{3, "[[[0 1] [2]] [[3]] [[4]] [[5]]]"},
		{4, "[[[0 1] [2]] [[3 4]] [[5]]]"},
		{5, "[[[0 1] [2] [3]] [[4 5]]]"},
		{0.5, "[[[0]] [[1]] [[2]] [[3]] [[4]] [[5]]]"},
	} {
		if got := fmt.Sprint(slice(stages, cost, c.limit)); got != c.want {
			t.Errorf("limit %g: %s, want %s", c.limit, got, c.want)
		}
	}
}
