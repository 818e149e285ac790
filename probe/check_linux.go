package probe

import (
	"errors"
	"os"
	"strings"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

const typeInformation = "/sys/kernel/btf/vmlinux"

// tracepoints are what the programs of bpf/block.c are attached to.
var tracepoints = []string{"block_io_start", "block_rq_merge", "block_rq_issue", "block_io_done"}

func check() []Finding {
	return []Finding{checkBTF(), checkTracepoints(), checkCapabilities(), checkProbe()}
}

func checkBTF() Finding {
	f := Finding{Name: "kernel type information (BTF)", Status: Yes, Detail: typeInformation}
	if _, err := os.Stat(typeInformation); errors.Is(err, os.ErrNotExist) {
		f.Status, f.Detail = No, typeInformation+" is not there (Linux "+release()+")"
		f.Todo = "use a kernel built with CONFIG_DEBUG_INFO_BTF, as those of the distributions are; in a container, mount /sys"
	} else if err != nil {
		f.Status, f.Detail = Unknown, err.Error()
	}
	return f
}

// hasTracepoint looks for the type that the kernel has for the programs of a tracepoint.
func hasTracepoint(kernel *btf.Spec, name string) bool {
	_, err := kernel.AnyTypesByName("btf_trace_" + name)
	return err == nil
}

func checkTracepoints() Finding {
	f := Finding{Name: "tracepoints of the block layer", Status: Yes, Detail: strings.Join(tracepoints, ", ")}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		f.Status, f.Detail = Unknown, "without type information: "+firstLine(err)
		return f
	}
	var missing []string
	for _, name := range tracepoints {
		if !hasTracepoint(kernel, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		f.Status, f.Detail, f.Todo = No, "Linux "+release()+" lacks "+strings.Join(missing, ", "), "use Linux 6.5 or newer"
	}
	return f
}

func checkCapabilities() Finding {
	f := Finding{Name: "permission for eBPF", Status: Yes, Detail: "CAP_BPF and CAP_PERFMON"}
	if missing := missingCapabilities(); len(missing) > 0 {
		f.Status, f.Detail = No, "the process lacks "+strings.Join(missing, " and ")
		f.Todo = setcap() + ", or run as root; in a container, --cap-add BPF --cap-add PERFMON"
	}
	return f
}

func checkProbe() Finding {
	p, err := Open(Options{Strict: true})
	if err != nil {
		return Finding{Name: "block I/O probe", Status: No, Detail: explain(errors.Unwrap(err)), Todo: "reads are timed by the program instead"}
	}
	_ = p.Close()
	return Finding{Name: "block I/O probe", Status: Yes, Detail: p.Why()}
}

// missingCapabilities names those that the process lacks of what loading and attaching the programs takes. CAP_SYS_ADMIN includes them.
func missingCapabilities() (missing []string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) != nil {
		return nil
	}
	has := func(c int) bool { return sets[c/32].Effective>>(c%32)&1 != 0 }
	if has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	if !has(unix.CAP_BPF) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_PERFMON) {
		missing = append(missing, "CAP_PERFMON")
	}
	return missing
}
