package synth

import (
	"io"
	"math/rand/v2"

	"github.com/coli-moe/coli/weights/format"
)

const (
	maxChunk   = 256  // columns of a chunk; the longest block of any format
	poolChunks = 4096 // so a row of 2048 columns is one of 4096^8
	bufferSize = 4 << 20
)

// A pool holds encoded chunks of random values. Quantising every value of a large model would take minutes; instead a tensor is a random
// sequence of chunks, which is written as fast as memory is copied. A chunk is never longer than a row.
type pool struct {
	data []byte
	size int // bytes of a chunk
	cols int // values of a chunk
}

// poolKey says which tensors may share a pool.
type poolKey struct {
	format    format.Format
	cols      int // of a chunk: a multiple of the format's block and a divisor of the tensor's columns
	mean, std float32
}

func newPool(key poolKey, seed uint64) (*pool, error) {
	size, err := key.format.RowBytes(key.cols)
	if err != nil {
		return nil, err
	}
	// The pool's numbers must not depend on the order in which pools are made.
	rng := newRand(seed, uint64(key.format)<<32|uint64(key.cols)|1<<63)
	p := &pool{data: make([]byte, size*poolChunks), size: size, cols: key.cols}
	values := make([]float32, key.cols)
	for chunk := range poolChunks {
		for i := range values {
			values[i] = key.mean + key.std*float32(rng.NormFloat64())
		}
		if err := format.Encode(key.format, p.data[chunk*size:][:size], values); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// fill writes the tensor's bytes. It deals chunks like cards from a deck that is shuffled whenever it is used up: even where a row is a
// single chunk, the rows of a small matrix differ.
func (p *pool) fill(w io.Writer, t *tensor, rng *rand.Rand) error {
	buf := make([]byte, 0, bufferSize+p.size)
	var order []int // of the chunks still to be dealt
	deck := make([]int, poolChunks)
	for i := range deck {
		deck[i] = i
	}
	chunks := int(t.size / int64(p.size))
	for next := 0; next < chunks; {
		buf = buf[:0]
		for ; len(buf) < bufferSize && next < chunks; next++ {
			if len(order) == 0 {
				rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
				order = deck
			}
			buf = append(buf, p.data[order[0]*p.size:][:p.size]...)
			order = order[1:]
			if err := p.change(buf[len(buf)-p.size:], t, next); err != nil {
				return err
			}
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// change gives the values that t prescribes to chunk number i of it.
func (p *pool) change(chunk []byte, t *tensor, i int) error {
	row, column := i/(t.dims[0]/p.cols), i%(t.dims[0]/p.cols)
	silent := t.silence && row%t.dims[1] == 0
	if !silent && (t.first == nil || column != 0) {
		return nil
	}
	values := make([]float32, p.cols)
	if !silent {
		if err := format.Decode(t.format, values, chunk); err != nil {
			return err
		}
		values[0] = t.first(row)
	}
	return format.Encode(t.format, chunk, values)
}

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
