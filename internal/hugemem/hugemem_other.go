//go:build !linux

package hugemem

import (
	"fmt"
	"math"
)

// align is what direct reads ask for, at most.
const align = 4096

func mapBlock(size int64) (*Block, error) {
	if size < 0 || size > math.MaxInt-align {
		return nil, fmt.Errorf("reserving %d bytes: no address space is that large", size)
	}
	mapped := make([]byte, size+align)
	skip := int(-address(mapped) & (align - 1))
	return &Block{Data: mapped[skip:][:size:size], mapped: mapped}, nil
}

// Populate leaves the pages to the first write.
func Populate([]byte) bool { return false }

// Close gives the memory back; no slice of it must be used any more.
func (b *Block) Close() error {
	b.Data, b.mapped = nil, nil
	return nil
}
