package synth

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/weights/format"
)

// Routing of random tokens is as skewed as asked for, in every layer: the most popular quarter of the experts gets the share that Zipf's
// law gives it, the most popular expert its own, and the ranking differs from layer to layer.
func TestSkew(t *testing.T) {
	const layers, experts, topK, tokens = 8, 64, 8, 256
	for _, tt := range []struct {
		like  string
		dense format.Format
		skew  float64
	}{
		{"olmoe-tiny", format.Q8_0, 0.5}, {"olmoe-tiny", format.Q4_0, 1}, {"qwen3-tiny", format.BF16, 1}, {"olmoe-tiny", format.F32, 1.5},
	} {
		t.Run(fmt.Sprintf("%s/%s/%v", tt.like, tt.dense, tt.skew), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "model.gguf")
			o := Options{Like: tt.like, Dense: tt.dense, Skew: tt.skew, NumExperts: experts, TopK: topK, Layers: layers}
			if err := Write(t.Context(), path, o, nil); err != nil {
				t.Fatal(err)
			}
			m, err := engine.Load(t.Context(), path, engine.Options{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			s, err := m.NewSession(tokens)
			if err != nil {
				t.Fatal(err)
			}
			var counts [layers][experts]int
			s.Observe = func(name string, layer, _, _ int, data []float32) {
				if name == "ffn_moe_topk" {
					for _, id := range data {
						counts[layer][int(id)]++
					}
				}
			}
			rng, ids := newRand(5, 6), make([]int32, tokens)
			for i := range ids {
				ids[i] = int32(rng.IntN(minVocab))
			}
			if _, err := s.Forward(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
			law := zipf(experts, topK, tt.skew)
			var want float64
			for _, share := range law[:experts/4] {
				want += share / topK
			}
			favourites := map[int]bool{}
			for layer := range counts {
				favourites[slices.Index(counts[layer][:], slices.Max(counts[layer][:]))] = true
				sorted := slices.Sorted(slices.Values(counts[layer][:]))
				var top int
				for _, n := range sorted[experts*3/4:] {
					top += n
				}
				if got := float64(top) / (tokens * topK); math.Abs(got-want) > 0.06 {
					t.Errorf("layer %d: a quarter of the experts gets %.3f of the routings, want %.3f", layer, got, want)
				}
				if got := float64(sorted[experts-1]) / tokens; math.Abs(got-law[0]) > 0.15 {
					t.Errorf("layer %d: %.3f of the tokens take the most popular expert, want %.3f", layer, got, law[0])
				}
			}
			if len(favourites) < layers/2 {
				t.Errorf("%d favourites in %d layers", len(favourites), layers)
			}
		})
	}
}

func TestZipf(t *testing.T) {
	for _, tt := range []struct {
		experts, topK int
		skew          float64
	}{{64, 8, 0.3}, {64, 8, 1}, {128, 8, 2}, {8, 2, 4}, {8, 8, 1}, {4, 1, 0.5}} {
		shares := zipf(tt.experts, tt.topK, tt.skew)
		var sum float64
		for rank, share := range shares {
			sum += share
			if share <= 0 || share > maxShare || rank > 0 && share > shares[rank-1] {
				t.Errorf("%+v: shares %v", tt, shares)
			}
			if r := float64(rank); rank > 0 && shares[rank-1] < maxShare && math.Abs(share/shares[rank-1]-math.Pow(r/(r+1), tt.skew)) > 1e-9 {
				t.Errorf("%+v: rank %d has %v, the one before %v", tt, rank, share, shares[rank-1])
			}
		}
		if want := min(float64(tt.topK), maxShare*float64(tt.experts)); math.Abs(sum-want) > 1e-9 {
			t.Errorf("%+v: %v experts a token, want %v", tt, sum, want)
		}
	}
}

func TestSizesOfExperts(t *testing.T) {
	for _, tt := range []struct {
		o    Options
		want string // part of the error; "" for none
	}{
		{Options{Like: "qwen3-tiny", NumExperts: 40, TopK: 5, ExpertFFN: 512}, ""},
		{Options{Like: "olmoe-tiny", NumExperts: 3, ExpertFFN: 1024}, ""},
		{Options{Like: "olmoe-tiny", NumExperts: 1}, "2 of 1 experts"},
		{Options{Like: "olmoe-tiny", TopK: 9}, "9 of 8 experts"},
		{Options{Like: "olmoe-tiny", NumExperts: 1 << 20}, "between 1 and"},
		{Options{Like: "olmoe-tiny", ExpertFFN: 100}, "smaller block"},
		{Options{Like: "olmoe-tiny", ExpertFFN: -1}, "width"},
		{Options{Like: "olmoe-tiny", Skew: -1}, "skew"},
		{Options{Like: "olmoe-tiny", Skew: math.NaN()}, "skew"},
	} {
		path := filepath.Join(t.TempDir(), "model.gguf")
		err := Write(t.Context(), path, tt.o, nil)
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%+v: got %v, want %q", tt.o, err, tt.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		m, err := engine.Load(t.Context(), path, engine.Options{}) // refuses shapes that are not the configuration's
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := m.Checkpoint.Config()
		if err != nil {
			t.Fatal(err)
		}
		if cfg.NumExperts != tt.o.NumExperts || cfg.MoEIntermediateSize != tt.o.ExpertFFN || tt.o.TopK != 0 && cfg.NumExpertsPerTok != tt.o.TopK {
			t.Errorf("%+v gives %d experts %d wide, %d a token", tt.o, cfg.NumExperts, cfg.MoEIntermediateSize, cfg.NumExpertsPerTok)
		}
		m.Close()
	}
}
