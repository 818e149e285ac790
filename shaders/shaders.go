// Package shaders has the compute shaders of the device: GLSL, the SPIR-V made of it, and for each kernel the Go side of its interface:
// push constants, specialisation constants and the number of workgroups a shape needs.
//
// What does not live here: pipelines and dispatches (package device), which kernel an op uses (package ops/gpu), the arrangement of
// weights (package shaders/layout).
//
// # Building
//
// The sources are *.comp with include/*.glsl; internal/variants lists the modules made of them. `go generate ./shaders` compiles what
// changed into spv, which is committed, together with a sum file for each source that says which inputs and which compiler its modules
// come from. A test compares the sums; with COLI_CI=1 it compiles everything again.
//
// # Conventions
//
// Kernels get device addresses and sizes as push constants, at most 128 bytes, and use no descriptor sets. Activations are float32
// row-major without padding, their tensors 256-byte aligned. The integer form of activations ("q8") has blocks of 32 columns, the
// last one of a row filled with zeros: int8 q [rows][32·blocks], and (d, d·Σq) as two float32 [rows][blocks]; x ≈ d·q, d = max|x|/127.
//
// Kernels run at subgroup sizes 8 to 64. A dispatch may need fewer invocations than its workgroups have: the rest does nothing.
package shaders

import (
	"embed"
	"fmt"
	"reflect"
	"sync"

	"github.com/coli-moe/coli/shaders/internal/spirv"
	"github.com/coli-moe/coli/shaders/internal/variants"
)

//go:generate go run ./internal/build

//go:embed spv/*.spv
var modules embed.FS

// Module is a compiled shader, with the fields of device.Module, to which it can be converted.
type Module struct {
	Name  string
	SPIRV []byte
	Push  int // bytes of push constants
	// FullSubgroups: it relies on subgroups without holes; its workgroup is a multiple of the subgroup size in x.
	FullSubgroups bool
}

// pushes maps each source to the struct of its push constants. A test compares them with the modules.
var pushes = map[string]any{
	"gemv":    GEMVPush{},
	"expert":  ExpertPush{},
	"gate_up": GateUpPush{},
	"down":    DownPush{},

	"gemm":       GEMMPush{},
	"gemm_float": GEMMPush{},
	"gemm_half":  GEMMPush{},
	"group_plan": GroupPush{},
	"moe_sum":    MoESumPush{},

	"argmax":          ArgMaxPush{},
	"attention":       AttentionPush{},
	"attention_block": AttentionPush{},
	"attention_coop":  AttentionPush{},
	"attention_qkv":   AttentionQKVPush{},
	"elementwise":     ElementwisePush{},
	"gather":          GatherPush{},
	"kv_out":          KVOutPush{},
	"qkv_post":        QKVPush{},
	"quantize":        QuantizePush{},
	"rmsnorm":         NormPush{},
	"rope":            RopePush{},
	"route":           RoutePush{},
	"router":          RouterPush{},
	"store_kv":        StoreKVPush{},
}

// Get returns the module of that name, as a Launch has it. A name that does not exist is a programming error and panics.
func Get(name string) Module {
	source, ok := sources()[name]
	if !ok {
		panic(fmt.Sprintf("shaders: no module is called %q", name))
	}
	b, err := modules.ReadFile("spv/" + name + ".spv")
	if err != nil {
		panic("shaders: go generate ./shaders was not run: " + err.Error())
	}
	m, err := spirv.Parse(b)
	if err != nil {
		panic(fmt.Sprintf("shaders: spv/%s.spv: %v", name, err))
	}
	return Module{Name: name, SPIRV: b, Push: int(reflect.TypeOf(pushes[source]).Size()), FullSubgroups: m.Subgroups}
}

// sources maps each module to its source.
var sources = sync.OnceValue(func() map[string]string {
	out := map[string]string{}
	for _, v := range variants.All() {
		out[v.Name] = v.Source
	}
	return out
})
