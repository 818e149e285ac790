package device

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"github.com/coli-moe/coli/device/internal/vk"
)

// Use says what a buffer is for, which decides where it lies.
type Use uint8

// The uses.
const (
	DeviceOnly Use = iota // only shaders touch it
	HostWrites            // the host writes through the mapping, shaders read: parameters, inputs. Slow for the host to read
	HostReads             // shaders write, the host reads through the mapping: results
	Weights               // written once, read by every step: mapped where the host can write to all of the device's memory
	uses
)

func (u Use) String() string {
	return [...]string{"device only", "host writes", "host reads", "weights"}[u]
}

// CapEnv names the environment variable that is Options.MemoryCap, in MiB.
const CapEnv = "COLI_VK_CAP_MB"

const (
	firstBlock = 16 << 20  // the first block of a use; each further one is twice the size
	mostBlock  = 256 << 20 // until they are this large
	heapShare  = 8         // no block is more than this part of its heap, unless one buffer is
)

// chunk is a piece of Vulkan memory with the one buffer that covers it.
type chunk struct {
	memory vk.DeviceMemory
	buffer vk.Buffer
	addr   uint64
	mapped []byte // nil if the host cannot see it
	use    Use
	kind   uint32 // the memory type
}

// Buffer is a range of device memory, zero when its memory was never used before.
type Buffer struct {
	Addr  uint64 // in shaders; a multiple of 256
	Size  int64
	Bytes []byte // the mapping, nil if there is none

	d     *Device
	block *block // nil when freed
	off   int64
	name  string
}

// memory is all memory of a device.
type memory struct {
	mu     sync.Mutex
	types  vk.PhysicalDeviceMemoryProperties
	order  [uses][]uint32 // memory types by use, the best first
	heaps  [uses]heap
	cap    int64
	most   int64 // of one allocation
	held   int64
	byName map[string]int64
}

func typeFlags(m *vk.PhysicalDeviceMemoryProperties, i uint32) uint32 {
	return m.MemoryTypes[i].PropertyFlags
}

func heapOf(m *vk.PhysicalDeviceMemoryProperties, i uint32) *vk.MemoryHeap {
	return &m.MemoryHeaps[m.MemoryTypes[i].HeapIndex]
}

// mainHeap is the largest heap of the device's own memory.
func mainHeap(m *vk.PhysicalDeviceMemoryProperties) (best uint32) {
	size := uint64(0)
	for i := range m.MemoryHeapCount {
		if h := m.MemoryHeaps[i]; h.Flags&vk.MemoryHeapDeviceLocalBit != 0 && h.Size > size {
			best, size = i, h.Size
		}
	}
	return best
}

const mappable = vk.MemoryPropertyHostVisibleBit | vk.MemoryPropertyHostCoherentBit

// weightsMapped says whether the host can write to all of the device's memory. Cards without a resizable BAR show a window of 256 MiB,
// as a heap of its own: weights go through a staging buffer there.
func weightsMapped(m *vk.PhysicalDeviceMemoryProperties) bool {
	device := m.MemoryHeaps[mainHeap(m)].Size
	for i := range m.MemoryTypeCount {
		const want = vk.MemoryPropertyDeviceLocalBit | mappable
		if typeFlags(m, i)&want == want && heapOf(m, i).Size >= device/2 {
			return true
		}
	}
	return false
}

// rank orders the memory types for a use: those that have what it needs, by how much of what it wants they have.
func rank(m *vk.PhysicalDeviceMemoryProperties, use Use) []uint32 {
	const local, cached = vk.MemoryPropertyDeviceLocalBit, vk.MemoryPropertyHostCachedBit
	var need uint32
	var score func(flags uint32) int
	if use == Weights && !weightsMapped(m) {
		use = DeviceOnly
	}
	device := m.MemoryHeaps[mainHeap(m)].Size
	b := func(flags, bit uint32, weight int) int {
		if flags&bit != 0 {
			return weight
		}
		return 0
	}
	switch use {
	case DeviceOnly:
		// The window is for what the host writes.
		need, score = local, func(f uint32) int { return b(f, mappable, -1) }
	case Weights:
		need, score = local|mappable, func(f uint32) int { return b(f, cached, -1) }
	case HostWrites:
		need, score = mappable, func(f uint32) int { return b(f, local, 2) + b(f, cached, -1) }
	case HostReads:
		need, score = mappable, func(f uint32) int { return b(f, cached, 2) + b(f, local, -1) }
	}
	type ranked struct {
		kind  uint32
		score int
	}
	var all []ranked
	for i := range m.MemoryTypeCount {
		f, size := typeFlags(m, i), heapOf(m, i).Size
		// Types with bits that coli does not know (protected, lazily allocated, uncached on AMD) have rules of their own.
		const known = local | mappable | cached
		if f&need != need || f&^uint32(known) != 0 {
			continue
		}
		if use == Weights && size < device/2 {
			continue
		}
		all = append(all, ranked{i, score(f)})
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(b.score, a.score) })
	var out []uint32
	for _, x := range all {
		out = append(out, x.kind)
	}
	return out
}

func (m *memory) init(d *Device, c *candidate) error {
	m.types, m.most, m.cap, m.byName = c.memory, c.maxAlloc, d.opts.MemoryCap, map[string]int64{}
	if s := os.Getenv(CapEnv); m.cap == 0 && s != "" {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < 1 {
			return fmt.Errorf("%s=%q is no number of MiB", CapEnv, s)
		}
		m.cap = n << 20
	}
	for u := range uses {
		if m.order[u] = rank(&m.types, u); len(m.order[u]) == 0 {
			return fmt.Errorf("%w: no memory for what is %s", ErrNoDevice, u)
		}
	}
	return nil
}

// Alloc makes a buffer of size bytes (at least one), at an address that is a multiple of 256; the name is for Usage. Its memory is zero
// unless a buffer that is freed has used it. The error wraps ErrNoMemory when there is no room.
func (d *Device) Alloc(use Use, size int64, name string) (*Buffer, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if size <= 0 {
		return nil, fmt.Errorf("a buffer of %d bytes for %s", size, name)
	}
	m := &d.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	n := roundUp(size, alignment)
	if m.cap > 0 && m.held+n > m.cap {
		return nil, fmt.Errorf("%w for %s: %d bytes, and %d of %d are taken", ErrNoMemory, name, n, m.held, m.cap)
	}
	if d.faults.alloc.hit() {
		return nil, fmt.Errorf("%w for %s: %w", ErrNoMemory, name, injected(vk.ErrorOutOfDeviceMemory))
	}
	h := &m.heaps[use]
	blk, off := h.take(n)
	if blk == nil {
		if err := m.grow(d, use, n); err != nil {
			return nil, fmt.Errorf("%d bytes for %s: %w", n, name, err)
		}
		blk, off = h.take(n)
	}
	b := &Buffer{Addr: blk.addr + uint64(off), Size: size, d: d, block: blk, off: off, name: name}
	if blk.mapped != nil {
		b.Bytes = blk.mapped[off : off+size : off+size]
	}
	m.held += n
	m.byName[name] += n
	return b, nil
}

// Free gives the memory back. No work in flight may use it. It may be called more than once, and on a nil Buffer.
func (b *Buffer) Free() {
	if b == nil || b.block == nil {
		return
	}
	m := &b.d.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	n := roundUp(b.Size, alignment)
	m.held -= n
	if m.byName[b.name] -= n; m.byName[b.name] == 0 {
		delete(m.byName, b.name)
	}
	h := &m.heaps[b.block.use]
	// A lost device may still be at work: its memory goes when it is closed.
	if h.give(b.block, b.off, n) && b.d.Lost() == nil && !b.d.closed.Load() {
		h.remove(b.block)
		b.block.chunk.destroy(b.d)
	}
	b.block, b.Bytes, b.Addr = nil, nil, 0
}

// grow adds a block with room for n bytes.
func (m *memory) grow(d *Device, use Use, n int64) error {
	var errs []error
	for _, kind := range m.order[use] {
		size := int64(firstBlock) << min(len(m.heaps[use].blocks), 8)
		size = min(size, mostBlock, int64(heapOf(&m.types, kind).Size)/heapShare)
		for _, size := range slices.Compact([]int64{max(roundUp(size, alignment), n), n}) { // with too little left, just what is needed
			if size > m.most {
				errs = append(errs, fmt.Errorf("%w: the driver allows %d bytes in one piece", ErrNoMemory, m.most))
				continue
			}
			b := &block{size: size}
			var err error
			if b.chunk, err = newChunk(d, use, kind, size); err == nil {
				m.heaps[use].add(b)
				return nil
			}
			if err = d.failed(err); errors.Is(err, ErrLost) {
				return err
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// newChunk allocates zeroed memory of a type, and the buffer over it.
func newChunk(d *Device, use Use, kind uint32, size int64) (c chunk, err error) {
	defer func() {
		if err != nil {
			c.destroy(d)
		}
	}()
	c = chunk{use: use, kind: kind}
	create := &vk.BufferCreateInfo{Size: uint64(size), Usage: vk.BufferUsageTransferSrcBit | vk.BufferUsageTransferDstBit |
		vk.BufferUsageStorageBufferBit | vk.BufferUsageShaderDeviceAddressBit}
	vk.Chain(create)
	if c.buffer, err = d.vk.CreateBuffer(create); err != nil {
		return c, err
	}
	r := d.vk.BufferRequirements(c.buffer)
	if r.MemoryTypeBits&(1<<kind) == 0 {
		return c, fmt.Errorf("memory type %d is not for buffers", kind)
	}
	flags := &vk.MemoryAllocateFlagsInfo{Flags: vk.MemoryAllocateDeviceAddressBit}
	alloc := &vk.MemoryAllocateInfo{AllocationSize: r.Size, MemoryTypeIndex: kind}
	vk.Chain(alloc, flags)
	if c.memory, err = d.vk.AllocateMemory(alloc); err != nil {
		return c, err
	}
	if err = d.vk.BindBufferMemory(c.buffer, c.memory); err != nil {
		return c, err
	}
	address := &vk.BufferDeviceAddressInfo{Buffer: c.buffer}
	vk.Chain(address)
	c.addr = d.vk.BufferDeviceAddress(address)
	if typeFlags(&d.memory.types, kind)&vk.MemoryPropertyHostVisibleBit != 0 && !(use == DeviceOnly) {
		p, err := d.vk.MapMemory(c.memory)
		if err != nil {
			return c, err
		}
		c.mapped = unsafe.Slice((*byte)(p), size)
	}
	if c.mapped != nil && typeFlags(&d.memory.types, kind)&vk.MemoryPropertyDeviceLocalBit == 0 {
		clear(c.mapped)
		return c, nil
	}
	return c, d.transfers.zero(d, &c, size)
}

func (c *chunk) destroy(d *Device) {
	if c.buffer != 0 {
		d.vk.DestroyBuffer(c.buffer)
	}
	if c.memory != 0 {
		d.vk.FreeMemory(c.memory)
	}
	*c = chunk{}
}

func (m *memory) destroy(d *Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for u := range m.heaps {
		for _, b := range m.heaps[u].blocks {
			b.chunk.destroy(d)
		}
		m.heaps[u].blocks = nil
	}
}

// Usage is what buffers of a name hold.
type Usage struct {
	Name  string
	Bytes int64
}

// Usage lists what the buffers hold that are not freed, by name, the largest first.
func (d *Device) Usage() []Usage {
	m := &d.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Usage
	for name, n := range m.byName {
		out = append(out, Usage{name, n})
	}
	slices.SortFunc(out, func(a, b Usage) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name)) })
	return out
}
