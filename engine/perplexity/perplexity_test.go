package perplexity

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/sharedtest"
)

func load(t *testing.T, path string) *engine.Model {
	t.Helper()
	m, err := engine.Load(t.Context(), path, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func near(a, b, relative float64) bool { return math.Abs(a-b) <= relative*math.Abs(b) }

// The perplexity of llama.cpp is the yardstick for every conversion of the trained model.
func TestAgreesWithLlamaCpp(t *testing.T) {
	if testing.Short() {
		t.Skip("three times 30 thousand tokens")
	}
	dir := sharedtest.Dir(t, "models")
	text, err := os.ReadFile(filepath.Join(dir, "heldout-text.txt"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "gguf-oracle.json"))
	if err != nil {
		t.Fatal(err)
	}
	var oracle struct{ Perplexity map[string]float64 }
	if err := json.Unmarshal(data, &oracle); err != nil {
		t.Fatal(err)
	}
	for _, quant := range []string{"Q8_0", "Q4_0", "MXFP4"} {
		t.Run(quant, func(t *testing.T) {
			m := load(t, filepath.Join(dir, "tiny-moe-"+quant+".gguf"))
			tok, err := m.Tokenizer()
			if err != nil {
				t.Fatal(err)
			}
			got, err := Measure(t.Context(), m, tok.Encode(string(text)), Options{Windows: 60})
			if err != nil {
				t.Fatal(err)
			}
			want := oracle.Perplexity[quant]
			if !near(got.Perplexity, want, 0.005) || got.Scored != 60*255 {
				t.Errorf("perplexity %.4f over %d tokens, llama.cpp has %.4f", got.Perplexity, got.Scored, want)
			}
			t.Logf("perplexity %.4f, llama.cpp %.4f, apart %+.3f %%", got.Perplexity, want, 100*(got.Perplexity/want-1))
		})
	}
}

// Each window is scored from an empty cache, at the positions that the convention names.
func TestWindows(t *testing.T) {
	m := load(t, sharedtest.Testdata("oracles", "olmoe"))
	ids := make([]int32, 45)
	for i := range ids {
		ids[i] = int32(7 * i % 320)
	}
	for _, n := range []int{4, 7, 16} {
		windows := len(ids) / n
		sum, square, scored := 0.0, 0.0, 0
		for w := range windows {
			s, err := m.NewSession(n)
			if err != nil {
				t.Fatal(err)
			}
			err = s.ForwardAll(t.Context(), ids[w*n:(w+1)*n], func(pos int, logits []float32) {
				if pos < n/2 || pos == n-1 {
					return
				}
				p := probability(logits, ids[w*n+pos+1])
				sum, square, scored = sum-math.Log(p), square+math.Log(p)*math.Log(p), scored+1
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		var seen []int
		got, err := Measure(t.Context(), m, ids, Options{Context: n, Progress: func(w int, ppl float64) {
			seen = append(seen, w)
			if !(ppl > 0) {
				t.Errorf("window %d: perplexity %g so far", w, ppl)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		mean := sum / float64(scored)
		want := math.Exp(mean)
		dev := want * math.Sqrt((square/float64(scored)-mean*mean)/float64(scored-1))
		if !near(got.Perplexity, want, 1e-9) || !near(got.Error, dev, 1e-6) {
			t.Errorf("n_ctx %d: %.9g ± %.9g, want %.9g ± %.9g", n, got.Perplexity, got.Error, want, dev)
		}
		if got.Context != n || got.Windows != windows || got.Scored != windows*(n-n/2-1) || len(seen) != windows {
			t.Errorf("%+v after windows %d", got, seen)
		}
	}
}

// probability is softmax(logits)[id], computed without a shift.
func probability(logits []float32, id int32) float64 {
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l))
	}
	return math.Exp(float64(logits[id])) / sum
}

func TestNegLogProb(t *testing.T) {
	for _, tt := range []struct {
		logits []float32
		id     int32
		want   float64
	}{
		{[]float32{0, 0, 0, 0}, 2, math.Log(4)},
		{[]float32{0, float32(math.Log(3))}, 1, math.Log(4.0 / 3)},
		{[]float32{1000, 0}, 0, 0}, // no overflow
		{[]float32{1000, 0}, 1, 1000},
		{[]float32{-1000, -1000}, 0, math.Log(2)}, // no underflow
	} {
		if got := negLogProb(tt.logits, tt.id); math.Abs(got-tt.want) > 1e-6 {
			t.Errorf("%v at %d: %g, want %g", tt.logits, tt.id, got, tt.want)
		}
	}
}

func TestRefuses(t *testing.T) {
	m := load(t, sharedtest.Testdata("oracles", "olmoe"))
	for _, tt := range []struct {
		ids  int
		opt  Options
		want string
	}{
		{100, Options{Context: 3}, "at least 4"},
		{100, Options{Context: -1}, "at least 4"},
		{100, Options{Context: 101}, "100 tokens, less than one window of 101"},
		{100, Options{Context: 50, Windows: 3}, "--chunks 3: the text has 2 windows"},
		{100, Options{Context: 50, Windows: -1}, "--chunks -1"},
		{600, Options{Context: 300}, "the model was trained for at most 256"},
	} {
		_, err := Measure(t.Context(), m, make([]int32, tt.ids), tt.opt)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one with %q", tt.opt, err, tt.want)
		}
	}
}
