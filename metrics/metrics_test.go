package metrics

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/ops/gpu"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
)

var update = flag.Bool("update", false, "write the golden files and docs/metrics.md anew")

// golden compares got with a file.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not current (- there, + now); go generate ./metrics writes it:\n%s", file, diff)
	}
}

func hist(ds ...time.Duration) (h loghist.Hist) {
	for _, d := range ds {
		h.Add(d)
	}
	return h
}

// everything is the state of a model that has all there is.
func everything() engine.Live {
	read := probe.Ops{
		Requests: 40, Bytes: 40 << 20, Completed: 37, CompletedBytes: 37 << 20, Lost: 1, InFlight: 2,
		Queue:  hist(time.Microsecond, 20*time.Microsecond),
		Device: hist(300*time.Microsecond, time.Millisecond, time.Minute),
	}
	return engine.Live{
		Actors: []actors.ActorStats{
			{Name: "tier", Resource: "expert RAM", Length: 3, Handled: 900, Failed: 1, Restarts: 1, Wait: hist(100, 300, time.Second), Handle: hist(2*time.Microsecond, 5*time.Second)},
			{Name: "prefetcher", Resource: "disk", Handled: 70, Failed: 4, Dead: true},
		},
		Experts: &engine.ExpertStats{
			Figures: actors.Figures{
				TierFigures: messages.TierFigures{
					Slots: 10, SlotBytes: 4096, Resident: 9, PairsInMemory: 500, PairsInFlight: 20, PairsOnDisk: 80, Promotions: 30, Evictions: 21, DemandReads: 60,
					PredictedReads: 33, WarmReads: 10, PredictedUsed: 25, Needed: 90, NeededPredicted: 24, Canceled: 6, FailedReads: 2,
				},
				Waited: 1500 * time.Millisecond,
			},
			DriveRate: 2.5e9,
		},
		ExpertsAge: 20 * time.Millisecond,
		Reads:      prefetcher.Stats{Reads: 101, Bytes: 413_696, Failed: 2, Retried: 3, Busy: 2 * time.Second},
		Prefilled:  37,
		Decoded:    12,
		Stats:      engine.Stats{CPU: cpu.Stats{MatMuls: 700, Pairs: 600}, Device: gpu.Stats{MatMuls: 70, Pairs: 50, Frames: 9, Recorded: 2, Submissions: 8, Dispatches: 400, Barriers: 300}},
		Policy:     messages.Policy{ID: 4, Readers: 3, Depth: 8, Horizon: 2},
		Block: &probe.Snapshot{
			Devices: []probe.Device{
				{Disk: probe.Disk{Name: "nvme0n1"}, Read: read},
				{Disk: probe.Disk{Name: "sda"}, Machine: true, Read: read}, // everybody's: not shown
			},
			Own:       probe.Own{InFlight: 2, Took: hist(time.Millisecond, 7*time.Microsecond, 20*time.Second), ReadBytes: 45 << 20},
			Untracked: 5,
		},
		BlockMode: probe.EBPF,
		Ledger: []ledger.Account{
			{Of: "RAM", Budget: 8 << 30, Known: true, Entries: []ledger.Entry{{Name: "experts", Bytes: 2 << 30, Held: 1 << 30}, {Name: "dense weights", Bytes: 1 << 30, Held: 1 << 30}}},
			{Of: "card", Entries: []ledger.Entry{{Name: "weights", Bytes: 3 << 30, Held: 3 << 30}}},
		},
		DeviceName: "card",
		Resident:   5 << 30,
	}
}

func always(l engine.Live) Source { return func() (engine.Live, bool) { return l, true } }

func scrape(t *testing.T, s Source) []byte {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(s))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestScrape(t *testing.T) {
	golden(t, "testdata/scrape.txt", scrape(t, always(everything())))
}

// TestEverythingIsShown: there is no metric that no model can have, and names, units and helps are Prometheus's.
func TestEverythingIsShown(t *testing.T) {
	got := "\n" + string(scrape(t, always(everything())))
	for _, m := range table {
		if !strings.Contains(got, "\n# TYPE "+m.name+" "+string(m.kind)+"\n") {
			t.Errorf("%s is no %s of a model that has everything", m.name, m.kind)
		}
	}
	problems, err := testutil.CollectAndLint(NewCollector(always(everything())))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestWhatThereIsNot: a model without experts on disk, drives or device has no metrics of them, rather than zeros, and no model has none.
func TestWhatThereIsNot(t *testing.T) {
	none := scrape(t, func() (engine.Live, bool) { return engine.Live{}, false })
	if len(none) > 0 {
		t.Errorf("without a model:\n%s", none)
	}
	golden(t, "testdata/dense.txt", scrape(t, always(engine.Live{Prefilled: 3, Stats: engine.Stats{CPU: cpu.Stats{MatMuls: 12}}})))
}

func TestHandler(t *testing.T) {
	s := httptest.NewServer(Handler(always(everything()), `1.2.3 ("odd")`))
	defer s.Close()
	r, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v\n%s", r.Status, err, body)
	}
	for _, want := range []string{`coli_build_info{version="1.2.3 (\"odd\")"} 1`, "coli_tokens_total{phase=\"decode\"} 12", "\ngo_goroutines ", "\nprocess_cpu_seconds_total "} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
}
