package device

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"unsafe"

	"github.com/coli-moe/coli/device/internal/vk"
	"github.com/coli-moe/coli/internal/atomicfile"
)

// maxPush is the most bytes of push constants; every device has as many.
const maxPush = 128

// Module is a compute shader with the entry point main and without descriptors.
type Module struct {
	Name          string // unique among modules
	SPIRV         []byte
	Push          int  // bytes of its push constants, a multiple of 4
	FullSubgroups bool // it relies on subgroups without holes; its workgroup is a multiple of the subgroup size in x
}

// Pipeline is a compiled module.
type Pipeline struct {
	name   string
	h      vk.Pipeline
	layout vk.PipelineLayout
	push   int
}

// Name is the module's, with its constants and its subgroup size.
func (p *Pipeline) Name() string { return p.name }

// pipelines are the compiled modules of a device.
type pipelines struct {
	mu      sync.Mutex
	byName  map[string]func() (*Pipeline, error) // compiles once
	layouts map[int]vk.PipelineLayout            // by bytes of push constants
	cache   vk.PipelineCache
	file    string            // where the cache is kept; empty for nowhere
	read    [sha256.Size]byte // the sum of what was read there
}

// Pipeline compiles a module with its specialization constants 0, 1, … and a subgroup size; 0 is Info.Subgroup. The same is compiled once.
// A size the device does not have is an error. It is pinned wherever the device has several: compilers choose otherwise, and shaders count
// on it.
func (d *Device) Pipeline(m Module, constants []uint32, subgroup int) (*Pipeline, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	subgroup = cmp.Or(subgroup, d.info.Subgroup)
	name := fmt.Sprint(m.Name, constants, "/", subgroup)
	p := &d.pipelines
	p.mu.Lock()
	get := p.byName[name]
	if get == nil {
		constants := slices.Clone(constants)
		get = sync.OnceValues(func() (*Pipeline, error) { return p.compile(d, m, name, constants, subgroup) })
		p.byName[name] = get
	}
	p.mu.Unlock()
	x, err := get()
	if err != nil {
		return nil, fmt.Errorf("shader %s: %w", name, d.failed(err))
	}
	return x, nil
}

// magic begins every SPIR-V module.
const magic = 0x07230203

func (p *pipelines) compile(d *Device, m Module, name string, constants []uint32, subgroup int) (*Pipeline, error) {
	if len(m.SPIRV) < 20 || len(m.SPIRV)%4 != 0 || binary.LittleEndian.Uint32(m.SPIRV) != magic {
		return nil, fmt.Errorf("its %d bytes are no SPIR-V", len(m.SPIRV))
	}
	if m.Push < 0 || m.Push > maxPush || m.Push%4 != 0 {
		return nil, fmt.Errorf("%d bytes of push constants; at most %d, a multiple of 4", m.Push, maxPush)
	}
	layout, err := p.layout(d, m.Push)
	if err != nil {
		return nil, err
	}
	code := make([]uint32, len(m.SPIRV)/4) // aligned, which the bytes need not be
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&code[0])), len(m.SPIRV)), m.SPIRV)
	module := &vk.ShaderModuleCreateInfo{CodeSize: uintptr(len(m.SPIRV)), PCode: &code[0]}
	vk.Chain(module)
	h, err := d.vk.CreateShaderModule(module)
	if err != nil {
		return nil, err
	}
	defer d.vk.DestroyShaderModule(h)

	info := &vk.ComputePipelineCreateInfo{
		Stage:  vk.PipelineShaderStageCreateInfo{Stage: vk.ShaderStageComputeBit, Module: h, PName: vk.CString("main")},
		Layout: layout, BasePipelineIndex: -1,
	}
	vk.Chain(info)
	stage := []vk.Extensible{&info.Stage}
	if len(constants) > 0 {
		entries := make([]vk.SpecializationMapEntry, len(constants))
		for i := range entries {
			entries[i] = vk.SpecializationMapEntry{ConstantID: uint32(i), Offset: uint32(4 * i), Size: 4}
		}
		info.Stage.PSpecializationInfo = &vk.SpecializationInfo{
			MapEntryCount: uint32(len(entries)), PMapEntries: &entries[0],
			DataSize: uintptr(4 * len(constants)), PData: unsafe.Pointer(&constants[0]),
		}
	}
	switch i := &d.info; {
	case subgroup == i.Subgroup && (i.MinSubgroup == i.MaxSubgroup || !i.Features.SubgroupControl): // as it is anyway
	case !i.Features.SubgroupControl, subgroup < i.MinSubgroup, subgroup > i.MaxSubgroup, subgroup&(subgroup-1) != 0:
		return nil, fmt.Errorf("%s has subgroups of %d to %d, not of %d", i.Name, i.MinSubgroup, i.MaxSubgroup, subgroup)
	default:
		stage = append(stage, &vk.PipelineShaderStageRequiredSubgroupSizeCreateInfo{RequiredSubgroupSize: uint32(subgroup)})
	}
	if m.FullSubgroups && d.info.Features.FullSubgroups {
		info.Stage.Flags |= vk.PipelineShaderStageCreateRequireFullSubgroupsBit
	}
	vk.Chain(stage...)
	out, err := d.vk.CreateComputePipeline(p.cache, info)
	if err != nil {
		return nil, err
	}
	return &Pipeline{name: name, h: out, layout: layout, push: m.Push}, nil
}

// layout makes the layout of so many bytes of push constants.
func (p *pipelines) layout(d *Device, push int) (vk.PipelineLayout, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l, ok := p.layouts[push]; ok {
		return l, nil
	}
	info := new(vk.PipelineLayoutCreateInfo)
	if push > 0 {
		info.PushConstantRangeCount = 1
		info.PPushConstantRanges = &vk.PushConstantRange{StageFlags: vk.ShaderStageComputeBit, Size: uint32(push)}
	}
	vk.Chain(info)
	l, err := d.vk.CreatePipelineLayout(info)
	if err == nil {
		p.layouts[push] = l
	}
	return l, err
}

// cacheMagic begins a file of the pipeline cache; the SHA-256 sum of what follows it, and that, come next. Drivers look at the beginning
// of their data only, and may fail of damage further on.
const cacheMagic = "coli pipelines 1\n"

// init begins with the cache that another run has left. A damaged one, or another driver's, is left out.
func (p *pipelines) init(d *Device, c *candidate) (err error) {
	p.byName, p.layouts = map[string]func() (*Pipeline, error){}, map[int]vk.PipelineLayout{}
	info := new(vk.PipelineCacheCreateInfo)
	vk.Chain(info)
	if d.opts.CacheDir != "" {
		p.file = filepath.Join(d.opts.CacheDir, fmt.Sprintf("%x-%08x.pipelines", c.uuid, c.version))
		if data := readCache(p.file); len(data) > 0 {
			p.read = sha256.Sum256(data)
			info.InitialDataSize, info.PInitialData = uintptr(len(data)), unsafe.Pointer(&data[0])
		}
	}
	p.cache, err = d.vk.CreatePipelineCache(info)
	return err
}

// readCache returns a file's data, nil if it is not there or damaged.
func readCache(file string) []byte {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	b, ok := bytes.CutPrefix(b, []byte(cacheMagic))
	if !ok || len(b) < sha256.Size {
		return nil
	}
	if sum := sha256.Sum256(b[sha256.Size:]); !bytes.Equal(sum[:], b[:sha256.Size]) {
		return nil
	}
	return b[sha256.Size:]
}

// save leaves the cache to the next run, where it has changed. That it cannot is no failure: the next run compiles again.
func (p *pipelines) save(d *Device) {
	if p.file == "" || p.cache == 0 {
		return
	}
	data, err := d.vk.PipelineCacheData(p.cache)
	sum := sha256.Sum256(data)
	if err != nil || len(data) == 0 || sum == p.read {
		return
	}
	if err := os.MkdirAll(filepath.Dir(p.file), 0o755); err != nil {
		return
	}
	//nolint:errcheck // see above
	atomicfile.Write(p.file, 0o644, func(w io.Writer) error {
		_, err := w.Write(slices.Concat([]byte(cacheMagic), sum[:], data))
		return err
	})
}

func (p *pipelines) destroy(d *Device) {
	for _, get := range p.byName {
		if x, err := get(); err == nil {
			d.vk.DestroyPipeline(x.h)
		}
	}
	for _, l := range p.layouts {
		d.vk.DestroyPipelineLayout(l)
	}
	if p.cache != 0 {
		d.vk.DestroyPipelineCache(p.cache)
	}
}
