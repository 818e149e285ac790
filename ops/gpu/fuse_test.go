package gpu

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// script reads nodes, one a word: op:dst=x,y. A tensor is a letter.
func script(t *testing.T, list string) (nodes []node) {
	t.Helper()
	byName := map[string]op{}
	for i, name := range opNames {
		byName[name] = op(i)
	}
	tensor := func(name string) operand {
		if name == "" {
			return operand{}
		}
		return operand{id: int32(name[0]), at: uint64(name[0]) << 12, q: uint64(name[0])<<12 + 1, rows: 1, cols: 64}
	}
	weights := map[bool]*weight{}
	for f, isInt := range map[format.Format]bool{format.Q8_0: true, format.F32: false} {
		l, _ := layout.For(f, 64, 64)
		weights[isInt] = &weight{layout: l, integer: isInt}
	}
	for word := range strings.FieldsSeq(list) {
		name, rest, _ := strings.Cut(word, ":")
		dst, src, _ := strings.Cut(rest, "=")
		x, y, _ := strings.Cut(src, ",")
		n := node{dst: tensor(dst), x: tensor(x), y: tensor(y)}
		switch name {
		case "int":
			n.op, n.w = opMatMul, weights[true]
		case "float":
			n.op, n.w = opMatMul, weights[false]
		case "rope":
			n.op, n.n = opRope, [7]uint32{64, 64}
		case "norm":
			n.op, n.n = opNorm, [7]uint32{64, 1}
		case "experts":
			n.op, n.set = opExperts, new(experts)
		case "attention":
			n.op, n.n = opAttend, [7]uint32{1, 1, 64, 1, 64, 64}
		case "clamp":
			n.op, n.n = opClamp, [7]uint32{0, 5}
		default:
			var ok bool
			if n.op, ok = byName[name]; !ok {
				t.Fatalf("no op %q", name)
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// show prints units: the op of each with what is fused to it.
func show(f fused) string {
	var out []string
	for _, u := range f.units {
		s := u.op.String()
		if u.post != nil {
			s = "post"
		}
		if u.attend != nil {
			s += "+attention"
		}
		if u.add != nil {
			s += "+add"
		}
		if u.norm != nil {
			s += "+norm"
		}
		if u.quantize != nil {
			s += "+q"
		}
		if u.route != nil {
			s += "+route"
		}
		if u.download != nil {
			s += "+host"
		}
		out = append(out, s)
	}
	slices.Sort(f.swallowed)
	gone := ""
	for _, id := range f.swallowed {
		gone += string(rune(id))
	}
	return strings.Join(out, " ") + " | " + gone
}

func TestFuse(t *testing.T) {
	const post = "norm:q=q norm:k=k rope:q rope:k store_kv:=k,v "
	for _, c := range []struct{ name, list, want string }{
		{"norm writes the integer form", "norm:n=x quantize:=n int:o=n", "norm+q matmul | "},
		{"also for a reader further on", "norm:n=x float:l=n quantize:=n int:o=n", "norm+q matmul matmul | "},
		{"but not what is written in between", "norm:n=x add:n=y quantize:=n", "norm add quantize | "},
		{"attention writes the integer form", "attention:m=q quantize:=m int:o=m", "attention+q matmul | "},
		{"a product joins the residual", "int:o=n add:x=o", "matmul+add | o"},
		{"not if its result is read again", "int:o=n add:x=o download:=o", "matmul add download | "},
		{"and is normalised there", "int:o=n add:x=o norm:m=x quantize:=m int:p=m", "matmul+add+norm+q matmul | o"},
		{"experts, too", "experts:y=n add:x=y norm:m=x float:l=m", "experts+add+norm matmul | y"},
		{"not in place", "int:o=n add:x=o norm:x=x", "matmul+add norm | o"},
		{"not over what is multiplied", "int:o=n add:x=o norm:n=x", "matmul+add norm | o"},
		{"not another's sum", "int:o=n add:x=o norm:m=y", "matmul+add norm | o"},
		{"a product goes to the host", "int:o=n download:=o", "matmul+host | o"},
		{"a router chooses", "float:l=n route:=l download:=l", "matmul+route download | "},
		{"but not by another's logits", "float:l=n route:=k", "matmul route | "},
		{"not if it is looked at twice", "int:o=n download:=o argmax:=o", "matmul download argmax | "},
		{"not if it reads the residual", "float:o=x add:x=o", "matmul add | "},
		{"not with something in between", "int:o=n norm:y=z add:x=o", "matmul norm add | "},
		{"what is written again is not gone", "int:o=n add:x=o int:o=m", "matmul+add matmul | "},
		{"adding to itself is no accumulation", "int:o=n add:o=o", "matmul add | "},
		{"the gated unit writes the integer form alone", "glu:g=g,u quantize:=g int:o=g", "glu+q matmul | g"},
		{"not if its values are read", "glu:g=g,u quantize:=g int:o=g float:p=g", "glu quantize matmul matmul | "},
		{"queries, keys and values", post + "attention:m=q", "post+attention | kqv"},
		{"and the integer form behind attention", post + "attention:m=q quantize:=m int:o=m", "post+attention+q matmul | kqv"},
		{"not attention of other queries", post + "attention:m=p", "post attention | kv"},
		{"nor if the queries are read again", post + "attention:m=q download:=q", "post attention download | kv"},
		{"nor in place", post + "attention:v=q", "post attention | k"},
		{"clamped", "norm:q=q norm:k=k clamp:q clamp:k clamp:v rope:q rope:k store_kv:=k,v attention:m=q", "post+attention | kqv"},
		{"not with a part of the clamps", "norm:q=q norm:k=k clamp:q rope:q rope:k store_kv:=k,v", "norm norm clamp rope rope store_kv | "},
		{"not if the keys are read later", post + "download:=k", "norm norm rope rope store_kv download | "},
		{"not if a norm moves its tensor", "norm:p=q norm:k=k rope:p rope:k store_kv:=k,v", "norm norm rope rope store_kv | "},
		{"not if the list ends early", "norm:q=q norm:k=k rope:q rope:k", "norm norm rope rope | "},
		{"not if something else is stored", "norm:q=q norm:k=k rope:q rope:k store_kv:=j,v", "norm norm rope rope store_kv | "},
	} {
		f := fuse(script(t, c.list), func(fusion, *node) bool { return true })
		if got := show(f); got != c.want {
			t.Errorf("%s: %s gives\n  %s, want\n  %s", c.name, c.list, got, c.want)
		}
		apart := fuse(script(t, c.list), func(fusion, *node) bool { return false })
		if len(apart.units) != len(strings.Fields(c.list)) || len(apart.swallowed) > 0 || apart.fired != [fusions]int{} {
			t.Errorf("%s: without fusions: %s", c.name, show(apart))
		}
	}
}

// TestFuseRecycled: a norm is not behind a product that reads what its memory held two layers before.
func TestFuseRecycled(t *testing.T) {
	for layer, want := range map[int32]string{1: "matmul+add+norm | o", 2: "matmul+add+norm | o", 3: "matmul+add norm | o", -1: "matmul+add+norm | o"} {
		nodes := script(t, "int:o=n add:x=o norm:m=x")
		nodes[0].x.layer, nodes[2].dst.layer = 1, layer
		if got := show(fuse(nodes, func(fusion, *node) bool { return true })); got != want {
			t.Errorf("a norm of layer %d: %s, want %s", layer, got, want)
		}
	}
}

// TestFuseLayer: a layer of OLMoE becomes seven kernels, in as many stages as depend on each other.
func TestFuseLayer(t *testing.T) {
	nodes := script(t, `norm:n=x quantize:=n int:q=n int:k=n int:v=n norm:q=q norm:k=k clamp:q clamp:k clamp:v rope:q rope:k store_kv:=k,v
		attention:m=q quantize:=m int:o=m add:x=o norm:n=x float:l=n route:=l quantize:=n`)
	f := fuse(nodes, func(fusion, *node) bool { return true })
	want := "norm+q matmul matmul matmul post+attention+q matmul+add+norm+q matmul+route | koqv"
	if got := show(f); got != want {
		t.Errorf("fused to\n  %s, want\n  %s", got, want)
	}
	if got := fmt.Sprint(f.fired[fuseNormQuantize], f.fired[fuseAttendQuantize], f.fired[fusePost], f.fired[fuseMatMulAdd]); got != "2 1 1 1" {
		t.Errorf("counted %s", got)
	}
}

// TestGuess: a list is what was recorded, however far it begins like the one that was expected.
func TestGuess(t *testing.T) {
	list := make([]node, 5)
	for i := range list {
		list[i] = node{op: opAdd, host: uint64(i)}
	}
	for same := range len(list) + 1 {
		for more := range 3 {
			f := &frame{nodes: list}
			e := Executor{last: &frame{next: f}, frames: []*frame{f}}
			e.list()
			want := slices.Clone(list[:same])
			for i := range more {
				want = append(want, node{op: opClamp, host: uint64(i)})
			}
			for i := range want {
				e.add(&want[i])
			}
			known := e.find() != nil
			if known != (same == len(list) && more == 0) {
				t.Errorf("%d as expected, %d more: known %t", same, more, known)
			}
			if !known && !slices.Equal(e.nodes, want) {
				t.Errorf("%d as expected, %d more: %d nodes, or other ones", same, more, len(e.nodes))
			}
		}
	}
}

// TestNodePlain: nodes are compared as bytes only if they have neither padding nor fields that compare otherwise.
func TestNodePlain(t *testing.T) {
	var bytes func(x reflect.Type) uintptr
	bytes = func(x reflect.Type) (n uintptr) {
		switch x.Kind() {
		case reflect.Struct:
			for i := range x.NumField() {
				n += bytes(x.Field(i).Type)
			}
		case reflect.Array:
			return uintptr(x.Len()) * bytes(x.Elem())
		case reflect.Pointer, reflect.Int32, reflect.Uint32, reflect.Uint64:
			return x.Size()
		default:
			t.Errorf("a field of type %s", x)
		}
		return n
	}
	if x := reflect.TypeFor[node](); bytes(x) != x.Size() {
		t.Errorf("%d bytes in fields, %d in all", bytes(x), x.Size())
	}
}
