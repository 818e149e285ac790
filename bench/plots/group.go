package plots

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/bench"
)

// group are the records of one experiment.
type group struct {
	name    string
	records []*bench.Record
	varies  []string // what differs between them, besides Test: settings in their order, then circumstances
	tests   bool     // whether Test differs
}

// groups sorts records by experiment, in the order they come in. Skipped arms have nothing to draw.
func groups(records []bench.Record) (all []*group) {
	for i := range records {
		r := &records[i]
		if len(r.Metrics) == 0 {
			continue
		}
		at := slices.IndexFunc(all, func(g *group) bool { return g.name == r.Experiment })
		if at < 0 {
			at, all = len(all), append(all, &group{name: r.Experiment})
		}
		all[at].records = append(all[at].records, r)
	}
	for _, g := range all {
		g.compare()
	}
	return all
}

// compare finds out what varies.
func (g *group) compare() {
	for _, r := range g.records {
		g.tests = g.tests || r.Test != g.records[0].Test
		for _, p := range settings(r) {
			if !slices.Contains(g.varies, p.Name) && slices.ContainsFunc(g.records, func(o *bench.Record) bool { return setting(o, p.Name) != p.Value }) {
				g.varies = append(g.varies, p.Name)
			}
		}
	}
}

// split makes groups of the records that agree in what key returns, in the order they come in.
func (g *group) split(key func(*bench.Record) string) (keys []string, parts []*group) {
	for _, r := range g.records {
		k := key(r)
		i := slices.Index(keys, k)
		if i < 0 {
			i, keys, parts = len(keys), append(keys, k), append(parts, &group{name: g.name})
		}
		parts[i].records = append(parts[i].records, r)
	}
	for _, p := range parts {
		p.compare()
	}
	return keys, parts
}

// settings are what may tell records of an experiment apart: their own settings, and where and in what state they were made.
func settings(r *bench.Record) []bench.Param {
	all := append(slices.Clone(r.Params), bench.Param{Name: "state", Value: string(r.State)}, bench.Param{Name: "machine", Value: machine(r.Env)})
	return append(all, bench.Param{Name: "commit", Value: commit(r.Env)})
}

func setting(r *bench.Record, name string) string {
	for _, p := range settings(r) {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}

// label tells a record from the others of its group, by what varies apart from the settings named in but. What is left to the balancer
// is one word, if it is more than one setting.
func (g *group) label(r *bench.Record, but ...string) string {
	var parts []string
	if g.tests && !slices.Contains(but, "test") {
		parts = append(parts, r.Test)
	}
	var auto []string
	switches := 0
	for _, name := range g.varies {
		value := setting(r, name)
		if value == "" || slices.Contains(but, name) {
			continue
		}
		switch {
		case value == "auto":
			auto = append(auto, strings.TrimPrefix(name, "prefetch-")+" auto")
		case slices.Contains([]string{"machine", "commit", "state", "format", "mode", "model"}, name):
			parts = append(parts, value) // speaks for itself
		case name == "prefetch":
			if value != "on" || r.Param("prefetch-depth") == "" {
				parts = append(parts, name+" "+value)
			}
		case value == "on" || value == "off":
			switches++
			if value == "on" {
				parts = append(parts, name)
			}
		case name == "heads":
			parts = append(parts, value+" "+name)
		default:
			parts = append(parts, strings.TrimPrefix(strings.TrimPrefix(name, "prefetch-"), "n-")+" "+value)
		}
	}
	if len(auto) > 1 {
		auto = []string{"auto"}
	}
	if parts = append(parts, auto...); len(parts) == 0 && switches > 0 {
		return "plain"
	}
	return strings.Join(parts, ", ")
}

// metric finds a figure of the group: the first of names that a record has, or else the first by name that has the unit.
func (g *group) metric(unit string, names ...string) (string, bool) {
	has := func(name string) bool {
		return slices.ContainsFunc(g.records, func(r *bench.Record) bool { _, ok := r.Metrics[name]; return ok })
	}
	if i := slices.IndexFunc(names, has); i >= 0 {
		return names[i], true
	}
	for _, r := range g.records {
		for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
			if unit != "" && r.Metrics[name].Unit == unit {
				return name, true
			}
		}
	}
	return "", false
}

// percent reads "25%" as 25.
func percent(s string) (float64, bool) {
	number, ok := strings.CutSuffix(s, "%")
	x, err := strconv.ParseFloat(number, 64)
	return x, ok && err == nil && finite(x)
}

// bytesOf reads "4KiB", "4k", "1.5 GiB": units are powers of 1024, as the flags' are.
func bytesOf(s string) (float64, bool) {
	number := strings.TrimRight(s, " BKMGTibkmgt")
	x, err := strconv.ParseFloat(number, 64)
	if err != nil || !finite(x) {
		return 0, false
	}
	unit := strings.TrimSpace(s[len(number):])
	if unit == "" || strings.EqualFold(unit, "b") {
		return x, true
	}
	power := strings.IndexByte("KMGT", strings.ToUpper(unit)[0])
	if power < 0 {
		return 0, false
	}
	for range power + 1 {
		x *= 1024
	}
	return x, true
}
