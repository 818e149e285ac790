//go:build amd64 || arm64

package probe

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Whatever keeps eBPF from working, the probe opens, says it in one line, and counts the program's own reads.
func TestFallback(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may take rights away and give them")
	}
	measuring(t)
	nobody := func(capabilities ...uintptr) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: capabilities}
	}
	for _, c := range []struct {
		name     string
		job      string
		attr     *syscall.SysProcAttr
		mode     Mode
		says     []string
		findings []Status // BTF, tracepoints, permission, probe
	}{
		{"no rights", "measure", nobody(), Timed, []string{"CAP_BPF", "CAP_PERFMON", "root", "setcap"}, []Status{Yes, Yes, No, No}},
		{"CAP_BPF only", "measure", nobody(unix.CAP_BPF), Timed, []string{"CAP_PERFMON"}, []Status{Yes, Yes, No, No}},
		{"both without root", "measure", nobody(unix.CAP_BPF, unix.CAP_PERFMON), EBPF, []string{"eBPF"}, []Status{Yes, Yes, Yes, Yes}},
		{
			"no BTF", "hide BTF", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, Timed,
			[]string{"/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"},
			[]Status{No, Unknown, Yes, No},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := inChild(t, c.job, "", c.attr)
			if c.job == "hide BTF" && r.Mode == EBPF {
				t.Skip("this machine has type information elsewhere too")
			}
			if r.Mode != c.mode {
				t.Errorf("mode %v, want %v", r.Mode, c.mode)
			}
			oneLine(t, r.Why, c.says)
			var found []Status
			for _, f := range r.Findings {
				found = append(found, f.Status)
				if f.Status == No && f.Todo == "" {
					t.Errorf("%s: %s, and nothing to do", f.Name, f.Detail)
				}
			}
			if !slices.Equal(found, c.findings) {
				t.Errorf("findings %v, want %v: %+v", found, c.findings, r.Findings)
			}
		})
	}
}

func TestFallbackWithoutTracepoint(t *testing.T) {
	measuring(t)
	o := Options{attach: func() (*tracing, error) {
		spec, err := loadBlock()
		if err != nil {
			return nil, err
		}
		spec.Programs[blockProgMerge].AttachTo = "block_rq_fusion"
		return attachSpec(spec)
	}}
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Mode() != Timed {
		t.Errorf("mode %v", p.Mode())
	}
	oneLine(t, p.Why(), []string{"tracepoint block_rq_fusion", "5.15"})
	o.Strict = true
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "5.15") {
		t.Errorf("strict: %v", err)
	}
}

func TestExplanationsAreClear(t *testing.T) {
	for _, err := range []error{os.ErrPermission, os.ErrNotExist, errors.New("one\ntwo"), syscall.ENOSYS} {
		oneLine(t, explain(err), nil)
	}
}

// oneLine fails the test unless line is one, and says all of it.
func oneLine(t *testing.T, line string, says []string) {
	t.Helper()
	if line == "" || strings.Contains(line, "\n") || len(line) > 400 {
		t.Errorf("not a clear line: %q", line)
	}
	for _, s := range says {
		if !strings.Contains(line, s) {
			t.Errorf("%q does not say %q", line, s)
		}
	}
}
