package compile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coli-moe/coli/shaders/internal/variants"
)

// shaders is a copy of package shaders' folder.
func shaders(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"include", "spv"} {
		if err := os.CopyFS(filepath.Join(dir, sub), os.DirFS(filepath.Join("../..", sub))); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range variants.Sources() {
		b, err := os.ReadFile(filepath.Join("../..", source+".comp"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, source+".comp"), b)
	}
	return dir
}

func write(t *testing.T, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// add appends text to a file.
func add(t *testing.T, file, text string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, append(b, text...))
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name      string
		change    func(dir string)
		want, not string // modules, or files, that are complained about and that are not; "" for none
	}{
		{"nothing", func(string) {}, "", ""},
		{"a source", func(dir string) { add(t, filepath.Join(dir, "rope.comp"), "\n") }, "rope.spv was compiled from other sources", "gather.spv"},
		{
			"an include of an include", func(dir string) { add(t, filepath.Join(dir, "include/dot.glsl"), "\n") },
			"gemv_q8_0_dot.spv was compiled from other sources", "rope.spv",
		},
		{"a module", func(dir string) { add(t, filepath.Join(dir, "spv/gemm_coop.spv"), "\x00") }, "gemm_coop.spv is not what was compiled", "gemm_dot.spv"},
		{"no module", func(dir string) { os.Remove(filepath.Join(dir, "spv/route.spv")) }, "route.spv", "router.spv"},
		{"a module too many", func(dir string) { write(t, filepath.Join(dir, "spv/gone.spv"), nil) }, "gone.spv belongs to no module", "rope.spv"},
		{"a damaged sum", func(dir string) { add(t, filepath.Join(dir, "spv/rope.sum"), "rope\n") }, "rope.sum: cannot read the line", "gather"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := shaders(t)
			c.change(dir)
			_, err := Check(dir, false)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.not)):
				t.Errorf("the error is %v; it should name %q and not %q", err, c.want, c.not)
			}
		})
	}
}

// Without its compiler a changed source is reported, its module stands and Check still finds it out of date.
func TestBuildWithoutACompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("COLI_GLSLANG", "")
	dir := shaders(t)
	committed, err := os.ReadFile(spvFile(dir, "rope"))
	if err != nil {
		t.Fatal(err)
	}
	add(t, filepath.Join(dir, "rope.comp"), "\n")
	var log bytes.Buffer
	if err := Build(dir, nil, false, &log); err != nil {
		t.Fatal(err)
	}
	if want := "compile rope\nno compiler for these shaders: none of glslc is on the PATH; the committed module stands\n"; log.String() != want {
		t.Errorf("the log is %q, want %q", &log, want)
	}
	if b, err := os.ReadFile(spvFile(dir, "rope")); err != nil || !bytes.Equal(b, committed) {
		t.Error("the committed module does not stand", err)
	}
	if n, err := Check(dir, true); n != 0 || err == nil || !strings.Contains(err.Error(), "rope.spv") {
		t.Errorf("%d modules were compiled, and the error is %v", n, err)
	}
}

// Build compiles what changed, to the same bytes each time, and removes what belongs to no module.
func TestBuild(t *testing.T) {
	dir := shaders(t)
	committed, err := os.ReadFile(spvFile(dir, "rope"))
	if err != nil {
		t.Fatal(err)
	}
	switch spv, err := Compile(dir, of("rope")[0]); {
	case os.Getenv("COLI_CI") == "1":
	case errors.Is(err, ErrNoCompiler):
		t.Skip(err)
	case err == nil && !bytes.Equal(spv, committed):
		t.Skip("the glslc here is not the one that made the committed modules")
	}
	src, err := os.ReadFile(filepath.Join(dir, "rope.comp"))
	if err != nil {
		t.Fatal(err)
	}
	build := func(want string) {
		t.Helper()
		var log bytes.Buffer
		if err := Build(dir, nil, false, &log); err != nil {
			t.Fatal(err)
		}
		if log.String() != want {
			t.Errorf("the log is %q, want %q", &log, want)
		}
		if _, err := Check(dir, false); err != nil {
			t.Error(err)
		}
	}
	write(t, filepath.Join(dir, "spv/gone.spv"), nil)
	write(t, filepath.Join(dir, "spv/gone.sum"), nil)
	build("remove spv/gone.spv\nremove spv/gone.sum\n")
	write(t, filepath.Join(dir, "rope.comp"), bytes.Replace(src, []byte("a * cs.x - b * cs.y"), []byte("a * cs.x"), 1))
	build("compile rope\n")
	if b, err := os.ReadFile(spvFile(dir, "rope")); err != nil || bytes.Equal(b, committed) {
		t.Error("the module is still that of the old source", err)
	}
	write(t, filepath.Join(dir, "rope.comp"), src)
	build("compile rope\n")
	if b, err := os.ReadFile(spvFile(dir, "rope")); err != nil || !bytes.Equal(b, committed) {
		t.Error("the old source does not give the old module again", err)
	}
}
