package vk

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// registryEnv names the environment variable that gives a registry other than the installed one.
const registryEnv = "COLI_VK_REGISTRY"

// registry is what vk.xml says.
type registry struct {
	structs  map[string][]member // VkBufferCopy
	kinds    map[string]string   // category of a type
	flags    map[string]string   // type beneath a bit mask or a base type
	aliases  map[string]string
	values   map[string]int64 // BUFFERUSAGETRANSFERSRCBIT: no prefix, no underscores
	commands map[string]int   // number of parameters
}

type member struct {
	name    string
	typ     string
	pointer bool
	dims    []string
	value   string // the sType it must have
}

type xmlEnum struct {
	Name      string `xml:"name,attr"`
	Value     string `xml:"value,attr"`
	Bitpos    string `xml:"bitpos,attr"`
	Alias     string `xml:"alias,attr"`
	Offset    string `xml:"offset,attr"`
	Dir       string `xml:"dir,attr"`
	ExtNumber string `xml:"extnumber,attr"`
}

type xmlRequire struct {
	Enums []xmlEnum `xml:"enum"`
}

type xmlRegistry struct {
	Types []struct {
		Category string `xml:"category,attr"`
		Name     string `xml:"name,attr"`
		Alias    string `xml:"alias,attr"`
		Inner    string `xml:",innerxml"`
		Type     string `xml:"type"`
		NameElem string `xml:"name"`
		Members  []struct {
			Values string `xml:"values,attr"`
			API    string `xml:"api,attr"`
			Type   string `xml:"type"`
			Name   string `xml:"name"`
			Inner  string `xml:",innerxml"`
		} `xml:"member"`
	} `xml:"types>type"`
	Enums []struct {
		Enums []xmlEnum `xml:"enum"`
	} `xml:"enums"`
	Commands []struct {
		Name   string `xml:"name,attr"`
		Alias  string `xml:"alias,attr"`
		Proto  string `xml:"proto>name"`
		Params []struct {
			API string `xml:"api,attr"`
		} `xml:"param"`
	} `xml:"commands>command"`
	Features []struct {
		Require []xmlRequire `xml:"require"`
	} `xml:"feature"`
	Extensions []struct {
		Number  string       `xml:"number,attr"`
		Require []xmlRequire `xml:"require"`
	} `xml:"extensions>extension"`
}

var (
	comments = regexp.MustCompile(`<comment>.*?</comment>`)
	tags     = regexp.MustCompile(`<[^>]*>`)
	arrays   = regexp.MustCompile(`\[(\w+)\]`)
)

func normal(name string) string {
	return strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(name, "VK_"), "_", ""))
}

// vulkanAPI says whether an element is Vulkan's and not Vulkan SC's.
func vulkanAPI(api string) bool {
	return api == "" || slices.Contains(strings.Split(api, ","), "vulkan")
}

func readRegistry(t *testing.T) *registry {
	path := cmp.Or(os.Getenv(registryEnv), "/usr/share/vulkan/registry/vk.xml")
	data, err := os.ReadFile(path)
	if err != nil {
		if os.Getenv("COLI_CI") == "1" {
			t.Fatalf("no Khronos registry to check the binding with: %v", err)
		}
		t.Skipf("no Khronos registry to check the binding with (package libvulkan-dev, or %s): %v", registryEnv, err)
	}
	var x xmlRegistry
	if err := xml.Unmarshal(data, &x); err != nil {
		t.Fatal(err)
	}
	r := &registry{
		structs: map[string][]member{}, kinds: map[string]string{}, flags: map[string]string{}, aliases: map[string]string{},
		values: map[string]int64{}, commands: map[string]int{},
	}
	for _, typ := range x.Types {
		name := cmp.Or(typ.Name, typ.NameElem)
		r.kinds[name] = typ.Category
		if typ.Alias != "" {
			r.aliases[name] = typ.Alias
		}
		r.flags[name] = typ.Type
		for _, m := range typ.Members {
			if !vulkanAPI(m.API) {
				continue
			}
			text := tags.ReplaceAllString(comments.ReplaceAllString(m.Inner, ""), "")
			out := member{name: m.Name, typ: m.Type, pointer: strings.Contains(text, "*"), value: m.Values}
			for _, d := range arrays.FindAllStringSubmatch(text, -1) {
				out.dims = append(out.dims, d[1])
			}
			r.structs[name] = append(r.structs[name], out)
		}
	}
	alias := map[string]string{}
	add := func(e xmlEnum, extension string) {
		var v int64
		var err error
		switch {
		case e.Alias != "":
			alias[normal(e.Name)] = normal(e.Alias)
			return
		case e.Bitpos != "":
			v, err = strconv.ParseInt(e.Bitpos, 10, 64)
			v = 1 << v
		case e.Offset != "":
			var n, offset int64
			n, err = strconv.ParseInt(cmp.Or(e.ExtNumber, extension), 10, 64)
			if err == nil {
				offset, err = strconv.ParseInt(e.Offset, 10, 64)
			}
			v = 1e9 + (n-1)*1000 + offset
			if e.Dir == "-" {
				v = -v
			}
		default:
			if v, err = strconv.ParseInt(e.Value, 0, 64); err != nil {
				return // names of extensions, and constants that are no integers
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
		r.values[normal(e.Name)] = v
	}
	for _, group := range x.Enums {
		for _, e := range group.Enums {
			add(e, "")
		}
	}
	for _, f := range x.Features {
		for _, q := range f.Require {
			for _, e := range q.Enums {
				add(e, "")
			}
		}
	}
	for _, f := range x.Extensions {
		for _, q := range f.Require {
			for _, e := range q.Enums {
				add(e, f.Number)
			}
		}
	}
	for name, of := range alias {
		if v, ok := r.values[of]; ok {
			r.values[name] = v
		}
	}
	for _, c := range x.Commands {
		n := 0
		for _, p := range c.Params {
			if vulkanAPI(p.API) {
				n++
			}
		}
		r.commands[cmp.Or(c.Proto, c.Name)] = n
	}
	return r
}

// layout is the size and alignment of a type in C on a 64-bit machine.
func (r *registry) layout(name string) (size, align int64, err error) {
	if of, ok := r.aliases[name]; ok {
		return r.layout(of)
	}
	switch name {
	case "char", "uint8_t":
		return 1, 1, nil
	case "uint32_t", "int32_t", "float":
		return 4, 4, nil
	case "uint64_t", "size_t":
		return 8, 8, nil
	}
	if strings.HasPrefix(name, "PFN_") {
		return 8, 8, nil
	}
	switch r.kinds[name] {
	case "enum":
		return 4, 4, nil
	case "handle":
		return 8, 8, nil
	case "bitmask", "basetype":
		return r.layout(r.flags[name])
	case "struct":
		_, size, align, err = r.offsets(name)
		return size, align, err
	}
	return 0, 0, fmt.Errorf("type %q is %q", name, r.kinds[name])
}

// offsets lays a structure out as C does.
func (r *registry) offsets(name string) (offsets []int64, size, align int64, err error) {
	up := func(n, to int64) int64 { return (n + to - 1) / to * to }
	align = 1
	for _, m := range r.structs[name] {
		s, a := int64(8), int64(8)
		if !m.pointer {
			if s, a, err = r.layout(m.typ); err != nil {
				return nil, 0, 0, fmt.Errorf("%s: %w", m.name, err)
			}
		}
		for _, d := range m.dims {
			n, err := strconv.ParseInt(d, 10, 64)
			if err != nil {
				n = r.values[normal(d)]
			}
			s *= n
		}
		size = up(size, a)
		offsets = append(offsets, size)
		size += s
		align = max(align, a)
	}
	return offsets, up(size, align), align, nil
}

// binding is this package, type-checked without its imports.
type binding struct {
	pkg   *types.Package
	files []*ast.File
}

func readBinding(t *testing.T) *binding {
	fset := token.NewFileSet()
	b := new(binding)
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "loader_") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		b.files = append(b.files, f)
	}
	conf := types.Config{Importer: importer.Default(), IgnoreFuncBodies: true, Error: func(error) {}} // imports are not found
	b.pkg, _ = conf.Check("vk", fset, b.files, nil)                                                   //nolint:errcheck
	return b
}

// fields are those of a structure with those of Base in its place.
func fields(s *types.Struct) (out []*types.Var) {
	for f := range s.Fields() {
		if inner, ok := f.Type().Underlying().(*types.Struct); ok && f.Embedded() {
			out = append(out, fields(inner)...)
		} else {
			out = append(out, f)
		}
	}
	return out
}

func TestStructuresAreTheRegistrys(t *testing.T) {
	r, b := readRegistry(t), readBinding(t)
	checked, ours := 0, []string{"Instance", "Device", "Error", "Prepared", "Commands"}
	for _, name := range b.pkg.Scope().Names() {
		s, ok := b.pkg.Scope().Lookup(name).Type().Underlying().(*types.Struct)
		if _, isType := b.pkg.Scope().Lookup(name).(*types.TypeName); !ok || !isType || name == "Base" {
			continue
		}
		members, ok := r.structs["Vk"+name]
		if !ok {
			if strings.Contains(name, "CooperativeMatrix") {
				t.Logf("Vk%s is not in this registry, which is older", name)
			} else if token.IsExported(name) && !slices.Contains(ours, name) {
				t.Errorf("the registry has no structure Vk%s", name)
			}
			continue
		}
		checked++
		offsets, size, _, err := r.offsets("Vk" + name)
		if err != nil {
			t.Errorf("Vk%s: %v", name, err)
			continue
		}
		for _, arch := range []string{"amd64", "arm64"} {
			sizes := types.SizesFor("gc", arch)
			if got := sizes.Sizeof(s); got != size {
				t.Errorf("%s has %d bytes on %s, Vk%s %d", name, got, arch, name, size)
			}
			all := fields(s)
			if len(all) != len(members) {
				t.Errorf("%s has %d fields, Vk%s %d", name, len(all), name, len(members))
				continue
			}
			at := fieldOffsets(sizes, s)
			for i, f := range all {
				m := members[i]
				goName := f.Name()
				if goName == "Next" {
					goName = "pNext"
				}
				if !strings.EqualFold(goName, m.name) || at[i] != offsets[i] {
					t.Errorf("field %d of %s is %s at %d, the registry's %s at %d (%s)", i, name, f.Name(), at[i], m.name, offsets[i], arch)
				}
				if p, isPointer := f.Type().Underlying().(*types.Pointer); isPointer && m.pointer {
					target, _, _ := strings.Cut(types.TypeString(p.Elem(), func(*types.Package) string { return "" }), "[")
					if _, known := r.structs["Vk"+target]; known && "Vk"+target != m.typ {
						t.Errorf("%s.%s points to %s, the registry's to %s", name, f.Name(), target, m.typ)
					}
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d structures were compared", checked)
	}
}

// fieldOffsets are the offsets of fields.
func fieldOffsets(sizes types.Sizes, s *types.Struct) (out []int64) {
	all := slices.Collect(s.Fields())
	for i, at := range sizes.Offsetsof(all) {
		if inner, ok := all[i].Type().Underlying().(*types.Struct); ok && all[i].Embedded() {
			for _, o := range fieldOffsets(sizes, inner) {
				out = append(out, at+o)
			}
		} else {
			out = append(out, at)
		}
	}
	return out
}

func TestConstantsAreTheRegistrys(t *testing.T) {
	r, b := readRegistry(t), readBinding(t)
	checked := 0
	for _, name := range b.pkg.Scope().Names() {
		c, ok := b.pkg.Scope().Lookup(name).(*types.Const)
		if !ok || !token.IsExported(name) || c.Val().Kind() != constant.Int || strings.HasPrefix(name, "Version") {
			continue
		}
		want, ok := r.values[normal(name)]
		if !ok {
			if strings.HasPrefix(name, "ComponentType") || name == "ScopeSubgroupKHR" {
				t.Logf("%s is not in this registry, which is older", name)
			} else {
				t.Errorf("the registry has no %s", name)
			}
			continue
		}
		checked++
		if got, _ := constant.Int64Val(c.Val()); got != want {
			t.Errorf("%s is %d, in the registry %d", name, got, want)
		}
	}
	if checked < 50 {
		t.Errorf("only %d constants were compared", checked)
	}
}

func TestStructureTypesAreTheRegistrys(t *testing.T) {
	r, b := readRegistry(t), readBinding(t)
	has := map[string]bool{}
	for _, file := range b.files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Name.Name != "structureType" {
				continue
			}
			name := f.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name
			has[name] = true
			got, err := strconv.ParseInt(f.Body.List[0].(*ast.ReturnStmt).Results[0].(*ast.BasicLit).Value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			members := r.structs["Vk"+name]
			if len(members) == 0 {
				t.Logf("Vk%s is not in this registry, which is older", name)
				continue
			}
			if want, ok := r.values[normal(members[0].value)]; !ok || got != want {
				t.Errorf("the type of %s is %d, in the registry %d (%s)", name, got, want, members[0].value)
			}
		}
	}
	for _, name := range b.pkg.Scope().Names() {
		members := r.structs["Vk"+name]
		if len(members) > 0 && members[0].name == "sType" && !has[name] {
			t.Errorf("%s says no type", name)
		}
	}
}

// Every function that is called has the registry's name and as many arguments as the registry gives it.
func TestCallsAreTheRegistrys(t *testing.T) {
	r, b := readRegistry(t), readBinding(t)
	called := map[string]int{}
	fn := func(s *ast.SelectorExpr) string { return "vk" + strings.ToUpper(s.Sel.Name[:1]) + s.Sel.Name[1:] }
	for _, file := range b.files {
		ast.Inspect(file, func(n ast.Node) bool {
			if x, ok := n.(*ast.CompositeLit); ok && len(x.Elts) == 4 { // &Prepared{name, d.function, arguments, …}
				if s, ok := x.Elts[1].(*ast.SelectorExpr); ok {
					called[fn(s)] = len(x.Elts[2].(*ast.CompositeLit).Elts)
				}
			}
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := c.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "do" { // c.do(c.d.function, count)
				count, err := strconv.Atoi(c.Args[1].(*ast.BasicLit).Value)
				if err != nil {
					t.Error(err)
				}
				called[fn(c.Args[0].(*ast.SelectorExpr))] = count
				return true
			}
			callee, arg, count := c.Fun, 0, len(c.Args)-1
			if x, ok := callee.(*ast.IndexExpr); ok { // create[Buffer]
				callee, arg, count = x.X, 2, 4
			}
			if id, ok := callee.(*ast.Ident); !ok || id.Name != "call" && id.Name != "create" || len(c.Args) <= arg {
				return true
			}
			if s, ok := c.Args[arg].(*ast.SelectorExpr); ok && !c.Ellipsis.IsValid() {
				called[fn(s)] = count
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(called)) {
		want, ok := r.commands[name]
		switch {
		case !ok && strings.Contains(name, "CooperativeMatrix"):
			t.Logf("%s is not in this registry, which is older", name)
		case !ok:
			t.Errorf("the registry has no %s", name)
		case want != called[name]:
			t.Errorf("%s is called with %d arguments, in the registry it has %d", name, called[name], want)
		}
	}
	if len(called) < 50 {
		t.Errorf("only %d functions were compared", len(called))
	}
}
