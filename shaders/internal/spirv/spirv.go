// Package spirv reads what package shaders and its tests want to know of a SPIR-V module.
package spirv

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Opcodes, storage classes and decorations, from the SPIR-V 1.6 specification.
const (
	magic = 0x07230203

	opCapability     = 17
	opTypeInt        = 21
	opTypeFloat      = 22
	opTypeVector     = 23
	opTypeStruct     = 30
	opTypePointer    = 32
	opVariable       = 59
	opDecorate       = 71
	opMemberDecorate = 72

	capabilitySubgroups = 61 // GroupNonUniform
	storagePushConstant = 9
	decorationOffset    = 35
	decorationSpecID    = 1
)

// Member is one member of a block.
type Member struct{ Offset, Size int }

// Module is what a module declares.
type Module struct {
	Push      []Member // the push-constant block, in order; nil if there is none
	Subgroups bool     // it uses them
	Constants []int    // the ids of its specialisation constants, in the order of their decorations
}

// Parse reads a module. It errs on bytes that are no SPIR-V, and on a push-constant block with members other than numbers, vectors and
// addresses.
func Parse(b []byte) (Module, error) {
	var m Module
	if len(b) < 20 || len(b)%4 != 0 || binary.LittleEndian.Uint32(b) != magic {
		return m, errors.New("spirv: not a SPIR-V module of this byte order")
	}
	words := make([]uint32, len(b)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	sizes := map[uint32]int{}        // of types
	structs := map[uint32][]uint32{} // member types
	pointers := map[uint32]uint32{}  // to what
	offsets := map[[2]uint32]int{}   // of a struct's members
	var pushType uint32              // a pointer type
	for w := words[5:]; len(w) > 0; {
		n := int(w[0] >> 16)
		if n == 0 || n > len(w) {
			return m, errors.New("spirv: an instruction reaches past the module's end")
		}
		op, a := w[0]&0xffff, w[1:n]
		w = w[n:]
		switch {
		case op == opCapability && len(a) >= 1 && a[0] == capabilitySubgroups:
			m.Subgroups = true
		case op == opTypeInt && len(a) >= 2, op == opTypeFloat && len(a) >= 2:
			sizes[a[0]] = int(a[1] / 8)
		case op == opTypeVector && len(a) >= 3:
			sizes[a[0]] = sizes[a[1]] * int(a[2])
		case op == opTypeStruct && len(a) >= 1:
			structs[a[0]] = a[1:]
		case op == opTypePointer && len(a) >= 3:
			pointers[a[0]], sizes[a[0]] = a[2], 8 // only physical addresses, of 8 bytes, can be members
		case op == opVariable && len(a) >= 3 && a[2] == storagePushConstant:
			pushType = a[0]
		case op == opMemberDecorate && len(a) >= 4 && a[2] == decorationOffset:
			offsets[[2]uint32{a[0], a[1]}] = int(a[3])
		case op == opDecorate && len(a) >= 3 && a[1] == decorationSpecID:
			m.Constants = append(m.Constants, int(a[2]))
		}
	}
	block := pointers[pushType]
	for i, t := range structs[block] {
		if sizes[t] == 0 {
			return m, fmt.Errorf("spirv: member %d of the push constants is neither a number nor an address", i)
		}
		m.Push = append(m.Push, Member{offsets[[2]uint32{block, uint32(i)}], sizes[t]})
	}
	return m, nil
}
