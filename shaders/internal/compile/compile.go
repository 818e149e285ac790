// Package compile turns the GLSL of package shaders into SPIR-V, and tells whether the committed SPIR-V is current.
package compile

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/coli-moe/coli/shaders/internal/variants"
)

// ErrNoCompiler says that a source's compiler is not installed.
var ErrNoCompiler = errors.New("no compiler")

// tool is a compiler: its programs, of which the first one that exists is used, and its arguments.
type tool struct {
	names []string
	args  []string
	grep  *regexp.Regexp // finds the version in what --version prints
}

var (
	glslc = tool{[]string{"glslc"}, []string{"-O", "--target-env=vulkan1.2", "-I", "include"}, regexp.MustCompile(`shaderc \S+|glslang \S+`)}
	// glslang compiles what glslc does not know yet. COLI_GLSLANG names another program.
	glslang = tool{
		[]string{"glslang15", "glslang", "glslangValidator"},
		[]string{"-V", "--quiet", "--target-env", "vulkan1.3", "-Iinclude", "-g0"},
		regexp.MustCompile(`Glslang Version: \S+`),
	}
)

func toolOf(v variants.Variant) tool {
	if v.Newer {
		return glslang
	}
	return glslc
}

// find returns the program's path and its version.
func (t tool) find() (path, version string, err error) {
	names := t.names
	if env := os.Getenv("COLI_GLSLANG"); env != "" && t.names[0] == glslang.names[0] {
		names = []string{env}
	}
	for _, name := range names {
		if path, err = exec.LookPath(name); err == nil {
			break
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("%w for these shaders: none of %s is on the PATH", ErrNoCompiler, strings.Join(names, ", "))
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "", "", fmt.Errorf("%s --version: %w", path, err)
	}
	return path, strings.Join(t.grep.FindAllString(string(out), -1), ", "), nil
}

// arguments are those of one module, without input and output.
func arguments(v variants.Variant) []string {
	args := slices.Clone(toolOf(v).args)
	for _, d := range v.Defines {
		args = append(args, "-D"+d)
	}
	return args
}

// Compile returns the SPIR-V of v, compiled in dir, the folder of package shaders.
func Compile(dir string, v variants.Variant) ([]byte, error) {
	path, _, err := toolOf(v).find()
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "coli-shaders")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "out.spv")
	cmd := exec.Command(path, append(arguments(v), "-o", out, v.Source+".comp")...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", v.Name, strings.Join(cmd.Args, " "), err, text)
	}
	return os.ReadFile(out)
}

var includes = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*"([^"]+)"`)

// text returns a source and what it includes, each file once.
func text(dir, file string, seen map[string]bool) ([]byte, error) {
	if seen[file] {
		return nil, nil
	}
	seen[file] = true
	src, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	all := slices.Clone(src)
	for _, m := range includes.FindAllSubmatch(src, -1) {
		inc, err := text(dir, "include/"+string(m[1]), seen)
		if err != nil {
			return nil, err
		}
		all = append(all, inc...)
	}
	return all, nil
}

// inputs is the hash of everything a module is made of but the compiler.
func inputs(dir string, v variants.Variant) (string, error) {
	src, err := text(dir, v.Source+".comp", map[string]bool{})
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", arguments(v))
	h.Write(src)
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// sum is what is known of a compiled module.
type sum struct{ name, inputs, output, compiler string }

func sumFile(dir, source string) string { return filepath.Join(dir, "spv", source+".sum") }

// sums reads the sum file of a source; without one there are none.
func sums(dir, source string) (map[string]sum, error) {
	b, err := os.ReadFile(sumFile(dir, source))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := map[string]sum{}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(f) != 4 {
			return nil, fmt.Errorf("%s: cannot read the line %q; go generate ./shaders writes the file again once it is removed",
				sumFile(dir, source), line)
		}
		out[f[0]] = sum{f[0], f[1], f[2], f[3]}
	}
	return out, nil
}

func spvFile(dir, name string) string { return filepath.Join(dir, "spv", name+".spv") }

// stale says what is wrong with the committed module of v, nil if nothing is.
func stale(dir string, v variants.Variant, known map[string]sum) error {
	want, err := inputs(dir, v)
	if err != nil {
		return err
	}
	s, ok := known[v.Name]
	spv, err := os.ReadFile(spvFile(dir, v.Name))
	switch {
	case err != nil:
		return err
	case !ok || s.inputs != want:
		return fmt.Errorf("%s was compiled from other sources", spvFile(dir, v.Name))
	case s.output != fmt.Sprintf("%x", sha256.Sum256(spv)):
		return fmt.Errorf("%s is not what was compiled", spvFile(dir, v.Name))
	}
	return nil
}

// Check returns an error for each module that is not current, and for each file of a module that is no longer in the table. With rebuild it
// also compiles every module for which the very compiler is here that it was made with, and compares the bytes; it returns how many.
func Check(dir string, rebuild bool) (compiled int, err error) {
	var errs []error
	for _, source := range variants.Sources() {
		known, err := sums(dir, source)
		if err != nil {
			return 0, err
		}
		for _, v := range of(source) {
			if err := stale(dir, v, known); err != nil {
				errs = append(errs, err)
				continue
			}
			if _, version, err := toolOf(v).find(); !rebuild || err != nil || version != known[v.Name].compiler {
				continue
			}
			spv, err := Compile(dir, v)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			compiled++
			if committed, err := os.ReadFile(spvFile(dir, v.Name)); err != nil || !bytes.Equal(spv, committed) {
				errs = append(errs, cmp.Or(err, fmt.Errorf("%s is not what its source compiles to", spvFile(dir, v.Name))))
			}
		}
	}
	gone, err := unlisted(dir)
	if err != nil {
		return compiled, err
	}
	for _, file := range gone {
		errs = append(errs, fmt.Errorf("%s belongs to no module of the table", file))
	}
	return compiled, errors.Join(errs...)
}

// unlisted returns the files in spv that belong to no module of the table.
func unlisted(dir string) ([]string, error) {
	listed := map[string]bool{}
	for _, v := range variants.All() {
		listed[v.Name+".spv"], listed[v.Source+".sum"] = true, true
	}
	files, err := os.ReadDir(filepath.Join(dir, "spv"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		if !listed[f.Name()] {
			out = append(out, "spv/"+f.Name())
		}
	}
	return out, nil
}

// of returns the modules made of a source.
func of(source string) []variants.Variant {
	return slices.DeleteFunc(variants.All(), func(v variants.Variant) bool { return v.Source != source })
}

// Build compiles the modules of the given sources, or of all, that are not current, or all of them. Of all sources it also removes the files
// that belong to no module. Where a compiler is missing it says so on log and leaves the committed modules.
func Build(dir string, sources []string, all bool, log io.Writer) error {
	if len(sources) == 0 {
		sources = variants.Sources()
		gone, err := unlisted(dir)
		if err != nil {
			return err
		}
		for _, file := range gone {
			fmt.Fprintln(log, "remove", file)
			if err := os.Remove(filepath.Join(dir, file)); err != nil {
				return err
			}
		}
	}
	for _, source := range sources {
		if err := build(dir, source, all, log); err != nil {
			return err
		}
	}
	return nil
}

func build(dir, source string, all bool, log io.Writer) error {
	known, err := sums(dir, source)
	if err != nil {
		return err
	}
	vs := of(source)
	if len(vs) == 0 {
		return fmt.Errorf("no module is made of %s.comp; the table is in internal/variants", source)
	}
	var lines strings.Builder
	for _, v := range vs {
		s := known[v.Name]
		if all || stale(dir, v, map[string]sum{v.Name: s}) != nil {
			fmt.Fprintln(log, "compile", v.Name)
			switch made, err := compile(dir, v); {
			case errors.Is(err, ErrNoCompiler):
				fmt.Fprintf(log, "%v; the committed module stands\n", err)
			case err != nil:
				return err
			default:
				s = made
			}
		}
		if s.name == "" {
			continue // never compiled
		}
		fmt.Fprintln(&lines, s.name, s.inputs, s.output, s.compiler)
	}
	return os.WriteFile(sumFile(dir, source), []byte(lines.String()), 0o644)
}

// compile compiles v into spv.
func compile(dir string, v variants.Variant) (sum, error) {
	_, version, err := toolOf(v).find()
	if err != nil {
		return sum{}, err
	}
	in, err := inputs(dir, v)
	if err != nil {
		return sum{}, err
	}
	spv, err := Compile(dir, v)
	if err != nil {
		return sum{}, err
	}
	if err := os.WriteFile(spvFile(dir, v.Name), spv, 0o644); err != nil {
		return sum{}, err
	}
	return sum{v.Name, in, fmt.Sprintf("%x", sha256.Sum256(spv)), version}, nil
}
