package bench

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/ops"
)

// oracle is the path of a small model.
func oracle() string { return sharedtest.Testdata("oracles", "olmoe") }

// small is a configuration with the small model on the CPU.
func small(params ...Param) ModelConfig {
	return ModelConfig{
		Settings: []Setting{{Path: oracle(), Params: params, Options: engine.Options{Device: engine.DeviceNone, Threads: 2}}},
		State:    Rotating,
	}
}

// knowMemory spares a test the measurement of memory.
func knowMemory(x *models) {
	for threads := range 64 {
		x.rates[threads] = 10e9
	}
}

// execute carries an experiment out.
func execute(t *testing.T, e Experiment, state State) []Record {
	t.Helper()
	sharedtest.Leaks(t)
	records, err := Execute(t.Context(), e, Options{Reps: 2, State: state, Memory: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// value is the mean of a record's metric, which it must have.
func value(t *testing.T, r *Record, name string) float64 {
	t.Helper()
	s, ok := r.Metrics[name]
	if !ok {
		t.Fatalf("%s has no %s: %v", r.Test, name, r.Metrics)
	}
	return s.Mean
}

func TestDecode(t *testing.T) {
	cfg := DecodeConfig{ModelConfig: small(), Gen: []int{5, 9}}
	cfg.Depths, cfg.Parts = []int{0, 12}, true
	e, err := newDecode("decode", cfg)
	if err != nil {
		t.Fatal(err)
	}
	knowMemory(e.models)
	records := execute(t, e, Rotating)
	var tests []string
	for i := range records {
		r := &records[i]
		tests = append(tests, r.Test)
		if rate, ms := value(t, r, tokensPerSecond), value(t, r, "ms/token"); rate <= 0 || ms <= 0 {
			t.Errorf("%s: %v tok/s, %v ms each", r.Test, rate, ms)
		}
		p50, p95, p99 := value(t, r, "p50"), value(t, r, "p95"), value(t, r, "p99")
		if !(0 < p50 && p50 <= p95 && p95 <= p99) {
			t.Errorf("%s: percentiles %v, %v, %v", r.Test, p50, p95, p99)
		}
		if hits := value(t, r, "hit %"); hits != 100 {
			t.Errorf("%s: %v %% of the experts were in memory", r.Test, hits)
		}
		if _, ok := r.Metrics["disk MB/token"]; ok {
			t.Errorf("%s: something was read from disk", r.Test)
		}
		limit, of := value(t, r, "limit tok/s"), r.Metrics[ofLimit].Samples
		for i, rate := range r.Metrics[tokensPerSecond].Samples {
			if math.Abs(of[i]-100*rate/limit) > 1e-9*of[i] {
				t.Errorf("%s: %v tok/s are %v %% of %v", r.Test, rate, of[i], limit)
			}
		}
		var sum float64
		for _, p := range r.Parts {
			sum += 1e3 * p.Seconds
		}
		if ms := value(t, r, "ms/token"); sum > ms*1.001 || sum < ms/2 {
			t.Errorf("%s: the parts are %v ms of %v: %v", r.Test, sum, ms, r.Parts)
		}
	}
	if want := []string{"tg5", "tg9", "tg5 @ d12", "tg9 @ d12"}; !slices.Equal(tests, want) {
		t.Errorf("tests %q, want %q", tests, want)
	}
	// A token behind others reads their keys and values: 4 layers of two rows of 64 floats for each.
	near, far := value(t, &records[0], "MB/token"), value(t, &records[2], "MB/token")
	if want := 12 * 4 * 2 * 64 * 4 / 1e6; math.Abs(far-near-want) > 1e-9 {
		t.Errorf("%v MB a token, and %v behind 12 others; they have %v", near, far, want)
	}
}

// TestDecodeOnDevice: what a device computes is measured as such, and a device that was asked for must compute.
func TestDecodeOnDevice(t *testing.T) {
	opt := devicetest.Options(t, device.Options{})
	if _, err := device.List(opt); err != nil {
		devicetest.Skip(t, err)
	}
	cfg := DecodeConfig{ModelConfig: small(), Gen: []int{4}}
	cfg.Parts = true
	o := &cfg.Settings[0].Options
	o.Device, o.DeviceOptions, o.GPULayers = opt.Select, opt, engine.GPUAll
	e, err := newDecode("decode", cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.answers = newAnswers()
	r := &execute(t, e, Rotating)[0]
	if _, ok := r.Metrics[ofLimit]; ok {
		t.Error("a share of a limit, though nobody knows the device's memory")
	}
	if !slices.ContainsFunc(r.Parts, func(p Part) bool { return p.Name == ops.PartDevice.String() && p.Seconds > 0 }) {
		t.Errorf("no time on the device: %v", r.Parts)
	}
	if !slices.ContainsFunc(r.Notes, func(s string) bool { return strings.Contains(s, ": 4 of 4 and the head") }) {
		t.Errorf("no word about the layers: %q", r.Notes)
	}
}

func TestPrefill(t *testing.T) {
	cfg := PrefillConfig{ModelConfig: small(), Prompt: []int{8, 32}}
	cfg.Settings[0].Options.Chunk = 16
	e, err := NewPrefill(cfg)
	if err != nil {
		t.Fatal(err)
	}
	knowMemory(e.(*prefill).models)
	records := execute(t, e, Warm)
	short, long := &records[0], &records[1]
	if short.Test != "pp8" || long.Test != "pp32" {
		t.Fatalf("tests %q and %q", short.Test, long.Test)
	}
	for _, r := range []*Record{short, long} {
		if rate, ms := value(t, r, tokensPerSecond), value(t, r, "ms"); rate <= 0 || ms <= 0 {
			t.Errorf("%s: %v tok/s, %v ms", r.Test, rate, ms)
		}
	}
	if a, b := value(t, short, "MB/token"), value(t, long, "MB/token"); b >= a {
		t.Errorf("%v MB for each of 8 tokens, %v for each of 32 in chunks of 16", a, b)
	}
}

// TestStream: with less memory more is read, and the answers are the same. Memory for everything reads nothing.
func TestStream(t *testing.T) {
	cfg := StreamConfig{DecodeConfig: DecodeConfig{ModelConfig: small(), Gen: []int{6}, Warmup: 6}, RAM: []string{"20%", "60%", "100%"}}
	e, err := NewStream(cfg)
	if err != nil {
		t.Fatal(err)
	}
	knowMemory(e.(*decode).models)
	records := execute(t, e, Rotating)
	var read, room []float64
	for i := range records {
		r := &records[i]
		if got := r.Param("ram"); got != cfg.RAM[i] {
			t.Errorf("arm %d has %q", i, got)
		}
		hits := value(t, r, "hit %")
		room = append(room, value(t, r, "cache %"))
		if i == 2 {
			if _, ok := r.Metrics["disk MB/token"]; ok || hits != 100 || room[i] != 100 {
				t.Errorf("with memory for all experts: %v", r.Metrics)
			}
			continue
		}
		read = append(read, value(t, r, "disk MB/token"))
		for _, name := range []string{"hit %", "in flight %", "stall %", "cache %"} {
			if v := value(t, r, name); v < 0 || v > 100 {
				t.Errorf("%s: %s is %v", &Arm{Test: r.Test, Params: r.Params}, name, v)
			}
		}
		if h := r.Histograms["read"]; h.Count == 0 {
			t.Errorf("no read was timed: %v", r.Histograms)
		}
	}
	if !slices.IsSorted(room) || read[0] <= 0 || read[1] >= read[0] {
		t.Errorf("%v MB a token were read with room for %v %% of the experts", read, room)
	}
	answers := func(r *Record) (lines []string) {
		for _, line := range r.Notes {
			if strings.HasPrefix(line, "answer ") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if first := answers(&records[0]); len(first) != 2 || first[0] == first[1] ||
		!slices.Equal(answers(&records[1]), first) || !slices.Equal(answers(&records[2]), first) {
		t.Errorf("answers %q, %q, %q: want two, the same in all arms", first, answers(&records[1]), answers(&records[2]))
	}
}

// TestStreamStates: a repetition in state warm has been computed before, so that with room for it nothing is missing; a cold one begins with
// no expert in memory.
func TestStreamStates(t *testing.T) {
	hits := func(state State) float64 {
		cfg := StreamConfig{DecodeConfig: DecodeConfig{ModelConfig: small(), Gen: []int{4}}, RAM: []string{"90%"}}
		cfg.State = state
		cfg.Settings[0].Options.Prefetch = engine.PrefetchOff
		e, err := NewStream(cfg)
		if err != nil {
			t.Fatal(err)
		}
		knowMemory(e.(*decode).models)
		return value(t, &execute(t, e, state)[0], "hit %")
	}
	if warm, cold := hits(Warm), hits(Cold); warm < 90 || cold > warm-10 {
		t.Errorf("%v %% of the experts were in memory warm, %v %% cold", warm, cold)
	}
}

// TestAnswers: an arm that comes to another answer fails, and the error says which.
func TestAnswers(t *testing.T) {
	a := newAnswers()
	s := func(device, ram string) *Setting {
		return &Setting{Path: "m", Params: []Param{{"ram", ram}}, Options: engine.Options{Device: device}}
	}
	for _, tt := range []struct {
		setting *Setting
		piece   int
		digest  string
		fails   bool
	}{
		{s("none", "20%"), 1, "aa", false},
		{s("none", "40%"), 1, "aa", false},
		{s("0", "40%"), 1, "bb", false}, // a device adds in another order
		{s("none", "20%"), 2, "cc", false},
		{s("none", "60%"), 1, "dd", true},
	} {
		switch err := a.compare(tt.setting, "tg4", tt.piece, tt.digest); {
		case (err != nil) != tt.fails:
			t.Errorf("%v: %v", tt, err)
		case err != nil && !(strings.Contains(err.Error(), "ram=60%") && strings.Contains(err.Error(), "ram=20%")):
			t.Errorf("%v does not say which arms", err)
		}
	}
}

func TestTrace(t *testing.T) {
	drawn := trace{seed: 1, vocab: 50}
	a, b := drawn.piece(1, 20), drawn.piece(2, 20)
	if slices.Equal(a, b) || !slices.Equal(a[:7], drawn.piece(1, 7)) || slices.Equal(a, (&trace{seed: 2, vocab: 50}).piece(1, 20)) {
		t.Errorf("pieces %v and %v", a, b)
	}
	for _, id := range append(a, b...) {
		if id < 0 || id >= 50 {
			t.Errorf("token %d of a vocabulary of 50", id)
		}
	}
	text := trace{vocab: 50, text: []int32{0, 1, 2, 3, 4}}
	for number, want := range map[int][]int32{-1: {2, 3, 4}, 0: {0, 1, 2}, 1: {3, 4, 0}, 2: {1, 2, 3}} {
		if got := text.piece(number, 3); !slices.Equal(got, want) {
			t.Errorf("piece %d is %v, want %v", number, got, want)
		}
	}
}

// TestPieces: rotating repetitions have tokens of their own, warm ones the same.
func TestPieces(t *testing.T) {
	for _, tt := range []struct {
		state State
		want  []int
	}{{Rotating, []int{1, 2, 3}}, {Cold, []int{1, 2, 3}}, {Warm, []int{1, 1, 1}}} {
		x := models{ModelConfig: ModelConfig{State: tt.state}}
		for rep, want := range tt.want {
			if got := x.piece(rep); got != want {
				t.Errorf("%s: repetition %d is piece %d, want %d", tt.state, rep, got, want)
			}
		}
	}
}

// TestModelRefuses: what cannot be run is refused before a model is loaded, and says why.
func TestModelRefuses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(change func(*ModelConfig)) ModelConfig {
		cfg := small()
		change(&cfg)
		return cfg
	}
	stream := func(cfg ModelConfig, ram string) error {
		_, err := NewStream(StreamConfig{DecodeConfig: DecodeConfig{ModelConfig: cfg, Gen: []int{4}}, RAM: []string{ram}})
		return err
	}
	decode := func(cfg ModelConfig, gen int) error {
		_, err := NewDecode(DecodeConfig{ModelConfig: cfg, Gen: []int{gen}})
		return err
	}
	prefill := func(cfg ModelConfig, prompt int) error {
		_, err := NewPrefill(PrefillConfig{ModelConfig: cfg, Prompt: []int{prompt}})
		return err
	}
	deep := with(func(c *ModelConfig) { c.Depths = []int{0, 250} })
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"decode beyond the context", decode(deep, 7), "tg7 @ d250 needs a context of 257 tokens, and "},
		{"a context that is just long enough", decode(deep, 6), ""},
		{"a prompt beyond the context", prefill(deep, 7), "pp7 @ d250 needs a context of 257 tokens"},
		{"nothing to decode", decode(small(), 0), "--n-gen 0: want 1 or more"},
		{"no prompt", prefill(small(), 0), "--n-prompt 0: want 1 or more"},
		{"no model", decode(with(func(c *ModelConfig) { c.Settings[0].Path = empty }), 1), empty},
		{"no text", decode(with(func(c *ModelConfig) { c.Text = empty + "not" }), 1), "the text of the trace: "},
		{"an empty text", decode(with(func(c *ModelConfig) { c.Text = empty }), 1), "is empty"},
		{"no memory", stream(small(), "0"), "--ram 0: no memory at all"},
		{"more than all", stream(small(), "101%"), "--ram 101%: "},
	} {
		if tt.want == "" && tt.err != nil || tt.want != "" && (tt.err == nil || !strings.Contains(tt.err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, tt.err, tt.want)
		}
	}
	e, err := NewStream(StreamConfig{DecodeConfig: DecodeConfig{ModelConfig: small(), Gen: []int{4}}, RAM: []string{"1%"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Execute(t.Context(), e, Options{Reps: 1, State: Rotating}); err == nil || !strings.Contains(err.Error(), "one for each of 4 layers") {
		t.Errorf("less than an expert for each layer: %v", err)
	}
}

// TestModelsAreShared: arms with the same setting use one model in memory, which lives as long as one of them.
func TestModelsAreShared(t *testing.T) {
	loaded := 0
	cfg := DecodeConfig{ModelConfig: small(), Gen: []int{2, 3}}
	cfg.Load = func(ctx context.Context, path string, opt engine.Options) (*engine.Model, error) {
		loaded++
		return engine.Load(ctx, path, opt)
	}
	e, err := newDecode("decode", cfg)
	if err != nil {
		t.Fatal(err)
	}
	knowMemory(e.models)
	execute(t, e, Rotating)
	if loaded != 1 || e.shared[0] != nil {
		t.Errorf("the model was loaded %d times, and is held: %v", loaded, e.shared[0] != nil)
	}
}

// TestModelsShareTheProbe: models that stream have one probe, which is closed with the last of them.
func TestModelsShareTheProbe(t *testing.T) {
	cfg := small()
	cfg.Settings[0].Options.RAM = 1 << 19
	x, err := newModels(cfg)
	if err != nil {
		t.Fatal(err)
	}
	sharedtest.Leaks(t)
	var probes []any
	var ends []func() error
	for range 2 {
		m, release, err := x.open(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		probes, ends = append(probes, m.Probe()), append(ends, release)
	}
	if probes[0] != probes[1] || x.watch.users != 2 {
		t.Errorf("probes %p and %p, %d users", probes[0], probes[1], x.watch.users)
	}
	for _, end := range ends {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	if x.watch.users != 0 {
		t.Errorf("%d users are left", x.watch.users)
	}
}

func TestBalance(t *testing.T) {
	cfg := BalanceConfig{
		DecodeConfig: DecodeConfig{ModelConfig: small(), Gen: []int{3}}, RAM: []string{"50%"}, Readers: []int{1, 2}, Horizons: []int{1, 2}, AutoWarmup: 6,
	}
	e, err := NewBalance(cfg)
	if err != nil {
		t.Fatal(err)
	}
	knowMemory(e.(*balance).models)
	records := execute(t, e, Rotating)
	var arms []string
	for i := range records {
		arms = append(arms, records[i].policy())
		if got := value(t, &records[i], "disk MB/token"); got <= 0 {
			t.Errorf("%s: %v MB a token were read", arms[i], got)
		}
	}
	want := []string{
		"readers 1, prefetch off", "readers 1, prefetch on, prefetch-depth 3, prefetch-horizon 1", "readers 1, prefetch on, prefetch-depth 3, prefetch-horizon 2",
		"readers 2, prefetch off", "readers 2, prefetch on, prefetch-depth 3, prefetch-horizon 1", "readers 2, prefetch on, prefetch-depth 3, prefetch-horizon 2",
		"readers auto, prefetch auto, prefetch-depth auto, prefetch-horizon auto",
	}
	if !slices.Equal(arms, want) {
		t.Errorf("arms %q, want %q", arms, want)
	}
	lines := e.(Concluder).Conclude(records)
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "the balancer's choice makes ") {
		t.Errorf("conclusion %q", lines)
	}
}

// TestConclude: the choice is compared, repetition by repetition, with the fixed setting that is best in the others.
func TestConclude(t *testing.T) {
	record := func(readers, ram string, rates ...float64) Record {
		return Record{
			Test: "tg4", Params: []Param{{"ram", ram}, {"readers", readers}, {"prefetch", "off"}},
			Metrics: map[string]Summary{tokensPerSecond: summarize(Metric{}, rates)},
		}
	}
	e := &balance{}
	for _, tt := range []struct {
		name    string
		records []Record
		want    []string // of each line
	}{
		{"within", []Record{record("1", "", 5, 5), record("2", "", 10, 20), record("auto", "", 9.6, 19.6)}, []string{"the best fixed setting 14.14 (readers 2, prefetch off); by repetition 0.970 ± 0.010 of the one that is best in the others, which is within 5 % of it"}},
		{"not within", []Record{record("1", "", 10), record("auto", "", 9)}, []string{"10.00 (readers 1, prefetch off); by repetition 0.900 of the one that is best in the others, which is not within"}},
		{"half the speed, half the time", []Record{record("1", "", 10, 10), record("auto", "", 10, 5)}, []string{"which is not within"}},
		{"two kinds", []Record{record("1", "20%", 10), record("auto", "20%", 10), record("1", "40%", 10), record("auto", "40%", 1)}, []string{"tg4 ram=20%: the", "tg4 ram=40%: the"}},
		{
			"luck of one repetition each",
			[]Record{record("1", "", 13, 10, 10), record("2", "", 10, 10, 13), record("auto", "", 11, 11, 11)},
			[]string{"(readers 1, prefetch off); by repetition 1.100 of"},
		},
		{"no choice yet", []Record{record("1", "", 10)}, nil},
		{"nothing fixed", []Record{record("auto", "", 10)}, nil},
	} {
		lines := e.Conclude(tt.records)
		if len(lines) != len(tt.want) {
			t.Errorf("%s: %q", tt.name, lines)
			continue
		}
		for i, line := range lines {
			if !strings.Contains(line, tt.want[i]) {
				t.Errorf("%s: %q, want %q", tt.name, line, tt.want[i])
			}
		}
	}
	records := []Record{record("1", "", 5, 5), record("2", "", 10, 20), record("auto", "", 9, 21)}
	e.Conclude(records)
	if got := records[2].Metrics[versusBest].Samples; !slices.Equal(got, []float64{0.9, 1.05}) {
		t.Errorf("the choice is %v of the best", got)
	}
}

// TestAnswersOfAnEarlierRun: samples that a run goes on from are compared, too.
func TestAnswersOfAnEarlierRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "samples")
	stream := func(reps int) error {
		cfg := StreamConfig{DecodeConfig: DecodeConfig{ModelConfig: small(), Gen: []int{2}}, RAM: []string{"50%", "100%"}}
		e, err := NewStream(cfg)
		if err != nil {
			t.Fatal(err)
		}
		knowMemory(e.(*decode).models)
		_, err = Execute(t.Context(), e, Options{Reps: reps, State: Warm, Dir: dir})
		return err
	}
	if err := errors.Join(stream(1), stream(2)); err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(dir, journalName)
	lines, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	_, answer, _ := bytes.Cut(lines, []byte(`"answer":"`))
	if len(answer) < 16 {
		t.Fatalf("no answer is kept: %s", lines)
	}
	other := bytes.Replace(lines, answer[:16], []byte("0123456789abcdef"), 1)
	if err := os.WriteFile(journal, other, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := stream(3); err == nil || !strings.Contains(err.Error(), "computes another answer") {
		t.Errorf("an earlier answer that differs: %v", err)
	}
	if err := os.WriteFile(journal, lines, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := stream(3); err != nil {
		t.Errorf("the folder is of use no more: %v", err)
	}
}

// TestTooLittleMemory: an arm that has less than it needs is left out if there are others.
func TestTooLittleMemory(t *testing.T) {
	cfg := StreamConfig{DecodeConfig: DecodeConfig{ModelConfig: small(), Gen: []int{2}}, RAM: []string{"1%", "100%"}}
	e, err := NewStream(cfg)
	if err != nil {
		t.Fatal(err)
	}
	knowMemory(e.(*decode).models)
	sharedtest.Leaks(t)
	records := execute(t, e, Rotating)
	if len(records) != 2 || !strings.Contains(records[0].Skipped, "one for each of 4 layers") || records[1].Skipped != "" {
		t.Errorf("records %+v", records)
	}
}

// TestShortText: a text that does not suffice for all repetitions is spoken of, once.
func TestShortText(t *testing.T) {
	var said []string
	x := &models{ModelConfig: ModelConfig{State: Rotating, Text: "a.txt", Note: func(line string) { said = append(said, line) }}, said: map[string]bool{}}
	s := session{x: x, trace: trace{vocab: 9, text: []int32{1, 2, 3, 4, 5, 6, 7}}}
	if s.ids(0, 3); len(said) != 0 {
		t.Errorf("said %q", said)
	}
	s.ids(1, 3)
	s.ids(2, 3)
	s.ids(3, 3)
	if len(said) != 1 || !strings.HasPrefix(said[0], "a.txt has 7 tokens and begins again") {
		t.Errorf("said %q", said)
	}
}
