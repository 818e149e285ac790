package cgroup

import (
	"math"
	"slices"
	"testing"
	"testing/fstest"
)

// files makes a file system of names and contents.
func files(pairs ...string) fstest.MapFS {
	fs := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		fs[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return fs
}

func TestParseQuota(t *testing.T) {
	for s, want := range map[string]float64{
		"max 100000\n": math.Inf(1), "150000 100000\n": 1.5, "400000 100000": 4,
		"": math.Inf(1), "junk": math.Inf(1), "1 0": math.Inf(1), "-1 100": math.Inf(1), "NaN 100": math.Inf(1),
	} {
		if got := parseQuota(s); got != want {
			t.Errorf("parseQuota(%q) = %v, want %v", s, got, want)
		}
	}
}

const (
	v2 = "29 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	v1 = "33 24 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n34 24 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)

func TestCPUs(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fs    fstest.MapFS
		quota float64
		group string
	}{
		{"nothing is mounted", files(), math.Inf(1), ""},
		{"no quota", files("proc/self/cgroup", "0::/a\n", "proc/self/mountinfo", v2, "sys/fs/cgroup/a/cpu.max", "max 100000\n"), math.Inf(1), ""},
		{
			"version 2: the parent's is tighter",
			files("proc/self/cgroup", "0::/a/b\n", "proc/self/mountinfo", v2, "sys/fs/cgroup/a/b/cpu.max", "400000 100000\n",
				"sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
			1.5, "/a",
		},
		{
			"version 1",
			files("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n", "proc/self/mountinfo", v1,
				"sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "250000\n", "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n",
				"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
			2.5, "/docker/x",
		},
		{
			"a container sees its group as the root",
			files("proc/self/cgroup", "0::/docker/x\n", "proc/self/mountinfo", "29 22 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup ro\n",
				"sys/fs/cgroup/cpu.max", "50000 100000\n"),
			0.5, "/",
		},
	} {
		if quota, group := CPUs(tt.fs); quota != tt.quota || group != tt.group {
			t.Errorf("%s: %v of %q, want %v of %q", tt.name, quota, group, tt.quota, tt.group)
		}
	}
}

func TestDirs(t *testing.T) {
	fs := files("proc/self/cgroup", "0::/a/b\n5:cpu,cpuacct:/\n4:memory:/m\n", "proc/self/mountinfo", v2+v1,
		"sys/fs/cgroup/a/b/x", "", "sys/fs/cgroup/memory/m/x", "")
	for controller, want := range map[string][]Dir{
		"memory": {
			{"sys/fs/cgroup/a/b", "/a/b", false},
			{"sys/fs/cgroup/a", "/a", false},
			{"sys/fs/cgroup", "/", false},
			{"sys/fs/cgroup/memory/m", "/m", true},
			{"sys/fs/cgroup/memory", "/", true},
		},
		"io": {{"sys/fs/cgroup/a/b", "/a/b", false}, {"sys/fs/cgroup/a", "/a", false}, {"sys/fs/cgroup", "/", false}},
	} {
		if got := Dirs(fs, controller); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", controller, got, want)
		}
	}
}
