package plots

import (
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/coli-moe/coli/internal/loghist"
)

// A chart leaves out what is not finite.

// point is a mean with its standard deviation.
type point struct{ x, y, sd float64 }

// series is a line through points, in the order of x.
type series struct {
	name   string
	points []point
	style  draw.LineStyle
	glyph  draw.GlyphDrawer // nil: a line alone, as for what was computed and not measured
}

var glyphs = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, cross{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}}

// cross is an X that is as heavy as the filled glyphs.
type cross struct{}

func (cross) DrawGlyph(c *draw.Canvas, s draw.GlyphStyle, at vg.Point) {
	c.SetLineStyle(draw.LineStyle{Color: s.Color, Width: 1.4})
	for _, d := range []vg.Length{1, -1} {
		var p vg.Path
		p.Move(vg.Point{X: at.X - s.Radius, Y: at.Y - d*s.Radius})
		p.Line(vg.Point{X: at.X + s.Radius, Y: at.Y + d*s.Radius})
		c.Stroke(p)
	}
}

// measured is the i-th line of measurements.
func measured(i int, name string) series {
	return series{
		name: name, glyph: glyphs[i%len(glyphs)],
		style: draw.LineStyle{Color: colour(i), Width: 1.6, Dashes: dashes[i/len(palette)%len(dashes)]},
	}
}

// computed is a line that was not measured: a bound.
func computed(name string) series {
	return series{name: name, style: draw.LineStyle{Color: muted, Width: 1.4, Dashes: []vg.Length{5, 3}}}
}

func (s *series) add(x, y, sd float64) {
	if finite(x) && finite(y) {
		if !finite(sd) || sd < 0 {
			sd = 0
		}
		s.points = append(s.points, point{x, y, sd})
	}
}

func (s series) entry() entry { return sample(s.name, s.style, s.glyph) }

func (s series) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	line := make([]vg.Point, len(s.points))
	for i, q := range s.points {
		line[i] = vg.Point{X: x(q.x), Y: y(q.y)}
	}
	c.StrokeLines(s.style, line)
	for i, q := range s.points {
		at := line[i]
		if q.sd > 0 {
			whisker(c, s.style.Color, vg.Point{X: at.X, Y: y(math.Max(q.y-q.sd, p.Y.Min))}, vg.Point{X: at.X, Y: y(math.Min(q.y+q.sd, p.Y.Max))})
		}
		if s.glyph != nil {
			c.DrawGlyph(draw.GlyphStyle{Color: s.style.Color, Radius: 2.8, Shape: s.glyph}, at)
		}
	}
}

// whisker is an error bar with its caps.
func whisker(c draw.Canvas, col color.Color, a, b vg.Point) {
	s := draw.LineStyle{Color: col, Width: 1}
	const cap = 2.6
	c.StrokeLine2(s, a.X, a.Y, b.X, b.Y)
	for _, p := range []vg.Point{a, b} {
		if a.X == b.X {
			c.StrokeLine2(s, p.X-cap, p.Y, p.X+cap, p.Y)
		} else {
			c.StrokeLine2(s, p.X, p.Y-cap, p.X, p.Y+cap)
		}
	}
}

// xScale is how the x axis of lines counts.
type xScale int

const (
	xNumber xScale = iota
	xBytes         // powers of two
)

// lines draws series over axes from 0, logarithmic ones aside; nil without a point. With times, y are nanoseconds on a logarithmic axis.
func lines(scale xScale, times bool, all []series) *plot.Plot {
	p := newPlot()
	least, most, top, bottom := math.Inf(1), math.Inf(-1), 0.0, math.Inf(1)
	for _, s := range all {
		for _, q := range s.points {
			if scale == xBytes && q.x <= 0 || times && q.y <= 0 {
				return nil
			}
			least, most = math.Min(least, q.x), math.Max(most, q.x)
			top, bottom = math.Max(top, q.y+q.sd), math.Min(bottom, q.y)
		}
		p.Add(s)
	}
	if least > most {
		return nil
	}
	vertical := linear{5}
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, vertical.top(top*1.02), vertical
	if times {
		p.Y.Min, p.Y.Max = decades(bottom/1.2, top*1.2)
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, logTime{}
	}
	if scale == xBytes {
		p.X.Min, p.X.Max = least/math.Sqrt2, most*math.Sqrt2
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, logBytes{10}
		return p
	}
	horizontal := linear{8}
	p.X.Min, p.X.Max, p.X.Tick.Marker = 0, horizontal.top(most*1.02), horizontal
	return p
}

// bar is a horizontal one: a value with its standard deviation, or parts that follow each other.
type bar struct {
	name  string
	parts []float64
	sd    float64
	fill  []color.Color // of each part
	note  string        // behind it
}

// whole is the bar's length.
func (b bar) whole() (sum float64) {
	for _, x := range b.parts {
		sum += x
	}
	return sum
}

// mark is a vertical line through bars: what they are compared with.
type mark struct {
	at    float64
	style draw.LineStyle
}

type barChart struct {
	bars  []bar
	at    []float64 // where each is
	thick float64   // of the distance from one to the next
	marks []mark
}

func (b barChart) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	thick := (y(0) - y(1)) * vg.Length(b.thick)
	for _, m := range b.marks {
		c.StrokeLine2(m.style, x(m.at), c.Min.Y, x(m.at), c.Max.Y)
	}
	style := textStyle(8.5, ink, false)
	style.YAlign = draw.YCenter
	for i, bar := range b.bars {
		mid, from := y(b.at[i]), 0.0
		for j, part := range bar.parts {
			c.SetColor(bar.fill[j])
			c.Fill(vg.Rectangle{Min: vg.Point{X: x(from), Y: mid - thick/2}, Max: vg.Point{X: x(from + part), Y: mid + thick/2}}.Path())
			from += part
		}
		end := from
		if bar.sd > 0 {
			whisker(c, ink, vg.Point{X: x(math.Max(from-bar.sd, 0)), Y: mid}, vg.Point{X: x(from + bar.sd), Y: mid})
			end += bar.sd
		}
		if bar.note == "" {
			continue
		}
		at := vg.Point{X: x(end) + 5, Y: mid}
		c.SetColor(color.White) // a mark behind the note would make it hard to read
		c.Fill(vg.Rectangle{Min: vg.Point{X: at.X - 2, Y: mid - 5}, Max: vg.Point{X: at.X + style.Width(bar.note) + 2, Y: mid + 5}}.Path())
		c.FillText(style, vg.Point{X: at.X, Y: mid + 1}, bar.note)
	}
}

// barHeight is what each bar takes, and inGroup the share of it that another one of a group does.
const (
	barHeight = vg.Length(22)
	inGroup   = 0.5
)

// bars draws bars below each other, in their order; the panel has no plot if there are none. Neighbours of the same name are a group: they
// stand closer, and the name stands there once.
func bars(all []bar, marks []mark) panel {
	var chart barChart
	top := 0.0
	for _, b := range all {
		ok := len(b.parts) > 0
		for _, x := range b.parts {
			ok = ok && finite(x) && x >= 0
		}
		if !ok {
			continue
		}
		if !finite(b.sd) || b.sd < 0 {
			b.sd = 0
		}
		chart.bars = append(chart.bars, b)
		top = math.Max(top, b.whole()+b.sd)
	}
	if len(chart.bars) == 0 {
		return panel{}
	}
	for _, m := range marks {
		if finite(m.at) && m.at > 0 {
			chart.marks = append(chart.marks, m)
			top = math.Max(top, m.at)
		}
	}
	p := newPlot()
	var names plot.ConstantTicks
	note, text := vg.Length(0), textStyle(8.5, ink, false)
	chart.thick = 0.7
	first, at := 0.0, -1.0 // of the group, and of the last bar
	for i, b := range chart.bars {
		note = max(note, text.Width(b.note))
		if i > 0 && b.name == chart.bars[i-1].name {
			at += inGroup
			chart.thick = inGroup * 0.9
			names[len(names)-1].Value = (first + at) / 2
		} else {
			at++
			first = at
			names = append(names, plot.Tick{Value: at, Label: fit(p.Y.Tick.Label, b.name, width*0.36)})
		}
		chart.at = append(chart.at, at)
	}
	horizontal := linear{6}
	p.X.Min, p.X.Tick.Marker = 0, horizontal
	p.X.Max = horizontal.top(top * (1 + float64((note+6)/(width*0.6)))) // room for the notes
	p.Y.Min, p.Y.Max = -0.5, at+0.5
	p.Y.Scale, p.Y.Tick.Marker = plot.InvertedScale{Normalizer: plot.LinearScale{}}, names
	p.Y.Tick.Label.Color = color.RGBA{0x21, 0x21, 0x21, 0xff} // no grid line through each bar
	p.Add(chart)
	return panel{height: vg.Length(at+1)*barHeight + 20, Plot: p}
}

// distribution is a histogram to be drawn.
type distribution struct {
	loghist.Hist
	fill color.Color
}

type histogramChart []distribution

// share is that of bucket i, in percent.
func (d distribution) share(i int) float64 {
	var total uint64
	for _, n := range d.Buckets {
		total += n
	}
	return 100 * float64(d.Buckets[i]) / float64(max(total, 1))
}

func (h histogramChart) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for _, d := range h {
		r, g, b, _ := d.fill.RGBA()
		area := color.NRGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 0x50}
		style := draw.LineStyle{Color: d.fill, Width: 1.3}
		var outline []vg.Point // of neighbours that count something
		for i := range loghist.Buckets {
			low, high := math.Max(math.Ldexp(1, i), p.X.Min), math.Min(math.Ldexp(1, i+1), p.X.Max)
			if d.Buckets[i] == 0 || low >= high {
				c.StrokeLines(style, closed(outline, y(0)))
				outline = nil
				continue
			}
			share := y(d.share(i))
			outline = append(outline, vg.Point{X: x(low), Y: share}, vg.Point{X: x(high), Y: share})
			c.SetColor(area)
			c.Fill(vg.Rectangle{Min: vg.Point{X: x(low), Y: y(0)}, Max: vg.Point{X: x(high), Y: share}}.Path())
		}
		c.StrokeLines(style, closed(outline, y(0)))
	}
}

// closed is an outline with its ends on the axis.
func closed(outline []vg.Point, axis vg.Length) []vg.Point {
	if len(outline) == 0 {
		return nil
	}
	first, last := outline[0], outline[len(outline)-1]
	return append(append([]vg.Point{{X: first.X, Y: axis}}, outline...), vg.Point{X: last.X, Y: axis})
}

// span is the first and the last bucket that has so much that it can be seen, a thousandth; ok is false if nothing was counted.
func span(all []distribution) (first, last int, ok bool) {
	first = loghist.Buckets
	for _, d := range all {
		for i := range d.Buckets {
			if d.share(i) >= 0.1 {
				first, last, ok = min(first, i), max(last, i), true
			}
		}
	}
	return first, last, ok
}

// histogram draws distributions of durations over each other, from bucket first to last.
func histogram(all []distribution, first, last int) *plot.Plot {
	p := newPlot()
	top := 0.0
	for _, d := range all {
		for i := range d.Buckets {
			top = math.Max(top, d.share(i))
		}
	}
	vertical := linear{3}
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, math.Min(vertical.top(top*1.02), 100), vertical
	p.X.Min, p.X.Max = math.Ldexp(1, max(first-1, 0)), math.Ldexp(1, min(last+2, loghist.Buckets))
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, logTime{}
	p.Add(histogramChart(all))
	return p
}

// rangeRow is durations of one arm on a common axis of time: its quantiles, ascending.
type rangeRow struct {
	name      string
	quantiles []float64 // nanoseconds; NaN leaves one out
}

type rangeChart []rangeRow

func (r rangeChart) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i, row := range r {
		var line []vg.Point
		for _, q := range row.quantiles {
			if finite(q) && q > 0 {
				line = append(line, vg.Point{X: x(q), Y: y(float64(i))})
			}
		}
		c.StrokeLines(draw.LineStyle{Color: axis, Width: 1.2}, line)
		for j, q := range row.quantiles {
			if finite(q) && q > 0 {
				at := vg.Point{X: x(q), Y: y(float64(i))}
				c.DrawGlyph(draw.GlyphStyle{Color: colour(j), Radius: 3.4, Shape: glyphs[j%len(glyphs)]}, at)
			}
		}
	}
}

// decades widens a logarithmic axis that would have less than two labels.
func decades(low, high float64) (float64, float64) {
	if high/low < 100 {
		low, high = math.Pow10(int(math.Floor(math.Log10(low)))), math.Pow10(int(math.Ceil(math.Log10(high))))
	}
	return low, high
}

// ranges draws rows of quantiles over a logarithmic axis of time; the panel has no plot if there are none.
func ranges(all []rangeRow) panel {
	var chart rangeChart
	least, most := math.Inf(1), 0.0
	for _, row := range all {
		some := false
		for _, q := range row.quantiles {
			if finite(q) && q > 0 {
				least, most, some = math.Min(least, q), math.Max(most, q), true
			}
		}
		if some {
			chart = append(chart, row)
		}
	}
	if len(chart) == 0 {
		return panel{}
	}
	p := newPlot()
	names := make(plot.ConstantTicks, len(chart))
	for i, row := range chart {
		names[i] = plot.Tick{Value: float64(i), Label: fit(p.Y.Tick.Label, row.name, width*0.36)}
	}
	p.Y.Min, p.Y.Max = -0.5, float64(len(chart))-0.5
	p.Y.Scale, p.Y.Tick.Marker = plot.InvertedScale{Normalizer: plot.LinearScale{}}, names
	p.X.Min, p.X.Max = least/1.5, most*1.5
	p.X.Min, p.X.Max = decades(p.X.Min, p.X.Max)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, logTime{}
	p.Add(chart)
	return panel{height: vg.Length(len(chart))*barHeight + 20, Plot: p}
}
