package limits

import (
	"math"
	"testing"
)

func near(got, want, within float64) bool { return math.Abs(got-want) <= within*math.Abs(want) }

// glm is a GLM-5.2 with 4-bit weights: 9.9 GB of dense weights and 11.4 GB of experts a token.
func glm(hit float64) Work {
	return Work{Dense: PerTier{RAM: 9.9e9}, Experts: PerTier{RAM: hit, Disk: 1 - hit}.Times(11.4e9)}
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		name               string
		work               Work
		rates              PerTier
		serial, overlapped float64
		limit              Tier
	}{
		{"no hit", glm(0), PerTier{RAM: 80e9, Disk: 7e9}, 0.57, 0.614, Disk},
		{"half", glm(0.55), PerTier{RAM: 80e9, Disk: 7e9}, 1.07, 1.364, Disk},
		{"nearly all", glm(0.98), PerTier{RAM: 80e9, Disk: 7e9}, 3.38, 3.756, RAM},
		{"a faster drive", glm(0.55), PerTier{RAM: 80e9, Disk: 14e9}, 1.76, 2.729, Disk},
		{"in memory: the disk's rate does not matter", glm(1), PerTier{RAM: 80e9}, 3.756, 3.756, RAM},
		{
			"three tiers",
			Work{Dense: PerTier{VRAM: 4e9}, Experts: PerTier{0.5, 0.3, 0.2}.Times(10e9), KV: PerTier{VRAM: 1e9}},
			PerTier{500e9, 50e9, 5e9},
			1 / (10e9/500e9 + 3e9/50e9 + 2e9/5e9), 1 / (2e9 / 5e9), Disk,
		},
		{"memory slower than the drive", glm(0), PerTier{RAM: 1e9, Disk: 7e9}, 1 / 21.3, 1 / 21.3, RAM},
		{"a drive of unknown rate", glm(0.5), PerTier{RAM: 80e9}, 0, 0, RAM},
		{"nothing to read", Work{}, PerTier{1, 1, 1}, math.Inf(1), math.Inf(1), VRAM},
	} {
		b := Decode(tt.work, tt.rates)
		if b.Serial > b.Overlapped {
			t.Errorf("%s: reads one after another end before those at the same time: %+v", tt.name, b)
		}
		if !(b.Serial == tt.serial || near(b.Serial, tt.serial, 0.01)) || !(b.Overlapped == tt.overlapped || near(b.Overlapped, tt.overlapped, 0.01)) || b.Limit != tt.limit {
			t.Errorf("%s: %.3f and %.3f tok/s, %v limits; want %.3f and %.3f, %v", tt.name, b.Serial, b.Overlapped, b.Limit, tt.serial, tt.overlapped, tt.limit)
		}
	}
}

// What the disk delivers is read from RAM as well: with a drive as fast as memory, memory limits.
func TestDiskPassesThroughRAM(t *testing.T) {
	b := Decode(Work{Dense: PerTier{RAM: 1e9}, Experts: PerTier{Disk: 1e9}}, PerTier{RAM: 10e9, Disk: 10e9})
	if b.Limit != RAM || !near(b.Overlapped, 5, 1e-9) || !near(b.Seconds[RAM], 0.2, 1e-9) || !near(b.Seconds[Disk], 0.1, 1e-9) {
		t.Errorf("%+v", b)
	}
}

func TestEfficiency(t *testing.T) {
	b := Decode(glm(0.55), PerTier{RAM: 80e9, Disk: 7e9})
	if s, o := b.Efficiency(b.Serial / 2); !near(s, 0.5, 1e-9) || o >= s || o <= 0 {
		t.Errorf("half the serial bound is %.3f of it and %.3f of the other", s, o)
	}
	if s, o := (Bound{}).Efficiency(3); s != 0 || o != 0 {
		t.Errorf("of an unknown bound: %v, %v", s, o)
	}
}

func TestUnion(t *testing.T) {
	for _, tt := range []struct {
		n, k, rows int
		want       float64
	}{
		{256, 8, 1, 8},
		{256, 8, 2, 15.75},
		{256, 8, 4, 30.5},
		{256, 8, 8, 57.4},
		{256, 8, 64, 222},
		{512, 10, 8, 74.7},
		{64, 8, 4, 26.5},
		{8, 2, 8, 7.2},
		{64, 8, 512, 64},
		{0, 0, 3, 0},
		{4, 4, 9, 4},
	} {
		if got := Union(tt.n, tt.k, tt.rows); math.Abs(got-tt.want) > 0.005*tt.want {
			t.Errorf("%d rows, top %d of %d: %.2f experts, want %.2f", tt.rows, tt.k, tt.n, got, tt.want)
		}
	}
}
