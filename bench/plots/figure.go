package plots

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Every picture is 800 CSS pixels wide, what a page of documentation shows without scaling, and its PNG half as many again.
const (
	width  = vg.Length(600) // points
	margin = vg.Length(14)
	dpi    = 144
)

// The colours of Okabe and Ito ("Color Universal Design", 2008), which readers with any colour vision tell apart; the most different come
// first. Yellow is left out: it is too faint for a line on white.
var palette = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, // blue
	color.RGBA{0xd5, 0x5e, 0x00, 0xff}, // vermilion
	color.RGBA{0x00, 0x9e, 0x73, 0xff}, // bluish green
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, // reddish purple
	color.RGBA{0xe6, 0x9f, 0x00, 0xff}, // orange
	color.RGBA{0x56, 0xb4, 0xe9, 0xff}, // sky blue
	color.RGBA{0x33, 0x33, 0x33, 0xff},
}

var (
	grey  = color.RGBA{0xaa, 0xaa, 0xaa, 0xff} // of what has no name
	ink   = color.RGBA{0x22, 0x22, 0x22, 0xff}
	muted = color.RGBA{0x66, 0x66, 0x66, 0xff}
	grid  = color.RGBA{0xe2, 0xe2, 0xe2, 0xff}
	axis  = color.RGBA{0x99, 0x99, 0x99, 0xff}
)

// dashes tell lines apart where colours do not: in print, and beyond the palette's end.
var dashes = [][]vg.Length{nil, {6, 3}, {2, 2}, {8, 3, 2, 3}}

func colour(i int) color.Color { return palette[i%len(palette)] }

// textStyle is Liberation Sans, whose glyphs are as wide as Arial's and Helvetica's.
func textStyle(size vg.Length, c color.Color, bold bool) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	if bold {
		f.Weight = 3 // font.WeightBold
	}
	return text.Style{Font: f, Color: c, Handler: plot.DefaultTextHandler}
}

// shown is what an SVG asks for, so that it looks alike where Liberation Sans is not installed.
const (
	asked = "font-family:Liberation Sans;"
	shown = "font-family:'Liberation Sans',Arimo,Arial,Helvetica,sans-serif;"
)

// figure is a picture: a title, lines of what it was measured on, a legend, and panels below them.
type figure struct {
	file      string // name without extension
	title     string
	statistic string // what its figures are of the repetitions, "" if that is plain
	subtitle  string
	legend    []entry
	panels    [][]panel // rows of equally many
}

// panel is one plot; a nil plot leaves its place empty.
type panel struct {
	title string
	note  string // beside the title, to the right
	// The labels of the axes. The plot library makes room for its own in the middle of the numbers, which on a logarithmic axis is far from
	// the middle.
	x, y   string
	height vg.Length // with the numbers of the axis, and without titles and labels
	*plot.Plot
}

// entry is one of the legend.
type entry struct {
	name  string
	width vg.Length
	draw  func(c draw.Canvas) // into a box as wide
}

func swatch(name string, c color.Color) entry {
	return entry{name, 10, func(box draw.Canvas) {
		box.SetColor(c)
		mid := box.Center().Y
		box.Fill(vg.Rectangle{Min: vg.Point{X: box.Min.X, Y: mid - 4}, Max: vg.Point{X: box.Max.X, Y: mid + 4}}.Path())
	}}
}

func dot(name string, c color.Color, g draw.GlyphDrawer) entry {
	return entry{name, 8, func(box draw.Canvas) { box.DrawGlyph(draw.GlyphStyle{Color: c, Radius: 3.2, Shape: g}, box.Center()) }}
}

func sample(name string, s draw.LineStyle, g draw.GlyphDrawer) entry {
	return entry{name, 18, func(box draw.Canvas) {
		mid := box.Center()
		box.StrokeLine2(s, box.Min.X, mid.Y, box.Max.X, mid.Y)
		if g != nil {
			box.DrawGlyph(draw.GlyphStyle{Color: s.Color, Radius: 2.6, Shape: g}, mid)
		}
	}}
}

// newPlot is a plot in the pictures' style: a light grid, and a line below.
func newPlot() *plot.Plot {
	p := plot.New()
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		xa, ya := a.Tick.Label.XAlign, a.Tick.Label.YAlign
		a.Tick.Label = textStyle(9, ink, false)
		a.Tick.Label.XAlign, a.Tick.Label.YAlign = xa, ya
		a.Color, a.Tick.Color = axis, axis
		a.Tick.Length = 4
		a.Padding = 0
	}
	p.Y.LineStyle.Width, p.Y.Tick.Length = 0, 0
	p.Add(gridLines{})
	return p
}

// gridLines are a line at every labelled tick.
type gridLines struct{}

func (gridLines) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	s := draw.LineStyle{Color: grid, Width: 0.6}
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		if at := y(t.Value); !t.IsMinor() && c.ContainsY(at) && p.Y.Tick.Label.Color == ink {
			c.StrokeLine2(s, c.Min.X, at, c.Max.X, at)
		}
	}
	for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		if at := x(t.Value); !t.IsMinor() && c.ContainsX(at) {
			c.StrokeLine2(s, at, c.Min.Y, at, c.Max.Y)
		}
	}
}

// size is the picture's height: it follows from what is in it alone.
func (f *figure) size() vg.Length {
	title := textStyle(13, ink, true)
	h := 2*margin + lineHeight(title)
	h += vg.Length(len(f.subtitles())) * lineHeight(subtitleStyle())
	h += vg.Length(len(f.legendRows())) * legendHeight
	h += 8
	for _, row := range f.panels {
		h += rowHeight(row) + titleHeight(row) + labelHeight(row)
	}
	return h
}

// rowHeight is that of the highest panel.
func rowHeight(row []panel) (h vg.Length) {
	for _, p := range row {
		h = max(h, p.height)
	}
	return h
}

// labelHeight is what the labels of a row's axes take.
func labelHeight(row []panel) vg.Length {
	if slices.ContainsFunc(row, func(p panel) bool { return p.x != "" }) {
		return 15
	}
	return 0
}

const legendHeight = vg.Length(15)

func lineHeight(s text.Style) vg.Length { return s.Font.Size * 1.3 }

func subtitleStyle() text.Style { return textStyle(8.5, muted, false) }

func (f *figure) subtitles() []string {
	return wrap(subtitleStyle(), f.subtitle, " · ", width-2*margin)
}

func titleHeight(row []panel) vg.Length {
	if slices.ContainsFunc(row, func(p panel) bool { return p.title != "" }) {
		return 18
	}
	return 8
}

// legendRows puts the legend's entries into rows.
func (f *figure) legendRows() (rows [][]entry) {
	style, used := textStyle(9, ink, false), vg.Length(0)
	for _, e := range f.legend {
		w := e.width + 5 + style.Width(e.name) + 14
		if len(rows) == 0 || used+w > width-2*margin {
			rows, used = append(rows, nil), 0
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], e)
		used += w
	}
	return rows
}

// wrap breaks s into lines no wider than w, at separators where it can.
func wrap(style text.Style, s, separator string, w vg.Length) (lines []string) {
	for word := range strings.SplitSeq(s, separator) {
		if n := len(lines); n > 0 && style.Width(lines[n-1]+separator+word) <= w {
			lines[n-1] += separator + word
		} else if word != "" {
			lines = append(lines, fit(style, word, w))
		}
	}
	return lines
}

// fit leaves out of the middle of s what does not fit into w.
func fit(style text.Style, s string, w vg.Length) string {
	if style.Width(s) <= w {
		return s
	}
	r := []rune(s)
	for n := len(r) - 1; n > 1; n-- {
		if short := string(r[:(n+1)/2]) + "…" + string(r[len(r)-n/2:]); style.Width(short) <= w {
			return short
		}
	}
	return "…"
}

// draw draws the picture.
func (f *figure) draw(c draw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Path())
	c = draw.Crop(c, margin, -margin, margin, -margin)
	write := func(s text.Style, x, top vg.Length, line string) {
		s.YAlign = draw.YTop
		c.FillText(s, vg.Point{X: x, Y: top}, line)
	}
	top := c.Max.Y
	style := textStyle(13, ink, true)
	write(style, c.Min.X, top, fit(style, f.title, c.Max.X-c.Min.X))
	top -= lineHeight(style)
	for _, line := range f.subtitles() {
		write(subtitleStyle(), c.Min.X, top, line)
		top -= lineHeight(subtitleStyle())
	}
	top -= 4
	style = textStyle(9, ink, false)
	style.YAlign = draw.YCenter
	for _, row := range f.legendRows() {
		x, mid := c.Min.X, top-legendHeight/2
		for _, e := range row {
			box := c
			box.Rectangle = vg.Rectangle{Min: vg.Point{X: x, Y: top - legendHeight}, Max: vg.Point{X: x + e.width, Y: top}}
			e.draw(box)
			x += e.width + 5
			c.FillText(style, vg.Point{X: x, Y: mid + 1}, e.name)
			x += style.Width(e.name) + 14
		}
		top -= legendHeight
	}
	top -= 4
	c.Max.Y = top
	for _, row := range f.places(c) {
		for _, p := range row {
			p.draw()
		}
	}
}

// place is where a panel is drawn.
type place struct {
	*panel
	at   draw.Canvas
	left vg.Length // where the column begins
}

// places puts rows below each other. Columns are equally wide, and within each the axes stand below each other.
func (f *figure) places(c draw.Canvas) (rows [][]place) {
	const between = vg.Length(16)
	if len(f.panels) == 0 {
		return nil
	}
	if f.panels[0][0].y != "" {
		c.Min.X += 16
	}
	columns := vg.Length(len(f.panels[0]))
	wide := (c.Max.X - c.Min.X - between*(columns-1)) / columns
	left, right := make([]vg.Length, len(f.panels[0])), make([]vg.Length, len(f.panels[0]))
	top := c.Max.Y
	for _, row := range f.panels {
		top -= titleHeight(row)
		var places []place
		for j := range row {
			if row[j].Plot == nil {
				continue
			}
			at := c
			at.Min.X += vg.Length(j) * (wide + between)
			at.Max.X = at.Min.X + wide
			at.Max.Y, at.Min.Y = top, top-rowHeight(row)
			data := row[j].DataCanvas(at)
			left[j], right[j] = max(left[j], data.Min.X-at.Min.X), max(right[j], at.Max.X-data.Max.X)
			places = append(places, place{&row[j], at, at.Min.X})
		}
		rows = append(rows, places)
		top -= rowHeight(row) + labelHeight(row)
	}
	for _, row := range rows {
		for j := range row {
			p := &row[j]
			data := p.DataCanvas(p.at)
			p.at = draw.Crop(p.at, left[j]-(data.Min.X-p.at.Min.X), (p.at.Max.X-data.Max.X)-right[j], 0, 0)
		}
	}
	return rows
}

// draw draws the plot, and what is said of it around it.
func (p place) draw() {
	at := p.at
	p.Draw(at)
	data := p.DataCanvas(at)
	note := textStyle(8.5, muted, false)
	note.XAlign = draw.XRight
	c := at
	c.FillText(note, vg.Point{X: data.Max.X, Y: at.Max.Y + 5.5}, p.note)
	title := textStyle(9.5, ink, true)
	c.FillText(title, vg.Point{X: data.Min.X, Y: at.Max.Y + 5}, fit(title, p.title, data.Max.X-data.Min.X-note.Width(p.note)-8))
	label := textStyle(9.5, ink, false)
	label.XAlign, label.YAlign = draw.XCenter, draw.YTop
	c.FillText(label, vg.Point{X: data.Center().X, Y: at.Min.Y - 2}, p.x)
	label.Rotation, label.YAlign = math.Pi/2, draw.YBottom
	c.FillText(label, vg.Point{X: p.left - 4, Y: data.Center().Y}, p.y)
}

// render returns the picture in both formats. The same figure gives the same bytes: neither has a date in it.
func (f *figure) render() (svg, png []byte, err error) {
	defer func() { // the plot library panics on what it cannot draw
		if r := recover(); r != nil {
			err = fmt.Errorf("picture %s: %v", f.file, r)
		}
	}()
	h := f.size()
	vector := vgsvg.New(width, h)
	f.draw(draw.New(vector))
	var b bytes.Buffer
	if _, err := vector.WriteTo(&b); err != nil {
		return nil, nil, err
	}
	svg = bytes.ReplaceAll(b.Bytes(), []byte(asked), []byte(shown))
	raster := vgimg.NewWith(vgimg.UseWH(width, h), vgimg.UseDPI(dpi), vgimg.UseBackgroundColor(color.White))
	f.draw(draw.New(raster))
	var r bytes.Buffer
	if _, err := (vgimg.PngCanvas{Canvas: raster}).WriteTo(&r); err != nil {
		return nil, nil, err
	}
	return svg, r.Bytes(), nil
}

func copyTo(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// finite says whether x can be drawn.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
