package ledger

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are the suffixes of sizes, in any case; a lone letter is binary, as in most memory options.
var units = []struct {
	name  string
	bytes float64
}{
	{"tib", 1 << 40},
	{"gib", 1 << 30},
	{"mib", 1 << 20},
	{"kib", 1 << 10},
	{"tb", 1e12},
	{"gb", 1e9},
	{"mb", 1e6},
	{"kb", 1e3},
	{"t", 1 << 40},
	{"g", 1 << 30},
	{"m", 1 << 20},
	{"k", 1 << 10},
	{"b", 1},
	{"", 1},
}

// ParseSize reads a size in bytes: "8GiB", "8G" (the same), "8GB" (10⁹), "8192MiB", "1.5g", "123456", or "75%" of whole.
func ParseSize(s string, whole int64) (int64, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	fail := func(why string) (int64, error) {
		return 0, fmt.Errorf("size %q: %s; sizes look like 8GiB, 8192MiB, 1.5g or 75%%", s, why)
	}
	number, percent := strings.CutSuffix(text, "%")
	scale := float64(whole) / 100
	if !percent {
		for _, u := range units {
			if rest, ok := strings.CutSuffix(text, u.name); ok {
				number, scale = rest, u.bytes
				break
			}
		}
	}
	number = strings.TrimSpace(number)
	if number == "" || strings.Trim(number, "0123456789.") != "" { // ParseFloat would take 1e9, inf and 0x10 too
		return fail("no number")
	}
	n, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil:
		return fail("no number")
	case percent && n > 100:
		return fail("more than the whole")
	case percent && whole <= 0:
		return fail("a share of an unknown whole")
	case n*scale >= math.MaxInt64:
		return fail("too large")
	}
	return int64(n * scale), nil
}

// FormatSize writes a size with three digits at most: "12.3 GiB", "640 MiB", "512 B".
func FormatSize(bytes int64) string {
	v, unit := float64(bytes), 0
	names := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for math.Abs(v) >= 999.5 && unit < len(names)-1 {
		v /= 1024
		unit++
	}
	if unit > 0 && math.Abs(v) < 99.95 {
		return fmt.Sprintf("%.1f %s", v, names[unit])
	}
	return fmt.Sprintf("%.0f %s", v, names[unit])
}
