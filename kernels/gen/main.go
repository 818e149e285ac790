// Command gen writes the assembly of package kernels: for every target NAME the files ../NAME_amd64.s and ../NAME_stubs_amd64.go.
// Run it as `go generate` in the parent folder, or `go run . -only NAME` here while working on one target.
//
// A target is one file of this package that calls target in its init, with a function that emits all functions of the output; adding
// one touches no other file. avo builds one output per process, so main runs itself once per target. What targets share:
//
//	asm.go     operations of either vector width, constants, sums over lanes
//	blocks.go  row and pack kernels of formats made of blocks of 32 columns with one scale each: a format supplies two functions
//	tile.go    the products of packed rows, the same for all integer formats
//
// The AVX2 functions hold nothing that needs more than AVX2, FMA and F16C; the AVX-512 ones need F, BW, DQ, VL, VNNI and BMI2.
// Every function ends with VZEROUPPER.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"

	"github.com/mmcloughlin/avo/build"
)

var targets = map[string]func(){}

// target registers the output name.
func target(name string, emit func()) { targets[name] = emit }

func main() {
	only := flag.String("only", "", "write only this target")
	emit := flag.String("target", "", "emit this target by avo's own flags (main gives it to itself)")
	flag.Parse()
	if *emit != "" {
		build.ConstraintExpr("amd64")
		targets[*emit]()
		build.Generate()
		return
	}
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		if *only != "" && name != *only {
			continue
		}
		if err := run(name); err != nil {
			fmt.Fprintf(os.Stderr, "gen: %s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

func run(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-target", name, "-pkg", "kernels", "-out", "../"+name+"_amd64.s", "-stubs", "../"+name+"_stubs_amd64.go")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
