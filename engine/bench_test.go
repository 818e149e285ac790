package engine

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/coli-moe/coli/internal/embedded"
)

// The file the benchmarks run, for example
//
//	go test ./engine -run '^$' -bench Model -benchtime 5x -args -model olmoe.gguf
var (
	benchModel   = flag.String("model", "", "model of the benchmarks; the embedded one by default")
	benchThreads = flag.Int("threads", 0, "threads of the benchmarks; 0 decides")
	benchReaders = flag.Int("readers", 0, "readers of BenchmarkStream; 0 for the default")
)

// BenchmarkModel measures what a run is made of: a prompt of 512 tokens, and 64 tokens decoded after it, in tokens per second. The
// medians over b.N repetitions are reported.
func BenchmarkModel(b *testing.B) {
	path := *benchModel
	if path == "" {
		b.Setenv(embedded.CacheDirEnv, b.TempDir())
		var err error
		if path, err = embedded.Path(b.Context(), func(line string) { b.Log(line) }); err != nil {
			b.Fatal(err)
		}
	}
	m, err := Load(b.Context(), path, Options{Threads: *benchThreads})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	const prompt, answer = 512, 64
	s, err := m.NewSession(prompt + answer + 8)
	if err != nil {
		b.Fatal(err)
	}
	vocab := int32(m.Config.VocabSize)
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = 10 + int32(i)*7919%(vocab-20)
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
			if _, err := s.Forward(b.Context(), []int32{10 + i*104729%(vocab-20)}); err != nil {
				b.Fatal(err)
			}
		}
		return prompt / middle.Sub(start).Seconds(), answer / time.Since(middle).Seconds()
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
}
