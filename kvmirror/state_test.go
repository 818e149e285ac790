package kvmirror

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/coli-moe/coli/messages"
)

// TestScenarios runs the commands of scripts against one machine each:
//
//	new context budget
//	ready id rows first mark [k v]     k, v: floats of a row, 1 unless given
//	refused id                         the device has no memory for what ready asked
//	release id...
//
// Each answers with the effects, one a line, and with the bytes used.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var m *Machine
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(key string, otherwise int) int {
				d.MaybeScanArgs(t, key, &otherwise)
				return otherwise
			}
			var effects []Effect
			var b strings.Builder
			switch d.Cmd {
			case "new":
				m = New(Config{Context: number("context", 0), Budget: int64(number("budget", 0))})
			case "ready":
				k, v, first := number("k", 1), number("v", 1), number("first", 0)
				var err error
				effects, err = m.Ready(&messages.KVCache{
					ID: int32(number("id", 0)), Layer: 3, KWidth: int32(k), VWidth: int32(v), Rows: number("rows", 0),
					K: make([]float32, first*k), V: make([]float32, first*v), Mark: number("mark", 0),
				})
				if err != nil {
					fmt.Fprintln(&b, err)
				}
			case "refused":
				m.NotAllocated(int32(number("id", 0)))
			case "release":
				var ids []int32
				for _, a := range d.CmdArgs {
					var id int32
					if _, err := fmt.Sscan(a.Key, &id); err != nil {
						d.Fatalf(t, "%s: %v", a.Key, err)
					}
					ids = append(ids, id)
				}
				effects = m.Release(ids...)
			default:
				d.Fatalf(t, "unknown command")
			}
			if err := m.check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			for _, e := range effects {
				switch e.Kind {
				case Free:
					fmt.Fprintf(&b, "free %d\n", e.ID)
				case Alloc:
					fmt.Fprintf(&b, "alloc %d for %d rows\n", e.ID, e.Rows)
				case Upload:
					fmt.Fprintf(&b, "upload %d rows %d to %d\n", e.ID, e.From, e.To)
				}
			}
			fmt.Fprintf(&b, "%d bytes\n", m.used)
			return b.String()
		})
	})
}
