package shaders

// ElementwisePush is the push-constant block of elementwise.comp.
type ElementwisePush struct {
	Dst  uint64 // float32 [N]
	A, B uint64 // float32 [N]; either may be Dst
	N    uint32
	X    float32 // the limit of OpClamp
}

// The operations of elementwise.comp.
const (
	OpAdd   uint32 = iota // dst = a + b
	OpClamp               // dst = a limited to [-X, X]; what is not a number stays
	OpGLU                 // dst = SiLU(a)·b
)

// ElementwiseLaunch is the dispatch of elementwise.comp for p.N values.
func ElementwiseLaunch(op uint32, p ElementwisePush) Launch {
	n := groups(int(p.N), 4*threads)
	return Launch{Kernel: "elementwise", Constants: []uint32{threads, op}, X: min(n, maxGroups), Y: groups(int(n), maxGroups), Z: 1}
}

// GatherPush is the push-constant block of gather.comp: row i of Dst is row Index[i] of Src.
type GatherPush struct {
	Dst   uint64 // float32 [N, Cols]
	Src   uint64 // float32 [rows, Cols]
	Index uint64 // int32 [N]

	N, Cols uint32
}

// GatherLaunch is the dispatch of gather.comp.
func GatherLaunch(p GatherPush) Launch {
	return Launch{Kernel: "gather", Constants: []uint32{threads, flag(p.Cols%4 == 0, 1)}, X: groups(int(p.Cols), 4*threads), Y: p.N, Z: 1}
}
