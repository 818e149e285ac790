package vk

import (
	"fmt"
	"math"
	"unsafe"
)

// Instance is an instance of Vulkan.
type Instance struct {
	h uintptr

	destroyInstance, getDeviceProcAddr, enumeratePhysicalDevices, enumerateDeviceExtensionProperties, getPhysicalDeviceProperties2,
	getPhysicalDeviceFeatures2, getPhysicalDeviceMemoryProperties2, getPhysicalDeviceQueueFamilyProperties, createDevice,
	createDebugUtilsMessengerEXT, getPhysicalDeviceCooperativeMatrixPropertiesKHR proc
}

// global are the functions that need no instance.
type global struct {
	enumerateInstanceLayerProperties, enumerateInstanceExtensionProperties, createInstance proc
}

func loadGlobal() (get proc, g global, err error) {
	if get, err = openLoader(); err != nil {
		return 0, g, err
	}
	err = load(&g, func(name string) uintptr { return call(get, 0, uintptr(unsafe.Pointer(CString(name)))) })
	return get, g, err
}

// LayerNames lists the installed layers.
func LayerNames() ([]string, error) {
	_, g, err := loadGlobal()
	if err != nil {
		return nil, err
	}
	all, err := enumerate("vkEnumerateInstanceLayerProperties", func(n *uint32, p *LayerProperties) uintptr {
		return call(g.enumerateInstanceLayerProperties, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(p)))
	})
	return names(all, func(p *LayerProperties) []byte { return p.LayerName[:] }), err
}

// InstanceExtensions lists the instance extensions of the loader and the drivers.
func InstanceExtensions() ([]string, error) {
	_, g, err := loadGlobal()
	if err != nil {
		return nil, err
	}
	all, err := enumerate("vkEnumerateInstanceExtensionProperties", func(n *uint32, p *ExtensionProperties) uintptr {
		return call(g.enumerateInstanceExtensionProperties, 0, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(p)))
	})
	return names(all, func(p *ExtensionProperties) []byte { return p.ExtensionName[:] }), err
}

func names[T any](all []T, name func(*T) []byte) []string {
	out := make([]string, len(all))
	for i := range all {
		out[i] = String(name(&all[i]))
	}
	return out
}

// enumerate asks for the number of elements and then for them, again while they become more in between.
func enumerate[T any](name string, f func(n *uint32, p *T) uintptr) ([]T, error) {
	for {
		var n uint32
		if err := check(name, f(&n, nil)); err != nil || n == 0 {
			return nil, err
		}
		all := make([]T, n)
		r := f(&n, &all[0])
		if err := check(name, r); err != nil {
			return nil, err
		}
		if Result(int32(r)) != Incomplete {
			return all[:n], nil
		}
	}
}

// CreateInstance makes an instance.
func CreateInstance(info *InstanceCreateInfo) (*Instance, error) {
	get, g, err := loadGlobal()
	if err != nil {
		return nil, err
	}
	i := new(Instance)
	if err := check("vkCreateInstance", call(g.createInstance, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&i.h)))); err != nil {
		return nil, err
	}
	if err := load(i, func(name string) uintptr { return call(get, i.h, uintptr(unsafe.Pointer(CString(name)))) }); err != nil {
		if i.destroyInstance != 0 {
			i.Destroy()
		}
		return nil, err
	}
	return i, nil
}

// Destroy ends the instance; nothing made with it may be left.
func (i *Instance) Destroy() { call(i.destroyInstance, i.h, 0) }

// PhysicalDevices lists the devices that drivers offer.
func (i *Instance) PhysicalDevices() ([]PhysicalDevice, error) {
	return enumerate("vkEnumeratePhysicalDevices", func(n *uint32, p *PhysicalDevice) uintptr {
		return call(i.enumeratePhysicalDevices, i.h, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(p)))
	})
}

// DeviceExtensions lists the extensions of a device.
func (i *Instance) DeviceExtensions(d PhysicalDevice) ([]string, error) {
	all, err := enumerate("vkEnumerateDeviceExtensionProperties", func(n *uint32, p *ExtensionProperties) uintptr {
		return call(i.enumerateDeviceExtensionProperties, uintptr(d), 0, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(p)))
	})
	return names(all, func(p *ExtensionProperties) []byte { return p.ExtensionName[:] }), err
}

// Properties fills a chain.
func (i *Instance) Properties(d PhysicalDevice, p *PhysicalDeviceProperties2) {
	call(i.getPhysicalDeviceProperties2, uintptr(d), uintptr(unsafe.Pointer(p)))
}

// Features fills a chain.
func (i *Instance) Features(d PhysicalDevice, p *PhysicalDeviceFeatures2) {
	call(i.getPhysicalDeviceFeatures2, uintptr(d), uintptr(unsafe.Pointer(p)))
}

// MemoryProperties fills a chain.
func (i *Instance) MemoryProperties(d PhysicalDevice, p *PhysicalDeviceMemoryProperties2) {
	call(i.getPhysicalDeviceMemoryProperties2, uintptr(d), uintptr(unsafe.Pointer(p)))
}

// QueueFamilies lists the queue families of a device.
func (i *Instance) QueueFamilies(d PhysicalDevice) ([]QueueFamilyProperties, error) {
	return enumerate("vkGetPhysicalDeviceQueueFamilyProperties", func(n *uint32, p *QueueFamilyProperties) uintptr {
		call(i.getPhysicalDeviceQueueFamilyProperties, uintptr(d), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(p)))
		return uintptr(Success)
	})
}

// CooperativeMatrices lists the matrix shapes of a device with VK_KHR_cooperative_matrix.
func (i *Instance) CooperativeMatrices(d PhysicalDevice) ([]CooperativeMatrixPropertiesKHR, error) {
	if i.getPhysicalDeviceCooperativeMatrixPropertiesKHR == 0 {
		return nil, nil
	}
	return enumerate("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", func(n *uint32, p *CooperativeMatrixPropertiesKHR) uintptr {
		if p != nil {
			for j, all := 0, unsafe.Slice(p, *n); j < len(all); j++ {
				Chain(&all[j])
			}
		}
		return call(i.getPhysicalDeviceCooperativeMatrixPropertiesKHR, uintptr(d), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(p)))
	})
}

// Device is a logical device.
type Device struct {
	h uintptr

	destroyDevice, getDeviceQueue, deviceWaitIdle proc

	allocateMemory, freeMemory, mapMemory, createBuffer, destroyBuffer, getBufferMemoryRequirements, bindBufferMemory,
	getBufferDeviceAddress proc

	createShaderModule, destroyShaderModule, createPipelineLayout, destroyPipelineLayout, createComputePipelines, destroyPipeline,
	createPipelineCache, destroyPipelineCache, getPipelineCacheData proc

	createCommandPool, destroyCommandPool, resetCommandPool, allocateCommandBuffers, beginCommandBuffer, endCommandBuffer,
	cmdBindPipeline, cmdPushConstants, cmdDispatch, cmdPipelineBarrier, cmdCopyBuffer, cmdFillBuffer, cmdResetQueryPool, cmdWriteTimestamp proc

	createQueryPool, destroyQueryPool, getQueryPoolResults, createSemaphore, destroySemaphore, getSemaphoreCounterValue, waitSemaphores,
	queueSubmit proc
}

// CreateDevice makes a logical device.
func (i *Instance) CreateDevice(p PhysicalDevice, info *DeviceCreateInfo) (*Device, error) {
	d := new(Device)
	err := check("vkCreateDevice", call(i.createDevice, uintptr(p), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&d.h))))
	if err != nil {
		return nil, err
	}
	if err := load(d, func(name string) uintptr {
		return call(i.getDeviceProcAddr, d.h, uintptr(unsafe.Pointer(CString(name))))
	}); err != nil {
		if d.destroyDevice != 0 {
			d.Destroy()
		}
		return nil, err
	}
	return d, nil
}

// Destroy ends the device; nothing made with it may be left.
func (d *Device) Destroy() { call(d.destroyDevice, d.h, 0) }

// Queue returns the first queue of a family.
func (d *Device) Queue(family uint32) Queue {
	var q Queue
	call(d.getDeviceQueue, d.h, uintptr(family), 0, uintptr(unsafe.Pointer(&q)))
	return q
}

// WaitIdle returns when the device has nothing to do, however long that takes.
func (d *Device) WaitIdle() error { return check("vkDeviceWaitIdle", call(d.deviceWaitIdle, d.h)) }

// create calls a vkCreate function.
func create[H ~uint64](d *Device, name string, f proc, info unsafe.Pointer) (H, error) {
	h := new(H)
	err := check(name, call(f, d.h, uintptr(info), 0, uintptr(unsafe.Pointer(h))))
	return *h, err
}

// AllocateMemory allocates memory of a type.
func (d *Device) AllocateMemory(info *MemoryAllocateInfo) (DeviceMemory, error) {
	return create[DeviceMemory](d, "vkAllocateMemory", d.allocateMemory, unsafe.Pointer(info))
}

// FreeMemory frees memory, mapped or not.
func (d *Device) FreeMemory(m DeviceMemory) { call(d.freeMemory, d.h, uintptr(m), 0) }

// MapMemory maps the whole of m, until it is freed.
func (d *Device) MapMemory(m DeviceMemory) (unsafe.Pointer, error) {
	p := new(unsafe.Pointer)
	err := check("vkMapMemory", call(d.mapMemory, d.h, uintptr(m), 0, math.MaxUint, 0, uintptr(unsafe.Pointer(p))))
	return *p, err
}

// CreateBuffer makes a buffer without memory.
func (d *Device) CreateBuffer(info *BufferCreateInfo) (Buffer, error) {
	return create[Buffer](d, "vkCreateBuffer", d.createBuffer, unsafe.Pointer(info))
}

// DestroyBuffer ends a buffer.
func (d *Device) DestroyBuffer(b Buffer) { call(d.destroyBuffer, d.h, uintptr(b), 0) }

// BufferRequirements says what memory a buffer needs.
func (d *Device) BufferRequirements(b Buffer) MemoryRequirements {
	var r MemoryRequirements
	call(d.getBufferMemoryRequirements, d.h, uintptr(b), uintptr(unsafe.Pointer(&r)))
	return r
}

// BindBufferMemory gives a buffer its memory.
func (d *Device) BindBufferMemory(b Buffer, m DeviceMemory) error {
	return check("vkBindBufferMemory", call(d.bindBufferMemory, d.h, uintptr(b), uintptr(m), 0))
}

// BufferDeviceAddress is a buffer's address in shaders.
func (d *Device) BufferDeviceAddress(info *BufferDeviceAddressInfo) uint64 {
	return uint64(call(d.getBufferDeviceAddress, d.h, uintptr(unsafe.Pointer(info))))
}

// CreateShaderModule takes SPIR-V.
func (d *Device) CreateShaderModule(info *ShaderModuleCreateInfo) (ShaderModule, error) {
	return create[ShaderModule](d, "vkCreateShaderModule", d.createShaderModule, unsafe.Pointer(info))
}

// DestroyShaderModule ends a module; pipelines made of it stay.
func (d *Device) DestroyShaderModule(m ShaderModule) { call(d.destroyShaderModule, d.h, uintptr(m), 0) }

// CreatePipelineLayout makes a layout.
func (d *Device) CreatePipelineLayout(info *PipelineLayoutCreateInfo) (PipelineLayout, error) {
	return create[PipelineLayout](d, "vkCreatePipelineLayout", d.createPipelineLayout, unsafe.Pointer(info))
}

// DestroyPipelineLayout ends a layout.
func (d *Device) DestroyPipelineLayout(l PipelineLayout) {
	call(d.destroyPipelineLayout, d.h, uintptr(l), 0)
}

// CreateComputePipeline compiles a pipeline.
func (d *Device) CreateComputePipeline(cache PipelineCache, info *ComputePipelineCreateInfo) (Pipeline, error) {
	p := new(Pipeline)
	err := check("vkCreateComputePipelines",
		call(d.createComputePipelines, d.h, uintptr(cache), 1, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(p))))
	return *p, err
}

// DestroyPipeline ends a pipeline that no work in flight uses.
func (d *Device) DestroyPipeline(p Pipeline) { call(d.destroyPipeline, d.h, uintptr(p), 0) }

// CreatePipelineCache makes a cache, of the data of an earlier one if given.
func (d *Device) CreatePipelineCache(info *PipelineCacheCreateInfo) (PipelineCache, error) {
	return create[PipelineCache](d, "vkCreatePipelineCache", d.createPipelineCache, unsafe.Pointer(info))
}

// DestroyPipelineCache ends a cache.
func (d *Device) DestroyPipelineCache(c PipelineCache) {
	call(d.destroyPipelineCache, d.h, uintptr(c), 0)
}

// PipelineCacheData is what another run can begin its cache with.
func (d *Device) PipelineCacheData(c PipelineCache) ([]byte, error) {
	const name = "vkGetPipelineCacheData"
	n := new(uintptr)
	if err := check(name, call(d.getPipelineCacheData, d.h, uintptr(c), uintptr(unsafe.Pointer(n)), 0)); err != nil || *n == 0 {
		return nil, err
	}
	data := make([]byte, *n)
	err := check(name, call(d.getPipelineCacheData, d.h, uintptr(c), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&data[0]))))
	return data[:*n], err
}

// CreateCommandPool makes a pool.
func (d *Device) CreateCommandPool(info *CommandPoolCreateInfo) (CommandPool, error) {
	return create[CommandPool](d, "vkCreateCommandPool", d.createCommandPool, unsafe.Pointer(info))
}

// DestroyCommandPool ends a pool and its command buffers.
func (d *Device) DestroyCommandPool(p CommandPool) { call(d.destroyCommandPool, d.h, uintptr(p), 0) }

// ResetCommandPool takes back what was recorded in a pool's command buffers.
func (d *Device) ResetCommandPool(p CommandPool) error {
	return check("vkResetCommandPool", call(d.resetCommandPool, d.h, uintptr(p), 0))
}

// AllocateCommandBuffer makes one command buffer.
func (d *Device) AllocateCommandBuffer(info *CommandBufferAllocateInfo) (*Commands, error) {
	c := &Commands{d: d}
	Chain(&c.barrier)
	return c, check("vkAllocateCommandBuffers",
		call(d.allocateCommandBuffers, d.h, uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&c.h))))
}

// CreateQueryPool makes a pool of queries.
func (d *Device) CreateQueryPool(info *QueryPoolCreateInfo) (QueryPool, error) {
	return create[QueryPool](d, "vkCreateQueryPool", d.createQueryPool, unsafe.Pointer(info))
}

// DestroyQueryPool ends a pool.
func (d *Device) DestroyQueryPool(p QueryPool) { call(d.destroyQueryPool, d.h, uintptr(p), 0) }

// QueryResults reads the first len(out) queries of a pool, which have been written.
func (d *Device) QueryResults(p QueryPool, out []uint64) error {
	if len(out) == 0 {
		return nil
	}
	r := call(d.getQueryPoolResults, d.h, uintptr(p), 0, uintptr(len(out)), uintptr(8*len(out)), uintptr(unsafe.Pointer(&out[0])), 8,
		QueryResult64Bit)
	if err := check("vkGetQueryPoolResults", r); err != nil {
		return err
	}
	if r := Result(int32(r)); r != Success {
		return fmt.Errorf("vkGetQueryPoolResults: %w", r)
	}
	return nil
}

// CreateSemaphore makes a semaphore.
func (d *Device) CreateSemaphore(info *SemaphoreCreateInfo) (Semaphore, error) {
	return create[Semaphore](d, "vkCreateSemaphore", d.createSemaphore, unsafe.Pointer(info))
}

// DestroySemaphore ends a semaphore that no work in flight uses.
func (d *Device) DestroySemaphore(s Semaphore) { call(d.destroySemaphore, d.h, uintptr(s), 0) }

// SemaphoreCounterValue prepares the reading of a timeline into *value.
func (d *Device) SemaphoreCounterValue(s Semaphore, value *uint64) *Prepared {
	return &Prepared{
		"vkGetSemaphoreCounterValue", d.getSemaphoreCounterValue,
		[]uintptr{d.h, uintptr(s), uintptr(unsafe.Pointer(value))},
		unsafe.Pointer(value),
	}
}

// WaitSemaphores prepares a wait for timelines, of at most so many nanoseconds.
func (d *Device) WaitSemaphores(info *SemaphoreWaitInfo, nanos uint64) *Prepared {
	return &Prepared{
		"vkWaitSemaphores", d.waitSemaphores,
		[]uintptr{d.h, uintptr(unsafe.Pointer(info)), uintptr(nanos)},
		unsafe.Pointer(info),
	}
}

// QueueSubmit prepares the submission of one batch.
func (d *Device) QueueSubmit(q Queue, info *SubmitInfo) *Prepared {
	return &Prepared{
		"vkQueueSubmit", d.queueSubmit,
		[]uintptr{uintptr(q), 1, uintptr(unsafe.Pointer(info)), 0},
		unsafe.Pointer(info),
	}
}
