package cpu

import (
	"iter"
	"math"
	"slices"

	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ops"
)

// Attention is computed with an online softmax. The keys of a query are taken in blocks of blockKeys, chunkKeys of them make a chunk, and
// both begin at multiples of their length, wherever the query is. Within a chunk, after each block, with m the largest score so far and m'
// the one before (where it did not change nothing is scaled):
//
//	l   = exp(m' - m)·l   + Σ exp(s - m)
//	acc = exp(m' - m)·acc + Σ exp(s - m)·v
//
// and chunks are joined in rising order by the same rule (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135). So a
// query's bits follow from its keys alone, not from the queries beside it, nor from how the work is split: queries of a prompt share blocks
// that are copied to where they stay in the cache, and a long context of few queries is split at its chunks.
const (
	blockKeys = 64
	chunkKeys = 512
	// tileQueries is how many queries of a prompt share a block.
	tileQueries = 128
	// copyFor is the number of queries for which copying a block pays.
	copyFor = 16
	// runKeys is how many keys the heads of a piece pass in turn, so that what is read next lies near what was read before.
	runKeys = 16
)

// attention is what Attention works on.
type attention struct {
	dst, q *ops.Tensor
	kv     []*ops.KV
	places []ops.Place
	params ops.Attention

	group  int // heads that share a KV head
	pieces []piece
	parts  []float32 // the states that split pieces leave
	run    func(worker, from, to int)
}

// piece is work that one thread does: rows of one conversation at consecutive positions, heads of KV heads, which are more than one for one
// row only, chunks [first, last).
type piece struct {
	row, rows           int
	head, heads         int
	first, last, chunks int // chunks is how many the rows have
	part                int // where in parts the state of a split piece is
}

// queries is how many queries p has.
func (p *piece) queries(group int) int { return p.rows * p.heads * group }

// split says that others have more chunks of the same rows and head.
func (p *piece) split() bool { return p.last-p.first < p.chunks }

// softmax is the state of n queries: the sums of exp(s-m)·v and of exp(s-m), and m. A query without keys has m = -Inf and sums of 0.
type softmax struct{ acc, l, m []float32 }

// softmaxSize is how many values a query of so many columns has.
func softmaxSize(cols int) int { return cols + 2 }

// newSoftmax takes the memory of n queries from the front of x.
func newSoftmax(x []float32, n, cols int) softmax {
	return softmax{acc: x[:n*cols], l: x[n*cols:][:n], m: x[n*(cols+1):][:n]}
}

func (s *softmax) clear() {
	clear(s.acc)
	clear(s.l)
	for i := range s.m {
		s.m[i] = float32(math.Inf(-1))
	}
}

// raise makes m the largest score of query i so far.
func (s *softmax) raise(i int, m float32) {
	if m > s.m[i] {
		f := float32(math.Exp(float64(s.m[i] - m)))
		s.l[i] *= f
		kernels.Scale(s.row(i), f)
		s.m[i] = m
	}
}

func (s *softmax) row(i int) []float32 {
	cols := len(s.acc) / len(s.m)
	return s.acc[i*cols:][:cols]
}

// join adds the keys of o, which come after those of s.
func (s *softmax) join(o *softmax) {
	for i, m := range o.m {
		if o.l[i] == 0 { // not NaN
			continue
		}
		s.raise(i, m)
		f := float32(math.Exp(float64(m - s.m[i])))
		s.l[i] += f * o.l[i]
		kernels.Axpy(s.row(i), f, o.row(i))
	}
}

// Attention computes grouped-query attention of each row over the keys up to its own position.
func (e *Executor) Attention(dst, q *ops.Tensor, kv []*ops.KV, places []ops.Place, p ops.Attention) {
	defer e.clock.Enter(e.clock.Enter(ops.PartAttention))
	check(q.Cols == p.Heads*p.HeadDim && dst.Cols == q.Cols && dst.Rows == q.Rows, "Attention", dst, q)
	touch(dst)
	a := &e.attention
	a.dst, a.q, a.kv, a.places, a.params, a.group = dst, q, kv, places, p, p.Heads/p.KVHeads
	if a.run == nil {
		a.run = e.attend
	}
	const worth = 16 << 10 // multiply-adds that are worth a hand-over
	cost := a.cut(e.team.Size())
	e.team.Run(len(a.pieces), max(1, worth*len(a.pieces)/max(cost, 1)), a.run)
	a.join()
	a.dst, a.q, a.kv, a.places = nil, nil, nil, nil
}

// cut makes the pieces, the longest first, and returns the multiply-adds of all.
func (a *attention) cut(threads int) (cost int) {
	a.pieces = a.pieces[:0]
	parts, most := 0, max(1, tileQueries/a.group)
	for row := 0; row < len(a.places); {
		rows := 1
		for ; rows < most && row+rows < len(a.places); rows++ {
			if here, next := a.places[row], a.places[row+rows]; next.Seq != here.Seq || next.Pos != here.Pos+rows {
				break
			}
		}
		keys := a.places[row+rows-1].Pos + 1
		cost += 2 * rows * a.params.Heads * a.params.HeadDim * keys
		chunks := (keys + chunkKeys - 1) / chunkKeys
		each, heads := chunks, 1
		if rows == 1 {
			// What one piece reads of a key lies together, so that the more heads it has the faster memory is.
			each, heads = 1, min(max(a.params.KVHeads*chunks/(2*threads), 1), a.params.KVHeads)
		}
		for head := 0; head < a.params.KVHeads; head += heads {
			heads := min(heads, a.params.KVHeads-head)
			for c := 0; c < chunks; c += each {
				a.pieces = append(a.pieces, piece{row, rows, head, heads, c, c + each, chunks, parts})
				if each < chunks {
					parts += rows * heads * a.group * softmaxSize(a.params.HeadDim)
				}
			}
		}
		row += rows
	}
	slices.SortStableFunc(a.pieces, func(x, y piece) int { return a.length(&y) - a.length(&x) })
	a.parts = slices.Grow(a.parts[:0], parts)[:parts]
	return cost
}

// length is how many keys the rows of p have in it.
func (a *attention) length(p *piece) int {
	return p.rows * p.heads * (min(p.last*chunkKeys, a.places[p.row].Pos+p.rows) - p.first*chunkKeys)
}

// tile is a piece being computed. Query i is head i%group of a KV head's; i/group counts rows, or if there is one row its KV heads.
type tile struct {
	piece
	n, cols        int       // queries, and columns of each
	q              []float32 // [n, cols], scaled
	scores         []float32 // [n, blockKeys]
	k, v           []float32 // of the conversation, from the first column of the head on
	kStep, vStep   int       // from key to key
	kCopy, vCopy   []float32 // [blockKeys, cols]
	first          int       // position of the first row
	group          int
	sum, following softmax // of the chunks up to now, and of the one being computed
}

// attend computes pieces.
func (e *Executor) attend(worker, from, to int) {
	a := &e.attention
	for i := from; i < to; i++ {
		p := &a.pieces[i]
		t := a.tile(p, e, worker)
		t.sum.clear()
		t.chunk(p.first, &t.sum)
		for c := p.first + 1; c < p.last; c++ {
			t.following.clear()
			t.chunk(c, &t.following)
			t.sum.join(&t.following)
		}
		if !p.split() {
			a.leave(p, &t.sum)
		}
	}
}

// tile collects what computing p needs, in the worker's scratch memory; the state of a split piece is kept for join.
func (a *attention) tile(p *piece, e *Executor, worker int) tile {
	n, cols := p.queries(a.group), a.params.HeadDim
	kv := a.kv[a.places[p.row].Seq]
	at := p.head * cols
	t := tile{
		piece: *p, n: n, cols: cols, group: a.group, first: a.places[p.row].Pos,
		k: kv.K[at:], v: kv.V[at:], kStep: kv.Spec.KWidth, vStep: kv.Spec.VWidth,
	}
	state := n * softmaxSize(cols)
	memory := e.scratch(worker, 2*state+n*(cols+blockKeys)+2*blockKeys*cols)
	take := func(n int) (x []float32) {
		x, memory = memory[:n], memory[n:]
		return x
	}
	t.q, t.scores, t.kCopy, t.vCopy = take(n*cols), take(n*blockKeys), take(blockKeys*cols), take(blockKeys*cols)
	t.following = newSoftmax(take(state), n, cols)
	if p.split() {
		t.sum = newSoftmax(a.parts[p.part:], n, cols)
	} else {
		t.sum = newSoftmax(take(state), n, cols)
	}
	for r := range p.rows {
		width := p.heads * a.group * cols
		copy(t.q[r*width:][:width], a.q.Row(p.row + r)[at*a.group:])
	}
	kernels.Scale(t.q, a.params.Scale)
	return t
}

// leave writes the result of a piece's queries.
func (a *attention) leave(p *piece, s *softmax) {
	width := p.heads * a.group * a.params.HeadDim
	for i := range s.m {
		kernels.Scale(s.row(i), 1/s.l[i])
	}
	for r := range p.rows {
		copy(a.dst.Row(p.row + r)[p.head*a.group*a.params.HeadDim:][:width], s.acc[r*width:])
	}
}

// join puts split pieces together.
func (a *attention) join() {
	for i := range a.pieces {
		p := &a.pieces[i]
		if !p.split() || p.first > 0 {
			continue
		}
		n := p.queries(a.group)
		size := n * softmaxSize(a.params.HeadDim)
		sum := newSoftmax(a.parts[p.part:], n, a.params.HeadDim)
		for c := 1; c < p.chunks; c++ {
			following := newSoftmax(a.parts[p.part+c*size:], n, a.params.HeadDim)
			sum.join(&following)
		}
		a.leave(p, &sum)
	}
}

// chunk adds the keys of chunk c that the queries see to s.
func (t *tile) chunk(c int, s *softmax) {
	end := min((c+1)*chunkKeys, t.first+t.rows)
	for b := c * chunkKeys; b < end; b += blockKeys {
		t.block(b, min(blockKeys, end-b), s)
	}
}

// sees returns how many of n keys from position b on query i sees.
func (t *tile) sees(i, b, n int) int {
	if t.heads > 1 {
		return n
	}
	return min(n, t.first+i/t.group+1-b)
}

// block adds n keys from position b on.
func (t *tile) block(b, n int, s *softmax) {
	from := max(0, b-t.first) * t.group // queries before see none of them
	k, v := t.k[b*t.kStep:], t.v[b*t.vStep:]
	switch {
	case t.n-from >= copyFor && t.heads == 1:
		gather(t.kCopy, k, t.cols, t.kStep, n)
		gather(t.vCopy, v, t.cols, t.vStep, n)
		t.score(from, t.n, b, 0, n, t.kCopy, t.cols)
		t.weigh(from, b, n, s)
		t.add(from, t.n, b, 0, n, t.vCopy, t.cols, s)
	default:
		for h, j := range t.runs(n) {
			lo, hi := t.queriesOf(h, from)
			t.score(lo, hi, b+j, j, min(runKeys, n-j), k[j*t.kStep+h*t.cols:], t.kStep)
		}
		t.weigh(from, b, n, s)
		for h, j := range t.runs(n) {
			lo, hi := t.queriesOf(h, from)
			t.add(lo, hi, b+j, j, min(runKeys, n-j), v[j*t.vStep+h*t.cols:], t.vStep, s)
		}
	}
}

// runs goes through n keys by runKeys, and with each run through the KV heads.
func (t *tile) runs(n int) iter.Seq2[int, int] {
	return func(yield func(head, key int) bool) {
		for j := 0; j < n; j += runKeys {
			for h := range t.heads {
				if !yield(h, j) {
					return
				}
			}
		}
	}
}

// queriesOf returns the queries of a KV head, from one on.
func (t *tile) queriesOf(h, from int) (lo, hi int) {
	if t.heads == 1 {
		return from, t.n
	}
	return h * t.group, (h + 1) * t.group
}

// score writes the scores of queries [from, to) with those of n keys from position b on that they see, the block's from j on.
func (t *tile) score(from, to, b, j, n int, k []float32, step int) {
	for i := from; i < to; {
		some := 0
		if i+kernels.Queries <= to {
			some = max(t.sees(i, b, n), 0)
			kernels.DotTile(t.scores[i*blockKeys+j:], blockKeys, t.q[i*t.cols:], k, t.cols, step, some)
		}
		for end := min(i+kernels.Queries, to); i < end; i++ {
			if sees := t.sees(i, b, n); sees > some {
				kernels.DotRows(t.scores[i*blockKeys+j+some:], t.q[i*t.cols:][:t.cols], k[some*step:], step, sees-some)
			}
		}
	}
}

// weigh replaces the scores of n keys from position b on by their exponentials.
func (t *tile) weigh(from, b, n int, s *softmax) {
	for i := from; i < t.n; i++ {
		x := t.scores[i*blockKeys:][:t.sees(i, b, n)]
		s.raise(i, kernels.Max(x))
		s.l[i] += kernels.SoftmaxRow(x, s.m[i])
	}
}

// add adds to queries [from, to) the weighted values of those of n keys from position b on that they see, the block's from j on.
func (t *tile) add(from, to, b, j, n int, v []float32, step int, s *softmax) {
	for i := from; i < to; {
		some := 0
		if i+kernels.Queries <= to {
			some = max(t.sees(i, b, n), 0)
			kernels.AxpyTile(s.acc[i*t.cols:], t.scores[i*blockKeys+j:], blockKeys, v, t.cols, step, some)
		}
		for end := min(i+kernels.Queries, to); i < end; i++ {
			if sees := t.sees(i, b, n); sees > some {
				kernels.AxpyRows(s.row(i), t.scores[i*blockKeys+j+some:][:sees-some], v[some*step:], step, sees-some)
			}
		}
	}
}

// gather copies n rows of cols values that lie step apart.
func gather(dst, src []float32, cols, step, n int) {
	for j := range n {
		copy(dst[j*cols:][:cols], src[j*step:])
	}
}
