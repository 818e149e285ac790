package plots

import (
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/internal/loghist"
)

// figures are the pictures that records allow.
func figures(records []bench.Record) (all []*figure) {
	for _, g := range groups(records) {
		var list []*figure
		switch g.name {
		case "stream":
			list = []*figure{g.throughput()}
		case "io":
			list = []*figure{g.drive("", "what the drive delivers by request size", "GB/s", false), g.drive("-read", "how long reads take by request size", "read p50", true)}
		case "kernels":
			for _, k := range kernelPictures {
				list = append(list, g.kernels(k))
			}
		case "mailbox":
			list = []*figure{g.quantiles()}
		case "balance":
			list = []*figure{g.balance()}
		default:
			list = []*figure{g.arms()}
		}
		list = append(append(list, g.latencies()...), g.time())
		for _, f := range list {
			if f == nil {
				continue
			}
			f.subtitle = g.subtitle(f.statistic)
			all = append(all, f)
		}
	}
	return all
}

// newFigure names a picture of the group; what is behind the experiment's name in the file's.
func (g *group) newFigure(what, title string) *figure {
	return &figure{file: g.name + what, title: "coli bench " + g.name + ": " + title, statistic: "mean ± sd"}
}

// subtitle says on what, of what and how it was measured.
func (g *group) subtitle(statistic string) string {
	var parts []string
	add := func(what func(r *bench.Record) string) {
		var list []string
		for _, r := range g.records {
			if s := what(r); s != "" && !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
		if len(list) > 3 {
			list = append(list[:3], "…")
		}
		if len(list) > 0 {
			parts = append(parts, strings.Join(list, ", "))
		}
	}
	add(func(r *bench.Record) string { return machine(r.Env) })
	add(func(r *bench.Record) string { return storage(r.Env) })
	add(model)
	add(func(r *bench.Record) string { return commit(r.Env) })
	add(func(r *bench.Record) string {
		words := []string{plural(r.Reps, "repetition")}
		for _, w := range []string{string(r.State), statistic} {
			if w != "" {
				words = append(words, w)
			}
		}
		return strings.Join(words, ", ")
	})
	return strings.Join(parts, " · ")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return grouped(float64(n), 0) + " " + word + "s"
}

// model is the one that a record names, or else the largest of the files read.
func model(r *bench.Record) string {
	if m := r.Param("model"); m != "" {
		return m
	}
	if len(r.Files) == 0 || strings.HasSuffix(r.Files[0].Name, ".tmp") { // a file of the experiment's own
		return ""
	}
	name := slices.MaxFunc(r.Files, func(a, b bench.File) int { return cmp.Compare(a.Bytes, b.Bytes) }).Name
	if n := len(r.Files) - 1; n > 0 {
		name += fmt.Sprintf(" and %d more", n)
	}
	return name
}

// machine says what computed: processor and memory, and the device where one did.
func machine(e bench.Env) string {
	parts := []string{cmp.Or(strings.Join(strings.Fields(e.CPU), " "), e.OS+"/"+e.Arch)}
	if e.Cores > 0 {
		parts = append(parts, plural(e.Cores, "core"))
	}
	if e.ISA != "" {
		parts = append(parts, e.ISA)
	}
	ram := e.RAM
	if e.RAMLimit > 0 {
		ram = min(ram, e.RAMLimit)
	}
	if ram > 0 {
		parts = append(parts, byteSize(float64(ram)))
	}
	if e.GPU != "" {
		parts = append(parts, e.GPU)
	}
	return strings.Join(parts, ", ")
}

// storage is the drive that was read from.
func storage(e bench.Env) string {
	var parts []string
	for _, s := range []string{e.Drive, e.DriveIs, e.FS} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ", ")
}

// commit is the program's version.
func commit(e bench.Env) string {
	s := "coli " + cmp.Or(e.Commit, e.Coli)
	if e.Dirty {
		s += " with changes"
	}
	return strings.TrimSpace(s)
}

// Metrics of experiment stream, beside tokens a second.
const (
	shareMetric = "cache %"
	limitMetric = "limit tok/s"
	hitMetric   = "hit %"
)

// share is how much of the experts' bytes has room in memory, in percent, measured or else as it was asked for.
func share(r *bench.Record) (float64, bool) {
	if s, ok := r.Metrics[shareMetric]; ok {
		return s.Mean, true
	}
	return percent(r.Param("ram"))
}

// throughput is tokens a second over the share of the experts that has room in memory, beside what the hardware allows at best.
func (g *group) throughput() *figure {
	name, ok := g.metric("tok/s", "tok/s")
	if !ok {
		return nil
	}
	xLabel, x := "experts with room in memory, % of their bytes", share
	if !slices.ContainsFunc(g.records, func(r *bench.Record) bool { _, ok := share(r); return ok }) {
		xLabel, x = "memory for the model, GiB", func(r *bench.Record) (float64, bool) {
			b, ok := bytesOf(r.Param("ram"))
			return b / (1 << 30), ok
		}
	}
	var rates, limits, hits []series
	at := map[string]int{}
	for _, r := range g.records {
		pos, ok := x(r)
		if !ok {
			continue
		}
		key := g.label(r, "ram")
		i, there := at[key]
		if !there {
			i = len(rates)
			at[key] = i
			rates, hits = append(rates, measured(i, cmp.Or(key, r.Test))), append(hits, measured(i, ""))
			limits = append(limits, computed(strings.TrimPrefix(key+": physical limit", ": ")))
		}
		s := r.Metrics
		if v, ok := s[name]; ok {
			rates[i].add(pos, v.Mean, v.SD)
		}
		if v, ok := s[limitMetric]; ok {
			limits[i].add(pos, v.Mean, 0)
		}
		if v, ok := s[hitMetric]; ok {
			hits[i].add(pos, v.Mean, v.SD)
		}
	}
	f := g.newFigure("", "tokens a second over the memory that experts have")
	for i, s := range rates {
		f.legend = append(f.legend, s.entry())
		if len(rates) > 1 {
			limits[i].style.Color = s.style.Color
		}
	}
	limits = slices.DeleteFunc(limits, func(s series) bool { return len(s.points) == 0 })
	for _, s := range limits {
		f.legend = append(f.legend, s.entry())
	}
	both := append(slices.Clone(limits), rates...)
	for _, all := range [][]series{both, hits} {
		for _, s := range all {
			slices.SortStableFunc(s.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		}
	}
	p := lines(xNumber, false, both)
	if p == nil {
		return nil
	}
	const yLabel = "tokens per second"
	below := lines(xNumber, false, hits)
	if below == nil {
		f.panels = [][]panel{{{x: xLabel, y: yLabel, height: 240, Plot: p}}}
	} else {
		f.panels = [][]panel{{{y: yLabel, height: 220, Plot: p}}, {{x: xLabel, y: "pairs found in memory, %", height: 170, Plot: below}}}
		below.X.Min, below.X.Max = p.X.Min, p.X.Max
		below.Y.Max = 100
	}
	if strings.Contains(xLabel, "%") && p.X.Max > 100 && most(both) <= 100 {
		for _, row := range f.panels {
			row[0].X.Max = 100
		}
	}
	return f
}

func most(all []series) (x float64) {
	for _, s := range all {
		for _, p := range s.points {
			x = max(x, p.x)
		}
	}
	return x
}

// drive is a figure over the size of requests, a line for each number of readers and a panel for each way to read.
func (g *group) drive(file, title, metric string, times bool) *figure {
	name, ok := g.metric("", metric)
	if !ok {
		return nil
	}
	f := g.newFigure(file, title)
	modes := []string{"mode", "direct", "pattern", "state"} // what has panels of its own
	var titles, names []string
	lists := map[string][]series{}
	for _, r := range g.records {
		size, ok := bytesOf(r.Param("size"))
		s, measuredToo := r.Metrics[name]
		if !ok || !measuredToo {
			continue
		}
		var title []string
		for _, m := range modes {
			if slices.Contains(g.varies, m) {
				title = append(title, modeName(m, setting(r, m)))
			}
		}
		if g.tests {
			title = append(title, r.Test)
		}
		key := strings.Join(title, ", ")
		if !slices.Contains(titles, key) {
			titles = append(titles, key)
		}
		line := g.label(r, append(modes, "test", "size", "readers")...)
		if readers := r.Param("readers"); readers != "" {
			line = strings.TrimPrefix(line+", "+readers+" reader"+map[bool]string{true: "s"}[readers != "1"], ", ")
		}
		line = cmp.Or(line, r.Test)
		i := slices.Index(names, line)
		if i < 0 {
			i, names = len(names), append(names, line)
		}
		for len(lists[key]) <= i {
			lists[key] = append(lists[key], measured(len(lists[key]), ""))
		}
		scale := 1.0
		if times {
			scale = timeUnits[s.Unit]
		}
		lists[key][i].add(size, s.Mean*scale, s.SD*scale)
	}
	for i, line := range names {
		f.legend = append(f.legend, measured(i, line).entry())
	}
	var row []panel
	top, bottom := 0.0, math.Inf(1)
	for _, t := range titles {
		for _, s := range lists[t] {
			slices.SortStableFunc(s.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		}
		if p := lines(xBytes, times, lists[t]); p != nil {
			row = append(row, panel{title: t, x: "request size", height: 216, Plot: p})
			top, bottom = max(top, p.Y.Max), min(bottom, p.Y.Min)
		}
	}
	cols := min(3, max(len(row), 1))
	for i := range row {
		p := &row[i]
		p.Y.Max, p.Y.Min = top, bottom // one scale for all
		p.X.Tick.Marker = logBytes{[...]int{10, 7, 4}[cols-1]}
		if i%cols == 0 {
			p.y = "GB/s"
			if times {
				p.y = "median, logarithmic"
			}
		}
	}
	f.tile(row, cols)
	return f.orNil()
}

// modeName words a setting so that it is a title.
func modeName(setting, value string) string {
	if setting != "direct" {
		return value
	}
	switch value {
	case "on", "true", "always":
		return "O_DIRECT"
	case "off", "false", "never":
		return "page cache"
	}
	return "direct " + value
}

// tile puts panels into rows of at most cols.
func (f *figure) tile(list []panel, cols int) {
	cols = min(cols, max(len(list), 1))
	for row := range slices.Chunk(list, cols) {
		f.panels = append(f.panels, append(slices.Clone(row), make([]panel, cols-len(row))...))
	}
}

// orNil is the figure, or nil if there is nothing in it.
func (f *figure) orNil() *figure {
	if len(f.panels) == 0 {
		return nil
	}
	return f
}

// bar is one of metric name of a record; ok is false if the record has none.
func (g *group) bar(r *bench.Record, name string, fill color.Color, but ...string) (b bar, ok bool) {
	s, ok := r.Metrics[name]
	return bar{name: cmp.Or(g.label(r, but...), r.Test), parts: []float64{s.Mean}, sd: s.SD, fill: []color.Color{fill}, note: spread(s.Mean, s.SD)}, ok
}

// kernelPicture is a picture of experiment kernels: of products or attention, with one row or several.
type kernelPicture struct {
	file, title, metric, label string
	attention, several         bool
}

var kernelPictures = []kernelPicture{
	{"", "weights read a second while they are multiplied with one row", "GB/s", "GB/s", false, false},
	{"-matmul", "operations a second, products with several rows", "GOPS", "billion operations per second", false, true},
	{"-attention", "keys and values read a second, attention of one row", "GB/s", "GB/s", true, false},
	{"-attention-rows", "operations a second, attention of several rows", "GOPS", "billion operations per second", true, true},
}

// shows says whether a record is in the picture.
func (k *kernelPicture) shows(r *bench.Record) bool {
	return (r.Test == "attention") == k.attention && (r.Param("rows") != "1") == k.several
}

// isa is the instruction set that was asked for. Records of older versions have the machine's.
func isa(r *bench.Record) string { return cmp.Or(r.Param("cpu"), r.Env.ISA) }

// kernels has a group of bars for each format, or geometry and depth of attention: one for each instruction set, beside a plain read where
// memory is the limit. There is a panel for each number of threads.
func (g *group) kernels(k kernelPicture) *figure {
	const shown = "shown"
	keys, parts := g.split(func(r *bench.Record) string {
		if k.shows(r) {
			return shown
		}
		return ""
	})
	at := slices.Index(keys, shown)
	if at < 0 {
		return nil
	}
	g = parts[at]
	f := g.newFigure(k.file, k.title)
	isas, _ := g.split(isa)
	switch {
	case len(isas) > 1:
		for i, name := range isas {
			f.legend = append(f.legend, swatch(name, colour(i)))
		}
	case !k.attention:
		f.legend = []entry{swatch("kernel for the format", colour(0))}
		if slices.ContainsFunc(g.records, decodesFirst) {
			f.legend = append(f.legend, swatch("rows are decoded first", colour(4)))
		}
	}
	if !k.several {
		f.legend = append(f.legend, computed("a plain read of the same memory").entry())
	}
	threads, parts := g.split(func(r *bench.Record) string { return r.Param("threads") })
	var list []panel
	for i, part := range parts {
		var all []bar
		plain, n := 0.0, 0.0
		for _, r := range part.records {
			fill := colour(slices.Index(isas, isa(r)))
			if len(isas) == 1 && decodesFirst(r) {
				fill = colour(4)
			}
			if b, ok := part.bar(r, k.metric, fill, "cpu", "kernel", "test"); ok {
				if len(isas) > 1 && decodesFirst(r) {
					b.note += ", rows are decoded first"
				}
				all = addToGroup(all, b)
			}
			if s, ok := r.Metrics["plain GB/s"]; ok && finite(s.Mean) {
				plain, n = plain+s.Mean, n+1
			}
		}
		var marks []mark
		if !k.several && n > 0 {
			marks = []mark{{plain / n, computed("").style}}
		}
		if p := bars(all, marks); p.Plot != nil {
			p.title, p.x = strings.TrimPrefix(threads[i]+" threads", "1 threads"), k.label
			if p.title == "" {
				p.title = "1 thread"
			}
			if marks != nil {
				p.note = "plain read " + value(marks[0].at) + " GB/s"
			}
			list = append(list, p)
		}
	}
	f.tile(list, 1)
	return f.orNil()
}

// addToGroup puts a bar behind the last one of the same name, or else behind all.
func addToGroup(all []bar, b bar) []bar {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].name == b.name {
			return slices.Insert(all, i+1, b)
		}
	}
	return append(all, b)
}

// decodesFirst says that a record is of a format without a kernel of its own.
func decodesFirst(r *bench.Record) bool { return strings.Contains(r.Param("kernel"), "decodes first") }

// single makes the figure one of bars.
func (f *figure) single(label string, all []bar, marks []mark) *figure {
	p := bars(all, marks)
	if p.Plot == nil {
		return nil
	}
	p.x = label
	f.panels = [][]panel{{p}}
	return f
}

// arms sets them side by side by their main figure: tokens a second if there are any. Arms that leave a choice to the balancer stand
// out.
func (g *group) arms() *figure {
	name, ok := g.metric("tok/s", "tok/s")
	if !ok {
		if name, ok = g.main(); !ok {
			return nil
		}
	}
	unit, chosen, fixed := "", false, false
	var all []bar
	for _, r := range g.records {
		fill := colour(0)
		if s, ok := r.Metrics[name]; ok {
			unit = cmp.Or(unit, s.Unit)
		}
		if g.chosen(r) {
			fill, chosen = colour(1), true
		} else {
			fixed = true
		}
		if b, ok := g.bar(r, name, fill); ok {
			all = append(all, b)
		}
	}
	title := unit
	if unit == "tok/s" {
		title, unit = "tokens a second", "tokens per second"
	}
	f := g.newFigure("", title)
	if chosen && fixed {
		f.legend = []entry{swatch("the balancer's choice", colour(1)), swatch("fixed settings", colour(0))}
	}
	return f.single(unit, all, nil)
}

// balance sets fixed ways to read beside the balancer's choice, a panel for each model and amount of memory.
func (g *group) balance() *figure {
	name, ok := g.metric("tok/s", "tok/s")
	if !ok {
		return nil
	}
	apart := []string{"model", "ram", "test"} // what has panels of its own
	f := g.newFigure("", "tokens a second by how experts are read")
	titles, parts := g.split(func(r *bench.Record) string {
		var title []string
		for _, p := range apart[:2] {
			if slices.Contains(g.varies, p) {
				title = append(title, strings.TrimPrefix(p+" "+r.Param(p), "model "))
			}
		}
		if g.tests {
			title = append(title, r.Test)
		}
		return strings.Join(title, ", ")
	})
	line := computed("the best of the fixed ones")
	f.legend = []entry{swatch("fixed settings", colour(0)), swatch("the balancer's choice", colour(1)), line.entry()}
	var list []panel
	for i, part := range parts {
		var all []bar
		best := 0.0
		for _, r := range part.records {
			fill := colour(0)
			if g.chosen(r) {
				fill = colour(1)
			} else if s, ok := r.Metrics[name]; ok {
				best = max(best, s.Mean)
			}
			if b, ok := g.bar(r, name, fill, apart...); ok {
				all = append(all, b)
			}
		}
		if p := bars(all, []mark{{best, line.style}}); p.Plot != nil {
			p.title, p.x = titles[i], "tokens per second"
			list = append(list, p)
		}
	}
	f.tile(list, 1)
	return f.orNil()
}

// main is the first metric, by name, of those that are better the larger or smaller they are.
func (g *group) main() (string, bool) {
	for _, r := range g.records {
		for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
			if r.Metrics[name].Better != 0 {
				return name, true
			}
		}
	}
	return "", false
}

// chosen says whether a setting that other arms fix is left to the balancer.
func (g *group) chosen(r *bench.Record) bool {
	return slices.ContainsFunc(r.Params, func(p bench.Param) bool { return p.Value == "auto" && slices.Contains(g.varies, p.Name) })
}

// What a picture of latencies shows of each arm, and how experiments name it.
var shownQuantiles = []struct {
	q          float64
	name, word string
}{{0.5, "median", "p50"}, {0.9, "90 %", "p90"}, {0.99, "99 %", "p99"}, {0.999, "99.9 %", "p99.9"}}

// timeUnits are those of metrics, in nanoseconds.
var timeUnits = map[string]float64{"ns": 1, "ns/op": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}

// metricQuantiles are the quantiles that have metrics of their own, as "wait p99", by what they are of.
func metricQuantiles(r *bench.Record) map[string][]float64 {
	all := map[string][]float64{}
	for name, s := range r.Metrics {
		nanos, isTime := timeUnits[s.Unit]
		words := strings.Fields(name)
		for i, q := range shownQuantiles {
			if at := slices.Index(words, q.word); isTime && at >= 0 {
				of := strings.Join(slices.DeleteFunc(slices.Delete(words, at, at+1), func(w string) bool { return w == s.Unit }), " ")
				if all[of] == nil {
					all[of] = slices.Repeat([]float64{math.NaN()}, len(shownQuantiles))
				}
				all[of][i] = s.Mean * nanos
				break
			}
		}
	}
	return all
}

// quantiles are those of latencies by arm, from the metrics named for them or else from histograms; a panel for each test.
func (g *group) quantiles() *figure {
	f := g.newFigure("", "latency")
	f.statistic = "mean"
	shown := make([]bool, len(shownQuantiles))
	titles, parts := g.split(func(r *bench.Record) string { return r.Test })
	var list []panel
	for i, part := range parts {
		var rows []rangeRow
		var kinds []string // of what
		for _, r := range part.records {
			of := metricQuantiles(r)
			if len(of) == 0 {
				for name, h := range r.Histograms {
					for _, s := range shownQuantiles {
						of[histogramName(name)] = append(of[histogramName(name)], float64(h.Quantile(s.q)))
					}
				}
			}
			for _, kind := range slices.Sorted(maps.Keys(of)) {
				rows = append(rows, rangeRow{part.label(r) + "\x00" + kind, of[kind]})
				if !slices.Contains(kinds, kind) {
					kinds = append(kinds, kind)
				}
				for k, q := range of[kind] {
					shown[k] = shown[k] || finite(q)
				}
			}
		}
		for k := range rows {
			label, kind, _ := strings.Cut(rows[k].name, "\x00")
			if len(kinds) > 1 || label == "" {
				label = strings.Trim(label+": "+kind, ": ")
			}
			rows[k].name = cmp.Or(label, titles[i])
		}
		if p := ranges(rows); p.Plot != nil {
			if p.title = titles[i]; len(kinds) == 1 && kinds[0] != "" {
				p.title += ": " + kinds[0]
			}
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return nil
	}
	low, high := math.Inf(1), 0.0
	for _, p := range list {
		low, high = min(low, p.X.Min), max(high, p.X.Max)
	}
	for i := range list {
		list[i].X.Min, list[i].X.Max = low, high // one scale for all
	}
	list[len(list)-1].x = "time, logarithmic"
	for i, s := range shownQuantiles {
		if shown[i] {
			f.legend = append(f.legend, dot(s.name, colour(i), glyphs[i]))
		}
	}
	f.tile(list, 1)
	return f
}

// How experiments name their histograms, and pictures call them.
var histogramNames = [][2]string{
	{"queue", "queue wait, before the drive has it"},
	{"device", "device time, in the drive"},
	{"read", "a read as the program sees it"},
	{"wait", "wait in the mailbox"},
	{"handle", "handling"},
}

func histogramName(name string) string {
	for _, n := range histogramNames {
		if n[0] == name {
			return n[1]
		}
	}
	return name
}

// histogramOrder has the known ones first, in their order; others follow by name.
func histogramOrder(name string) int {
	i := slices.IndexFunc(histogramNames, func(n [2]string) bool { return n[0] == name })
	if i < 0 {
		return len(histogramNames)
	}
	return i
}

// latencies are histograms of each arm below those of the others, on one axis of time; several pictures if there are many arms,
// and no more than the first twelve arms.
func (g *group) latencies() (all []*figure) {
	const most, pages = 6, 2 // panels of a picture, and pictures
	var names []string
	var everything []distribution
	var arms []*bench.Record
	for _, r := range g.records {
		some := false
		for name, h := range r.Histograms {
			if _, _, ok := span([]distribution{{Hist: h}}); !ok {
				continue
			}
			some = true
			everything = append(everything, distribution{Hist: h})
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if some {
			arms = append(arms, r)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(histogramOrder(a), histogramOrder(b)), cmp.Compare(a, b))
	})
	first, last, ok := span(everything)
	if !ok {
		return nil
	}
	count := len(arms)
	if count > most*pages {
		if g.name == "io" { // which has a picture of them over the size of requests
			return nil
		}
		arms = arms[:most*pages]
	}
	for page, part := range slices.Collect(slices.Chunk(arms, most)) {
		f := g.newFigure("-latency", "how long requests took")
		if count > most {
			f.file += fmt.Sprintf("-%d", page+1)
			f.title += fmt.Sprintf(" (arms %d to %d of %d)", page*most+1, page*most+len(part), count)
		}
		for i, name := range names {
			f.legend = append(f.legend, swatch(histogramName(name), colour(i)))
		}
		var list []panel
		for k, r := range part {
			label := ""
			if k == len(part)-1 {
				label = "time, logarithmic; a bar is a factor of two wide"
			}
			var ds []distribution
			var said []string
			for i, name := range names {
				h := r.Histograms[name]
				if h.Count == 0 {
					continue
				}
				ds = append(ds, distribution{h, colour(i)})
				said = append(said, fmt.Sprintf("%s %s, %s", shortName(name), quantile(h, 0.5), quantile(h, 0.99)))
			}
			list = append(list, panel{
				title: cmp.Or(g.label(r), r.Test), note: "median, 99 %: " + strings.Join(said, " · "), x: label,
				y:      "% of them",
				height: 86, Plot: histogram(ds, first, last),
			})
		}
		f.statistic = "all together"
		f.tile(list, 1)
		all = append(all, f)
	}
	return all
}

// shortName is the first word of a histogram's.
func shortName(name string) string {
	s, _, _ := strings.Cut(strings.TrimPrefix(histogramName(name), "a "), " ")
	return s
}

func quantile(h loghist.Hist, q float64) string {
	return duration(twoDigits(float64(h.Quantile(q) / time.Nanosecond)))
}

// time is where the time of a token went, by arm.
func (g *group) time() *figure {
	var names []string
	most := 0.0
	for _, r := range g.records {
		sum := 0.0
		for _, p := range r.Parts {
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
			if finite(p.Seconds) {
				sum += p.Seconds
			}
		}
		most = max(most, sum)
	}
	if len(names) == 0 || most <= 0 {
		return nil
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rest(a), rest(b)) })
	scale, unit := 1e3, "ms"
	if most < 1e-3 {
		scale, unit = 1e6, "µs"
	}
	var all []bar
	for _, r := range g.records {
		b := bar{name: cmp.Or(g.label(r), r.Test)}
		for i, name := range names {
			for _, p := range r.Parts {
				if p.Name == name && finite(p.Seconds) {
					b.parts, b.fill = append(b.parts, max(p.Seconds, 0)*scale), append(b.fill, partColour(i, name))
				}
			}
		}
		if b.whole() > 0 {
			b.note = value(b.whole()) + " " + unit
			all = append(all, b)
		}
	}
	f := g.newFigure("-time", "where a token's time goes")
	f.statistic = "mean"
	for i, name := range names {
		f.legend = append(f.legend, swatch(name, partColour(i, name)))
	}
	return f.single(unit+" per token", all, nil)
}

// rest is 1 for the part that has no name of its own, which comes last.
func rest(part string) int {
	if part == "other" || part == "rest" {
		return 1
	}
	return 0
}

// partColour goes on behind the palette's end with the same colours half as strong.
func partColour(i int, part string) color.Color {
	if rest(part) == 1 {
		return grey
	}
	r, g, b, _ := colour(i).RGBA()
	if i/len(palette)%2 == 0 {
		return colour(i)
	}
	light := func(x uint32) uint8 { return uint8(127 + x>>9) }
	return color.RGBA{light(r), light(g), light(b), 0xff}
}
