package shaders

// NormPush is the push-constant block of rmsnorm.comp: y = x·rsqrt(mean(x²)+Eps)·w over each segment of each row, in place if Y is X.
// Before that it may add to x, and write the sum back: a residual's add and the norm behind it are one stage.
type NormPush struct {
	X    uint64 // float32 [Rows, Cols]; written with NormAdd
	W    uint64 // float32 [Segment]; not read with NormL2
	Y    uint64 // float32 [Rows, Cols], with NormOut
	XQ   uint64 // the integer form of y, with NormQ8: int8 [Rows, blocks·32]
	XD   uint64 // and its scales: float32 pairs (d, d·Σq) [Rows, blocks]
	Add  uint64 // with NormAdd: float32 [Rows, Cols], or [Rows, TopK, Cols] if TopK > 0
	AddW uint64 // float32 [Rows, TopK]: x += Σ weight·add, summed in order of rank before it joins x

	Rows, Cols uint32
	Segment    uint32 // columns normalised together; a divisor of Cols
	TopK       uint32
	Eps        float32
	Flags      uint32
}

// The flags of NormPush.
const (
	NormOut     uint32 = 1 << iota // write Y
	NormQ8                         // write XQ and XD; Segment is Cols or a multiple of 32
	NormPlusOne                    // the weight is 1+w (zero-centred)
	NormL2                         // y = x·rsqrt(Σx²+Eps): no mean, no weight
	NormAdd                        // x += Add first
)

// NormLaunch is the dispatch of rmsnorm.comp: a workgroup a segment where segments are wide, a subgroup a segment where they are narrow.
// Cols·Rows may be anything; a row's bits do not depend on the other rows.
func NormLaunch(p NormPush, subgroup int) Launch {
	segment, perRow := int(p.Segment), int(p.Cols/p.Segment)
	lanes := normLanes(segment, subgroup)
	wide := flag(lanes != subgroup, 1)
	vectors := groups(segment, 4)
	if p.Flags&NormQ8 != 0 {
		vectors = 8 * groups(segment, 32)
	}
	l := Launch{
		Kernel:    "rmsnorm",
		Constants: []uint32{threads, groups(int(vectors), lanes), wide, flag(p.Segment%4 == 0, 1), p.TopK},
		X:         uint32(perRow), Y: p.Rows, Z: 1,
	}
	if wide == 0 {
		l.X = groups(perRow, threads/subgroup)
	}
	return l
}

// normLanes is how many lanes share a segment: a workgroup's, or a subgroup's if that makes four vectors a lane at most.
func normLanes(segment, subgroup int) int {
	if segment > 16*subgroup {
		return threads
	}
	return subgroup
}

// QuantizePush is the push-constant block of quantize.comp: rows of float32 in the integer form that the block formats multiply, as package
// kernels makes it: blocks of 32 columns, d = amax/127, q = x/d to the nearest even, a block that is not finite with a scale that is not.
// The last block is padded with zeros.
type QuantizePush struct {
	X  uint64 // float32 [Rows, Cols]
	Up uint64 // with an activation: float32 [Rows, Cols]; what is quantised is act(x)·up
	XQ uint64 // int8 [Rows, blocks·32]
	XD uint64 // float32 pairs (d, d·Σq) [Rows, blocks]

	Rows, Cols uint32
}

// QuantizeLaunch is the dispatch of quantize.comp; act is ActNone to quantise x itself.
func QuantizeLaunch(p QuantizePush, act uint32) Launch {
	return Launch{
		Kernel:    "quantize",
		Constants: []uint32{threads, act, flag(p.Cols%4 == 0, 1)},
		X:         groups(8*int(groups(int(p.Cols), 32)), threads), Y: p.Rows, Z: 1,
	}
}

// Activations of gated units, as kernels number them: ops.Activation + 1.
const (
	ActNone uint32 = iota
	ActSiLU        // x·sigmoid(x)
)
