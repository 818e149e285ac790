package shaders

import (
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/shaders/internal/compile"
	"github.com/coli-moe/coli/shaders/internal/spirv"
	"github.com/coli-moe/coli/shaders/internal/variants"
)

// The push constants of every module lie where the Go struct of its source has them, in fewer bytes than every device has.
func TestPushConstants(t *testing.T) {
	for _, v := range variants.All() {
		push, ok := pushes[v.Source]
		if !ok {
			t.Errorf("%s.comp has no struct of push constants", v.Source)
			continue
		}
		m, err := spirv.Parse(Get(v.Name).SPIRV)
		if err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		var want []spirv.Member
		typ := reflect.TypeOf(push)
		for _, f := range reflect.VisibleFields(typ) {
			if f.Name == "_" || f.Anonymous {
				continue
			}
			offset := f.Offset // in the struct that it is promoted from
			if len(f.Index) > 1 {
				offset += typ.Field(f.Index[0]).Offset
			}
			want = append(want, spirv.Member{Offset: int(offset), Size: int(f.Type.Size())})
		}
		if diff := cmp.Diff(want, m.Push); diff != "" {
			t.Errorf("%s (-%s +SPIR-V):\n%s", v.Name, typ, diff)
		}
		if n := typ.Size(); n > 128 {
			t.Errorf("%s has %d bytes of push constants; at most 128", typ, n)
		}
	}
}

// Specialisation constants are numbered from 0 on without gaps, as a Launch has them.
func TestConstants(t *testing.T) {
	for _, v := range variants.All() {
		m, err := spirv.Parse(Get(v.Name).SPIRV)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for _, id := range m.Constants {
			seen[id] = true
		}
		for i := range seen {
			if i >= len(seen) {
				t.Errorf("%s has a specialisation constant %d but only %d of them", v.Name, i, len(seen))
			}
		}
	}
}

// The committed modules are what the sources compile to.
func TestCurrent(t *testing.T) {
	ci := os.Getenv("COLI_CI") == "1"
	n, err := compile.Check(".", ci)
	if err != nil {
		t.Errorf("go generate ./shaders: %v", err)
	}
	if !ci {
		return
	}
	want := 0
	for _, v := range variants.All() {
		if !v.Newer {
			want++
		}
	}
	if n < want {
		t.Errorf("%d modules were compiled again, at least %d can be: there is no glslc here, or not the one that made the committed modules", n, want)
	}
}
