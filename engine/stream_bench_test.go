package engine

import (
	"testing"
	"time"

	"github.com/coli-moe/coli/ledger"
)

// BenchmarkStream decodes with a tenth of the experts' bytes as their RAM, and compares with what the drive allows: the bytes read for a
// token divided by the drive's own rate at the same request size, measured when the model was loaded. For example
//
//	go test ./engine -run '^$' -bench Stream -benchtime 1x -args -model olmoe.gguf
func BenchmarkStream(b *testing.B) {
	if *benchModel == "" {
		b.Skip("give a model of some gigabytes: -args -model FILE; experts of the embedded one are smaller than a read is worth")
	}
	for _, prefetch := range []Prefetch{PrefetchOff, PrefetchOn, PrefetchAuto} {
		b.Run("prefetch="+string(prefetch), func(b *testing.B) { stream(b, prefetch) })
	}
}

func stream(b *testing.B, prefetch Prefetch) {
	probe, err := Load(b.Context(), *benchModel, Options{RAM: 1 << 40, Device: DeviceNone})
	if err != nil {
		b.Fatal(err)
	}
	experts := probe.Checkpoint.ExpertBytes()
	if err := probe.Close(); err != nil {
		b.Fatal(err)
	}
	m, err := Load(b.Context(), *benchModel, Options{
		Threads: *benchThreads, Readers: *benchReaders, RAM: experts / 10, Prefetch: prefetch, Device: DeviceNone,
		Note: func(line string) { b.Log(line) },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	b.Log(m.PlaceWhy)
	s, err := m.NewSession(0)
	if err != nil {
		b.Fatal(err)
	}
	vocab := int32(m.Config.VocabSize)
	token := int32(0)
	decode := func(n int) {
		for range n {
			token++
			if _, err := s.Forward(b.Context(), []int32{10 + token*7919%(vocab-20)}); err != nil {
				b.Fatal(err)
			}
		}
	}
	decode(80) // slots fill, and prefetch=auto has decided
	for b.Loop() {
		before, _, err := m.Experts()
		if err != nil {
			b.Fatal(err)
		}
		const n = 64
		start := time.Now()
		decode(n)
		took := time.Since(start)
		now, _, err := m.Experts()
		if err != nil {
			b.Fatal(err)
		}
		d := now.Since(before.Figures)
		bound := float64(d.Read) / m.driveRate
		b.ReportMetric(n/took.Seconds(), "tok/s")
		b.ReportMetric(bound/took.Seconds(), "of-drive")
		b.ReportMetric(float64(d.Read)/took.Seconds()/1e9, "GB/s")
		b.ReportMetric(m.driveRate/1e9, "drive-GB/s")
		b.ReportMetric(float64(d.PairsInMemory)/float64(d.PairsInMemory+d.PairsInFlight+d.PairsOnDisk), "hit")
		b.ReportMetric(d.Waited.Seconds()/took.Seconds(), "waited")
		b.Logf("read %s a token; %+v; %s", ledger.FormatSize(d.Read/n), d, now.Prefetch)
	}
	b.ReportMetric(0, "ns/op")
}
