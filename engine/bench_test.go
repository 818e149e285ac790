package engine

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/engine/sampler"
)

// What the benchmarks run, and on what, for example
//
//	go test ./engine -run '^$' -bench Model/512 -benchtime 5x -args -model olmoe.gguf -device 0 -gpu-layers all
var (
	benchModel   = flag.String("model", "", "model of the benchmarks; the one that ships with coli by default")
	benchThreads = flag.Int("threads", 0, "threads of the benchmarks; 0 decides")
	benchReaders = flag.Int("readers", 0, "readers of BenchmarkStream; 0 for the default")
	benchDevice  = flag.String("device", DeviceNone, "device of BenchmarkModel, an index or a part of the name; none for the CPU alone")
	benchProfile = flag.Bool("gpu-profile", false, "log what the device's time went into, which costs some")
	benchLayers  = GPUAuto
)

func init() {
	flag.Var(&benchLayers, "gpu-layers", "how many layers run on the device: auto, all or a number")
}

// BenchmarkModel measures what a run is made of: a prompt of so many tokens, and 64 tokens decoded after it as greedy decoding does, in
// tokens per second. The medians over b.N repetitions are reported. A prompt that does not fit the model's context is left out.
func BenchmarkModel(b *testing.B) {
	m, err := Load(b.Context(), cmp.Or(*benchModel, storyFile), Options{
		Threads: *benchThreads, Device: *benchDevice, GPULayers: benchLayers, DeviceOptions: device.Options{Profile: *benchProfile},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	if n, _ := m.LayersOnDevice(); n == 0 && *benchDevice != DeviceNone {
		b.Fatalf("no layer is on the device: %s", m.LayersWhy)
	}
	const answer = 64
	for _, prompt := range []int{512, 4000} {
		if prompt+answer > m.Config.MaxPositionEmbeddings {
			continue
		}
		b.Run(fmt.Sprint(prompt), func(b *testing.B) { benchmark(b, m, prompt, answer) })
	}
}

func benchmark(b *testing.B, m *Model, prompt, answer int) {
	s, err := m.NewSession(prompt + answer)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	vocab := int32(m.Config.VocabSize)
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = 10 + int32(i)*7919%(vocab-20)
	}
	greedy, err := sampler.New(sampler.Params{TopP: 1, RepeatPenalty: 1})
	if err != nil {
		b.Fatal(err)
	}
	var prefill, decode []float64
	run := func() (pp, tg float64) {
		s.Truncate(0)
		start := time.Now()
		if _, err := s.Forward(b.Context(), ids); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		for i := range int32(answer) {
			if _, err := s.next(b.Context(), []int32{10 + i*104729%(vocab-20)}, greedy); err != nil {
				b.Fatal(err)
			}
		}
		return float64(prompt) / middle.Sub(start).Seconds(), float64(answer) / time.Since(middle).Seconds()
	}
	run()
	for b.Loop() {
		pp, tg := run()
		prefill, decode = append(prefill, pp), append(decode, tg)
	}
	slices.Sort(prefill)
	slices.Sort(decode)
	b.ReportMetric(prefill[len(prefill)/2], "prefill-tok/s")
	b.ReportMetric(decode[len(decode)/2], "decode-tok/s")
	b.ReportMetric(0, "ns/op")
	if n, _ := m.LayersOnDevice(); n > 0 {
		b.Logf("%s; since it was loaded: %+v", m.LayersWhy, m.Stats().Device)
	}
	for _, t := range m.DeviceTimes() {
		b.Logf("%+v", t)
	}
}
