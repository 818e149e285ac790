package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/probe"
)

// tree makes a file system of names and contents.
func tree(pairs ...string) fstest.MapFS {
	fs := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		fs[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return fs
}

// with adds files to others.
func with(base fstest.MapFS, pairs ...string) fstest.MapFS {
	out := tree(pairs...)
	for name, f := range base {
		if out[name] == nil {
			out[name] = f
		}
	}
	return out
}

const (
	v2 = "29 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	v1 = "33 24 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n34 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)

// desktop is a machine of four cores with two threads each, 32 GiB and an NVMe drive, where everything is as it should be.
func desktop() *System {
	root := tree(
		"proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 25165824 kB\nSwapTotal: 2097152 kB\nSwapFree: 2097152 kB\nHugePages_Total: 0\nHugepagesize: 2048 kB\n",
		"proc/self/cgroup", "0::/user.slice/a\n", "proc/self/mountinfo", v2,
		"sys/fs/cgroup/user.slice/a/cpu.max", "max 100000\n",
		"sys/devices/system/cpu/online", "0-7\n",
		"sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n",
		"sys/block/nvme0n1/queue/scheduler", "[none] mq-deadline\n", "sys/block/nvme0n1/queue/read_ahead_kb", "128\n",
	)
	for cpu := range 8 {
		root[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d,%d\n", cpu%4, cpu%4+4)}
	}
	return &System{
		OS: "linux", Arch: "amd64", Root: root, Features: []string{"AVX2"}, ISA: "avx2",
		Processors: func() ([]int, error) { return []int{0, 1, 2, 3, 4, 5, 6, 7}, nil },
		Threads:    func() (int, string) { return 4, "physical cores in the affinity mask" },
		MemoryRate: func(context.Context, int) (float64, error) { return 60e9, nil },
		CacheDir:   func() (string, error) { return "/home/u/.cache/coli", nil },
		Writable:   func(string) error { return nil },
		Free:       func(string) (int64, bool) { return 100 << 30, true },
		Files:      func(string) ([]string, error) { return []string{"model.gguf"}, nil },
		Drive: func(string) (probe.Location, error) {
			d := probe.Disk{Name: "nvme0n1", Model: "Fast 1TB"}
			return probe.Location{Disk: d, Disks: []probe.Disk{d}, Filesystem: "ext4"}, nil
		},
		DriveRate: func(context.Context, []string, int64, int) (float64, error) { return 7e9, nil },
		Locked:    func() (uint64, error) { return 8 << 20, nil },
		OpenFiles: func() (uint64, error) { return 1024, nil },
		Probe: func() []probe.Finding {
			return []probe.Finding{{Name: "permission for eBPF", Status: probe.Yes, Detail: "all"}}
		},
		Devices: func() ([]device.Info, error) {
			return []device.Info{{Name: "Card", Type: device.Discrete, Memory: 24 << 30, API: "1.3.0", Driver: "driver 1"}}, nil
		},
	}
}

// TestWell: nothing is amiss with a machine where nothing is.
func TestWell(t *testing.T) {
	checks := Run(t.Context(), desktop(), Options{})
	names := map[string]bool{}
	for _, c := range checks {
		if c.Status != OK || c.Found == "" || strings.Contains(c.Found, "\n") || c.Stops || names[c.Name] {
			t.Errorf("%+v", c)
		}
		names[c.Name] = true
	}
	if Stopped(checks) || len(checks) < 14 {
		t.Errorf("%d checks, stopped %v", len(checks), Stopped(checks))
	}
}

func TestRules(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(s *System)
		check  string // that is looked at
		status Status
		found  string // is in the finding
		todo   string // is in what to do
		stops  bool
	}{
		{"no assembly", func(s *System) { s.ISA, s.Features = "generic", nil }, "processor", No, "generic", "AVX2", false},
		{"COLI_CPU", func(s *System) { s.ISA, s.ISALimit = "generic", "generic" }, "processor", OK, "COLI_CPU=generic", "", false},
		{"another architecture", func(s *System) { s.ISA, s.Arch = "generic", "arm64" }, "processor", No, "arm64", "amd64", false},

		{"cores", func(*System) {}, "cores", OK, "physical cores: 4; processors: 8 of 8", "", false},
		{"restricted affinity", func(s *System) {
			s.Processors = func() ([]int, error) { return []int{0, 4}, nil }
			s.Threads = func() (int, string) { return 1, "why" }
		}, "cores", No, "physical cores: 1; processors: 2 of 8", "taskset", false},
		{"quota, version 2", func(s *System) {
			s.Root = with(s.Root.(fstest.MapFS), "sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n")
			s.Threads = func() (int, string) { return 2, "the quota" }
		}, "cores", No, "control group /user.slice allows 2.5 processors", "raise the quota", false},
		{"quota, version 1, below the threads", func(s *System) {
			s.Root = with(s.Root.(fstest.MapFS), "proc/self/cgroup", "5:cpu,cpuacct:/c\n", "proc/self/mountinfo", v1,
				"sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "150000\n", "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n")
		}, "cores", No, "control group /c allows 1.5 processors", "--threads 1", false},
		{"no affinity", func(s *System) { s.Processors = func() ([]int, error) { return nil, syscall.ENOSYS } }, "cores", Unknown, "not implemented", "", false},
		{"no topology", func(s *System) { s.Root = tree("proc/meminfo", "MemAvailable: 33554432 kB\n") }, "cores", OK, "processors: 8", "", false},

		{"memory", func(*System) {}, "memory", OK, "32.0 GiB in all; models may use 21.0 GiB", "", false},
		{"little memory", func(s *System) { s.Root = tree("proc/meminfo", "MemTotal: 524288 kB\nMemAvailable: 131072 kB\n") }, "memory", OK, "models may use 64.0 MiB", "", false},
		{"no memory", func(s *System) { s.Root = tree("proc/meminfo", "MemTotal: 524288 kB\nMemAvailable: 65536 kB\n") }, "memory", No, "512 MiB", "end other programs", true},
		{"no /proc", func(s *System) { s.Root = tree() }, "memory", No, "meminfo", "mount /proc", true},

		{"limit of a parent, version 2", func(s *System) {
			s.Root = with(s.Root.(fstest.MapFS), "sys/fs/cgroup/user.slice/memory.max", "4294967296\n", "sys/fs/cgroup/user.slice/memory.current", "1073741824\n",
				"sys/fs/cgroup/user.slice/memory.stat", "inactive_file 536870912\nactive_file 0\n",
				"sys/fs/cgroup/user.slice/a/memory.high", "8589934592\n", "sys/fs/cgroup/user.slice/a/memory.current", "1048576\n")
		}, "memory limits", No, "memory.max of control group /user.slice is 4.0 GiB, 1.0 GiB used, of it 512 MiB pages of files", "MemoryMax", false},
		{"limit, version 1", func(s *System) {
			s.Root = with(s.Root.(fstest.MapFS), "proc/self/cgroup", "4:memory:/docker/x\n", "proc/self/mountinfo", v1,
				"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "2147483648\n", "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "1000\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n")
		}, "memory limits", No, "memory.limit_in_bytes of control group /docker/x is 2.0 GiB", "docker", false},
		{"a limit above the memory", func(s *System) {
			s.Root = with(s.Root.(fstest.MapFS), "sys/fs/cgroup/memory.max", "68719476736\n", "sys/fs/cgroup/memory.current", "1000\n")
		}, "memory limits", OK, "64.0 GiB", "", false},
		{"nothing of control groups", func(s *System) { s.Root = tree() }, "memory limits", Unknown, "no /proc", "", true},

		{"much is swapped out", func(s *System) {
			s.Root = tree("proc/meminfo", "MemAvailable: 33554432 kB\nSwapTotal: 2097152 kB\nSwapFree: 1024 kB\n")
		}, "swap", No, "2.0 GiB of 2.0 GiB are used", "end other programs", false},
		{"no swap", func(s *System) {
			s.Root = tree("proc/meminfo", "MemAvailable: 33554432 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
		}, "swap", OK, "none", "", false},
		{"swap of no /proc", func(s *System) { s.Root = tree("proc/meminfo", "MemAvailable: 33554432 kB\n") }, "swap", Unknown, "", "", false},

		{"huge pages never", func(s *System) {
			s.Root = with(s.Root.(fstest.MapFS), "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
		}, "huge pages", No, "never", "echo madvise", false},
		{"huge pages always, with defrag", func(s *System) {
			s.Root = with(s.Root.(fstest.MapFS), "sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n",
				"sys/kernel/mm/transparent_hugepage/defrag", "always defer [madvise] never\n")
		}, "huge pages", OK, "always, defrag madvise", "", false},
		{"explicit huge pages", func(s *System) {
			s.Root = with(s.Root.(fstest.MapFS), "proc/meminfo", "MemAvailable: 33554432 kB\nHugePages_Total: 1024\nHugepagesize: 2048 kB\n")
		}, "huge pages", OK, "2.0 GiB are reserved", "nr_hugepages=0", false},
		{"no /sys", func(s *System) { s.Root = tree("proc/meminfo", "MemAvailable: 33554432 kB\n") }, "huge pages", Unknown, "", "", false},

		{"too little memory to be measured", func(s *System) {
			s.MemoryRate = func(context.Context, int) (float64, error) { return 0, ledger.ErrNoRoom }
		}, "memory rate", Unknown, "not enough memory", "", false},

		{"a model that does not open", func(s *System) {
			s.Model, s.Files = "m.gguf", func(string) ([]string, error) { return nil, fs.ErrNotExist }
		}, "model", No, "does not exist", "name one", true},
		{"a model", func(s *System) { s.Model = "m.gguf" }, "model", OK, "m.gguf: 1 file(s)", "", false},
		{"no home", func(s *System) { s.CacheDir = func() (string, error) { return "", errors.New("no $HOME") } }, "cache folder", No, "no $HOME", "COLI_CACHE_DIR", false},
		{"a folder that may not be written to", func(s *System) { s.Writable = func(string) error { return fs.ErrPermission } }, "cache folder", No, "permission", "COLI_CACHE_DIR", false},
		{"a full drive", func(s *System) { s.Free = func(string) (int64, bool) { return 1 << 20, true } }, "cache folder", No, "1.0 MiB free", "free some space", false},

		{"drive", func(*System) {}, "drive", OK, "below the cache folder: nvme0n1 (Fast 1TB), scheduler none, read-ahead 128 KiB, file system ext4", "", false},
		{"a drive that rotates", func(s *System) {
			s.Drive = func(string) (probe.Location, error) {
				return probe.Location{Disks: []probe.Disk{{Name: "sda", Rotational: true}}, Filesystem: "xfs"}, nil
			}
		}, "drive", No, "sda", "solid-state", false},
		{"a virtual drive that says it rotates", func(s *System) {
			s.Drive = func(string) (probe.Location, error) {
				return probe.Location{Disks: []probe.Disk{{Name: "vda", Model: "virtio_blk", Rotational: true}}, Filesystem: "xfs"}, nil
			}
		}, "drive", OK, "vda (virtio_blk)", "", false},
		{"no drive below it", func(s *System) {
			s.Drive = func(string) (probe.Location, error) {
				return probe.Location{Filesystem: "overlay"}, fmt.Errorf("x: %w", probe.ErrNoDrive)
			}
		}, "drive", Unknown, "overlay", "NVMe", false},
		{"direct reads are refused", func(s *System) {
			s.DriveRate = func(context.Context, []string, int64, int) (float64, error) {
				return 0, fmt.Errorf("x: %w", syscall.EINVAL)
			}
		}, "drive rate", No, "refuses direct reads", "ext4", false},
		{"a slow drive", func(s *System) {
			s.DriveRate = func(context.Context, []string, int64, int) (float64, error) { return 120e6, nil }
		}, "drive rate", No, "0.12 GB/s", "NVMe", false},
		{"no file to read", func(s *System) { s.Files = func(string) ([]string, error) { return nil, nil } }, "drive rate", Unknown, "no file", "-m", false},

		{"few open files", func(s *System) { s.OpenFiles = func() (uint64, error) { return 64, nil } }, "open files", No, "64", "ulimit", false},
		{"no limit of locked memory", func(s *System) { s.Locked = func() (uint64, error) { return 1<<64 - 1, nil } }, "locked memory", OK, "unlimited", "", false},

		{"no permission to probe", func(s *System) {
			s.Probe = func() []probe.Finding {
				return []probe.Finding{{Name: "permission for eBPF", Status: probe.No, Detail: "lacks CAP_BPF", Todo: "setcap"}}
			}
		}, "permission for eBPF", No, "CAP_BPF", "setcap", false},
		{"the probe does not know", func(s *System) {
			s.Probe = func() []probe.Finding { return []probe.Finding{{Name: "kernel type information (BTF)"}} }
		}, "kernel type information (BTF)", Unknown, "", "", false},

		{"no Vulkan", func(s *System) {
			s.Devices = func() ([]device.Info, error) { return nil, fmt.Errorf("%w; install it", device.ErrNoLoader) }
		}, "Vulkan", No, "CPU runs everything", "install it", false},
		{"a driver that fails", func(s *System) { s.Devices = func() ([]device.Info, error) { return nil, errors.New("boom") } }, "Vulkan", Unknown, "boom", "", false},
		{"a device that lacks something", func(s *System) {
			s.Devices = func() ([]device.Info, error) {
				return []device.Info{{Name: "Old", Missing: "timeline semaphores"}}, nil
			}
		}, "device 0", No, "timeline semaphores", "driver", false},
		{"no device that can be used", func(s *System) {
			s.Devices = func() ([]device.Info, error) {
				return []device.Info{{Name: "Old", Missing: "timeline semaphores"}}, nil
			}
		}, "Vulkan", No, "none that coli can use", "", false},
		{"an integrated device", func(s *System) {
			s.Devices = func() ([]device.Info, error) {
				return []device.Info{{Name: "Part", Type: device.Integrated, Index: 0}}, nil
			}
		}, "device 0", OK, "Part", "--device 0", false},
	} {
		s := desktop()
		tt.change(s)
		checks := Run(t.Context(), s, Options{})
		seen := false
		for _, c := range checks {
			if c.Name != tt.check {
				continue
			}
			seen = true
			if c.Status != tt.status || !strings.Contains(c.Found, tt.found) || !strings.Contains(c.Todo, tt.todo) || (c.Todo == "") != (tt.todo == "") ||
				c.Stops != (tt.stops && c.Status == No) || Stopped(checks) != tt.stops {
				t.Errorf("%s: %+v, stopped %v", tt.name, c, Stopped(checks))
			}
		}
		if !seen {
			t.Errorf("%s: no check %q", tt.name, tt.check)
		}
	}
}

// TestSilent: a system that tells nothing gets answers all the same, and none says no.
func TestSilent(t *testing.T) {
	for _, c := range Run(t.Context(), &System{OS: "plan9", Arch: "amd64", ISA: "avx2"}, Options{}) {
		if c.Name != "processor" && c.Status != Unknown || c.Found == "" {
			t.Errorf("%+v", c)
		}
	}
}

func TestQuick(t *testing.T) {
	s := desktop()
	s.MemoryRate, s.DriveRate = nil, nil // not called
	for _, c := range Run(t.Context(), s, Options{Quick: true}) {
		if strings.HasSuffix(c.Name, "rate") != (c.Status == Unknown) {
			t.Errorf("%+v", c)
		}
	}
}

// TestMachine: this machine gets answers to all questions.
func TestMachine(t *testing.T) {
	checks := Run(t.Context(), Machine(""), Options{Quick: true})
	for _, c := range checks {
		if c.Name == "" || c.Found == "" && c.Status != Unknown || strings.Contains(c.Found, "\n") {
			t.Errorf("%+v", c)
		}
	}
}

// TestWritable: a folder that is not there can be made or cannot, and an error names the folder, not the file of the trial.
func TestWritable(t *testing.T) {
	dir := t.TempDir()
	if err := writable(filepath.Join(dir, "a", "b")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, below := range []string{file, filepath.Join(file, "cache")} {
		if err := writable(below); err == nil || !strings.Contains(err.Error(), below) || strings.Contains(err.Error(), "coli-doctor") {
			t.Error(err)
		}
	}
}

// TestNoModel: a drive is not looked for below a model that is not there, but below a cache folder that is yet to be made.
func TestNoModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	if _, err := Machine(path).Drive(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Machine("").Drive(path); errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
