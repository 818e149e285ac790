package convert

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/container"
	"github.com/coli-moe/coli/weights/format"
)

// Target says how matrices are stored. The zero value is the default: int4-g64 for routed experts, unless they are stored in no more
// bytes already, and everything else as stored.
type Target struct {
	Format format.Format
	Keep   bool // as stored; Format is not used
}

// ParseTarget reads keep, int4-g64, int8, or the name of a format that coli can write; "" is the default.
func ParseTarget(s string) (Target, error) {
	switch strings.ToLower(s) {
	case "":
		return Target{}, nil
	case "keep":
		return Target{Keep: true}, nil
	case "int4-g64":
		return Target{Format: format.I4G64}, nil
	case "int8":
		return Target{Format: format.I8Row}, nil
	}
	if f, err := format.Parse(s); err == nil && f.CanEncode() {
		return Target{Format: f}, nil
	}
	names := []string{"keep", "int4-g64", "int8"}
	for _, f := range format.All() {
		if f.CanEncode() {
			names = append(names, strings.ToLower(f.String()))
		}
	}
	return Target{}, fmt.Errorf("%q is no format to convert to; there are %s", s, strings.Join(names, ", "))
}

// format returns the format for a matrix of cols columns stored as stored; otherwise is what an unset target means.
func (t Target) format(stored format.Format, cols int, otherwise format.Format) format.Format {
	if t.Keep || t == (Target{}) && otherwise == format.Unknown {
		return stored
	}
	want := t.Format
	if t == (Target{}) {
		want = otherwise
		now, err := stored.RowBytes(cols)
		if then, err2 := want.RowBytes(cols); err == nil && err2 == nil && now <= then {
			return stored // another rounding would lose precision and gain nothing
		}
	}
	if cols%want.Info().Block != 0 && want.Info().Block > 1 {
		return format.I8Row // takes any number of columns
	}
	return want
}

// piece is a matrix, or another tensor, and the format it is written in.
type piece struct {
	t  *weights.Tensor
	to format.Format
}

// unit is what is written, checked and, after an interruption, skipped as a whole: a dense tensor or an expert's record.
type unit struct {
	name   string
	pieces []piece // written one directly after the other
	offset int64
	size   int64
	sum    *uint32 // where the header keeps its checksum
}

// plan is a conversion before it begins.
type plan struct {
	c        *weights.Checkpoint
	file     *container.File
	units    []unit
	metadata []byte // of a GGUF file
	narrow   int    // matrices whose columns do not suit the wanted format
	values   int64
	stored   int64 // bytes of the source's tensors
	experts  struct{ values, bytes int64 }
}

var (
	layerOf    = regexp.MustCompile(`(?:layers|blk)\.(\d+)\.`)
	expertName = regexp.MustCompile(`\.experts\.|_exps\.`)
	// A router decides which experts run; its precision is not for sale.
	routerName = regexp.MustCompile(`mlp\.gate\.|router|ffn_gate_inp|block_sparse_moe\.gate\.`)
)

func newPlan(c *weights.Checkpoint, o Options) (*plan, error) {
	p := &plan{c: c, file: &container.File{}}
	var err error
	if p.metadata, err = c.Metadata(); err != nil {
		return nil, err
	}
	taken, err := p.layers(o)
	if err != nil {
		return nil, err
	}
	var dense []unit
	for _, t := range c.Tensors() {
		if whole, _, _ := strings.Cut(t.Name, "["); t.IsScale() || taken[whole] {
			continue
		}
		if t.Format == format.Unknown {
			return nil, fmt.Errorf("%s: tensor %q: a container cannot hold %s; convert from a checkpoint in bfloat16, fp8 with scales, or GGUF",
				t.File, t.Name, t.Type)
		}
		to := t.Format
		if len(t.Shape) == 2 && t.Shape[0] > 1 && !routerName.MatchString(t.Name) {
			to = p.choose(o.Dense, t, format.Unknown)
		}
		p.file.Dense = append(p.file.Dense, container.Tensor{Name: t.Name, Format: to, Shape: t.Shape})
		dense = append(dense, p.unit(t.Name, piece{t, to}))
	}
	p.file.Place(int64(len(p.metadata)))
	for i := range p.file.Dense {
		t := &p.file.Dense[i]
		dense[i].offset, dense[i].size, dense[i].sum = t.Offset, t.Size, &t.Sum
	}
	next := 0
	for i := range p.file.Layers {
		l := &p.file.Layers[i]
		for e := range l.Sums {
			u := &p.units[next]
			u.offset, u.size, u.sum = l.Record(e), l.RecordSize(), &l.Sums[e]
			p.experts.bytes += u.size
			next++
		}
	}
	p.units = append(dense, p.units...)
	return p, nil
}

func (p *plan) unit(name string, pieces ...piece) unit {
	for _, x := range pieces {
		p.values += int64(x.t.Rows()) * int64(x.t.Cols())
		p.stored += x.t.Size
		if x.t.Scale != nil {
			p.stored += x.t.Scale.Size
		}
	}
	return unit{name: name, pieces: pieces}
}

func (p *plan) choose(target Target, t *weights.Tensor, otherwise format.Format) format.Format {
	to := target.format(t.Format, t.Cols(), otherwise)
	if to == format.I8Row && to != t.Format && target.Format != format.I8Row {
		p.narrow++
	}
	return to
}

// layers plans the routed experts and returns the names of the tensors they are made of.
func (p *plan) layers(o Options) (taken map[string]bool, err error) {
	taken = map[string]bool{}
	sparse := map[int]bool{}
	for _, t := range p.c.Tensors() {
		if m := layerOf.FindStringSubmatch(t.Name); m != nil && expertName.MatchString(t.Name) {
			il, err := strconv.Atoi(m[1])
			if err != nil {
				return nil, fmt.Errorf("%s: tensor %q: layer %s is out of range", t.File, t.Name, m[1])
			}
			sparse[il] = true
		}
	}
	if len(sparse) == 0 {
		return taken, nil
	}
	cfg, err := p.c.Config()
	if err != nil {
		return nil, err
	}
	if cfg.NumExperts == 0 {
		return nil, fmt.Errorf("%s: the checkpoint has routed experts, but num_experts is 0 or missing", cfg.File)
	}
	for _, il := range slices.Sorted(maps.Keys(sparse)) {
		l := container.Layer{Index: il, Sums: make([]uint32, cfg.NumExperts)}
		for e := range cfg.NumExperts {
			u, err := p.expert(&l, e, o.Experts)
			if err != nil {
				return nil, err
			}
			for _, x := range u.pieces {
				whole, _, _ := strings.Cut(x.t.Name, "[")
				taken[whole] = true
			}
			p.units = append(p.units, u)
		}
		p.file.Layers = append(p.file.Layers, l)
	}
	p.experts.values = p.values
	return taken, nil
}

// expert plans one expert; the first sets the layer's matrices, which the others must equal.
func (p *plan) expert(l *container.Layer, e int, target Target) (unit, error) {
	gate, up, down, err := p.c.Expert(l.Index, e)
	if err != nil {
		return unit{}, err
	}
	var pieces []piece
	for i, t := range []*weights.Tensor{gate, up, down} {
		if t.Format == format.Unknown || len(t.Shape) != 2 {
			return unit{}, fmt.Errorf("%s: tensor %q: %s %v is no matrix that coli reads", t.File, t.Name, t.Type, t.Shape)
		}
		pattern, err := pattern(t, e)
		if err != nil {
			return unit{}, err
		}
		to := p.choose(target, t, format.I4G64)
		m := container.Matrix{Pattern: pattern, Format: to, Rows: t.Shape[0], Cols: t.Shape[1]}
		if e == 0 {
			l.Matrices[i] = m
		} else if l.Matrices[i] != m {
			f := l.Matrices[i]
			return unit{}, fmt.Errorf("%s: tensor %q: %s %d×%d, expert 0 of the layer has %s %d×%d; give --experts a format that all can take",
				t.File, t.Name, m.Format, m.Rows, m.Cols, f.Format, f.Rows, f.Cols)
		}
		pieces = append(pieces, piece{t, to})
	}
	return p.unit(fmt.Sprintf("expert %d of layer %d", e, l.Index), pieces...), nil
}

// pattern returns the tensor's name with * for the expert's number, which stands in brackets or after "experts.".
func pattern(t *weights.Tensor, expert int) (string, error) {
	number := strconv.Itoa(expert)
	for _, mark := range [][2]string{{".experts.", "."}, {"[", "]"}} {
		if from := mark[0] + number + mark[1]; strings.Contains(t.Name, from) && !strings.Contains(t.Name, "*") {
			return strings.Replace(t.Name, from, mark[0]+"*"+mark[1], 1), nil
		}
	}
	return "", fmt.Errorf("%s: tensor %q: the name does not tell that it is expert %d's", t.File, t.Name, expert)
}
