package bench

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/coli-moe/coli/probe"
)

func TestEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	e := Environment([]string{file})
	if e.Go != runtime.Version() || e.OS != runtime.GOOS || e.Arch != runtime.GOARCH || e.Cores < 1 || e.CoresAre == "" || e.ISA == "" || e.Date.IsZero() {
		t.Errorf("%+v", e)
	}
	if runtime.GOOS == "linux" && (e.Kernel == "" || e.CPU == "" || e.RAM < 1<<26 || e.FS == "") {
		t.Errorf("%+v", e)
	}
	if host, err := os.Hostname(); err == nil && len(host) > 3 && strings.Contains(e.String(), host) {
		t.Errorf("the machine's name is in %s", &e)
	}
}

func TestEnvironmentOfALinuxMachine(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc and /sys")
	}
	root := t.TempDir()
	for path, text := range map[string]string{
		"proc/sys/kernel/osrelease":                            "6.1.0-1\n",
		"proc/meminfo":                                         "MemTotal:       16777216 kB\nMemAvailable: 1 kB\n",
		"proc/cpuinfo":                                         "processor\t: 0\nmodel name\t: A Processor @ 2 GHz\nmodel name\t: other\n",
		"proc/self/cgroup":                                     "0::/some\n",
		"proc/self/mountinfo":                                  "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/some/memory.max":                        "1073741824\n",
		"sys/fs/cgroup/some/memory.current":                    "1\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
		"sys/devices/system/cpu/intel_pstate/no_turbo":         "1\n",
	} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	var e Env
	e.system(root)
	want := Env{
		Kernel: "6.1.0-1", CPU: "A Processor @ 2 GHz", Governor: "powersave", Turbo: "off", RAM: 16 << 30, RAMLimit: 1 << 30,
	}
	if e != want {
		t.Errorf("got  %+v\nwant %+v", e, want)
	}
	var none Env
	none.system(t.TempDir())
	if none != (Env{}) {
		t.Errorf("of an empty machine: %+v", none)
	}
}

func TestDriveOfAFile(t *testing.T) {
	disk := probe.Disk{Name: "sda", Model: "A Drive", Rotational: true}
	for name, c := range map[string]struct {
		at              probe.Location
		err             error
		drive, kind, fs string
	}{
		"one":      {probe.Location{Disk: disk, Disks: []probe.Disk{disk}, Filesystem: "ext4"}, nil, "A Drive", "rotating", "ext4"},
		"no model": {probe.Location{Disk: probe.Disk{Name: "vda"}, Filesystem: "xfs"}, nil, "vda", "", "xfs"},
		"two":      {probe.Location{Disk: disk, Disks: []probe.Disk{disk, disk}}, nil, "2 × A Drive", "rotating", ""},
		"no drive": {probe.Location{Filesystem: "tmpfs"}, probe.ErrNoDrive, "", "", "tmpfs"},
	} {
		var e Env
		e.drive(c.at, c.err)
		if e.Drive != c.drive || e.DriveIs != c.kind || e.FS != c.fs {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
