package ops

import "math"

// Rope is a rotary position embedding: the rotated width and its frequencies, with a table of cosines and sines that grows with the
// positions seen. Pairs are half-split: (i, i+Dim/2) inside the first Dim values of a head.
type Rope struct {
	HeadDim int       // values of a head
	Dim     int       // rotated values, ≤ HeadDim; the rest passes through
	InvFreq []float32 // [Dim/2], radians a position
	Factor  float32   // multiplies cosine and sine (YaRN's attention factor), 1 otherwise

	cos, sin []float32 // [positions, Dim/2]
}

// NewRope returns the default rotary embedding: inv_freq[i] = theta^(-2i/dim).
func NewRope(headDim, dim int, theta float64) *Rope {
	r := &Rope{HeadDim: headDim, Dim: dim, Factor: 1, InvFreq: make([]float32, dim/2)}
	for i := range r.InvFreq {
		r.InvFreq[i] = float32(1 / math.Pow(theta, float64(2*i)/float64(dim)))
	}
	return r
}

// Grow extends the table to cover positions below n. It is not safe for concurrent use; executors call it before they split rows.
func (r *Rope) Grow(n int) {
	half := r.Dim / 2
	have := len(r.cos) / max(half, 1)
	if n <= have {
		return
	}
	n = max(n, 2*have, 64)
	for pos := have; pos < n; pos++ {
		for _, f := range r.InvFreq {
			// The angle is a float32 product, as the reference implementations form it.
			sin, cos := math.Sincos(float64(float32(pos) * f))
			r.cos = append(r.cos, float32(cos)*r.Factor)
			r.sin = append(r.sin, float32(sin)*r.Factor)
		}
	}
}

// At returns the cosines and sines of a position that Grow has covered.
func (r *Rope) At(pos int) (cos, sin []float32) {
	half := r.Dim / 2
	return r.cos[pos*half : (pos+1)*half], r.sin[pos*half : (pos+1)*half]
}
