package hugemem

import (
	"math"
	"testing"
)

// A block has the size asked for, is aligned, zero and writable to its last byte, and can be closed twice.
func TestMap(t *testing.T) {
	for _, size := range []int64{1, 4096, HugePage - 1, HugePage, 3*HugePage + 5} {
		b, err := Map(size)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(b.Data)) != size || int64(cap(b.Data)) != size || address(b.Data)%4096 != 0 {
			t.Errorf("%d bytes: length %d, capacity %d at %#x", size, len(b.Data), cap(b.Data), address(b.Data))
		}
		Populate(b.Data)
		if b.Data[size-1] != 0 {
			t.Error("not zero")
		}
		b.Data[size-1] = 1
		for range 2 {
			if err := b.Close(); err != nil || b.Data != nil {
				t.Error(err)
			}
		}
	}
}

// What no address space holds is refused.
func TestMapTooMuch(t *testing.T) {
	for _, size := range []int64{-1, math.MaxInt64} {
		if b, err := Map(size); err == nil {
			t.Errorf("%d bytes: %d", size, len(b.Data))
		}
	}
}
