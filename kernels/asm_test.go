package kernels

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What one instruction set's functions must not hold: the machines of the tests run everything, others do not.
var (
	function  = regexp.MustCompile(`(?ms)^TEXT ·(\w+)\(SB\).*?^\tRET$`)
	notAVX2   = regexp.MustCompile(`\b(Z\d+|[XY](1[6-9]|2\d|3[01])|K[0-7]|V\w+(32|64)X\d|VMOVDQ[AU](8|16|32|64)|VP\w*(AND|OR)[DQ]|VPERM(B|W|[IT]2\w+)|VPDPBUSDS?)\b|BZHI|PEXT|PDEP|SHLX`)
	zeroUpper = regexp.MustCompile(`VZEROUPPER\n(\t[^\n]*\n)?\tRET$`)
)

// AVX2 functions hold nothing newer, and every function that touches wide registers clears their upper halves at its end.
func TestAssemblyKeepsToItsInstructions(t *testing.T) {
	files, err := filepath.Glob("*_amd64.s")
	if err != nil || len(files) == 0 {
		t.Fatal("no assembly:", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := function.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s: no functions", file)
		}
		for _, m := range found {
			name := string(m[1])
			if bad := notAVX2.Find(m[0]); strings.HasSuffix(name, "AVX2") && bad != nil {
				t.Errorf("%s: %s has %s", file, name, bad)
			}
			if !strings.HasSuffix(name, "AVX2") && !strings.HasSuffix(name, "AVX512") {
				t.Errorf("%s: the name of %s does not end in its instruction set", file, name)
			}
			if !zeroUpper.Match(m[0]) {
				t.Errorf("%s: %s returns without VZEROUPPER", file, name)
			}
		}
	}
}
