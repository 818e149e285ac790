package devicetest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/coli-moe/coli/device"
)

// recorder is a test that notes its failures and runs its cleanup when told.
type recorder struct {
	testing.TB
	failures []string
	cleanups []func()
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) end() {
	for i := range r.cleanups {
		r.cleanups[len(r.cleanups)-1-i]()
	}
}

func TestLeaksAndMessagesFailATest(t *testing.T) {
	if err := Open(t).Close(); err != nil { // skips without Vulkan
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		do   func(d *device.Device, b *device.Buffer)
		want string // empty for a test that passes
	}{
		"nothing":  {func(_ *device.Device, b *device.Buffer) { b.Free() }, ""},
		"a buffer": {func(*device.Device, *device.Buffer) {}, "256 bytes of some numbers are not freed"},
		"a hazard": {func(d *device.Device, b *device.Buffer) {
			defer b.Free()
			f := d.NewFrame()
			defer f.Free()
			f.Copy(b, 0, b, 128, 64)
			f.Copy(b, 0, b, 192, 64)
			if err := f.End(); err != nil {
				t.Error(err)
			}
		}, "SYNC-HAZARD"},
	} {
		if tt.want == "SYNC-HAZARD" && os.Getenv(validationEnv) == "0" {
			continue
		}
		r := &recorder{TB: t}
		d := Open(r)
		b, err := d.Alloc(device.DeviceOnly, 256, "some numbers")
		if err != nil {
			t.Fatal(err)
		}
		tt.do(d, b)
		r.end()
		switch got := strings.Join(r.failures, "\n"); {
		case tt.want == "" && got != "":
			t.Errorf("%s fails the test: %s", name, got)
		case !strings.Contains(got, tt.want):
			t.Errorf("%s gives the failures %q, want %q", name, got, tt.want)
		}
	}
}
