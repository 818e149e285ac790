package spirv

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module assembles instructions; each is an opcode and its operands.
func module(instructions ...[]uint32) []byte {
	words := []uint32{magic, 0x10500, 0, 100, 0}
	for _, i := range instructions {
		words = append(append(words, uint32(len(i))<<16|i[0]), i[1:]...)
	}
	b, _ := binary.Append(nil, binary.LittleEndian, words)
	return b
}

func TestParse(t *testing.T) {
	m, err := Parse(module(
		[]uint32{opCapability, capabilitySubgroups},
		[]uint32{opDecorate, 9, decorationSpecID, 3},
		[]uint32{opMemberDecorate, 5, 0, decorationOffset, 0},
		[]uint32{opMemberDecorate, 5, 1, decorationOffset, 8},
		[]uint32{opMemberDecorate, 5, 2, decorationOffset, 16},
		[]uint32{opTypeInt, 1, 32, 0},
		[]uint32{opTypeFloat, 2, 32},
		[]uint32{opTypeVector, 3, 2, 2},
		[]uint32{opTypePointer, 4, 5349, 1},
		[]uint32{opTypeStruct, 5, 4, 3, 1},
		[]uint32{opTypePointer, 6, storagePushConstant, 5},
		[]uint32{opVariable, 6, 7, storagePushConstant},
	))
	if err != nil {
		t.Fatal(err)
	}
	want := Module{Push: []Member{{0, 8}, {8, 8}, {16, 4}}, Subgroups: true, Constants: []int{3}}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	good := module([]uint32{opTypeInt, 1, 32, 0})
	for name, b := range map[string][]byte{
		"empty": nil, "no magic": append([]byte{1}, good[1:]...), "half a word": good[:len(good)-1], "half an instruction": good[:len(good)-4],
		"an empty instruction": append(good, 0, 0, 0, 0),
		"a member of no size": module([]uint32{opTypeStruct, 5, 4}, []uint32{opTypePointer, 6, storagePushConstant, 5},
			[]uint32{opVariable, 6, 7, storagePushConstant}),
	} {
		if m, err := Parse(b); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}
