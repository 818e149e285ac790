// Command coli runs Mixture-of-Experts language models. Each subcommand is a file here, a few lines over a package; the flags, their
// environment twins and what is printed live here and nowhere else.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Environ())) }
