package tokenizer

import "hash/maphash"

// span is a half-open range of bytes.
type span struct{ start, end uint32 }

// vocab maps ids to keys and keys to ids. A key is what pieces are looked up by: the raw bytes of a byte-level token, the spelling of any
// other. The keys share one arena and the hash table holds no pointers, so that loading 150,000 tokens takes a few milliseconds.
type vocab struct {
	seed  maphash.Seed
	arena []byte
	keys  []span      // by id, empty where an id has no key
	slots []vocabSlot // open addressing, a power of two
}

type vocabSlot struct {
	hash uint32
	next int32 // id plus 1, 0 where empty
}

// newVocab returns a vocabulary for ids below n whose keys are about size bytes together.
func newVocab(n, size int) vocab {
	return vocab{
		seed: maphash.MakeSeed(), arena: make([]byte, 0, size),
		keys: make([]span, n), slots: make([]vocabSlot, tableSize(n)),
	}
}

// tableSize returns the power of two that keeps n entries below two thirds of a table.
func tableSize(n int) int {
	size := 16
	for size < n+n/2 {
		size *= 2
	}
	return size
}

// set gives id its key. Ids that find must not return are not inserted.
func (v *vocab) set(id int32, key []byte) {
	start := uint32(len(v.arena))
	v.arena = append(v.arena, key...)
	v.keys[id] = span{start, uint32(len(v.arena))}
}

// insert makes id findable by its key. It returns the id that already has this key, if one does.
func (v *vocab) insert(id int32) (other int32, dup bool) {
	key := v.key(id)
	h := maphash.Bytes(v.seed, key)
	slot, found := find(v, h, key)
	if found {
		return v.slots[slot].next - 1, true
	}
	v.slots[slot] = vocabSlot{uint32(h >> 32), id + 1}
	return 0, false
}

// key returns the key of an id, to be read only.
func (v *vocab) key(id int32) []byte {
	k := v.keys[id]
	return v.arena[k.start:k.end:k.end]
}

func (v *vocab) lookup(key string) (int32, bool) {
	slot, ok := find(v, maphash.String(v.seed, key), key)
	return v.slots[slot].next - 1, ok
}

func (v *vocab) lookupBytes(key []byte) (int32, bool) {
	slot, ok := find(v, maphash.Bytes(v.seed, key), key)
	return v.slots[slot].next - 1, ok
}

// find returns the slot of key, or the empty one where it belongs.
func find[K string | []byte](v *vocab, h uint64, key K) (slot int, ok bool) {
	mask := len(v.slots) - 1
	for slot = int(h) & mask; v.slots[slot].next != 0; slot = (slot + 1) & mask {
		if v.slots[slot].hash == uint32(h>>32) && string(v.key(v.slots[slot].next-1)) == string(key) {
			return slot, true
		}
	}
	return slot, false
}

// pairTable maps two adjacent ids to their merge.
type pairTable struct {
	slots []pairSlot // open addressing, a power of two
	shift uint
}

type pairSlot struct {
	pair uint64
	rank uint32
	next int32 // id of the merged token plus 1, 0 where empty
}

func newPairTable(n int) pairTable {
	size := tableSize(n)
	shift := uint(64)
	for s := size; s > 1; s /= 2 {
		shift--
	}
	return pairTable{make([]pairSlot, size), shift}
}

func (p *pairTable) slot(a, b int32) *pairSlot {
	pair := uint64(uint32(a))<<32 | uint64(uint32(b))
	i := pair * 0x9E3779B97F4A7C15 >> p.shift // Fibonacci hashing: 2^64 divided by the golden ratio
	for {
		s := &p.slots[i]
		if s.next == 0 || s.pair == pair {
			return s
		}
		i = (i + 1) & uint64(len(p.slots)-1)
	}
}

// add records that a and b merge into id. The first of two entries for one pair counts.
func (p *pairTable) add(a, b, id int32, rank int) {
	if s := p.slot(a, b); s.next == 0 {
		*s = pairSlot{uint64(uint32(a))<<32 | uint64(uint32(b)), uint32(rank), id + 1}
	}
}
