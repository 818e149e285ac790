// Package vk calls Vulkan: the loader is opened when it is first needed, and its functions are called through purego, without cgo and
// without headers. It has the part of Vulkan that package device uses (compute, memory, timeline semaphores), with the registry's names
// less their prefix; a test compares layouts and values with the registry. What to do with it is package device's matter.
//
// Structures are Go values with Go pointers. Every argument that is a pointer is converted in the call itself, and call forces what it
// points to onto the heap, where nothing moves, and keeps it reachable until the function returns; so is what it leads to, since the
// collector sees the pointers in it. Vulkan keeps none of these pointers.
package vk

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Handles of Vulkan's objects; the zero value is none.
type (
	PhysicalDevice         uint64
	Queue                  uint64
	CommandBuffer          uint64
	Semaphore              uint64
	Buffer                 uint64
	DeviceMemory           uint64
	ShaderModule           uint64
	PipelineLayout         uint64
	Pipeline               uint64
	PipelineCache          uint64
	CommandPool            uint64
	QueryPool              uint64
	DescriptorSetLayout    uint64
	DebugUtilsMessengerEXT uint64
)

// Bool32 is Vulkan's boolean.
type Bool32 uint32

// Base begins every structure that says its own type: what it is, and the next structure of its chain.
type Base struct {
	SType StructureType
	Next  unsafe.Pointer
}

func (b *Base) base() *Base { return b }

// Extensible is a structure that begins with Base.
type Extensible interface {
	base() *Base
	structureType() StructureType
}

// Chain sets the types of the structures and links each to the next.
func Chain(all ...Extensible) {
	for i, s := range all {
		s.base().SType = s.structureType()
		if i > 0 {
			all[i-1].base().Next = unsafe.Pointer(s.base())
		}
	}
}

// Result is what a function answers when it did not succeed.
type Result int32

func (r Result) Error() string {
	if s, ok := resultNames[r]; ok {
		return s
	}
	return fmt.Sprintf("VkResult %d", int32(r))
}

// Error is a function that failed.
type Error struct {
	Func string // "vkAllocateMemory"
	Result
}

func (e *Error) Error() string { return e.Func + ": " + e.Result.Error() }
func (e *Error) Unwrap() error { return e.Result }

// proc is a function of Vulkan; the zero value is one that there is not.
type proc uintptr

// call calls f. The pragma keeps what the arguments point to alive and in place.
//
//go:uintptrescapes
func call(f proc, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(f), args...)
	return r
}

// Prepared is a call that is made often: the arguments of call are allocated each time, these are not.
type Prepared struct {
	name string
	f    proc
	args []uintptr
	keep unsafe.Pointer // what the last argument that is a pointer points to
}

// Do makes the call, for one goroutine at a time. Answers above zero are no error.
func (p *Prepared) Do() error {
	r, _, _ := purego.SyscallN(uintptr(p.f), p.args...)
	runtime.KeepAlive(p)
	return check(p.name, r)
}

// check makes an error of a function's answer; answers above zero (incomplete, timeout) are the caller's to look at.
func check(name string, r uintptr) error {
	if r := Result(int32(r)); r < 0 {
		return &Error{name, r}
	}
	return nil
}

// load fills the fields of type proc of the structure procs points to: field createBuffer gets what get finds under "vkCreateBuffer".
// Functions of extensions, whose names end in EXT or KHR, may be missing.
func load(procs any, get func(name string) uintptr) error {
	v := reflect.ValueOf(procs).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Type != reflect.TypeFor[proc]() {
			continue
		}
		first, n := utf8.DecodeRuneInString(field.Name)
		name := "vk" + string(unicode.ToUpper(first)) + field.Name[n:]
		p := get(name)
		if p == 0 && !hasSuffix(name, "EXT", "KHR") {
			return fmt.Errorf("there is no %s: a newer Vulkan loader and driver may have it", name)
		}
		*(*proc)(unsafe.Pointer(v.Field(i).UnsafeAddr())) = proc(p)
	}
	return nil
}

func hasSuffix(s string, suffixes ...string) bool {
	for _, x := range suffixes {
		if len(s) > len(x) && s[len(s)-len(x):] == x {
			return true
		}
	}
	return false
}

// CString makes a C string.
func CString(s string) *byte {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0]
}

// CStrings makes an array of C strings, nil if there are none.
func CStrings(all []string) **byte {
	if len(all) == 0 {
		return nil
	}
	out := make([]*byte, len(all))
	for i, s := range all {
		out[i] = CString(s)
	}
	return &out[0]
}

// String reads the C string that begins an array.
func String(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// goString copies a C string, which may be nil.
func goString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
