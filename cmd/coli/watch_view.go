package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/ledger"
)

// What the live view of an experiment shows: values in, text out. How it gets on the terminal is in watch.go.

// watchEvery is how often figures are taken, watchWindow how far back rates and quantiles look.
const (
	watchEvery  = 250 * time.Millisecond
	watchWindow = 2 * time.Second
)

// glance is the state of a model at a moment.
type glance struct {
	at    time.Time
	model any // tells models apart
	live  engine.Live
}

// The messages of the view, beside keys and sizes.
type (
	glanceMsg struct {
		at     time.Time
		glance *glance // nil without a model
	}
	eventMsg struct {
		bench.Event
		at time.Time
	}
	watchEndMsg struct{}
)

// watchModel is the view's state.
type watchModel struct {
	title         string
	resumable     bool
	keys          bool                    // are read; otherwise Ctrl+C is a signal
	look          func(time.Time) *glance // taken by a command, since it may wait for a moment
	interrupt     func()                  // ends the experiment
	width, height int

	began, now  time.Time
	doneAtStart int
	done, total int
	events      bool // whether there has been one
	arm         string
	phase       bench.Phase
	rep         int
	results     []string // of the last repetitions, the newest last
	glances     []*glance
	ending      bool // Ctrl+C was pressed
	gone        bool // the view was closed,
	over        bool // by the experiment's end
}

func (m watchModel) Init() tea.Cmd { return m.tick() }

// tick takes the next glance.
func (m watchModel) tick() tea.Cmd {
	return tea.Tick(watchEvery, func(at time.Time) tea.Msg { return glanceMsg{at, m.look(at)} })
}

func (m watchModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case glanceMsg:
		m.take(msg)
		return m, m.tick()
	case eventMsg:
		m.event(msg)
	case watchEndMsg:
		m.gone, m.over = true, true
		return m, tea.Quit
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc":
			m.gone = true
			return m, tea.Quit
		case "ctrl+c":
			m.ending = true
			return m, func() tea.Msg { m.interrupt(); return nil }
		case "ctrl+z":
			return m, tea.Suspend
		}
	}
	return m, nil
}

// take adds a glance and forgets those that the window has left behind, or that are of another model.
func (m *watchModel) take(msg glanceMsg) {
	m.now = msg.at
	g := msg.glance
	if g == nil {
		return
	}
	keep := slices.Clone(m.glances)
	for len(keep) > 0 && (keep[0].model != g.model || g.at.Sub(keep[0].at) > watchWindow) {
		keep = keep[1:]
	}
	m.glances = append(keep, g)
}

func (m *watchModel) event(e eventMsg) {
	if !m.events {
		m.events, m.began, m.doneAtStart = true, e.at, e.Done
	}
	if e.at.After(m.now) {
		m.now = e.at
	}
	m.done, m.total, m.phase, m.rep = e.Done, e.Total, e.Phase, e.Rep
	if e.Arm != nil {
		m.arm = e.Arm.String()
	}
	switch e.Phase {
	case bench.Measured:
		m.results = append(slices.Clone(m.results), fmt.Sprintf("%s: %s", m.arm, strings.Join(e.Figures, ", ")))
	case bench.Skipped:
		m.results = append(slices.Clone(m.results), fmt.Sprintf("%s: %v", m.arm, e.Err))
	case bench.Closing:
		m.glances = nil
	}
	if n := len(m.results); n > 3 {
		m.results = m.results[n-3:]
	}
}

// Styles use the terminal's own colours, and few of them: what NO_COLOR leaves is as legible.
var (
	watchBold  = lipgloss.NewStyle().Bold(true)
	watchFaint = lipgloss.NewStyle().Faint(true)
	watchBar   = lipgloss.NewStyle().Foreground(lipgloss.Cyan)
)

func (m watchModel) View() tea.View {
	if m.gone || m.width < 1 || m.height < 2 {
		return tea.NewView("")
	}
	return tea.NewView(strings.Join(m.lines(), "\n"))
}

// lines are the view, no wider and no higher than the terminal. What is at the end is left out first; how to leave stays.
func (m watchModel) lines() []string {
	var body []string
	section := func(lines []string) {
		if len(lines) > 0 {
			body = append(append(body, ""), lines...)
		}
	}
	body = m.head()
	section(m.modelLines())
	section(m.actorLines())
	section(m.resultLines())
	room := max(m.height-3, 0) // an empty line and the footer; the last line of a terminal stays free
	body = append(body[:min(room, len(body))], "", m.footer())
	if m.height < 4 {
		body = body[len(body)-1:]
	}
	for i, line := range body {
		body[i] = strings.TrimRight(ansi.Truncate(line, m.width, "…"), " ")
	}
	return body
}

// head is what is measured, and how far that is.
func (m watchModel) head() []string {
	title := watchBold.Render(m.title)
	if !m.events {
		return []string{title, watchFaint.Render("getting ready")}
	}
	doing := m.phase.String()
	switch m.phase {
	case bench.Warming, bench.Opening, bench.Closing:
	default:
		doing += fmt.Sprintf(", repetition %d", m.rep+1)
	}
	elapsed := m.now.Sub(m.began)
	progress := fmt.Sprintf(" %d of %d repetitions, %s", m.done, m.total, clock(elapsed))
	if n := m.done - m.doneAtStart; n > 0 && m.done < m.total {
		progress += fmt.Sprintf(", about %s left", clock(elapsed/time.Duration(n)*time.Duration(m.total-m.done)))
	}
	size := min(max(m.width-ansi.StringWidth(progress)-1, 5), 30)
	full := 0
	if m.total > 0 {
		full = min(size*m.done/m.total, size)
	}
	bar := watchBar.Render(strings.Repeat("█", full)) + watchFaint.Render(strings.Repeat("░", size-full))
	return []string{title + "  " + watchFaint.Render(doing), m.arm, bar + progress}
}

// clock writes a duration as people say it.
func clock(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}

// window is the oldest and the newest glance, and the seconds between them; ok is false if there is no time between them.
func (m watchModel) window() (a, b *glance, seconds float64, ok bool) {
	if len(m.glances) == 0 {
		return nil, nil, 0, false
	}
	a, b = m.glances[0], m.glances[len(m.glances)-1]
	seconds = b.at.Sub(a.at).Seconds()
	return a, b, seconds, seconds > 0
}

// watchLabel is the column of names.
const watchLabel = 10

// labelled is a text behind its name, on two lines at most.
func (m watchModel) labelled(name, text string) []string {
	wrapped := strings.Split(ansi.Wrap(text, max(m.width-watchLabel, 1), ""), "\n")
	if len(wrapped) > 2 { // the second is cut where the terminal ends
		wrapped = []string{wrapped[0], strings.Join(wrapped[1:], " ")}
	}
	lines := make([]string, len(wrapped))
	for i, line := range wrapped {
		lines[i] = watchFaint.Render(fmt.Sprintf("%-*s", watchLabel, name)) + line
		name = ""
	}
	return lines
}

// modelLines tell of tokens, experts, the policy and the drive.
func (m watchModel) modelLines() (lines []string) {
	a, b, seconds, ok := m.window()
	if !ok {
		return nil
	}
	add := func(name, text string) { lines = append(lines, m.labelled(name, text)...) }
	rate := func(now, then int64) float64 { return float64(now-then) / seconds }
	add("tokens", fmt.Sprintf("%s/s decoded, %s/s of prompts", three(rate(b.live.Decoded, a.live.Decoded)), three(rate(b.live.Prefilled, a.live.Prefilled))))
	if b.live.Experts == nil {
		return lines
	}
	if a.live.Experts != nil {
		now, then := b.live.Experts.TierFigures, a.live.Experts.TierFigures
		found, flight, disk := now.PairsInMemory-then.PairsInMemory, now.PairsInFlight-then.PairsInFlight, now.PairsOnDisk-then.PairsOnDisk
		if all := found + flight + disk; all > 0 {
			add("experts", fmt.Sprintf("%.0f %% in memory, %.0f %% on their way, %.0f %% on disk",
				100*float64(found)/float64(all), 100*float64(flight)/float64(all), 100*float64(disk)/float64(all)))
		}
	}
	reads := three(rate(b.live.Reads.Bytes, a.live.Reads.Bytes)/1e9) + " GB/s"
	if busy := b.live.Reads.Busy - a.live.Reads.Busy; busy > 0 {
		reads += fmt.Sprintf(", %.1f at a time, busy %.0f %%", float64(b.live.Reads.Took-a.live.Reads.Took)/float64(busy), 100*min(busy.Seconds()/seconds, 1))
	}
	if b.live.Block != nil {
		reads += fmt.Sprintf(", %d in flight", b.live.Block.Own.InFlight)
	}
	add("reads", reads)
	if drive := drive(a, b); drive != "" {
		add("requests", drive)
	}
	if f := b.live.Experts; f.SlotBytes > 0 {
		add("memory", fmt.Sprintf("%d of %d experts, %s each; process %s", f.Resident, f.Slots, ledger.FormatSize(f.SlotBytes), ledger.FormatSize(b.live.Resident)))
	}
	add("policy", balancer.Describe(b.live.Policy))
	for i := range min(len(b.live.Decisions), 2) {
		d := b.live.Decisions[len(b.live.Decisions)-1-i]
		add("", fmt.Sprintf("%s ago: %s", clock(b.at.Sub(d.At)), d.Reason))
	}
	return lines
}

// drive tells of requests in the block layer, "" where they are not measured.
func drive(a, b *glance) string {
	if a.live.Block == nil || b.live.Block == nil {
		return ""
	}
	since := b.live.Block.Since(a.live.Block)
	reads := since.Reads()
	if reads.Device.Count == 0 {
		return ""
	}
	return fmt.Sprintf("p50/p99: queue %s, drive %s", pair(reads.Queue), pair(reads.Device))
}

func pair(h loghist.Hist) string { return span(h.Quantile(0.5)) + "/" + span(h.Quantile(0.99)) }

// actorLines are a table with a row for each actor.
func (m watchModel) actorLines() []string {
	a, b, seconds, ok := m.window()
	if !ok || len(b.live.Actors) == 0 {
		return nil
	}
	heads := []string{"queue", "msg/s", "wait p50", "p99", "work p50", "p99"}
	widths := []int{6, 9, 10, 9, 10, 9}
	shown := []int{0, 1, 2, 3, 4, 5}
	if m.width < 72 { // the medians go first
		shown = []int{0, 1, 3, 5}
		heads[3], heads[5] = "wait p99", "work p99"
		widths[3], widths[5] = 10, 10
	}
	name := m.width - 1
	for _, i := range shown {
		name -= widths[i]
	}
	name = min(max(name, 8), 18)
	row := func(style lipgloss.Style, first string, cells []string) string {
		line := fmt.Sprintf("%-*s", name, ansi.Truncate(first, name, "…"))
		for _, i := range shown {
			line += strings.Repeat(" ", max(widths[i]-ansi.StringWidth(cells[i]), 1)) + cells[i]
		}
		return style.Render(line)
	}
	lines := []string{row(watchFaint, "actor", heads)}
	for _, now := range b.live.Actors {
		i := slices.IndexFunc(a.live.Actors, func(s actorStats) bool { return s.Name == now.Name })
		then := actorStats{}
		if i >= 0 {
			then = a.live.Actors[i]
		}
		wait, work := now.Wait.Since(then.Wait), now.Handle.Since(then.Handle)
		cells := []string{
			fmt.Sprint(now.Length), fmt.Sprintf("%.0f", float64(now.Handled-then.Handled)/seconds),
			quantile(wait, 0.5), quantile(wait, 0.99), quantile(work, 0.5), quantile(work, 0.99),
		}
		label := now.Name
		if now.Dead {
			label += " (gone)"
		}
		lines = append(lines, row(lipgloss.NewStyle(), label, cells))
	}
	return lines
}

// quantile is one of a histogram that may be empty.
func quantile(h loghist.Hist, q float64) string {
	if h.Count == 0 {
		return "–"
	}
	return span(h.Quantile(q))
}

// span writes a short time with two digits.
func span(d time.Duration) string {
	for _, u := range []struct {
		size time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		switch x := float64(d) / float64(u.size); {
		case x >= 9.95:
			return fmt.Sprintf("%.0f %s", x, u.name)
		case x >= 0.995:
			return fmt.Sprintf("%.1f %s", x, u.name)
		}
	}
	return fmt.Sprintf("%d ns", d)
}

// three writes a rate with at least three digits.
func three(x float64) string {
	switch {
	case x >= 99.95 || x == 0:
		return fmt.Sprintf("%.0f", x)
	case x >= 9.995:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// resultLines are what the last repetitions measured.
func (m watchModel) resultLines() []string {
	if len(m.results) == 0 {
		return nil
	}
	lines := []string{watchFaint.Render("measured")}
	return append(lines, m.results...)
}

// footer says which keys do what.
func (m watchModel) footer() string {
	stop := "Ctrl+C ends the experiment"
	if m.resumable {
		stop = "Ctrl+C ends it, to be resumed"
	}
	switch {
	case m.ending:
		return watchFaint.Render("ending")
	case !m.keys:
		return watchFaint.Render(stop)
	}
	return watchFaint.Render(stop + " · q closes this view only")
}
