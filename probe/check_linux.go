//go:build linux && (amd64 || arm64)

package probe

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const typeInformation = "/sys/kernel/btf/vmlinux"

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

func checkTracepoints() Finding {
	f := Finding{Name: "tracepoints of the block layer"}
	spec, err := loadBlock()
	if err == nil {
		_, err = choose(spec)
	}
	switch {
	case errors.Is(err, errTracepoint):
		f.Status, f.Detail, f.Todo = No, "Linux "+release()+" has "+err.Error(), "use Linux 5.15 or newer, best 6.5 or newer"
	case err != nil:
		f.Detail = "without type information: " + firstLine(err)
	default:
		f.Status = Yes
		var at []string
		for _, p := range spec.Programs {
			at = append(at, p.AttachTo)
		}
		slices.Sort(at)
		f.Detail = strings.Join(at, ", ")
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
