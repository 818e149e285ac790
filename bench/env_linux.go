package bench

import (
	"os"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/ledger"
)

// system fills in what /proc and /sys below root tell.
func (e *Env) system(root string) {
	e.Kernel = line(root, "proc/sys/kernel/osrelease")
	e.Governor = line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	switch {
	case line(root, "sys/devices/system/cpu/intel_pstate/no_turbo") == "1", line(root, "sys/devices/system/cpu/cpufreq/boost") == "0":
		e.Turbo = "off"
	case line(root, "sys/devices/system/cpu/intel_pstate/no_turbo") == "0", line(root, "sys/devices/system/cpu/cpufreq/boost") == "1":
		e.Turbo = "on"
	}
	for l := range strings.Lines(line(root, "proc/meminfo")) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "MemTotal:" {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			e.RAM = kb << 10
		}
	}
	if m, err := ledger.FS(os.DirFS(root)).Memory(); err == nil {
		for _, l := range m.Limits {
			if l.Max < e.RAM && (e.RAMLimit == 0 || l.Max < e.RAMLimit) {
				e.RAMLimit = l.Max
			}
		}
	}
	if e.CPU == "" { // processors that are not asked by an instruction
		for l := range strings.Lines(line(root, "proc/cpuinfo")) {
			if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
				e.CPU = strings.TrimSpace(v)
				break
			}
		}
	}
}
