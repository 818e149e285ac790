package device_test

import (
	_ "embed"
	"encoding/binary"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
)

//go:generate glslc -O --target-env=vulkan1.2 -o testdata/add.spv testdata/add.comp

//go:embed testdata/add.spv
var addSPIRV []byte

// add is testdata/add.comp: y[i] = x[i] + step · workgroups, 64 elements a workgroup.
var add = device.Module{Name: "add", SPIRV: addSPIRV, Push: 20}

func addPush(x, y *device.Buffer, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, x.Addr)
	b = binary.LittleEndian.AppendUint64(b, y.Addr)
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

func TestFrame(t *testing.T) {
	d := devicetest.Open(t)
	const n = 1000
	x, err := d.Alloc(device.HostWrites, 4*n, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Free()
	y, err := d.Alloc(device.DeviceOnly, 4*n, "y")
	if err != nil {
		t.Fatal(err)
	}
	defer y.Free()
	in := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(in[4*i:], uint32(i))
	}
	if err := d.Write(x, 0, in); err != nil {
		t.Fatal(err)
	}
	p, err := d.Pipeline(add, []uint32{3}, d.Info().Subgroup)
	if err != nil {
		t.Fatal(err)
	}
	f := d.NewFrame()
	defer f.Free()
	f.Dispatch(p, addPush(x, y, n), 16, 1, 1, "add")
	f.Barrier()
	f.Dispatch(p, addPush(y, y, n), 16, 1, 1, "add")
	if err := f.End(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := f.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	out := make([]byte, 4*n)
	if err := d.Read(out, y, 0); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if got, want := binary.LittleEndian.Uint32(out[4*i:]), uint32(i+96); got != want {
			t.Fatalf("element %d is %d, not %d", i, got, want)
		}
	}
}
