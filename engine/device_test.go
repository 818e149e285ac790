package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/engine/sampler"
	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/ledger"
)

// moves is a run with everything that moves layer state: a prompt in chunks, tokens after it, a return to an earlier place, other tokens,
// and another conversation in between. It returns all logits.
func moves(t *testing.T, m *Model) (out []float32) {
	t.Helper()
	keep := func(_ int, logits []float32) { out = append(out, logits...) }
	a, b := session(t, m, 0), session(t, m, 0)
	defer a.Close()
	defer b.Close()
	step := func(s *Session, ids []int32) {
		t.Helper()
		if err := s.ForwardAll(t.Context(), ids, keep); err != nil {
			t.Fatal(err)
		}
	}
	ids := prompt(24)
	step(a, ids[:19])
	step(b, ids[7:12])
	step(a, ids[19:20])
	step(a, ids[20:21])
	a.Truncate(9)
	step(a, ids[3:6])
	step(b, ids[1:2])
	a.Truncate(10)
	step(a, ids[20:22])
	return out
}

// TestBinding: wherever the boundary between device and CPU is, every logit has the bits of the run on the CPU, since the device here
// computes with its kernels; and the layers ran where they were bound.
func TestBinding(t *testing.T) {
	for _, name := range []string{"olmoe", "qwen3_moe"} {
		dir := sharedtest.Testdata("oracles", name)
		base := load(t, dir, Options{Threads: 1})
		want := moves(t, base)
		layers, _ := base.ExpertDims()
		for n := range layers + 1 {
			for _, chunk := range []int{1, 5, 512} {
				opt := Options{Threads: 2, Chunk: chunk, GPULayers: GPULayers(strconv.Itoa(n))}
				if n > 0 {
					fake(t, &opt)
				}
				m := load(t, dir, opt)
				if !slices.Equal(moves(t, m), want) {
					t.Errorf("%s, %d layers on the device, chunk %d: the logits differ", name, n, chunk)
				}
				st := m.Stats()
				if on, head := m.LayersOnDevice(); on != n || head != (n == layers) {
					t.Errorf("%s: %d layers on the device, head %v: %s", name, on, head, m.LayersWhy)
				}
				if (st.Device.MatMuls > 0) != (n > 0) || (st.CPU.MatMuls > 0) != (n < layers) {
					t.Errorf("%s, %d layers on the device: %+v", name, n, st)
				}
				if st.Pairs() != base.Stats().Pairs() || !slices.Equal(m.Routed(), base.Routed()) {
					t.Errorf("%s, %d layers on the device: other pairs were counted", name, n)
				}
			}
		}
	}
}

// TestDeviceFails: whatever the device fails of, and when, every logit has the bits of the run on the CPU, one line says what happened, and
// nothing is left on the device.
func TestDeviceFails(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	base := load(t, dir, Options{Threads: 1})
	want := moves(t, base)
	run := func(what, layers string, ram int64, set func(f *fakeDevice)) *fakeDevice {
		t.Helper()
		said := &notes{}
		opt := Options{Threads: 2, Chunk: 8, GPULayers: GPULayers(layers), RAM: ram, Note: said.add}
		f := fake(t, &opt)
		set(f)
		m := load(t, dir, opt)
		if !slices.Equal(moves(t, m), want) {
			t.Errorf("%s: the logits differ", what)
		}
		if !slices.Equal(m.Routed(), base.Routed()) {
			t.Errorf("%s: other pairs count as routed", what)
		}
		lines := slices.DeleteFunc(said.take(), func(line string) bool { return strings.HasPrefix(line, "experts are read") })
		if f.dead != nil {
			if len(lines) != 1 || !strings.Contains(lines[0], f.dead.Error()+"): from here on everything runs on the CPU") {
				t.Errorf("%s: lines %q", what, lines)
			}
			if n, head := m.LayersOnDevice(); n > 0 || head || !strings.Contains(m.LayersWhy, "all layers on the CPU") {
				t.Errorf("%s: %d layers are still on the device: %s", what, n, m.LayersWhy)
			}
			if m.Stats().CPU.MatMuls == 0 || !reflect.DeepEqual(m.Stats().Device, f.stats) || !reflect.DeepEqual(m.DeviceTimes(), f.Times()) {
				t.Errorf("%s: %+v, %+v", what, m.Stats(), m.DeviceTimes())
			}
		}
		return f
	}
	total := run("no failure", "all", 0, func(*fakeDevice) {})
	for at := 1; at <= total.ops; at += 1 + total.ops/60 {
		for _, layers := range []string{"all", "3"} {
			run(fmt.Sprintf("op %d, layers %s", at, layers), layers, 0, func(f *fakeDevice) { f.failOp = at })
		}
	}
	for at := range total.flushes {
		run(fmt.Sprintf("flush %d", at+1), "all", 0, func(f *fakeDevice) { f.failFlush = at + 1 })
	}
	// Where the CPU's experts stream, those of the lost layers do so too.
	run("streaming", "2", 200_000, func(f *fakeDevice) { f.failOp = total.ops / 4 })
}

// TestPartlyStreaming: the CPU's layers read their experts from disk, and have all slots to themselves.
func TestPartlyStreaming(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	base := load(t, dir, Options{Threads: 1})
	want := moves(t, base)
	slot, layers, experts := slotBytes(t, base)
	opt := Options{Threads: 2, GPULayers: "1", RAM: int64(layers-1) * slot, Prefetch: PrefetchOn}
	opt.History = func(string, int, int) []uint64 { return base.Routed() }
	fake(t, &opt)
	m := load(t, dir, opt)
	if !slices.Equal(moves(t, m), want) {
		t.Error("the logits differ")
	}
	st, streams, err := m.Experts()
	if err != nil || !streams || st.Slots != int64(layers-1) {
		t.Fatalf("%+v, streams %v, error %v: %s", st, streams, err, m.PlaceWhy)
	}
	if pairs := st.PairsInMemory + st.PairsInFlight + st.PairsOnDisk; pairs != m.Stats().CPU.Pairs || st.Read == 0 {
		t.Errorf("%d pairs went through the tier, %d were computed; %d bytes read", pairs, m.Stats().CPU.Pairs, st.Read)
	}
	if want := fmt.Sprintf("of %d fit", (layers-1)*experts); !strings.Contains(m.PlaceWhy, want) {
		t.Errorf("%q does not say %q", m.PlaceWhy, want)
	}
}

// TestDeviceFit: a device with room for k layers gets k, and the line says why it gets no more.
func TestDeviceFit(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	var probe Options
	f := fake(t, &probe)
	m := load(t, dir, probe)
	layers := m.net.Layers()
	costs := make([]int64, layers)
	for il := range costs {
		w, err := m.weigh(&f.card, il)
		if err != nil {
			t.Fatal(err)
		}
		costs[il] = w + m.stateBytes(il, Options{})
	}
	tail, err := m.weigh(&f.card, layers)
	if err != nil {
		t.Fatal(err)
	}
	for _, left := range []int64{-f.card.fixed - 5, -1, 0} { // not even what steps need, or just that
		opt := Options{Chunk: 7}
		f := fake(t, &opt)
		f.card.free = f.card.fixed + left
		if m := load(t, dir, opt); !strings.Contains(m.LayersWhy, "none on fake: steps of 7 rows need ") || !strings.Contains(m.LayersWhy, "--chunk") {
			t.Errorf("%d bytes free: %q", f.card.free, m.LayersWhy)
		}
	}
	free := f.card.fixed
	for k := range layers + 1 {
		for _, g := range []GPULayers{"", "all", "99"} {
			opt := Options{GPULayers: g}
			f := fake(t, &opt)
			f.card.free = free + tail/2
			m := load(t, dir, opt)
			if n, head := m.LayersOnDevice(); n != k || head {
				t.Errorf("room for %d layers, --gpu-layers %q: %d and head %v: %s", k, g, n, head, m.LayersWhy)
			}
			want := fmt.Sprintf("layer %d needs ", k)
			if k == layers {
				want = "the head needs "
			}
			if !strings.Contains(m.LayersWhy, want) {
				t.Errorf("%q does not say %q", m.LayersWhy, want)
			}
			if f.loads != k {
				t.Errorf("room for %d layers: %d were loaded", k, f.loads)
			}
		}
		if k < layers {
			free += costs[k]
		}
	}
}

// TestSharedMemory: what a device takes of the CPU's memory is not given to experts, and more than there is is refused with the number.
func TestSharedMemory(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	for _, tt := range []struct {
		shared bool
		fails  bool
	}{{false, false}, {true, true}} {
		opt := Options{GPULayers: "2"}
		f := fake(t, &opt)
		f.card.shared, f.card.fixed, f.card.free = tt.shared, 1<<50, 1<<51
		m, err := Load(t.Context(), dir, opt)
		if failed := err != nil; failed != tt.fails {
			t.Errorf("shared %v: error %v", tt.shared, err)
		}
		if err == nil {
			err = m.Close()
		}
		if tt.fails && (!errors.Is(err, ledger.ErrNoRoom) || !strings.Contains(err.Error(), "layers on fake") || !strings.Contains(err.Error(), "--gpu-layers")) {
			t.Errorf("shared %v: error %v", tt.shared, err)
		}
	}
}

// TestLoadFails: a layer that does not reach the device runs on the CPU, and so do those after it.
func TestLoadFails(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	base := load(t, dir, Options{Threads: 1})
	want := moves(t, base)
	for at := range base.net.Layers() + 1 {
		var last, total int64
		opt := Options{GPULayers: GPUAll, Progress: func(done, of int64) {
			if done < last || done > of {
				t.Errorf("load %d: progress %d after %d, of %d", at, done, last, of)
			}
			last, total = done, of
		}}
		f := fake(t, &opt)
		f.failLoad = at + 1
		m := load(t, dir, opt)
		if n, head := m.LayersOnDevice(); n != at || head {
			t.Errorf("load %d fails: %d layers on the device, head %v", at+1, n, head)
		}
		if !strings.Contains(m.LayersWhy, fmt.Sprintf("did not reach the device: load %d", at+1)) {
			t.Errorf("load %d fails: %q", at+1, m.LayersWhy)
		}
		if last != total || total == 0 {
			t.Errorf("load %d fails: the progress ends at %d of %d", at+1, last, total)
		}
		if !slices.Equal(moves(t, m), want) {
			t.Errorf("load %d fails: the logits differ", at+1)
		}
	}
}

// TestFormatWithoutDevice: a layer whose weights the device cannot multiply stays on the CPU, and the line names the format.
func TestFormatWithoutDevice(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "qwen3_moe")
	matrices, _ := load(t, dir, Options{}).net.Weights(0)
	opt := Options{}
	f := fake(t, &opt)
	f.lacks = matrices[0].Format
	m := load(t, dir, opt)
	if n, _ := m.LayersOnDevice(); n != 0 || !strings.Contains(m.LayersWhy, "is "+f.lacks.String()+", which has no form on the device") {
		t.Errorf("%d layers on the device: %s", n, m.LayersWhy)
	}
}

// TestDeviceOptions: what is asked for and cannot be had is said; what cannot be meant is refused.
func TestDeviceOptions(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	broken := errors.New("the driver is too old")
	for _, tt := range []struct {
		name string
		opt  Options
		err  error
		open bool
		why  string
		fail string
	}{
		{"none", Options{Device: DeviceNone, GPULayers: GPUAll}, nil, false, "", ""},
		{"no layers", Options{Device: "0", GPULayers: "0"}, nil, false, "", ""},
		{"no device", Options{}, nil, true, "", ""},
		{"a device that cannot be opened", Options{Device: "0"}, broken, true, "all layers on the CPU: the driver is too old", ""},
		{"no such device", Options{Device: "7"}, device.ErrNoMatch, true, "", "--device 7: "},
		{"no number", Options{GPULayers: "many"}, nil, false, "", "--gpu-layers many"},
	} {
		opened := false
		tt.opt.fake = func(*Model) (*card, error) {
			opened = true
			return nil, tt.err
		}
		m, err := Load(t.Context(), dir, tt.opt)
		if tt.fail != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fail) {
				t.Errorf("%s: error %v", tt.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if opened != tt.open || m.LayersWhy != tt.why {
			t.Errorf("%s: opened %v, %q, want %v, %q", tt.name, opened, m.LayersWhy, tt.open, tt.why)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestGreedyOnDevice: plain greedy decoding takes the device's own choice, and any other sampling the logits; the text is the CPU's.
func TestGreedyOnDevice(t *testing.T) {
	base := story(t, Options{Threads: 1})
	tok, err := base.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	answer := func(m *Model, p sampler.Params) string {
		t.Helper()
		s := session(t, m, 0)
		defer s.Close()
		var text strings.Builder
		_, err := s.Generate(t.Context(), Request{
			Prompt: tok.Encode("Once upon a time"), Sampler: sample(t, p), MaxTokens: 12,
			Emit: func(s string) error { text.WriteString(s); return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	for _, tt := range []struct {
		name   string
		p      sampler.Params
		layers GPULayers
		argmax int
	}{
		{"greedy", sampler.Params{RepeatPenalty: 1, TopP: 1}, GPUAll, 12},
		{"the head on the CPU", sampler.Params{RepeatPenalty: 1, TopP: 1}, "3", 0},
		{"a repeat penalty", sampler.Params{RepeatPenalty: 1.3, RepeatLastN: 64, TopP: 1}, GPUAll, 0},
		{"a temperature", sampler.Params{Temperature: 1, RepeatPenalty: 1, TopP: 1, Seed: 3}, GPUAll, 0},
	} {
		opt := Options{GPULayers: tt.layers}
		f := fake(t, &opt)
		m := story(t, opt)
		if got, want := answer(m, tt.p), answer(base, tt.p); got != want || f.argmax != tt.argmax {
			t.Errorf("%s: %q, want %q; %d choices on the device, want %d", tt.name, got, want, f.argmax, tt.argmax)
		}
	}
}

// TestDeviceComputesWrongly: values that are not finite on the device alone end its use, not the run, also where only the state of earlier
// tokens shows them, and where the device fails as well; those of damaged weights are the error that names the layer
// (TestNonFiniteNamesLayer), and the device stays.
func TestDeviceComputesWrongly(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	for _, tt := range []struct {
		name      string
		chunk     int
		failFlush int
		says      string
	}{
		{"at once", 512, 0, "not finite"},
		{"in an earlier chunk", 5, 0, "not finite"},
		{"and it is lost", 512, 2, "flush 2"},
		{"in an earlier chunk, and it is lost", 12, 3, "flush 3"},
	} {
		base := load(t, dir, Options{Threads: 1})
		said := &notes{}
		opt := Options{GPULayers: "3", Chunk: tt.chunk, Note: said.add}
		f := fake(t, &opt)
		f.poison, f.failFlush = true, tt.failFlush
		m := load(t, dir, opt)
		a, b := session(t, m, 0), session(t, base, 0)
		for _, ids := range [][]int32{prompt(24), {7}, {8}} {
			if !slices.Equal(logitsOf(t, a, ids), logitsOf(t, b, ids)) {
				t.Errorf("%s: the logits differ", tt.name)
			}
		}
		if !slices.Equal(a.Tokens(), b.Tokens()) || tt.chunk == 512 && !slices.Equal(m.Routed(), base.Routed()) {
			t.Errorf("%s: %d tokens, want %d, or other pairs count as routed", tt.name, len(a.Tokens()), len(b.Tokens()))
		}
		if lines := said.take(); len(lines) != 1 || !strings.Contains(lines[0], tt.says) {
			t.Errorf("%s: lines %q", tt.name, lines)
		}
	}
}

// TestObservedOnce: a step that is done again shows an observer no intermediate twice.
func TestObservedOnce(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	observe := func(m *Model) (seen []string, values []float32) {
		s := session(t, m, 0)
		s.Observe = func(name string, layer, _, _ int, data []float32) {
			seen, values = append(seen, fmt.Sprint(name, layer)), append(values, data...)
		}
		logitsOf(t, s, prompt(9))
		return seen, values
	}
	want, values := observe(load(t, dir, Options{Threads: 1}))
	for _, op := range []int{1, 40, 90} {
		opt := Options{}
		f := fake(t, &opt)
		f.failOp = op
		got, v := observe(load(t, dir, opt))
		if !slices.Equal(got, want) || !slices.Equal(v, values) || f.dead == nil {
			t.Errorf("op %d fails: %d intermediates, want %d; the failure %v", op, len(got), len(want), f.dead)
		}
	}
}

// TestLostAtTheEnd: a device that is lost after the last step, when nothing is left to do, is no error.
func TestLostAtTheEnd(t *testing.T) {
	opt := Options{}
	f := fake(t, &opt)
	m := load(t, sharedtest.Testdata("oracles", "olmoe"), opt) // whose cleanup closes it, without an error
	logitsOf(t, session(t, m, 0), prompt(3))
	f.dead = device.ErrLost
}

// TestCancelledOnDevice: a step that is cancelled on the device leaves a session that goes on as if it had not begun.
func TestCancelledOnDevice(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	want := logitsOf(t, session(t, load(t, dir, Options{}), 0), prompt(12))
	for _, layers := range []GPULayers{"2", GPUAll} {
		opt := Options{GPULayers: layers}
		fake(t, &opt)
		m := load(t, dir, opt)
		s := session(t, m, 0)
		logitsOf(t, s, prompt(12)[:5])
		ctx, cancel := context.WithCancel(t.Context())
		s.Observe = func(_ string, layer, _, _ int, _ []float32) {
			if layer == 1 {
				cancel()
			}
		}
		if _, err := s.Forward(ctx, prompt(12)[5:]); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		s.Observe = nil
		if n, _ := m.LayersOnDevice(); n == 0 || len(s.Tokens()) != 5 {
			t.Errorf("%d layers on the device, %d tokens", n, len(s.Tokens()))
		}
		if got := logitsOf(t, s, prompt(12)[5:]); !slices.Equal(got, want) {
			t.Error("the logits after a cancelled step differ")
		}
		s.Close()
	}
}
