package gpu

import "slices"

// span is a range of device addresses, [lo, hi).
type span struct{ lo, hi uint64 }

func (s span) overlaps(o span) bool { return s.lo < o.hi && o.lo < s.hi }

// touches is the memory that a dispatch reads and writes.
type touches struct{ reads, writes []span }

// conflicts says whether one of the two writes what the other reads or writes: then their order matters.
func (t *touches) conflicts(o *touches) bool {
	return overlap(t.writes, o.writes) || overlap(t.writes, o.reads) || overlap(t.reads, o.writes)
}

func overlap(a, b []span) bool {
	for _, x := range a {
		if slices.ContainsFunc(b, x.overlaps) {
			return true
		}
	}
	return false
}

// schedule puts dispatches into stages: what is in one stage does not depend on each other and runs without a barrier in between, and a
// dispatch comes in the earliest stage after those it depends on. So there are as many stages as the longest chain of dependent
// dispatches has links, and the barriers between them are the fewest possible. Inside a stage the order is kept.
func schedule(ds []touches) (stages [][]int) {
	level := make([]int, len(ds))
	for i := range ds {
		for j := range i {
			if level[j] >= level[i] && ds[i].conflicts(&ds[j]) {
				level[i] = level[j] + 1
			}
		}
		if level[i] == len(stages) {
			stages = append(stages, nil)
		}
		stages[level[i]] = append(stages[level[i]], i)
	}
	return stages
}

// delay moves the dispatches `late`, whose results only the host waits for, to where they cost least: beside the costliest stage between
// where they could run and the next of them, or what writes what they read.
func delay(stages [][]int, ds []touches, cost []float64, late []int) {
	level := make([]int, len(ds))
	sum := make([]float64, len(stages))
	for s, stage := range stages {
		for _, i := range stage {
			level[i] = s
			sum[s] += cost[i]
		}
	}
	for _, i := range late {
		sum[level[i]] -= cost[i]
	}
	for k, i := range late {
		from, end := level[i], len(stages)
		if k+1 < len(late) {
			end = max(level[late[k+1]], from+1)
		}
		for j := i + 1; j < len(ds); j++ {
			if ds[j].conflicts(&ds[i]) {
				end = min(end, level[j])
			}
		}
		to := from
		for s := from; s < end; s++ {
			if sum[s] > sum[to] {
				to = s
			}
		}
		stages[from] = slices.DeleteFunc(stages[from], func(x int) bool { return x == i })
		stages[to] = slices.Insert(stages[to], 0, i) // a device begins dispatches in their order
	}
}

// slice cuts stages into runs for one submission each, so that none is estimated to take longer than limit unless it is one dispatch. It
// cuts between the dispatches of a stage too, where a stage alone is longer. cost is a dispatch's estimate, in any unit.
func slice(stages [][]int, cost []float64, limit float64) (runs [][][]int) {
	var run [][]int
	sum := 0.0
	for _, stage := range stages {
		begin := 0
		for k, i := range stage {
			if sum > 0 && sum+cost[i] > limit {
				if k > begin {
					run = append(run, stage[begin:k])
				}
				runs, run, sum, begin = append(runs, run), nil, 0, k
			}
			sum += cost[i]
		}
		run = append(run, stage[begin:])
	}
	if len(run) > 0 {
		runs = append(runs, run)
	}
	return runs
}
