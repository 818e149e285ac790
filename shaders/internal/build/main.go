// Command build compiles the shaders of package shaders. It runs in that package's folder:
//
//	go run ./internal/build [-all] [SOURCE …]
//
// Only modules whose inputs changed since they were compiled are compiled again, or all with -all. Sources are names without ".comp";
// without any, all of them are built.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/coli-moe/coli/shaders/internal/compile"
)

func main() {
	all := flag.Bool("all", false, "compile modules that are current, too")
	flag.Parse()
	if err := compile.Build(".", flag.Args(), *all, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
