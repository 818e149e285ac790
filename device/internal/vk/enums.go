package vk

// StructureType is the sType of a structure.
type StructureType uint32

// Versions of the interface.
const (
	Version12 = 1<<22 | 2<<12
	Version13 = 1<<22 | 3<<12
)

// Answers of functions.
const (
	Success                   Result = 0
	NotReady                  Result = 1
	Timeout                   Result = 2
	Incomplete                Result = 5
	ErrorOutOfHostMemory      Result = -1
	ErrorOutOfDeviceMemory    Result = -2
	ErrorInitializationFailed Result = -3
	ErrorDeviceLost           Result = -4
	ErrorMemoryMapFailed      Result = -5
	ErrorLayerNotPresent      Result = -6
	ErrorExtensionNotPresent  Result = -7
	ErrorFeatureNotPresent    Result = -8
	ErrorIncompatibleDriver   Result = -9
	ErrorTooManyObjects       Result = -10
	ErrorUnknown              Result = -13
)

var resultNames = map[Result]string{
	Success:                   "success",
	NotReady:                  "not ready",
	Timeout:                   "timeout",
	Incomplete:                "incomplete",
	ErrorOutOfHostMemory:      "out of host memory",
	ErrorOutOfDeviceMemory:    "out of device memory",
	ErrorInitializationFailed: "initialization failed",
	ErrorDeviceLost:           "the device is lost",
	ErrorMemoryMapFailed:      "mapping memory failed",
	ErrorLayerNotPresent:      "the layer is not installed",
	ErrorExtensionNotPresent:  "an extension is not there",
	ErrorFeatureNotPresent:    "a feature is not there",
	ErrorIncompatibleDriver:   "no driver of this loader's version",
	ErrorTooManyObjects:       "too many objects",
	ErrorUnknown:              "unknown error",
}

// Values of enumerations and bits of masks.
const (
	InstanceCreateEnumeratePortabilityBitKHR = 1

	PhysicalDeviceTypeOther         = 0
	PhysicalDeviceTypeIntegratedGpu = 1
	PhysicalDeviceTypeDiscreteGpu   = 2
	PhysicalDeviceTypeVirtualGpu    = 3
	PhysicalDeviceTypeCpu           = 4

	QueueGraphicsBit = 1
	QueueComputeBit  = 2

	MemoryPropertyDeviceLocalBit   = 1
	MemoryPropertyHostVisibleBit   = 2
	MemoryPropertyHostCoherentBit  = 4
	MemoryPropertyHostCachedBit    = 8
	MemoryHeapDeviceLocalBit       = 1
	MemoryAllocateDeviceAddressBit = 2

	BufferUsageTransferSrcBit         = 1
	BufferUsageTransferDstBit         = 2
	BufferUsageStorageBufferBit       = 0x20
	BufferUsageShaderDeviceAddressBit = 0x20000

	ShaderStageComputeBit    = 0x20
	PipelineBindPointCompute = 1

	SubgroupFeatureBasicBit      = 1
	SubgroupFeatureArithmeticBit = 4
	SubgroupFeatureShuffleBit    = 0x10

	PipelineShaderStageCreateRequireFullSubgroupsBit = 2

	PipelineStageComputeShaderBit = 0x800
	PipelineStageTransferBit      = 0x1000
	PipelineStageBottomOfPipeBit  = 0x2000
	PipelineStageHostBit          = 0x4000

	AccessShaderReadBit    = 0x20
	AccessShaderWriteBit   = 0x40
	AccessTransferReadBit  = 0x800
	AccessTransferWriteBit = 0x1000
	AccessHostReadBit      = 0x2000

	QueryTypeTimestamp = 2
	QueryResult64Bit   = 1

	SemaphoreTypeTimeline = 1

	ComponentTypeFloat16KHR = 0
	ComponentTypeFloat32KHR = 1
	ComponentTypeSint8KHR   = 3
	ComponentTypeSint32KHR  = 5
	ScopeSubgroupKHR        = 3

	DebugUtilsMessageSeverityWarningBitEXT = 0x100
	DebugUtilsMessageSeverityErrorBitEXT   = 0x1000
	DebugUtilsMessageTypeGeneralBitEXT     = 1
	DebugUtilsMessageTypeValidationBitEXT  = 2

	ValidationFeatureEnableSynchronizationValidationEXT = 4
)
