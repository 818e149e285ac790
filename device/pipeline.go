package device

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/coli-moe/coli/device/internal/vk"
)

// MaxPush is the most bytes of push constants; every device has as many.
const MaxPush = 128

// Module is a compute shader: its entry point is main, and it has no descriptors.
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

// Name is the module's, with its constants.
func (p *Pipeline) Name() string { return p.name }

// pipelines are the compiled modules of a device.
type pipelines struct {
	mu      sync.Mutex
	byKey   map[string]*Pipeline
	layouts map[int]vk.PipelineLayout
	cache   vk.PipelineCache
}

func (p *pipelines) init(d *Device, _ *candidate) error {
	p.byKey, p.layouts = map[string]*Pipeline{}, map[int]vk.PipelineLayout{}
	return nil
}

// Pipeline compiles a module with its specialization constants 0, 1, … and a subgroup size, which 0 leaves to the driver. The same is
// compiled once. A size the device cannot pin is an error unless it is the only one.
func (d *Device) Pipeline(m Module, constants []uint32, subgroup int) (*Pipeline, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	name := fmt.Sprint(m.Name, constants)
	if subgroup > 0 {
		name = fmt.Sprint(name, "/", subgroup)
	}
	p := &d.pipelines
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.byKey[name]; x != nil {
		return x, nil
	}
	x, err := p.compile(d, m, constants, subgroup)
	if err != nil {
		return nil, fmt.Errorf("shader %s: %w", name, d.failed(err))
	}
	x.name = name
	p.byKey[name] = x
	return x, nil
}

func (p *pipelines) compile(d *Device, m Module, constants []uint32, subgroup int) (*Pipeline, error) {
	if len(m.SPIRV) < 20 || len(m.SPIRV)%4 != 0 {
		return nil, fmt.Errorf("%d bytes are no SPIR-V", len(m.SPIRV))
	}
	if m.Push < 0 || m.Push > MaxPush || m.Push%4 != 0 {
		return nil, fmt.Errorf("%d bytes of push constants; at most %d, a multiple of 4", m.Push, MaxPush)
	}
	layout, err := p.layout(d, m.Push)
	if err != nil {
		return nil, err
	}
	code := make([]uint32, len(m.SPIRV)/4) // aligned
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&code[0])), len(m.SPIRV)), m.SPIRV)
	module := &vk.ShaderModuleCreateInfo{CodeSize: uintptr(len(m.SPIRV)), PCode: &code[0]}
	vk.Chain(module)
	h, err := d.vk.CreateShaderModule(module)
	if err != nil {
		return nil, err
	}
	defer d.vk.DestroyShaderModule(h)

	info := &vk.ComputePipelineCreateInfo{Layout: layout, BasePipelineIndex: -1}
	info.Stage = vk.PipelineShaderStageCreateInfo{Stage: vk.ShaderStageComputeBit, Module: h, PName: vk.CString("main")}
	vk.Chain(info)
	stage := []vk.Extensible{&info.Stage}
	if len(constants) > 0 {
		entries := make([]vk.SpecializationMapEntry, len(constants))
		for i := range entries {
			entries[i] = vk.SpecializationMapEntry{ConstantID: uint32(i), Offset: uint32(4 * i), Size: 4}
		}
		info.Stage.PSpecializationInfo = &vk.SpecializationInfo{
			MapEntryCount: uint32(len(entries)), PMapEntries: &entries[0],
			DataSize: uintptr(4 * len(constants)), PData: unsafe.Pointer(&append([]uint32(nil), constants...)[0]),
		}
	}
	if subgroup > 0 {
		i := &d.info
		switch {
		case i.MinSubgroup == i.MaxSubgroup && subgroup == i.Subgroup: // as it is anyway
		case !i.Features.SubgroupControl || subgroup < i.MinSubgroup || subgroup > i.MaxSubgroup || subgroup&(subgroup-1) != 0:
			return nil, fmt.Errorf("%s has no subgroups of %d, but of %d to %d", i.Name, subgroup, i.MinSubgroup, i.MaxSubgroup)
		default:
			stage = append(stage, &vk.PipelineShaderStageRequiredSubgroupSizeCreateInfo{RequiredSubgroupSize: uint32(subgroup)})
		}
	}
	if m.FullSubgroups && d.info.Features.FullSubgroups {
		info.Stage.Flags |= vk.PipelineShaderStageCreateRequireFullSubgroupsBit
	}
	vk.Chain(stage...)
	out, err := d.vk.CreateComputePipeline(p.cache, info)
	if err != nil {
		return nil, err
	}
	return &Pipeline{h: out, layout: layout, push: m.Push}, nil
}

// layout makes the layout of so many bytes of push constants.
func (p *pipelines) layout(d *Device, push int) (vk.PipelineLayout, error) {
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

func (p *pipelines) save(*Device) {}

func (p *pipelines) destroy(d *Device) {
	for _, x := range p.byKey {
		d.vk.DestroyPipeline(x.h)
	}
	for _, l := range p.layouts {
		d.vk.DestroyPipelineLayout(l)
	}
	if p.cache != 0 {
		d.vk.DestroyPipelineCache(p.cache)
	}
}
