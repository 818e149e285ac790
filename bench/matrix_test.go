package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseInts(t *testing.T) {
	for text, want := range map[string][]int{
		"512":          {512},
		"0":            {0},
		"1,2,4":        {1, 2, 4},
		"4, 1":         {4, 1},
		"1-4":          {1, 2, 3, 4},
		"512-2048+512": {512, 1024, 1536, 2048},
		"512-2000+512": {512, 1024, 1536},
		"1-8*2":        {1, 2, 4, 8},
		"1-9*2,8,3":    {1, 2, 4, 8, 3},
		"0-2":          {0, 1, 2},
		"7-7":          {7},
		"7-7*2":        {7},
		"9223372036854775806-9223372036854775807":   {9223372036854775806, 9223372036854775807},
		"4611686018427387904-9223372036854775807*2": {4611686018427387904},
	} {
		got, err := ParseInts(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	for text, want := range map[string]string{
		"":                    "empty place",
		"1,,2":                "empty place",
		"many":                `"many" is no whole number`,
		"-1":                  `"" is no whole number`,
		"1-":                  `"" is no whole number`,
		"1-x+y":               `"y" is no whole number`,
		"4-1":                 "the range 4-1 ends before it begins",
		"1-4+0":               "never ends",
		"1-4*1":               "never ends",
		"1-4*0":               "never ends",
		"0-4*2":               "never ends",
		"1-1000000":           "the range 1-1000000 has more than 1000 values",
		"1-600,601-1200":      "has more than 1000 values",
		"9223372036854775808": "is no whole number",
	} {
		if got, err := ParseInts(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", text, got, err, want)
		}
	}
}

func TestParseSizes(t *testing.T) {
	for text, want := range map[string]string{
		"4GiB":            "4GiB",
		"25%,50%":         "25% 50%",
		"10%-30%+10%":     "10% 20% 30%",
		"10%-30%+10":      "10% 20% 30%",
		"1MiB-8MiB*2":     "1MiB 2MiB 4MiB 8MiB",
		"1.5GiB,4k-16k*4": "1.5GiB 4k 16k",
		"4-6":             "4 5 6",
		"auto,1GiB,1GiB":  "auto 1GiB",
	} {
		if got, err := ParseSizes(text); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":               "empty place",
		"1GiB,,2GiB":     "empty place",
		"1GiB-8MiB":      "mixes units",
		"1GiB-8GiB*2%":   "mixes units",
		"1%-8%*2%":       "mixes units",
		"1GiB-8GiB+1MiB": "mixes units",
		"8GiB-1GiB":      "ends before it begins",
		"1.5GiB-8GiB":    `"1.5" is no whole number`,
		"-":              "lacks one of its ends",
		"1MiB-":          "lacks one of its ends",
		"-1MiB":          "lacks one of its ends",
	} {
		if got, err := ParseSizes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestParseList(t *testing.T) {
	got, err := ParseList("auto, on,off,on")
	if err != nil || !slices.Equal(got, []string{"auto", "on", "off"}) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := ParseList("auto,"); err == nil {
		t.Errorf("an empty place: %q", got)
	}
}

func FuzzMatrix(f *testing.F) {
	for _, seed := range []string{"1,2", "1-8*2", "512-2048+512", "10%-50%+10%", "1MiB-8MiB*2", "-", "1-9223372036854775807*9", "+GiB-+GiB+"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ints, err := ParseInts(text)
		if err == nil && (len(ints) == 0 || len(ints) > maxList || slices.Min(ints) < 0) {
			t.Errorf("%q: %d numbers", text, len(ints))
		}
		sizes, err2 := ParseSizes(text)
		if err2 == nil && (len(sizes) == 0 || len(sizes) > maxList || slices.Contains(sizes, "")) {
			t.Errorf("%q: %d sizes", text, len(sizes))
		}
		for _, list := range [][]string{sizes} {
			seen := map[string]bool{}
			for _, s := range list {
				if seen[s] {
					t.Errorf("%q: %q twice", text, s)
				}
				seen[s] = true
			}
		}
	})
}
