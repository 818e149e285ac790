package vk

import (
	"maps"
	"slices"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// messengers is where the validation layer's messages go. They come through one C callback for the whole process, which only a limited
// number of can be made, and a message does not always name its device: everybody who listens gets all.
var messengers struct {
	sync.Mutex
	callback uintptr
	sinks    map[*func(text string)]struct{}
}

// Listen sends the warnings and errors of all instances with a messenger to sink, which is called on any thread, also by several at once,
// and must not call Vulkan; end stops that.
func Listen(sink func(text string)) (end func()) {
	m := &messengers
	m.Lock()
	defer m.Unlock()
	if m.sinks == nil {
		m.sinks = map[*func(string)]struct{}{}
	}
	key := &sink
	m.sinks[key] = struct{}{}
	return func() {
		m.Lock()
		defer m.Unlock()
		delete(m.sinks, key)
	}
}

// MessengerInfo describes the messenger for those who listen. It is for the chain of InstanceCreateInfo, and for CreateMessenger.
func MessengerInfo() *DebugUtilsMessengerCreateInfoEXT {
	m := &messengers
	m.Lock()
	defer m.Unlock()
	if m.callback == 0 {
		m.callback = purego.NewCallback(onMessage)
	}
	info := &DebugUtilsMessengerCreateInfoEXT{
		MessageSeverity: DebugUtilsMessageSeverityWarningBitEXT | DebugUtilsMessageSeverityErrorBitEXT,
		MessageType:     DebugUtilsMessageTypeGeneralBitEXT | DebugUtilsMessageTypeValidationBitEXT,
		PfnUserCallback: m.callback,
	}
	Chain(info)
	return info
}

func onMessage(_, _ uint32, data *DebugUtilsMessengerCallbackDataEXT, _ uintptr) uintptr {
	if data == nil {
		return 0
	}
	messengers.Lock()
	sinks := slices.Collect(maps.Keys(messengers.sinks))
	messengers.Unlock()
	text := goString(data.PMessage)
	for _, sink := range sinks {
		(*sink)(text)
	}
	return 0 // the call that caused the message goes on
}

// CreateMessenger begins to carry messages, until the instance ends.
func (i *Instance) CreateMessenger(info *DebugUtilsMessengerCreateInfoEXT) error {
	h := new(DebugUtilsMessengerEXT)
	return check("vkCreateDebugUtilsMessengerEXT",
		call(i.createDebugUtilsMessengerEXT, i.h, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(h))))
}
