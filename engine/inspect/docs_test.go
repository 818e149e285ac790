package inspect

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/weights/format"
)

// The table of docs/formats.md says what the code does.
func TestFormatTable(t *testing.T) {
	data, err := os.ReadFile(sharedtest.Testdata("..", "docs", "formats.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		if cells := strings.Split(strings.TrimSpace(line), " | "); len(cells) == 5 {
			rows[strings.TrimPrefix(cells[0], "| ")] = cells
		}
	}
	for _, f := range format.All() {
		cells, ok := rows[f.String()]
		if !ok {
			t.Errorf("%s is not in the table", f)
			continue
		}
		in := f.Info()
		bits, _, _ := strings.Cut(cells[2], " and")
		wantBits := strconv.FormatFloat(8*float64(in.BlockBytes)/float64(in.Block), 'f', -1, 64)
		if cells[1] != strconv.Itoa(in.Block) || bits != wantBits {
			t.Errorf("%s: the table has blocks of %s and %s bits, want %d and %s", f, cells[1], bits, in.Block, wantBits)
		}
		delete(rows, f.String())
		k, best := kernels.For(f), kernels.For(format.Q8_0).ISA
		if best == "generic" {
			continue // the column is about processors with assembly
		}
		want := "float"
		switch {
		case !k.Direct:
			want = "row by row"
		case k.Form == kernels.FormQ8:
			want = "integer"
		}
		if cells[3] != want {
			t.Errorf("%s: the table says %q, it is %q", f, cells[3], want)
		}
		if k.Direct && k.ISA != best {
			t.Errorf("%s: computed with %s on a processor that has %s", f, k.ISA, best)
		}
	}
	delete(rows, "format")
	if len(rows) > 0 {
		t.Errorf("the table has formats that do not exist: %v", rows)
	}
}
