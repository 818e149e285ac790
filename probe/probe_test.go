package probe

import (
	"testing"
	"time"
)

func TestOwnReadsAreCounted(t *testing.T) {
	p, err := Open(Options{Timed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var begin, end Snapshot
	if err := p.Read(&begin); err != nil {
		t.Fatal(err)
	}
	p.Begin()
	p.Begin()
	p.Begin()
	p.Observe(4096, time.Millisecond, false)
	p.Observe(0, 2*time.Millisecond, true)
	if err := p.Read(&end); err != nil {
		t.Fatal(err)
	}
	own := end.Since(&begin).Own
	if own.Reads != 2 || own.Bytes != 4096 || own.Failed != 1 || own.InFlight != 1 || own.Took.Count != 2 || own.Took.Sum != uint64(3*time.Millisecond) {
		t.Errorf("own: %+v", own)
	}
}
