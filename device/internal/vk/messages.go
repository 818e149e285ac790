package vk

import (
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Messages of the validation layer come through one C callback for the whole process, which only a limited number of can be made; the
// messenger's user data says whose they are.
var messengers struct {
	sync.Mutex
	callback uintptr
	last     uintptr
	sinks    map[uintptr]func(text string)
}

// MessengerInfo describes a messenger whose warnings and errors go to sink, which is called on any thread, also by several at once, and
// must not call Vulkan. It is for the chain of InstanceCreateInfo and for CreateMessenger; forget ends it.
func MessengerInfo(sink func(text string)) (info *DebugUtilsMessengerCreateInfoEXT, forget func()) {
	m := &messengers
	m.Lock()
	defer m.Unlock()
	if m.callback == 0 {
		m.callback = purego.NewCallback(onMessage)
		m.sinks = map[uintptr]func(string){}
	}
	m.last++
	id := m.last
	m.sinks[id] = sink
	info = &DebugUtilsMessengerCreateInfoEXT{
		MessageSeverity: DebugUtilsMessageSeverityWarningBitEXT | DebugUtilsMessageSeverityErrorBitEXT,
		MessageType:     DebugUtilsMessageTypeGeneralBitEXT | DebugUtilsMessageTypeValidationBitEXT,
		PfnUserCallback: m.callback,
		PUserData:       id,
	}
	Chain(info)
	return info, func() {
		m.Lock()
		defer m.Unlock()
		delete(m.sinks, id)
	}
}

func onMessage(severity, types uint32, data *DebugUtilsMessengerCallbackDataEXT, id uintptr) uintptr {
	messengers.Lock()
	sink := messengers.sinks[id]
	messengers.Unlock()
	if sink != nil && data != nil {
		sink(goString(data.PMessage))
	}
	return 0 // the call that caused the message goes on
}

// CreateMessenger begins to carry messages.
func (i *Instance) CreateMessenger(info *DebugUtilsMessengerCreateInfoEXT) (DebugUtilsMessengerEXT, error) {
	h := new(DebugUtilsMessengerEXT)
	err := check("vkCreateDebugUtilsMessengerEXT",
		call(i.createDebugUtilsMessengerEXT, i.h, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(h))))
	return *h, err
}

// DestroyMessenger ends a messenger.
func (i *Instance) DestroyMessenger(m DebugUtilsMessengerEXT) {
	call(i.destroyDebugUtilsMessengerEXT, i.h, uintptr(m), 0)
}
