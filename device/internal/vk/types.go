package vk

// The types that structures say in their first field.
func (*ApplicationInfo) structureType() StructureType                { return 0 }
func (*BufferCreateInfo) structureType() StructureType               { return 12 }
func (*BufferDeviceAddressInfo) structureType() StructureType        { return 1000244001 }
func (*CommandBufferAllocateInfo) structureType() StructureType      { return 40 }
func (*CommandBufferBeginInfo) structureType() StructureType         { return 42 }
func (*CommandPoolCreateInfo) structureType() StructureType          { return 39 }
func (*ComputePipelineCreateInfo) structureType() StructureType      { return 29 }
func (*CooperativeMatrixPropertiesKHR) structureType() StructureType { return 1000506001 }

func (*DebugUtilsMessengerCallbackDataEXT) structureType() StructureType { return 1000128003 }

func (*DebugUtilsMessengerCreateInfoEXT) structureType() StructureType { return 1000128004 }

func (*DebugUtilsObjectNameInfoEXT) structureType() StructureType                { return 1000128000 }
func (*DeviceCreateInfo) structureType() StructureType                           { return 3 }
func (*DeviceQueueCreateInfo) structureType() StructureType                      { return 2 }
func (*InstanceCreateInfo) structureType() StructureType                         { return 1 }
func (*MemoryAllocateFlagsInfo) structureType() StructureType                    { return 1000060000 }
func (*MemoryAllocateInfo) structureType() StructureType                         { return 5 }
func (*MemoryBarrier) structureType() StructureType                              { return 46 }
func (*PhysicalDeviceCooperativeMatrixFeaturesKHR) structureType() StructureType { return 1000506000 }

func (*PhysicalDeviceDriverProperties) structureType() StructureType { return 1000196000 }

func (*PhysicalDeviceFeatures2) structureType() StructureType { return 1000059000 }

func (*PhysicalDeviceMemoryBudgetPropertiesEXT) structureType() StructureType { return 1000237000 }

func (*PhysicalDeviceMemoryProperties2) structureType() StructureType { return 1000059006 }

func (*PhysicalDeviceProperties2) structureType() StructureType { return 1000059001 }

func (*PhysicalDeviceShaderIntegerDotProductFeatures) structureType() StructureType {
	return 1000280000
}

func (*PhysicalDeviceShaderIntegerDotProductProperties) structureType() StructureType {
	return 1000280001
}

func (*PhysicalDeviceSubgroupSizeControlFeatures) structureType() StructureType { return 1000225002 }

func (*PhysicalDeviceSubgroupSizeControlProperties) structureType() StructureType { return 1000225000 }
func (*PhysicalDeviceVulkan11Features) structureType() StructureType              { return 49 }
func (*PhysicalDeviceVulkan11Properties) structureType() StructureType            { return 50 }
func (*PhysicalDeviceVulkan12Features) structureType() StructureType              { return 51 }
func (*PipelineCacheCreateInfo) structureType() StructureType                     { return 17 }
func (*PipelineLayoutCreateInfo) structureType() StructureType                    { return 30 }
func (*PipelineShaderStageCreateInfo) structureType() StructureType               { return 18 }
func (*PipelineShaderStageRequiredSubgroupSizeCreateInfo) structureType() StructureType {
	return 1000225001
}
func (*QueryPoolCreateInfo) structureType() StructureType         { return 11 }
func (*SemaphoreCreateInfo) structureType() StructureType         { return 9 }
func (*SemaphoreTypeCreateInfo) structureType() StructureType     { return 1000207002 }
func (*SemaphoreWaitInfo) structureType() StructureType           { return 1000207004 }
func (*ShaderModuleCreateInfo) structureType() StructureType      { return 16 }
func (*SubmitInfo) structureType() StructureType                  { return 4 }
func (*TimelineSemaphoreSubmitInfo) structureType() StructureType { return 1000207003 }
func (*ValidationFeaturesEXT) structureType() StructureType       { return 1000247000 }
