package tokenizer

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// model merges the symbols of a piece into tokens. In BPE the symbols are bytes (byteLevel) or characters, and the pair of lowest rank in
// the list of merges goes first; in SentencePiece's model (scores set) they are characters, and the pair that makes the token of highest
// score goes first. Among equals the leftmost goes first.
type model struct {
	byteLevel    bool
	pairs        pairTable
	scores       []uint32   // by id: the order of merging, lowest first
	byteIDs      [256]int32 // the token of each byte, -1 where there is none
	ignoreMerges bool       // a piece that is a token is not taken apart
	byteFallback bool       // a character without a token becomes the tokens of its bytes
	fuseUNK      bool       // a run of unknown characters becomes one unknown token
}

// symbol is a stretch of the piece, and its token or -1.
type symbol struct {
	start, end int32
	prev, next int32 // indices of the neighbours in a long piece, -1 at the ends
	id         int32
}

// candidate is a possible merge of the symbol at pos with its right neighbour. It is stale once that neighbour no longer ends at end.
type candidate struct {
	rank uint32
	pos  int32
	end  int32
	id   int32
}

// encoder is the working memory of one Encode call. It is kept for later calls, so that its cache stays warm.
type encoder struct {
	t     *Tokenizer
	out   []int32
	syms  []symbol
	heap  []candidate
	cache []cached
}

// cached holds the ids of one short piece, which is its own key: up to 15 bytes, then its length. Prose repeats its words so much that a
// small table without chains, where the newest entry wins, saves most merges.
type cached struct {
	lo, hi uint64
	n      uint8
	ids    [5]int32
}

const (
	cacheSize  = 1 << 13
	cachedLen  = 15
	shortPiece = 24 // symbols up to which scanning for the best pair beats a heap
	noMerge    = math.MaxUint32
)

func newEncoder(t *Tokenizer) *encoder { return &encoder{t: t, cache: make([]cached, cacheSize)} }

// piece appends the ids of one pre-token.
func (e *encoder) piece(s string) {
	if len(s) > cachedLen {
		e.tokenize(s)
		return
	}
	var key [16]byte
	copy(key[:], s)
	key[15] = byte(len(s))
	lo, hi := binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	h := (lo ^ hi*0xC2B2AE3D27D4EB4F) * 0x9E3779B97F4A7C15
	c := &e.cache[h>>51%cacheSize]
	if c.lo == lo && c.hi == hi {
		e.out = append(e.out, c.ids[:c.n]...)
		return
	}
	n := len(e.out)
	e.tokenize(s)
	if ids := e.out[n:]; len(ids) <= len(c.ids) {
		c.lo, c.hi, c.n = lo, hi, uint8(len(ids))
		copy(c.ids[:], ids)
	}
}

// tokenize appends the ids of one piece by merging.
func (e *encoder) tokenize(s string) {
	if e.t.model.ignoreMerges {
		if id, ok := e.t.vocab.lookup(s); ok {
			e.out = append(e.out, id)
			return
		}
	}
	e.split(s)
	if len(e.syms) <= shortPiece {
		e.mergeShort(s)
	} else {
		e.mergeLong(s)
	}
}

// split fills e.syms with the piece's bytes or characters.
func (e *encoder) split(s string) {
	e.syms = e.syms[:0]
	for i := 0; i < len(s); {
		n, id := 1, int32(-1)
		if e.t.model.byteLevel {
			id = e.t.model.byteIDs[s[i]]
		} else {
			_, n = utf8.DecodeRuneInString(s[i:])
			if got, ok := e.t.vocab.lookup(s[i : i+n]); ok {
				id = got
			}
		}
		k := int32(len(e.syms))
		e.syms = append(e.syms, symbol{start: int32(i), end: int32(i + n), prev: k - 1, next: k + 1, id: id})
		i += n
	}
	if n := len(e.syms); n > 0 {
		e.syms[n-1].next = -1
	}
}

// pair returns the rank and the token of merging a and b, or noMerge.
func (e *encoder) pair(s string, a, b *symbol) (rank uint32, id int32) {
	m := &e.t.model
	if m.scores != nil {
		if id, ok := e.t.vocab.lookup(s[a.start:b.end]); ok {
			return m.scores[id], id
		}
		return noMerge, -1
	}
	if a.id < 0 || b.id < 0 {
		return noMerge, -1
	}
	if slot := m.pairs.slot(a.id, b.id); slot.next != 0 {
		return slot.rank, slot.next - 1
	}
	return noMerge, -1
}

// mergeShort merges e.syms, at most shortPiece of them, and appends the result.
func (e *encoder) mergeShort(s string) {
	var rank [shortPiece]uint32
	var id [shortPiece]int32 // rank[i] and id[i] belong to the pair of syms[i] and syms[i+1]
	syms := e.syms
	for i := range len(syms) - 1 {
		rank[i], id[i] = e.pair(s, &syms[i], &syms[i+1])
	}
	for {
		best, at := uint32(noMerge), -1
		for i := range len(syms) - 1 {
			if rank[i] < best {
				best, at = rank[i], i
			}
		}
		if at < 0 {
			break
		}
		syms[at].end, syms[at].id = syms[at+1].end, id[at]
		copy(syms[at+1:], syms[at+2:])
		copy(rank[at+1:], rank[at+2:])
		copy(id[at+1:], id[at+2:])
		syms = syms[:len(syms)-1]
		if at > 0 {
			rank[at-1], id[at-1] = e.pair(s, &syms[at-1], &syms[at])
		}
		if at+1 < len(syms) {
			rank[at], id[at] = e.pair(s, &syms[at], &syms[at+1])
		}
	}
	unknown := false
	for i := range syms {
		unknown = e.emit(s, &syms[i], unknown)
	}
}

// mergeLong merges any number of symbols, in n log n, and appends the result.
func (e *encoder) mergeLong(s string) {
	e.heap = e.heap[:0]
	for i := range int32(len(e.syms) - 1) {
		e.propose(s, i)
	}
	for len(e.heap) > 0 {
		c := e.pop()
		left := &e.syms[c.pos]
		if left.next < 0 || left.end < 0 || e.syms[left.next].end != c.end {
			continue
		}
		right := &e.syms[left.next]
		left.end, left.id, left.next = right.end, c.id, right.next
		right.end = -1 // merged away
		if left.next >= 0 {
			e.syms[left.next].prev = c.pos
			e.propose(s, c.pos)
		}
		if left.prev >= 0 {
			e.propose(s, left.prev)
		}
	}
	unknown := false
	for i := int32(0); i >= 0; i = e.syms[i].next {
		unknown = e.emit(s, &e.syms[i], unknown)
	}
}

// propose puts the merge of the symbol at pos with its right neighbour on the heap, if there is one.
func (e *encoder) propose(s string, pos int32) {
	left := &e.syms[pos]
	right := &e.syms[left.next]
	if rank, id := e.pair(s, left, right); rank != noMerge {
		e.push(candidate{rank, pos, right.end, id})
	}
}

// emit appends the ids of a finished symbol. unknown says, of the symbol before and then of this one, that it became the unknown token.
func (e *encoder) emit(s string, sym *symbol, unknown bool) bool {
	t := e.t
	if sym.id >= 0 {
		e.out = append(e.out, sym.id)
		return false
	}
	if t.model.byteFallback {
		n := len(e.out)
		for i := sym.start; i < sym.end && t.model.byteIDs[s[i]] >= 0; i++ {
			e.out = append(e.out, t.model.byteIDs[s[i]])
		}
		if len(e.out)-n == int(sym.end-sym.start) {
			return false
		}
		e.out = e.out[:n]
	}
	if t.unk >= 0 && !(unknown && t.model.fuseUNK) {
		e.out = append(e.out, t.unk)
	}
	return true
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.pos < d.pos
}

// push and pop keep e.heap a binary heap, without container/heap's allocation for each element.
func (e *encoder) push(c candidate) {
	h := append(e.heap, c)
	i := len(h) - 1
	for i > 0 && c.before(h[(i-1)/2]) {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = c
	e.heap = h
}

func (e *encoder) pop() candidate {
	h := e.heap
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(h) {
			if i < len(h) {
				h[i] = last
			}
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if last.before(h[child]) {
			h[i] = last
			break
		}
		h[i] = h[child]
		i = child
	}
	e.heap = h
	return top
}
