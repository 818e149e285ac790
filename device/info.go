package device

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/coli-moe/coli/device/internal/vk"
)

// Type is the kind of a device.
type Type uint8

// The types, in the order of preference.
const (
	Discrete Type = iota
	Integrated
	Virtual
	Other
	CPU
)

func (t Type) String() string {
	return [...]string{"discrete", "integrated", "virtual", "other", "CPU"}[t]
}

// Info describes a device.
type Info struct {
	Index  int // in List's order
	Name   string
	Type   Type
	Driver string // name and version
	API    string // "1.3.230"

	Memory int64 // bytes of the device's own memory
	Free   int64 // what may still be allocated of it, Options.MemoryCap at most; 0 if neither tells (Features.MemoryBudget)

	Missing string // what coli needs and the device lacks: it cannot be opened

	Subgroup, MinSubgroup, MaxSubgroup int // invocations; the driver's choice (of 8 to 64), and what Pipeline can pin
	SharedMemory                       int // bytes of a workgroup
	MaxInvocations                     int // of a workgroup
	MaxGroups                          [3]uint32

	Features Features
}

// Features are the optional parts of a device that shaders may use. All that are there are enabled.
type Features struct {
	Float16, Int8, Int16  bool // arithmetic
	Storage8, Storage16   bool // loads and stores in buffers
	Int64                 bool // addresses as numbers
	ScalarLayout          bool
	MemoryModel           bool
	IntegerDot            bool // OpSDot and its like
	IntegerDotAccelerated bool // four packed signed bytes at once, in hardware
	SubgroupControl       bool // Pipeline can pin the subgroup size
	FullSubgroups         bool
	CoopF16               bool // matrices of 16×16×16, f16·f16 to f32, a subgroup each
	CoopS8                bool // matrices of 16×16×32, s8·s8 to s32, a subgroup each
	MemoryBudget          bool
}

// String lists what is there, in short words.
func (f Features) String() string {
	var out []string
	for _, x := range []struct {
		has  bool
		name string
	}{
		{f.Float16, "f16"},
		{f.Int8, "int8"},
		{f.Int16, "int16"},
		{f.Int64, "int64"},
		{f.Storage8, "storage8"},
		{f.Storage16, "storage16"},
		{f.IntegerDotAccelerated, "dot4"},
		{f.IntegerDot && !f.IntegerDotAccelerated, "dot4-emulated"},
		{f.CoopF16, "matrix-f16"},
		{f.CoopS8, "matrix-s8"},
		{f.SubgroupControl, "subgroup-size"},
		{f.MemoryBudget, "budget"},
	} {
		if x.has {
			out = append(out, x.name)
		}
	}
	return strings.Join(out, " ")
}

// candidate is a physical device with what opening it needs.
type candidate struct {
	Info
	physical   vk.PhysicalDevice
	family     uint32
	clock      clock
	layout     memoryLayout
	cap        int64    // Options.MemoryCap
	maxAlloc   int64    // bytes in one piece
	extensions []string // those to enable
	uuid       [32]byte // of the device and the driver
	version    uint32   // of the driver
}

const (
	extSubgroupSize = "VK_EXT_subgroup_size_control"
	extIntegerDot   = "VK_KHR_shader_integer_dot_product"
	extCooperative  = "VK_KHR_cooperative_matrix"
	extBudget       = "VK_EXT_memory_budget"
	extPortability  = "VK_KHR_portability_subset"
)

// list probes the devices and sorts them.
func (i *instance) list(o *Options) ([]candidate, error) {
	physical, err := i.PhysicalDevices()
	if err != nil {
		return nil, explain(fmt.Errorf("listing Vulkan devices: %w", err))
	}
	var all []candidate
	for _, p := range physical {
		c, err := i.probe(p, o)
		if err != nil {
			return nil, err
		}
		all = append(all, *c)
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.Type, b.Type) })
	for n := range all {
		all[n].Index = n
	}
	return all, nil
}

func version(v uint32) string { return fmt.Sprintf("%d.%d.%d", v>>22&0x7f, v>>12&0x3ff, v&0xfff) }

// deviceFeatures is the chain of the features that coli looks at: Vulkan 1.2's, and the extensions that are there.
type deviceFeatures struct {
	base        vk.PhysicalDeviceFeatures2
	v11         vk.PhysicalDeviceVulkan11Features
	v12         vk.PhysicalDeviceVulkan12Features
	subgroup    vk.PhysicalDeviceSubgroupSizeControlFeatures
	dot         vk.PhysicalDeviceShaderIntegerDotProductFeatures
	cooperative vk.PhysicalDeviceCooperativeMatrixFeaturesKHR
}

func (f *deviceFeatures) chain(has func(string) bool) {
	all := []vk.Extensible{&f.base, &f.v11, &f.v12}
	if has(extSubgroupSize) {
		all = append(all, &f.subgroup)
	}
	if has(extIntegerDot) {
		all = append(all, &f.dot)
	}
	if has(extCooperative) {
		all = append(all, &f.cooperative)
	}
	vk.Chain(all...)
}

func (i *instance) probe(p vk.PhysicalDevice, o *Options) (*candidate, error) {
	c := &candidate{physical: p}
	var base vk.PhysicalDeviceProperties2
	vk.Chain(&base)
	i.Properties(p, &base)
	c.Name = vk.String(base.Properties.DeviceName[:])
	api := base.Properties.ApiVersion
	c.API, c.version = version(api), base.Properties.DriverVersion
	c.Type = map[uint32]Type{
		vk.PhysicalDeviceTypeDiscreteGpu: Discrete, vk.PhysicalDeviceTypeIntegratedGpu: Integrated,
		vk.PhysicalDeviceTypeVirtualGpu: Virtual, vk.PhysicalDeviceTypeOther: Other, vk.PhysicalDeviceTypeCpu: CPU,
	}[base.Properties.DeviceType]
	c.SharedMemory = int(base.Properties.Limits.MaxComputeSharedMemorySize)
	c.MaxGroups = base.Properties.Limits.MaxComputeWorkGroupCount
	c.MaxInvocations = int(base.Properties.Limits.MaxComputeWorkGroupInvocations)
	if api < vk.Version12 {
		c.Missing = "Vulkan 1.2"
		return c, nil
	}
	extensions, err := i.DeviceExtensions(p)
	if err != nil {
		return nil, fmt.Errorf("the extensions of %s: %w", c.Name, err)
	}
	// What became core in 1.3 is there without the extension's name.
	core := func(name string) bool {
		return api >= vk.Version13 && (name == extSubgroupSize || name == extIntegerDot)
	}
	has := func(name string) bool { return core(name) || slices.Contains(extensions, name) }
	for _, name := range []string{extSubgroupSize, extIntegerDot, extCooperative, extBudget, extPortability} {
		if has(name) && !core(name) {
			c.extensions = append(c.extensions, name)
		}
	}

	var v11 vk.PhysicalDeviceVulkan11Properties
	var driver vk.PhysicalDeviceDriverProperties
	var sizes vk.PhysicalDeviceSubgroupSizeControlProperties
	var dot vk.PhysicalDeviceShaderIntegerDotProductProperties
	chain := []vk.Extensible{&base, &v11, &driver}
	if has(extSubgroupSize) {
		chain = append(chain, &sizes)
	}
	if has(extIntegerDot) {
		chain = append(chain, &dot)
	}
	vk.Chain(chain...)
	i.Properties(p, &base)
	c.Driver = strings.TrimSpace(vk.String(driver.DriverName[:]) + " " + vk.String(driver.DriverInfo[:]))
	c.maxAlloc = int64(min(v11.MaxMemoryAllocationSize, 1<<62))
	copy(c.uuid[:16], v11.DeviceUUID[:])
	copy(c.uuid[16:], v11.DriverUUID[:])
	c.Subgroup = int(v11.SubgroupSize)
	c.MinSubgroup, c.MaxSubgroup = int(sizes.MinSubgroupSize), int(sizes.MaxSubgroupSize)

	var f deviceFeatures
	f.chain(has)
	i.Features(p, &f.base)
	y := func(b vk.Bool32) bool { return b != 0 }
	c.Features = Features{
		Float16: y(f.v12.ShaderFloat16), Int8: y(f.v12.ShaderInt8), Int16: y(f.base.Features.ShaderInt16),
		Int64: y(f.base.Features.ShaderInt64), Storage8: y(f.v12.StorageBuffer8BitAccess), Storage16: y(f.v11.StorageBuffer16BitAccess),
		ScalarLayout: y(f.v12.ScalarBlockLayout), MemoryModel: y(f.v12.VulkanMemoryModel & f.v12.VulkanMemoryModelDeviceScope),
		IntegerDot:            y(f.dot.ShaderIntegerDotProduct),
		IntegerDotAccelerated: y(f.dot.ShaderIntegerDotProduct) && y(dot.IntegerDotProduct4x8BitPackedSignedAccelerated),
		SubgroupControl:       y(f.subgroup.SubgroupSizeControl) && sizes.RequiredSubgroupSizeStages&vk.ShaderStageComputeBit != 0,
		FullSubgroups:         y(f.subgroup.ComputeFullSubgroups),
		MemoryBudget:          slices.Contains(extensions, extBudget),
	}
	if !c.Features.SubgroupControl {
		c.MinSubgroup, c.MaxSubgroup = c.Subgroup, c.Subgroup
	}
	c.Subgroup = subgroupSize(c.Subgroup, c.MinSubgroup, c.MaxSubgroup)
	if y(f.cooperative.CooperativeMatrix) {
		if err := i.matrices(c); err != nil {
			return nil, err
		}
	}
	if err := i.probeMemory(c, o); err != nil {
		return nil, err
	}
	const subgroups = vk.SubgroupFeatureBasicBit | vk.SubgroupFeatureArithmeticBit | vk.SubgroupFeatureShuffleBit
	for _, need := range []struct {
		has  bool
		name string
	}{
		{
			v11.SubgroupSupportedStages&vk.ShaderStageComputeBit != 0 && v11.SubgroupSupportedOperations&subgroups == subgroups,
			"sums and shuffles of subgroups",
		},
		{y(f.v12.BufferDeviceAddress), "buffer device addresses"},
		{y(f.v12.TimelineSemaphore), "timeline semaphores"},
		{y(f.base.Features.ShaderInt64), "64-bit integers in shaders"},
		{c.Features.Storage8 && c.Features.Storage16, "storage buffers of 8-bit and 16-bit integers"},
		{c.Subgroup >= leastSubgroup && c.Subgroup <= mostSubgroup, "subgroups of 8 to 64 invocations"},
		{c.MaxInvocations >= workgroup && c.SharedMemory >= sharedMemory, "workgroups of 512 invocations and 32 KiB of shared memory"},
	} {
		if !need.has {
			c.Missing = need.name
		}
	}
	families, err := i.QueueFamilies(p)
	if err != nil {
		return nil, err
	}
	n := computeFamily(families)
	if n < 0 {
		c.Missing = "queue that computes"
		return c, nil
	}
	c.family = uint32(n)
	c.clock = newClock(float64(base.Properties.Limits.TimestampPeriod), families[n].TimestampValidBits)
	return c, nil
}

// computeFamily is the family of queues that frames go to, -1 if none computes: one that does not draw, where there is one. On an NVIDIA H200
// its frames took 5 % less time than those of the family that does both. Families that compute copy too.
func computeFamily(families []vk.QueueFamilyProperties) int {
	with := func(want, without uint32) int {
		return slices.IndexFunc(families, func(q vk.QueueFamilyProperties) bool { return q.QueueFlags&want != 0 && q.QueueFlags&without == 0 })
	}
	if n := with(vk.QueueComputeBit, vk.QueueGraphicsBit); n >= 0 {
		return n
	}
	return with(vk.QueueComputeBit, 0)
}

// What shaders need: subgroup sizes that they work at, and the largest workgroup of those that have no smaller form.
const (
	leastSubgroup = 8
	mostSubgroup  = 64
	workgroup     = 512
	sharedMemory  = 32 << 10
)

// subgroupSize is the driver's choice, or the nearest to it that shaders work at, of those that the device has.
func subgroupSize(choice, least, most int) int {
	return min(max(choice, min(leastSubgroup, most)), max(mostSubgroup, least))
}

// matrices looks for the two shapes of cooperative matrices that coli has shaders for.
func (i *instance) matrices(c *candidate) error {
	all, err := i.CooperativeMatrices(c.physical)
	if err != nil {
		return fmt.Errorf("the matrices of %s: %w", c.Name, err)
	}
	for _, m := range all {
		is := func(k, in, out uint32) bool {
			return m.MSize == 16 && m.NSize == 16 && m.KSize == k && m.AType == in && m.BType == in && m.CType == out && m.ResultType == out &&
				m.Scope == vk.ScopeSubgroupKHR
		}
		f := &c.Features // those shaders use more than matrices
		f.CoopF16 = f.CoopF16 || f.Float16 && f.MemoryModel && is(16, vk.ComponentTypeFloat16KHR, vk.ComponentTypeFloat32KHR)
		f.CoopS8 = f.CoopS8 || f.Int8 && f.MemoryModel && is(32, vk.ComponentTypeSint8KHR, vk.ComponentTypeSint32KHR)
	}
	return nil
}

// probeMemory reads heaps and, where the driver tells, what is free.
func (i *instance) probeMemory(c *candidate, o *Options) (err error) {
	types, left := i.memoryState(c.physical, c.Features.MemoryBudget)
	c.layout = memoryLayout{PhysicalDeviceMemoryProperties: types, integrated: c.Type == Integrated}
	if c.layout.window, err = limit(o.Window, WindowEnv); err != nil {
		return err
	}
	if c.cap, err = limit(o.MemoryCap, CapEnv); err != nil {
		return err
	}
	for h := range types.MemoryHeapCount {
		if c.layout.counts(h) {
			c.Memory += int64(types.MemoryHeaps[h].Size)
			c.Free += left[h]
		}
	}
	if !c.Features.MemoryBudget {
		c.Free = 0
	}
	if c.cap > 0 {
		c.Memory = min(c.Memory, c.cap)
		c.Free = min(cmp.Or(c.Free, c.cap), c.cap)
	}
	return nil
}

// memoryState reads which memory there is, and how many bytes of each heap the process may still take: the heap's size where the driver
// does not tell (budget is false).
func (i *instance) memoryState(p vk.PhysicalDevice, budget bool) (types vk.PhysicalDeviceMemoryProperties, left [16]int64) {
	var m vk.PhysicalDeviceMemoryProperties2
	var b vk.PhysicalDeviceMemoryBudgetPropertiesEXT
	chain := []vk.Extensible{&m}
	if budget {
		chain = append(chain, &b)
	}
	vk.Chain(chain...)
	i.MemoryProperties(p, &m)
	for h := range m.MemoryProperties.MemoryHeapCount {
		left[h] = int64(m.MemoryProperties.MemoryHeaps[h].Size)
		if budget {
			left[h] = max(int64(b.HeapBudget[h])-int64(b.HeapUsage[h]), 0)
		}
	}
	return m.MemoryProperties, left
}

// createDevice makes the logical device with one queue and every feature that Features knows.
func (i *instance) createDevice(c *candidate) (*vk.Device, error) {
	f := new(deviceFeatures)
	has := func(name string) bool {
		switch name {
		case extSubgroupSize:
			return c.Features.SubgroupControl || c.Features.FullSubgroups
		case extIntegerDot:
			return c.Features.IntegerDot
		case extCooperative:
			return c.Features.CoopF16 || c.Features.CoopS8
		}
		return false
	}
	f.chain(has)
	b := func(on bool) vk.Bool32 {
		if on {
			return 1
		}
		return 0
	}
	x := &c.Features
	f.base.Features.ShaderInt64, f.base.Features.ShaderInt16 = b(x.Int64), b(x.Int16)
	f.v11.StorageBuffer16BitAccess = b(x.Storage16)
	f.v12.StorageBuffer8BitAccess, f.v12.ShaderInt8, f.v12.ShaderFloat16 = b(x.Storage8), b(x.Int8), b(x.Float16)
	f.v12.ScalarBlockLayout, f.v12.VulkanMemoryModel, f.v12.VulkanMemoryModelDeviceScope = b(x.ScalarLayout), b(x.MemoryModel), b(x.MemoryModel)
	f.v12.TimelineSemaphore, f.v12.BufferDeviceAddress = 1, 1
	f.subgroup.SubgroupSizeControl, f.subgroup.ComputeFullSubgroups = b(x.SubgroupControl), b(x.FullSubgroups)
	f.dot.ShaderIntegerDotProduct = b(x.IntegerDot)
	f.cooperative.CooperativeMatrix = b(x.CoopF16 || x.CoopS8)

	priority := new(float32)
	*priority = 1
	queue := &vk.DeviceQueueCreateInfo{QueueFamilyIndex: c.family, QueueCount: 1, PQueuePriorities: priority}
	vk.Chain(queue)
	info := &vk.DeviceCreateInfo{
		QueueCreateInfoCount: 1, PQueueCreateInfos: queue,
		EnabledExtensionCount: uint32(len(c.extensions)), PpEnabledExtensionNames: vk.CStrings(c.extensions),
	}
	vk.Chain(info)
	info.Next = unsafe.Pointer(&f.base)
	return i.CreateDevice(c.physical, info)
}

// choose finds the device that was asked for.
func choose(all []candidate, selected string) (*candidate, error) {
	if len(all) == 0 {
		return nil, errNoCard()
	}
	if selected == "" {
		if all[0].Type == CPU {
			return nil, fmt.Errorf("%w but %s, which is the CPU: name it to use it; %s", ErrNoDevice, all[0].Name, noDevice())
		}
		usable := slices.IndexFunc(all, func(c candidate) bool { return c.Type != CPU && c.Missing == "" })
		return &all[max(usable, 0)], nil // opening one that is not says what it lacks
	}
	if n, err := strconv.Atoi(selected); err == nil {
		if n < 0 || n >= len(all) {
			return nil, fmt.Errorf("%w %d; there are %s", ErrNoMatch, n, describe(all))
		}
		return &all[n], nil
	}
	for i := range all {
		if strings.Contains(strings.ToLower(all[i].Name), strings.ToLower(selected)) {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("%w named %q; there are %s", ErrNoMatch, selected, describe(all))
}

func describe(all []candidate) string {
	var out []string
	for i := range all {
		out = append(out, fmt.Sprintf("%d %s", i, all[i].Name))
	}
	return strings.Join(out, ", ")
}
