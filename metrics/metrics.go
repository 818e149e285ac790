// Package metrics shows a running model to Prometheus. Everything is made of engine.Live when somebody asks for it; nothing of it is on the
// path of a token.
//
// table.go lists the metrics, and docs/metrics.md is made of the same list: go generate ./metrics. What is measured is said where it is
// done, in the packages actors, tier, prefetcher, probe, balancer and ledger; serving it is cmd/coli's part.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/loghist"
)

//go:generate go test . -update

// Source returns the state of the model that is at work; ok is false while there is none. Any number of goroutines call it.
type Source func() (live engine.Live, ok bool)

// Collector makes the metrics of a source's model. While there is no model there are none.
type Collector struct {
	source Source
	descs  []*prometheus.Desc // by the place in table
}

// NewCollector returns the collector of source.
func NewCollector(source Source) *Collector {
	c := &Collector{source: source}
	for _, m := range table {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, m.labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	live, ok := c.source()
	if !ok {
		return
	}
	for i, m := range table {
		m.collect(&live, sink{ch, c.descs[i], m.kind})
	}
}

// sink takes the values of a metric.
type sink struct {
	ch   chan<- prometheus.Metric
	desc *prometheus.Desc
	kind kind
}

func (s sink) value(v float64, labels ...string) {
	kind := prometheus.GaugeValue
	if s.kind == counter {
		kind = prometheus.CounterValue
	}
	s.ch <- prometheus.MustNewConstMetric(s.desc, kind, v, labels...)
}

// times takes a histogram, of which it shows loghist's buckets from one to another.
func (s sink) times(h *loghist.Hist, from, to int, labels ...string) {
	var count uint64
	buckets := make(map[float64]uint64, to-from+1)
	for i, n := range h.Buckets {
		count += n
		if from <= i && i <= to {
			buckets[loghist.Upper(i).Seconds()] = count
		}
	}
	s.ch <- prometheus.MustNewConstHistogram(s.desc, count, float64(h.Sum)/1e9, buckets, labels...)
}

// Handler serves the metrics of source, of the Go runtime and of the process, and says which version of coli this is.
func Handler(source Source, version string) http.Handler {
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: buildName, Help: buildHelp, ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(build, NewCollector(source), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}
