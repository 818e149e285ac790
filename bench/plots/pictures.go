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

	"gonum.org/v1/plot/vg"

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
			list = []*figure{g.drive()}
		case "kernels":
			list = []*figure{g.kernels(), g.products()}
		case "mailbox":
			list = []*figure{g.quantiles()}
		default:
			list = []*figure{g.compare()}
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

// model names the files read by the largest of them.
func model(r *bench.Record) string {
	if len(r.Files) == 0 {
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
	var measuredLines, limits []series
	at := map[string]int{}
	several := func(r *bench.Record) string { return g.label(r, "ram") }
	for _, r := range g.records {
		pos, ok := x(r)
		if !ok {
			continue
		}
		key := several(r)
		i, there := at[key]
		if !there {
			i = len(measuredLines)
			at[key] = i
			measuredLines = append(measuredLines, measured(i, cmp.Or(key, r.Test)))
			limits = append(limits, computed(strings.TrimPrefix(key+": physical limit", ": ")))
		}
		if s, ok := r.Metrics[name]; ok {
			measuredLines[i].add(pos, s.Mean, s.SD)
		}
		if s, ok := r.Metrics[limitMetric]; ok {
			limits[i].add(pos, s.Mean, 0)
		}
	}
	var all []series
	f := g.newFigure("", "tokens a second over the memory that experts have")
	for i, s := range measuredLines {
		f.legend = append(f.legend, s.entry())
		if len(measuredLines) > 1 {
			limits[i].style.Color = s.style.Color
		}
	}
	for _, s := range limits {
		if len(s.points) > 0 {
			f.legend, all = append(f.legend, s.entry()), append(all, s)
		}
	}
	all = append(all, measuredLines...)
	for _, s := range all {
		slices.SortStableFunc(s.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	}
	p := lines("tokens per second", xNumber, all)
	if p == nil {
		return nil
	}
	if strings.Contains(xLabel, "%") && p.X.Max > 100 && most(all) <= 100 {
		p.X.Max = 100
	}
	f.panels, f.height = [][]panel{{{x: xLabel, Plot: p}}}, 246
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

// drive is GB/s over the size of requests, a line for each number of readers and a panel for each way to read.
func (g *group) drive() *figure {
	name, ok := g.metric("GB/s", "GB/s")
	if !ok {
		return nil
	}
	f := g.newFigure("", "what the drive delivers by request size")
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
		lists[key][i].add(size, s.Mean, s.SD)
	}
	for i, line := range names {
		f.legend = append(f.legend, measured(i, line).entry())
	}
	var row []panel
	top := 0.0
	for _, t := range titles {
		for _, s := range lists[t] {
			slices.SortStableFunc(s.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		}
		if p := lines("", xBytes, lists[t]); p != nil {
			row = append(row, panel{title: t, x: "request size", Plot: p})
			top = max(top, p.Y.Max)
		}
	}
	cols := min(3, max(len(row), 1))
	for i, p := range row {
		p.Y.Max = top // one scale for all
		p.X.Tick.Marker = logBytes{[...]int{10, 7, 4}[cols-1]}
		if i%cols == 0 {
			p.Y.Label.Text = "GB/s"
		}
	}
	f.tile(row, cols, 216)
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
func (f *figure) tile(list []panel, cols int, height vg.Length) {
	cols = min(cols, max(len(list), 1))
	for row := range slices.Chunk(list, cols) {
		f.panels = append(f.panels, append(slices.Clone(row), make([]panel, cols-len(row))...))
	}
	f.height = height
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
	b = bar{name: cmp.Or(g.label(r, but...), r.Test), parts: []float64{s.Mean}, sd: s.SD, fill: []color.Color{fill}, note: value(s.Mean)}
	if s.SD > 0 {
		b.note += " ± " + short(twoDigits(s.SD))
	}
	return b, ok
}

// kernels is bytes of weights a second by format, beside a plain read, a panel for each number of threads.
func (g *group) kernels() *figure {
	f := g.newFigure("", "weights read a second while they are multiplied with one row")
	var threads []string
	charts, plain := map[string][]bar{}, map[string][]float64{}
	slow := false
	for _, r := range g.records {
		t := r.Param("threads")
		if r.Param("rows") != "1" {
			continue
		}
		fill := colour(0)
		if strings.Contains(r.Param("kernel"), "decodes first") {
			fill, slow = colour(4), true
		}
		b, ok := g.bar(r, "GB/s", fill, "kernel", "rows", "threads", "test")
		if !ok {
			continue
		}
		if !slices.Contains(threads, t) {
			threads = append(threads, t)
		}
		charts[t] = append(charts[t], b)
		if s, ok := r.Metrics["plain GB/s"]; ok {
			plain[t] = append(plain[t], s.Mean)
		}
	}
	f.legend = append(f.legend, swatch("kernel for the format", colour(0)))
	if slow {
		f.legend = append(f.legend, swatch("rows are decoded first", colour(4)))
	}
	f.legend = append(f.legend, computed("a plain read of the same memory").entry())
	var list []panel
	for _, t := range threads {
		var marks []mark
		title, note := t+" threads", ""
		if t == "1" {
			title = "1 thread"
		}
		if n := float64(len(plain[t])); n > 0 {
			mean := 0.0
			for _, x := range plain[t] {
				mean += x / n
			}
			marks = []mark{{mean, computed("").style}}
			note = "plain read " + value(mean) + " GB/s"
		}
		if p, h := bars(charts[t], marks); p != nil {
			list, f.height = append(list, panel{title: title, note: note, x: "GB/s", Plot: p}), max(f.height, h)
		}
	}
	f.tile(list, 1, f.height)
	return f.orNil()
}

// products is operations a second by format, for products with several rows.
func (g *group) products() *figure {
	var all []bar
	for _, r := range g.records {
		if r.Param("rows") == "1" {
			continue
		}
		if b, ok := g.bar(r, "GOPS", colour(0), "kernel", "test"); ok {
			all = append(all, b)
		}
	}
	f := g.newFigure("-matmul", "operations a second, products with several rows")
	return f.single("10⁹ operations per second", all, nil)
}

// single makes the figure one of bars.
func (f *figure) single(label string, all []bar, marks []mark) *figure {
	p, h := bars(all, marks)
	if p == nil {
		return nil
	}
	f.panels, f.height = [][]panel{{{x: label, Plot: p}}}, h
	return f
}

// compare sets arms side by side by their main figure: tokens a second if there are any. Arms that leave a choice to the balancer stand
// out.
func (g *group) compare() *figure {
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

// metricQuantiles are the quantiles that have metrics of their own, as "wait p99", by what they are of.
func metricQuantiles(r *bench.Record) map[string][]float64 {
	all := map[string][]float64{}
	for name, s := range r.Metrics {
		nanos, isTime := map[string]float64{"ns": 1, "ns/op": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[s.Unit]
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

// quantiles are those of latencies by arm, from the metrics named for them or else from histograms.
func (g *group) quantiles() *figure {
	var rows []rangeRow
	for _, r := range g.records {
		label := cmp.Or(g.label(r), r.Test)
		if of := metricQuantiles(r); len(of) > 0 {
			for _, name := range slices.Sorted(maps.Keys(of)) {
				rows = append(rows, rangeRow{strings.TrimSuffix(label+": "+name, ": "), of[name]})
			}
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(r.Histograms)) {
			h := r.Histograms[name]
			var q []float64
			for _, s := range shownQuantiles {
				q = append(q, float64(h.Quantile(s.q)))
			}
			rows = append(rows, rangeRow{label + ": " + histogramName(name), q})
		}
	}
	f := g.newFigure("", "latency")
	for i, s := range shownQuantiles {
		if slices.ContainsFunc(rows, func(r rangeRow) bool { return finite(r.quantiles[i]) }) {
			f.legend = append(f.legend, dot(s.name, colour(i), glyphs[i]))
		}
	}
	p, h := ranges(rows)
	if p == nil {
		return nil
	}
	f.statistic = "mean"
	f.panels, f.height = [][]panel{{{x: "time, logarithmic", Plot: p}}}, h
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

// latencies are histograms of each arm below those of the others, on one axis of time; several pictures if there are many arms.
func (g *group) latencies() (all []*figure) {
	const most = 6 // panels of a picture
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
	pages := (len(arms) + most - 1) / most
	for page, part := range slices.Collect(slices.Chunk(arms, most)) {
		f := g.newFigure("-latency", "how long requests took")
		if pages > 1 {
			f.file += fmt.Sprintf("-%d", page+1)
			f.title += fmt.Sprintf(" (%d of %d)", page+1, pages)
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
				Plot: histogram("% of them", ds, first, last),
			})
		}
		f.statistic = "all together"
		f.tile(list, 1, 86)
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
					b.parts, b.fill = append(b.parts, max(p.Seconds, 0)*scale), append(b.fill, partColour(i))
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
		f.legend = append(f.legend, swatch(name, partColour(i)))
	}
	return f.single(unit+" per token", all, nil)
}

// partColour goes on behind the palette's end with the same colours half as strong.
func partColour(i int) color.Color {
	r, g, b, _ := colour(i).RGBA()
	if i/len(palette)%2 == 0 {
		return colour(i)
	}
	light := func(x uint32) uint8 { return uint8(127 + x>>9) }
	return color.RGBA{light(r), light(g), light(b), 0xff}
}
