package vk

import "unsafe"

// The structures, field for field as the registry has them; Base is the sType and pNext they begin with. Pointers are Go pointers, so that
// what they lead to stays alive; see the package's doc.

// Instance and physical devices.
type (
	ApplicationInfo struct {
		Base
		PApplicationName          *byte
		ApplicationVersion        uint32
		PEngineName               *byte
		EngineVersion, ApiVersion uint32
	}
	InstanceCreateInfo struct {
		Base
		Flags                   uint32
		PApplicationInfo        *ApplicationInfo
		EnabledLayerCount       uint32
		PpEnabledLayerNames     **byte
		EnabledExtensionCount   uint32
		PpEnabledExtensionNames **byte
	}
	ExtensionProperties struct {
		ExtensionName [256]byte
		SpecVersion   uint32
	}
	LayerProperties struct {
		LayerName                          [256]byte
		SpecVersion, ImplementationVersion uint32
		Description                        [256]byte
	}
	PhysicalDeviceProperties2 struct {
		Base
		Properties PhysicalDeviceProperties
	}
	PhysicalDeviceProperties struct {
		ApiVersion, DriverVersion, VendorID, DeviceID, DeviceType uint32
		DeviceName                                                [256]byte
		PipelineCacheUUID                                         [16]byte
		Limits                                                    PhysicalDeviceLimits
		SparseProperties                                          PhysicalDeviceSparseProperties
	}
	PhysicalDeviceLimits struct {
		MaxImageDimension1D, MaxImageDimension2D, MaxImageDimension3D, MaxImageDimensionCube                                      uint32
		MaxImageArrayLayers, MaxTexelBufferElements, MaxUniformBufferRange, MaxStorageBufferRange                                 uint32
		MaxPushConstantsSize, MaxMemoryAllocationCount, MaxSamplerAllocationCount                                                 uint32
		BufferImageGranularity, SparseAddressSpaceSize                                                                            uint64
		MaxBoundDescriptorSets, MaxPerStageDescriptorSamplers, MaxPerStageDescriptorUniformBuffers                                uint32
		MaxPerStageDescriptorStorageBuffers, MaxPerStageDescriptorSampledImages, MaxPerStageDescriptorStorageImages               uint32
		MaxPerStageDescriptorInputAttachments, MaxPerStageResources, MaxDescriptorSetSamplers                                     uint32
		MaxDescriptorSetUniformBuffers, MaxDescriptorSetUniformBuffersDynamic, MaxDescriptorSetStorageBuffers                     uint32
		MaxDescriptorSetStorageBuffersDynamic, MaxDescriptorSetSampledImages, MaxDescriptorSetStorageImages                       uint32
		MaxDescriptorSetInputAttachments, MaxVertexInputAttributes, MaxVertexInputBindings, MaxVertexInputAttributeOffset         uint32
		MaxVertexInputBindingStride, MaxVertexOutputComponents, MaxTessellationGenerationLevel                                    uint32
		MaxTessellationPatchSize, MaxTessellationControlPerVertexInputComponents, MaxTessellationControlPerVertexOutputComponents uint32
		MaxTessellationControlPerPatchOutputComponents, MaxTessellationControlTotalOutputComponents                               uint32
		MaxTessellationEvaluationInputComponents, MaxTessellationEvaluationOutputComponents, MaxGeometryShaderInvocations         uint32
		MaxGeometryInputComponents, MaxGeometryOutputComponents, MaxGeometryOutputVertices, MaxGeometryTotalOutputComponents      uint32
		MaxFragmentInputComponents, MaxFragmentOutputAttachments, MaxFragmentDualSrcAttachments                                   uint32
		MaxFragmentCombinedOutputResources, MaxComputeSharedMemorySize                                                            uint32
		MaxComputeWorkGroupCount                                                                                                  [3]uint32
		MaxComputeWorkGroupInvocations                                                                                            uint32
		MaxComputeWorkGroupSize                                                                                                   [3]uint32
		SubPixelPrecisionBits, SubTexelPrecisionBits, MipmapPrecisionBits, MaxDrawIndexedIndexValue                               uint32
		MaxDrawIndirectCount                                                                                                      uint32
		MaxSamplerLodBias, MaxSamplerAnisotropy                                                                                   float32
		MaxViewports                                                                                                              uint32
		MaxViewportDimensions                                                                                                     [2]uint32
		ViewportBoundsRange                                                                                                       [2]float32
		ViewportSubPixelBits                                                                                                      uint32
		MinMemoryMapAlignment                                                                                                     uintptr
		MinTexelBufferOffsetAlignment, MinUniformBufferOffsetAlignment, MinStorageBufferOffsetAlignment                           uint64
		MinTexelOffset                                                                                                            int32
		MaxTexelOffset                                                                                                            uint32
		MinTexelGatherOffset                                                                                                      int32
		MaxTexelGatherOffset                                                                                                      uint32
		MinInterpolationOffset, MaxInterpolationOffset                                                                            float32
		SubPixelInterpolationOffsetBits, MaxFramebufferWidth, MaxFramebufferHeight, MaxFramebufferLayers                          uint32
		FramebufferColorSampleCounts, FramebufferDepthSampleCounts, FramebufferStencilSampleCounts                                uint32
		FramebufferNoAttachmentsSampleCounts, MaxColorAttachments, SampledImageColorSampleCounts                                  uint32
		SampledImageIntegerSampleCounts, SampledImageDepthSampleCounts, SampledImageStencilSampleCounts                           uint32
		StorageImageSampleCounts, MaxSampleMaskWords                                                                              uint32
		TimestampComputeAndGraphics                                                                                               Bool32
		TimestampPeriod                                                                                                           float32
		MaxClipDistances, MaxCullDistances, MaxCombinedClipAndCullDistances, DiscreteQueuePriorities                              uint32
		PointSizeRange, LineWidthRange                                                                                            [2]float32
		PointSizeGranularity, LineWidthGranularity                                                                                float32
		StrictLines, StandardSampleLocations                                                                                      Bool32
		OptimalBufferCopyOffsetAlignment, OptimalBufferCopyRowPitchAlignment, NonCoherentAtomSize                                 uint64
	}
	PhysicalDeviceSparseProperties struct {
		ResidencyStandard2DBlockShape, ResidencyStandard2DMultisampleBlockShape, ResidencyStandard3DBlockShape Bool32
		ResidencyAlignedMipSize, ResidencyNonResidentStrict                                                    Bool32
	}
	PhysicalDeviceVulkan11Properties struct {
		Base
		DeviceUUID, DriverUUID                                                  [16]byte
		DeviceLUID                                                              [8]byte
		DeviceNodeMask                                                          uint32
		DeviceLUIDValid                                                         Bool32
		SubgroupSize, SubgroupSupportedStages, SubgroupSupportedOperations      uint32
		SubgroupQuadOperationsInAllStages                                       Bool32
		PointClippingBehavior, MaxMultiviewViewCount, MaxMultiviewInstanceIndex uint32
		ProtectedNoFault                                                        Bool32
		MaxPerSetDescriptors                                                    uint32
		MaxMemoryAllocationSize                                                 uint64
	}
	PhysicalDeviceDriverProperties struct {
		Base
		DriverID               uint32
		DriverName, DriverInfo [256]byte
		ConformanceVersion     uint32
	}
	PhysicalDeviceSubgroupSizeControlProperties struct {
		Base
		MinSubgroupSize, MaxSubgroupSize, MaxComputeWorkgroupSubgroups, RequiredSubgroupSizeStages uint32
	}
	PhysicalDeviceShaderIntegerDotProductProperties struct {
		Base
		IntegerDotProduct8BitUnsignedAccelerated, IntegerDotProduct8BitSignedAccelerated, IntegerDotProduct8BitMixedSignednessAccelerated                   Bool32
		IntegerDotProduct4x8BitPackedUnsignedAccelerated, IntegerDotProduct4x8BitPackedSignedAccelerated                                                    Bool32
		IntegerDotProduct4x8BitPackedMixedSignednessAccelerated, IntegerDotProduct16BitUnsignedAccelerated                                                  Bool32
		IntegerDotProduct16BitSignedAccelerated, IntegerDotProduct16BitMixedSignednessAccelerated                                                           Bool32
		IntegerDotProduct32BitUnsignedAccelerated, IntegerDotProduct32BitSignedAccelerated, IntegerDotProduct32BitMixedSignednessAccelerated                Bool32
		IntegerDotProduct64BitUnsignedAccelerated, IntegerDotProduct64BitSignedAccelerated, IntegerDotProduct64BitMixedSignednessAccelerated                Bool32
		IntegerDotProductAccumulatingSaturating8BitUnsignedAccelerated, IntegerDotProductAccumulatingSaturating8BitSignedAccelerated                        Bool32
		IntegerDotProductAccumulatingSaturating8BitMixedSignednessAccelerated, IntegerDotProductAccumulatingSaturating4x8BitPackedUnsignedAccelerated       Bool32
		IntegerDotProductAccumulatingSaturating4x8BitPackedSignedAccelerated, IntegerDotProductAccumulatingSaturating4x8BitPackedMixedSignednessAccelerated Bool32
		IntegerDotProductAccumulatingSaturating16BitUnsignedAccelerated, IntegerDotProductAccumulatingSaturating16BitSignedAccelerated                      Bool32
		IntegerDotProductAccumulatingSaturating16BitMixedSignednessAccelerated, IntegerDotProductAccumulatingSaturating32BitUnsignedAccelerated             Bool32
		IntegerDotProductAccumulatingSaturating32BitSignedAccelerated, IntegerDotProductAccumulatingSaturating32BitMixedSignednessAccelerated               Bool32
		IntegerDotProductAccumulatingSaturating64BitUnsignedAccelerated, IntegerDotProductAccumulatingSaturating64BitSignedAccelerated                      Bool32
		IntegerDotProductAccumulatingSaturating64BitMixedSignednessAccelerated                                                                              Bool32
	}
	PhysicalDeviceFeatures2 struct {
		Base
		Features PhysicalDeviceFeatures
	}
	PhysicalDeviceFeatures struct {
		RobustBufferAccess, FullDrawIndexUint32, ImageCubeArray, IndependentBlend, GeometryShader                             Bool32
		TessellationShader, SampleRateShading, DualSrcBlend, LogicOp, MultiDrawIndirect, DrawIndirectFirstInstance            Bool32
		DepthClamp, DepthBiasClamp, FillModeNonSolid, DepthBounds, WideLines, LargePoints, AlphaToOne                         Bool32
		MultiViewport, SamplerAnisotropy, TextureCompressionETC2, TextureCompressionASTC_LDR                                  Bool32
		TextureCompressionBC, OcclusionQueryPrecise, PipelineStatisticsQuery, VertexPipelineStoresAndAtomics                  Bool32
		FragmentStoresAndAtomics, ShaderTessellationAndGeometryPointSize, ShaderImageGatherExtended                           Bool32
		ShaderStorageImageExtendedFormats, ShaderStorageImageMultisample, ShaderStorageImageReadWithoutFormat                 Bool32
		ShaderStorageImageWriteWithoutFormat, ShaderUniformBufferArrayDynamicIndexing, ShaderSampledImageArrayDynamicIndexing Bool32
		ShaderStorageBufferArrayDynamicIndexing, ShaderStorageImageArrayDynamicIndexing, ShaderClipDistance                   Bool32
		ShaderCullDistance, ShaderFloat64, ShaderInt64, ShaderInt16, ShaderResourceResidency                                  Bool32
		ShaderResourceMinLod, SparseBinding, SparseResidencyBuffer, SparseResidencyImage2D, SparseResidencyImage3D            Bool32
		SparseResidency2Samples, SparseResidency4Samples, SparseResidency8Samples, SparseResidency16Samples                   Bool32
		SparseResidencyAliased, VariableMultisampleRate, InheritedQueries                                                     Bool32
	}
	PhysicalDeviceVulkan11Features struct {
		Base
		StorageBuffer16BitAccess, UniformAndStorageBuffer16BitAccess, StoragePushConstant16, StorageInputOutput16 Bool32
		Multiview, MultiviewGeometryShader, MultiviewTessellationShader, VariablePointersStorageBuffer            Bool32
		VariablePointers, ProtectedMemory, SamplerYcbcrConversion, ShaderDrawParameters                           Bool32
	}
	PhysicalDeviceVulkan12Features struct {
		Base
		SamplerMirrorClampToEdge, DrawIndirectCount, StorageBuffer8BitAccess, UniformAndStorageBuffer8BitAccess                        Bool32
		StoragePushConstant8, ShaderBufferInt64Atomics, ShaderSharedInt64Atomics, ShaderFloat16                                        Bool32
		ShaderInt8, DescriptorIndexing, ShaderInputAttachmentArrayDynamicIndexing, ShaderUniformTexelBufferArrayDynamicIndexing        Bool32
		ShaderStorageTexelBufferArrayDynamicIndexing, ShaderUniformBufferArrayNonUniformIndexing                                       Bool32
		ShaderSampledImageArrayNonUniformIndexing, ShaderStorageBufferArrayNonUniformIndexing                                          Bool32
		ShaderStorageImageArrayNonUniformIndexing, ShaderInputAttachmentArrayNonUniformIndexing                                        Bool32
		ShaderUniformTexelBufferArrayNonUniformIndexing, ShaderStorageTexelBufferArrayNonUniformIndexing                               Bool32
		DescriptorBindingUniformBufferUpdateAfterBind, DescriptorBindingSampledImageUpdateAfterBind                                    Bool32
		DescriptorBindingStorageImageUpdateAfterBind, DescriptorBindingStorageBufferUpdateAfterBind                                    Bool32
		DescriptorBindingUniformTexelBufferUpdateAfterBind, DescriptorBindingStorageTexelBufferUpdateAfterBind                         Bool32
		DescriptorBindingUpdateUnusedWhilePending, DescriptorBindingPartiallyBound, DescriptorBindingVariableDescriptorCount           Bool32
		RuntimeDescriptorArray, SamplerFilterMinmax, ScalarBlockLayout, ImagelessFramebuffer                                           Bool32
		UniformBufferStandardLayout, ShaderSubgroupExtendedTypes, SeparateDepthStencilLayouts                                          Bool32
		HostQueryReset, TimelineSemaphore, BufferDeviceAddress, BufferDeviceAddressCaptureReplay                                       Bool32
		BufferDeviceAddressMultiDevice, VulkanMemoryModel, VulkanMemoryModelDeviceScope, VulkanMemoryModelAvailabilityVisibilityChains Bool32
		ShaderOutputViewportIndex, ShaderOutputLayer, SubgroupBroadcastDynamicId                                                       Bool32
	}
	PhysicalDeviceSubgroupSizeControlFeatures struct {
		Base
		SubgroupSizeControl, ComputeFullSubgroups Bool32
	}
	PhysicalDeviceShaderIntegerDotProductFeatures struct {
		Base
		ShaderIntegerDotProduct Bool32
	}
	PhysicalDeviceCooperativeMatrixFeaturesKHR struct {
		Base
		CooperativeMatrix, CooperativeMatrixRobustBufferAccess Bool32
	}
	CooperativeMatrixPropertiesKHR struct {
		Base
		MSize, NSize, KSize, AType, BType, CType, ResultType uint32
		SaturatingAccumulation                               Bool32
		Scope                                                uint32
	}
	PhysicalDeviceMemoryProperties2 struct {
		Base
		MemoryProperties PhysicalDeviceMemoryProperties
	}
	PhysicalDeviceMemoryProperties struct {
		MemoryTypeCount uint32
		MemoryTypes     [32]MemoryType
		MemoryHeapCount uint32
		MemoryHeaps     [16]MemoryHeap
	}
	MemoryType struct {
		PropertyFlags, HeapIndex uint32
	}
	MemoryHeap struct {
		Size  uint64
		Flags uint32
	}
	PhysicalDeviceMemoryBudgetPropertiesEXT struct {
		Base
		HeapBudget, HeapUsage [16]uint64
	}
	QueueFamilyProperties struct {
		QueueFlags, QueueCount, TimestampValidBits uint32
		MinImageTransferGranularity                Extent3D
	}
	Extent3D struct {
		Width, Height, Depth uint32
	}
	DeviceQueueCreateInfo struct {
		Base
		Flags, QueueFamilyIndex, QueueCount uint32
		PQueuePriorities                    *float32
	}
	DeviceCreateInfo struct {
		Base
		Flags, QueueCreateInfoCount uint32
		PQueueCreateInfos           *DeviceQueueCreateInfo
		EnabledLayerCount           uint32
		PpEnabledLayerNames         **byte
		EnabledExtensionCount       uint32
		PpEnabledExtensionNames     **byte
		PEnabledFeatures            *PhysicalDeviceFeatures
	}
)

// Validation.
type (
	ValidationFeaturesEXT struct {
		Base
		EnabledValidationFeatureCount  uint32
		PEnabledValidationFeatures     *uint32
		DisabledValidationFeatureCount uint32
		PDisabledValidationFeatures    *uint32
	}
	DebugUtilsMessengerCreateInfoEXT struct {
		Base
		Flags, MessageSeverity, MessageType uint32
		PfnUserCallback                     uintptr
		PUserData                           uintptr
	}
	DebugUtilsMessengerCallbackDataEXT struct {
		Base
		Flags            uint32
		PMessageIdName   *byte
		MessageIdNumber  int32
		PMessage         *byte
		QueueLabelCount  uint32
		PQueueLabels     unsafe.Pointer
		CmdBufLabelCount uint32
		PCmdBufLabels    unsafe.Pointer
		ObjectCount      uint32
		PObjects         *DebugUtilsObjectNameInfoEXT
	}
	DebugUtilsObjectNameInfoEXT struct {
		Base
		ObjectType   uint32
		ObjectHandle uint64
		PObjectName  *byte
	}
)

// Memory and buffers.
type (
	MemoryAllocateInfo struct {
		Base
		AllocationSize  uint64
		MemoryTypeIndex uint32
	}
	MemoryAllocateFlagsInfo struct {
		Base
		Flags, DeviceMask uint32
	}
	MemoryRequirements struct {
		Size, Alignment uint64
		MemoryTypeBits  uint32
	}
	BufferCreateInfo struct {
		Base
		Flags                                     uint32
		Size                                      uint64
		Usage, SharingMode, QueueFamilyIndexCount uint32
		PQueueFamilyIndices                       *uint32
	}
	BufferDeviceAddressInfo struct {
		Base
		Buffer Buffer
	}
)

// Pipelines.
type (
	ShaderModuleCreateInfo struct {
		Base
		Flags    uint32
		CodeSize uintptr
		PCode    *uint32
	}
	PushConstantRange struct {
		StageFlags, Offset, Size uint32
	}
	PipelineLayoutCreateInfo struct {
		Base
		Flags, SetLayoutCount  uint32
		PSetLayouts            *DescriptorSetLayout
		PushConstantRangeCount uint32
		PPushConstantRanges    *PushConstantRange
	}
	SpecializationMapEntry struct {
		ConstantID, Offset uint32
		Size               uintptr
	}
	SpecializationInfo struct {
		MapEntryCount uint32
		PMapEntries   *SpecializationMapEntry
		DataSize      uintptr
		PData         unsafe.Pointer
	}
	PipelineShaderStageCreateInfo struct {
		Base
		Flags, Stage        uint32
		Module              ShaderModule
		PName               *byte
		PSpecializationInfo *SpecializationInfo
	}
	PipelineShaderStageRequiredSubgroupSizeCreateInfo struct {
		Base
		RequiredSubgroupSize uint32
	}
	ComputePipelineCreateInfo struct {
		Base
		Flags              uint32
		Stage              PipelineShaderStageCreateInfo
		Layout             PipelineLayout
		BasePipelineHandle Pipeline
		BasePipelineIndex  int32
	}
	PipelineCacheCreateInfo struct {
		Base
		Flags           uint32
		InitialDataSize uintptr
		PInitialData    unsafe.Pointer
	}
)

// Commands and submission.
type (
	CommandPoolCreateInfo struct {
		Base
		Flags, QueueFamilyIndex uint32
	}
	CommandBufferAllocateInfo struct {
		Base
		CommandPool               CommandPool
		Level, CommandBufferCount uint32
	}
	CommandBufferBeginInfo struct {
		Base
		Flags            uint32
		PInheritanceInfo *uint32
	}
	MemoryBarrier struct {
		Base
		SrcAccessMask, DstAccessMask uint32
	}
	BufferCopy struct {
		SrcOffset, DstOffset, Size uint64
	}
	QueryPoolCreateInfo struct {
		Base
		Flags, QueryType, QueryCount, PipelineStatistics uint32
	}
	SemaphoreCreateInfo struct {
		Base
		Flags uint32
	}
	SemaphoreTypeCreateInfo struct {
		Base
		SemaphoreType uint32
		InitialValue  uint64
	}
	SemaphoreWaitInfo struct {
		Base
		Flags, SemaphoreCount uint32
		PSemaphores           *Semaphore
		PValues               *uint64
	}
	SubmitInfo struct {
		Base
		WaitSemaphoreCount   uint32
		PWaitSemaphores      *Semaphore
		PWaitDstStageMask    *uint32
		CommandBufferCount   uint32
		PCommandBuffers      *CommandBuffer
		SignalSemaphoreCount uint32
		PSignalSemaphores    *Semaphore
	}
	TimelineSemaphoreSubmitInfo struct {
		Base
		WaitSemaphoreValueCount   uint32
		PWaitSemaphoreValues      *uint64
		SignalSemaphoreValueCount uint32
		PSignalSemaphoreValues    *uint64
	}
)
