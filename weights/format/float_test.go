package format

import (
	"math"
	"testing"
)

// f16Value is the definition of binary16 in float64.
func f16Value(h uint16) float64 {
	exp, man := int(h>>10&31), float64(h&0x3ff)
	v := math.Ldexp(man+1024, exp-25)
	switch {
	case exp == 0:
		v = math.Ldexp(man, -24)
	case exp == 31 && man != 0:
		v = math.NaN()
	case exp == 31:
		v = math.Inf(1)
	}
	return math.Copysign(v, 0.5-float64(h>>15))
}

func TestF16(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		got, want := F16ToF32(h), f16Value(h)
		if math.IsNaN(want) {
			if got == got {
				t.Fatalf("%#04x is %g, want NaN", h, got)
			}
			if back := F32ToF16(got); back|0x200 != h|0x200 {
				t.Fatalf("NaN %#04x came back as %#04x", h, back)
			}
			continue
		}
		if float64(got) != want || math.Signbit(float64(got)) != math.Signbit(want) {
			t.Fatalf("%#04x is %g, want %g", h, got, want)
		}
		if back := F32ToF16(got); back != h {
			t.Fatalf("%#04x came back as %#04x", h, back)
		}
		if h&0x7fff >= 0x7bff {
			continue
		}
		// Halfway to the next magnitude rounds to the even code; one float32 step either side of it to the nearer one.
		mid := float32((want + f16Value(h+1)) / 2)
		bits := math.Float32bits(mid)
		for _, tt := range []struct {
			x    float32
			want uint16
		}{{mid, h + h&1}, {math.Float32frombits(bits - 1), h}, {math.Float32frombits(bits + 1), h + 1}} {
			if back := F32ToF16(tt.x); back != tt.want {
				t.Fatalf("%g rounds to %#04x, want %#04x", tt.x, back, tt.want)
			}
		}
	}
	for x, want := range map[float32]uint16{65504: 0x7bff, 65519.996: 0x7bff, 65520: 0x7c00, -1e30: 0xfc00} {
		if got := F32ToF16(x); got != want {
			t.Errorf("%g rounds to %#04x, want %#04x", x, got, want)
		}
	}
}

func TestBF16(t *testing.T) {
	for i := range 1 << 16 {
		b := uint16(i)
		x := BF16ToF32(b)
		if math.Float32bits(x) != uint32(b)<<16 {
			t.Fatalf("%#04x is %g", b, x)
		}
		if x != x {
			if back := F32ToBF16(x); back != b|0x40 {
				t.Fatalf("NaN %#04x came back as %#04x", b, back)
			}
			continue
		}
		if back := F32ToBF16(x); back != b {
			t.Fatalf("%#04x came back as %#04x", b, back)
		}
		if b&0x7f80 == 0x7f80 {
			continue
		}
		mid := uint32(b)<<16 | 0x8000
		for bits, want := range map[uint32]uint16{mid: b + b&1, mid - 1: b, mid + 1: b + 1} {
			if back := F32ToBF16(math.Float32frombits(bits)); back != want {
				t.Fatalf("%#08x rounds to %#04x, want %#04x", bits, back, want)
			}
		}
	}
}

func TestE8M0(t *testing.T) {
	for e := range 255 {
		if got, want := float64(E8M0ToF32(uint8(e))), math.Ldexp(1, e-127); got != want {
			t.Errorf("%d is %g, want %g", e, got, want)
		}
	}
	if got := E8M0ToF32(255); got == got {
		t.Errorf("255 is %g, want NaN", got)
	}
}

func TestE4M3(t *testing.T) {
	for x, want := range map[uint8]float32{
		0: 0, 1: 0x1p-9, 7: 7 * 0x1p-9, 8: 0x1p-6, 0x38: 1, 0x39: 1.125, 0x7e: 448, 0x78: 256, 0xb8: -1, 0xfe: -448,
	} {
		if got := E4M3ToF32(x); got != want {
			t.Errorf("%#02x is %g, want %g", x, got, want)
		}
	}
	for i := range 256 {
		b := uint8(i)
		x := E4M3ToF32(b)
		if b&0x7f == 0x7f {
			if x == x || F32ToE4M3(x)&0x7f != 0x7f {
				t.Errorf("%#02x is %g and comes back as %#02x, want NaN", b, x, F32ToE4M3(x))
			}
			continue
		}
		if back := F32ToE4M3(x); back != b {
			t.Errorf("%#02x came back as %#02x", b, back)
		}
		if b&0x7f == 0x7e {
			continue
		}
		mid := (x + E4M3ToF32(b+1)) / 2
		bits := math.Float32bits(mid)
		for _, tt := range []struct {
			x    float32
			want uint8
		}{{mid, b + b&1}, {math.Float32frombits(bits - 1), b}, {math.Float32frombits(bits + 1), b + 1}} {
			if back := F32ToE4M3(tt.x); back != tt.want {
				t.Errorf("%g rounds to %#02x, want %#02x", tt.x, back, tt.want)
			}
		}
	}
	for x, want := range map[float32]uint8{1e9: 0x7e, float32(math.Inf(-1)): 0xfe, 460: 0x7e} {
		if got := F32ToE4M3(x); got != want {
			t.Errorf("%g rounds to %#02x, want %#02x", x, got, want)
		}
	}
}
