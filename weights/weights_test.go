package weights_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

// TestOracles opens every oracle's checkpoint: architectures that coli does not run must parse too.
func TestOracles(t *testing.T) {
	dirs, _ := filepath.Glob(sharedtest.Dir(t, "oracles", "a") + "/*")
	own, _ := filepath.Glob(sharedtest.Testdata("oracles") + "/*")
	for _, dir := range append(dirs, own...) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c, err := weights.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			cfg, err := c.Config()
			if err != nil {
				t.Fatal(err)
			}
			if err := cfg.Check("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"); err != nil {
				t.Error(err)
			}
			for _, x := range c.Tensors() {
				if x.Format == format.Unknown && x.Type != "I64" {
					t.Errorf("%s: no format for %s", x.Name, x.Type)
				}
			}
			trace := filepath.Join(dir, "trace7.safetensors")
			if _, err := os.Stat(trace); err != nil {
				t.Fatal(err)
			}
			tr, err := weights.Open(trace)
			if err != nil {
				t.Fatal(err)
			}
			tr.Close()
		})
	}
}
