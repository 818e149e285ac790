package metrics

import (
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/sharedtest"
)

func load(t *testing.T, opt engine.Options) *engine.Model {
	t.Helper()
	opt.Device = engine.DeviceNone
	m, err := engine.Load(t.Context(), sharedtest.Testdata("oracles", "qwen3_moe"), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// valueIn finds the value of a metric in a scrape.
func valueIn(t *testing.T, scrape []byte, metric string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(metric) + ` (.*)$`).FindSubmatch(scrape)
	if found == nil {
		t.Errorf("no %s in\n%s", metric, scrape)
		return 0
	}
	v, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Error(err)
	}
	return v
}

// TestScrapeWhileDecoding: a model whose experts stream is scraped by two while it computes.
func TestScrapeWhileDecoding(t *testing.T) {
	whole := load(t, engine.Options{Threads: 1})
	m := load(t, engine.Options{Threads: 2, RAM: whole.Checkpoint.ExpertBytes() / 3, Measure: true})
	source := func() (engine.Live, bool) { return m.Live(), true }
	var scraping sync.WaitGroup
	var over atomic.Bool
	for range 2 {
		scraping.Go(func() {
			for last := 0.0; !over.Load(); {
				now := valueIn(t, scrape(t, source), `coli_tokens_total{phase="decode"}`)
				if now < last {
					t.Errorf("%v tokens, after %v", now, last)
				}
				last = now
			}
		})
	}
	s, err := m.NewSession(0)
	if err != nil {
		t.Fatal(err)
	}
	const answer = 30
	ids := []int32{3, 14, 15, 92, 65}
	for i := range answer + 1 {
		if _, err := s.Forward(t.Context(), ids); err != nil {
			t.Fatal(err)
		}
		ids = []int32{int32(i)}
	}
	over.Store(true)
	scraping.Wait()
	got := scrape(t, source)
	for metric, want := range map[string]float64{
		`coli_tokens_total{phase="decode"}`: answer, `coli_tokens_total{phase="prefill"}`: 5, `coli_tier_age_seconds`: 0, `coli_actor_up{actor="prefetcher"}`: 1,
	} {
		if v := valueIn(t, got, metric); v != want {
			t.Errorf("%s is %v, want %v", metric, v, want)
		}
	}
	for _, metric := range []string{
		`coli_tier_pairs_total{where="disk"}`, `coli_prefetcher_read_bytes_total`, `coli_prefetcher_read_seconds_count`, `coli_balancer_readers`,
		`coli_actor_handle_seconds_count{actor="tier"}`, `coli_ledger_bytes{holder="experts",memory="RAM"}`, `coli_expert_pairs_total{executor="cpu"}`,
	} {
		if v := valueIn(t, got, metric); v <= 0 {
			t.Errorf("%s is %v", metric, v)
		}
	}
}
