package metrics

import (
	"fmt"
	"strings"
	"testing"
)

const howTo = `# Metrics

` + "`coli run --metrics 9100 …` and `coli bench EXPERIMENT --metrics 9100 …`" + ` serve Prometheus metrics while they work, on 127.0.0.1 unless an
address is given (` + "`--metrics 0.0.0.0:9100`" + ` is for everybody; port 0 takes a free one, and standard error says which):

    curl -s http://127.0.0.1:9100/metrics | grep ^coli_

In prometheus.yml: ` + "`scrape_configs: [{job_name: coli, scrape_interval: 5s, static_configs: [{targets: ['127.0.0.1:9100']}]}]`" + `. Then, for instance:

- tokens a second: ` + "`sum by (phase) (rate(coli_tokens_total[1m]))`" + `
- hit rate: ` + "`sum(rate(coli_tier_pairs_total{where=\"memory\"}[1m])) / sum(rate(coli_tier_pairs_total[1m]))`" + `
- how long nearly all reads are in the drive: ` + "`histogram_quantile(0.99, sum by (le, device) (rate(coli_block_device_seconds_bucket{op=\"read\"}[1m])))`" + `

Values are collected when they are asked for. Counters count since the model was loaded; ` + "`coli bench`" + ` shows the model of the arm that is being
measured, so that they begin anew with each, and none between two. Metrics of the Go runtime (` + "`go_…`) and of the process (`process_…`" + `) are served
too. This list is made from the program: ` + "`go generate ./metrics`" + `.
`

// document is docs/metrics.md.
func document() []byte {
	var b strings.Builder
	b.WriteString(howTo)
	all := append([]section{{"Build", "", []metric{{kind: gauge, name: buildName, help: buildHelp, labels: []string{"version"}}}}}, sections...)
	for _, s := range all {
		fmt.Fprintf(&b, "\n## %s\n\n", s.title)
		if s.text != "" {
			fmt.Fprintf(&b, "%s\n\n", s.text)
		}
		b.WriteString("| Metric | Type | Labels | |\n| --- | --- | --- | --- |\n")
		for _, m := range s.metrics {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(m.labels, ", "), m.help)
		}
	}
	return []byte(b.String())
}

func TestDocumentIsCurrent(t *testing.T) { golden(t, "../docs/metrics.md", document()) }
