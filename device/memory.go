package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"github.com/coli-moe/coli/device/internal/vk"
	"github.com/coli-moe/coli/ledger"
)

// Use says what a buffer is for, which decides where it lies.
type Use uint8

// The uses.
const (
	DeviceOnly Use = iota // only shaders touch it; Write and Read go through a staging buffer
	HostWrites            // the host writes through the mapping, shaders read: parameters, inputs. Slow for the host to read
	HostReads             // shaders write, the host reads through the mapping, which is cached: results
	Weights               // written once, read by every step: mapped where the host can write to all of the device's memory
	uses
)

func (u Use) String() string {
	return [...]string{"device only", "host writes", "host reads", "weights"}[u]
}

// Environment variables that are Options.MemoryCap and Options.Window, in MiB.
const (
	CapEnv    = "COLI_VK_CAP_MB"
	WindowEnv = "COLI_VK_WINDOW_MB"
)

// limit is an option in bytes, or what its environment variable says in MiB.
func limit(option int64, env string) (int64, error) {
	s := os.Getenv(env)
	if option > 0 || s == "" {
		return option, nil
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s=%q is no number of MiB", env, s)
	}
	return n << 20, nil
}

const (
	firstBlock = 4 << 20   // the first block of a use; each further one is twice the size
	mostBlock  = 256 << 20 // until they are this large
	heapShare  = 8         // no block is more than this part of its heap, unless one buffer is
	windowPart = 4         // a part of the device's memory smaller than this one that the host can write to is a window
)

// chunk is a piece of Vulkan's memory with the one buffer that covers it. Memory is taken from the driver in large pieces, since every
// submission pays for each of them.
type chunk struct {
	memory vk.DeviceMemory
	buffer vk.Buffer
	addr   uint64
	mapped []byte // nil if the host does not see it
	use    Use
	kind   uint32 // the memory type
}

// Buffer is a range of device memory. It is all zeros unless its memory was a freed buffer's.
type Buffer struct {
	Addr  uint64 // in shaders; a multiple of 256
	Size  int64
	Bytes []byte // the mapping, nil if there is none

	d       *Device
	block   *block // nil when freed
	off     int64
	name    string
	charged int64         // bytes of the device's memory
	lease   *ledger.Lease // for them; nil for none
}

// memoryLayout is which memory there is.
type memoryLayout struct {
	vk.PhysicalDeviceMemoryProperties
	integrated bool  // the device's memory is RAM; what the driver calls device-local is a part set aside by the firmware
	window     int64 // Options.Window
}

func (m *memoryLayout) flags(kind uint32) uint32 { return m.MemoryTypes[kind].PropertyFlags }

func (m *memoryLayout) heap(kind uint32) *vk.MemoryHeap {
	return &m.MemoryHeaps[m.MemoryTypes[kind].HeapIndex]
}

// main is the largest heap of the device's own memory.
func (m *memoryLayout) main() (best uint32) {
	size := uint64(0)
	for i, h := range m.MemoryHeaps[:m.MemoryHeapCount] {
		if h.Flags&vk.MemoryHeapDeviceLocalBit != 0 && h.Size > size {
			best, size = uint32(i), h.Size
		}
	}
	return best
}

// counts says whether a heap is the device's memory: its largest own one, and every one of an integrated device.
func (m *memoryLayout) counts(heap uint32) bool { return m.integrated || heap == m.main() }

const (
	local    = vk.MemoryPropertyDeviceLocalBit
	mappable = vk.MemoryPropertyHostVisibleBit | vk.MemoryPropertyHostCoherentBit
	cached   = vk.MemoryPropertyHostCachedBit
)

// roomy says whether the host can write to so much memory of a type that weights may go there. Cards without a resizable BAR show a
// window of 256 MiB, as a heap of its own: past it NVIDIA's driver refuses, and AMD's takes RAM, which shaders read over PCIe. Weights are
// staged there.
func (m *memoryLayout) roomy(kind uint32) bool {
	size := m.heap(kind).Size
	if m.window > 0 && m.flags(kind)&local != 0 {
		size = min(size, uint64(m.window))
	}
	return size >= m.MemoryHeaps[m.main()].Size/windowPart
}

// kinds are the memory types for a use, the best first.
func (m *memoryLayout) kinds(use Use) (out []uint32) {
	score := map[uint32]int{}
	for kind := range m.MemoryTypeCount {
		f := m.flags(kind)
		if f&^(local|mappable|cached) != 0 {
			continue // kinds with rules of their own: protected, lazily allocated, AMD's uncached
		}
		has := func(bits uint32) int {
			if f&bits == bits {
				return 1
			}
			return 0
		}
		n, fit := 0, true
		switch use {
		case DeviceOnly: // the window is for what the host writes
			n, fit = -has(mappable), has(local) == 1 || m.integrated
		case Weights: // where the mapping is refused, staging goes on
			n, fit = 4*has(mappable)-has(cached), has(local) == 1 || m.integrated
			if has(mappable) == 1 && !m.roomy(kind) {
				n = -4
			}
		case HostWrites:
			n, fit = 2*has(local)-has(cached), has(mappable) == 1
		case HostReads:
			n, fit = 2*has(cached)-has(local), has(mappable) == 1
		}
		if m.integrated { // all of it is RAM, and there is more of that than the firmware has set aside
			n -= 16 * has(local)
		}
		if fit {
			out, score[kind] = append(out, kind), n
		}
	}
	slices.SortStableFunc(out, func(a, b uint32) int { return cmp.Compare(score[b], score[a]) })
	return out
}

// memory is all memory of a device.
type memory struct {
	mu      sync.Mutex
	layout  memoryLayout
	order   [uses][]uint32
	heaps   [uses]heap
	cap     int64
	most    int64            // in one piece
	refused map[uint32]int64 // by memory type: the driver has no block of this size, nor a larger one
	held    int64            // bytes of buffers in the device's memory
	byName  map[string]int64
	ledger  *ledger.Ledger
	orphans []chunk // that a lost device may be filling
}

func (m *memory) init(c *candidate) error {
	m.layout, m.most, m.cap = c.layout, c.maxAlloc&^(alignment-1), c.cap // RADV's maxAlloc is 2³² - 4
	m.refused, m.byName = map[uint32]int64{}, map[string]int64{}
	for use := range uses {
		if m.order[use] = m.layout.kinds(use); len(m.order[use]) == 0 {
			return fmt.Errorf("%w: it has no memory for use %q", ErrNoDevice, use)
		}
	}
	return nil
}

// Account makes every buffer allocated from now on that lies in the device's memory hold a lease of the ledger.
func (d *Device) Account(l *ledger.Ledger) {
	d.memory.mu.Lock()
	defer d.memory.mu.Unlock()
	d.memory.ledger = l
}

// Alloc makes a buffer of size bytes, at least one, at an address that is a multiple of 256; the name is for Usage. The error wraps
// ErrNoMemory when there is no room.
func (d *Device) Alloc(use Use, size int64, name string) (*Buffer, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	m := &d.memory
	if size <= 0 || size > m.most {
		return nil, fmt.Errorf("%w for %s: %d bytes asked for, in one piece are possible 1 to %d", ErrNoMemory, name, size, m.most)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := roundUp(size, alignment)
	if d.faults.alloc.hit() {
		return nil, fmt.Errorf("%w for %s: %w", ErrNoMemory, name, ErrFault)
	}
	blk, off := m.heaps[use].take(n)
	if blk == nil {
		if err := m.grow(d, use, n); err != nil {
			return nil, fmt.Errorf("%d bytes for %s: %w", n, name, err)
		}
		blk, off = m.heaps[use].take(n)
	}
	b := &Buffer{Addr: blk.addr + uint64(off), Size: size, d: d, block: blk, off: off, name: name}
	if blk.mapped != nil {
		b.Bytes = blk.mapped[off : off+size : off+size]
	}
	m.byName[name] += n
	if err := m.charge(b, n); err != nil {
		m.give(b)
		return nil, err
	}
	return b, nil
}

// charge counts a buffer in the device's memory.
func (m *memory) charge(b *Buffer, n int64) (err error) {
	if !m.layout.counts(m.layout.MemoryTypes[b.block.kind].HeapIndex) {
		return nil
	}
	if m.cap > 0 && m.held+n > m.cap {
		return fmt.Errorf("%w for %s: %d bytes, and %d of the %d allowed are taken", ErrNoMemory, b.name, n, m.held, m.cap)
	}
	if m.ledger != nil {
		if b.lease, err = m.ledger.Grant(b.name, n); err != nil {
			return fmt.Errorf("%w: %w", ErrNoMemory, err)
		}
	}
	m.held += n
	b.charged = n
	return nil
}

// Free gives the memory back. No frame in flight may use it. It may be called more than once, and on a nil Buffer.
func (b *Buffer) Free() {
	if b == nil || b.block == nil {
		return
	}
	m := &b.d.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.give(b)
}

// give takes a buffer back.
func (m *memory) give(b *Buffer) {
	n := roundUp(b.Size, alignment)
	if m.byName[b.name] -= n; m.byName[b.name] == 0 {
		delete(m.byName, b.name)
	}
	m.held -= b.charged
	if b.lease != nil {
		b.lease.Release()
	}
	h := &m.heaps[b.block.use]
	if h.give(b.block, b.off, n) && b.d.usable() == nil && b.d.transfers.settle(b.d) == nil { // else Close destroys it
		h.remove(b.block)
		clear(m.refused)
		b.block.chunk.destroy(b.d)
	}
	b.block, b.Bytes, b.Addr = nil, nil, 0
}

// grow adds a block with room for n bytes: of the best type of memory that has it, as large as blocks are by now or, with too little
// left, just large enough.
func (m *memory) grow(d *Device, use Use, n int64) error {
	err := fmt.Errorf("%w: end other programs that use the device, or give it less with --gpu-layers", ErrNoMemory)
	_, left := d.instance.memoryState(d.physical, d.info.Features.MemoryBudget)
	for _, kind := range m.order[use] {
		size := min(firstBlock<<min(len(m.heaps[use].blocks), 8), mostBlock, int64(m.layout.heap(kind).Size)/heapShare)
		for _, size := range slices.Compact([]int64{min(max(roundUp(size, alignment), n), m.most), n}) {
			// A driver takes its time to refuse. Past its budget it may take RAM instead, silently.
			if least, ok := m.refused[kind]; ok && size >= least || size > left[m.layout.MemoryTypes[kind].HeapIndex] {
				continue
			}
			b := &block{size: size}
			var failure error
			if b.chunk, failure = newChunk(d, use, kind, size); failure == nil {
				m.heaps[use].add(b)
				return nil
			}
			if failure = d.failed(failure); !errors.Is(failure, ErrNoMemory) {
				return failure
			}
			m.refused[kind] = size
			err = fmt.Errorf("%w (%w)", err, failure)
		}
	}
	return err
}

// newChunk allocates zeroed memory of a type, and the buffer over it. The caller holds d.memory.mu.
func newChunk(d *Device, use Use, kind uint32, size int64) (c chunk, err error) {
	defer func() {
		switch {
		case errors.Is(err, ErrLost):
			d.memory.orphans = append(d.memory.orphans, c)
		case err != nil:
			c.destroy(d)
		}
	}()
	c = chunk{use: use, kind: kind}
	create := &vk.BufferCreateInfo{
		Size: uint64(size),
		Usage: vk.BufferUsageTransferSrcBit | vk.BufferUsageTransferDstBit | vk.BufferUsageStorageBufferBit |
			vk.BufferUsageShaderDeviceAddressBit,
	}
	vk.Chain(create)
	if c.buffer, err = d.vk.CreateBuffer(create); err != nil {
		return c, err
	}
	r := d.vk.BufferRequirements(c.buffer)
	if r.MemoryTypeBits&(1<<kind) == 0 {
		return c, fmt.Errorf("%w: memory type %d is not for buffers", ErrNoMemory, kind)
	}
	if d.faults.block.hit() {
		return c, fmt.Errorf("%w: %w", vk.ErrorOutOfDeviceMemory, ErrFault)
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
	m := &d.memory.layout
	if m.flags(kind)&mappable == mappable && use != DeviceOnly && (use != Weights || m.roomy(kind)) {
		p, err := d.vk.MapMemory(c.memory)
		if err != nil {
			return c, err
		}
		c.mapped = unsafe.Slice((*byte)(p), size)
		if m.flags(kind)&local == 0 {
			clear(c.mapped)
			return c, nil
		}
	}
	return c, d.once(func(f *Frame) { f.zero(c.buffer, size) })
}

func (c *chunk) destroy(d *Device) {
	if c.buffer != 0 {
		d.vk.DestroyBuffer(c.buffer)
	}
	if c.memory != 0 {
		d.vk.FreeMemory(c.memory)
	}
	c.buffer, c.memory, c.mapped = 0, 0, nil
}

func (m *memory) destroy(d *Device) {
	for _, c := range append(m.orphans, d.transfers.chunks()...) {
		c.destroy(d)
	}
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

// once runs a frame of the device's own.
func (d *Device) once(record func(f *Frame)) error {
	f := d.NewFrame()
	defer f.Free()
	record(f)
	if err := f.End(); err != nil {
		return err
	}
	return f.Run(context.Background())
}
