package ledger_test

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/ledger"
)

// files makes a system of /proc and /sys files; they are given as path, content, path, content, …
func files(all ...string) ledger.Probe {
	m := fstest.MapFS{}
	for i := 0; i < len(all); i += 2 {
		m[all[i]] = &fstest.MapFile{Data: []byte(all[i+1])}
	}
	return ledger.FS(m)
}

const (
	meminfo = "MemTotal:       24684092 kB\nMemFree:  1000 kB\nMemAvailable:   11744052 kB\nHugePages_Total:       0\n" // 11.2 GiB
	v2mount = "25 1 0:22 / /sys rw - sysfs sysfs rw\n30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
	v2      = "sys/fs/cgroup/"
)

// group makes a system whose control groups of version 2 are all mounted; files are named below the mount.
func group(of string, all ...string) ledger.Probe {
	for i := 0; i < len(all); i += 2 {
		all[i] = v2 + all[i]
	}
	return files(append(all, "proc/meminfo", meminfo, "proc/self/cgroup", of+"\n", "proc/self/mountinfo", v2mount)...)
}

func TestBudget(t *testing.T) {
	const gib = int64(1) << 30
	available := int64(11744052) << 10
	after := func(free int64) int64 { return free - min(max(free/8, 256<<20), 4<<30, free/2) }
	for name, tt := range map[string]struct {
		probe ledger.Probe
		free  int64
	}{
		"no control groups": {files("proc/meminfo", meminfo), available},
		"no limit":          {group("0::/a", "a/memory.max", "max\n", "a/memory.current", "5\n"), available},
		"memory.max": {group("0::/a", "a/memory.max", "8589934592\n", "a/memory.current", "3221225472\n",
			"a/memory.stat", "anon 1\ninactive_file 1073741824\nactive_file 1073741824\nshmem 77\n"), 7 * gib},
		"memory.high is lower": {group("0::/a", "a/memory.max", "8589934592\n", "a/memory.high", "4294967296\n",
			"a/memory.current", "1073741824\n"), 3 * gib},
		"a group further up": {group("0::/a/b/c", "a/memory.max", "2147483648\n", "a/memory.current", "0\n",
			"a/b/c/memory.max", "4294967296\n", "a/b/c/memory.current", "0\n"), 2 * gib},
		"a limit above what is available": {group("0::/", "memory.max", "99999999999\n", "memory.current", "0\n"), available},
		"a container that sees its own group as the root": {files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/docker/1\n",
			"proc/self/mountinfo", "30 25 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			v2+"memory.max", "2147483648", v2+"memory.current", "0"), 2 * gib},
		"a path that is not mounted here": {group("0::/elsewhere/x", "memory.max", "2147483648", "memory.current", "0"), 2 * gib},
		"used up":                         {group("0::/", "memory.max", "1000", "memory.current", "2000"), 0},
		"version 1": {files("proc/meminfo", meminfo, "proc/self/cgroup", "9:name=systemd:/\n4:memory:/x\n0::/\n",
			"proc/self/mountinfo", "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"+
				"32 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			v2+"memory/memory.limit_in_bytes", "9223372036854771712\n", v2+"memory/memory.usage_in_bytes", "1\n",
			v2+"memory/x/memory.limit_in_bytes", "6442450944\n", v2+"memory/x/memory.usage_in_bytes", "2147483648\n",
			v2+"memory/x/memory.stat", "total_inactive_file 1073741824\ntotal_active_file 0\n"), 5 * gib},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := ledger.New(tt.probe)
			if err != nil {
				t.Fatal(err)
			}
			if got, known := l.Budget(); got != after(tt.free) || !known {
				t.Errorf("budget %d, not %d of %d", got, after(tt.free), tt.free)
			}
		})
	}
}

func TestNoMeminfo(t *testing.T) {
	for _, p := range []ledger.Probe{files(), files("proc/meminfo", "MemTotal: 5 kB\n")} {
		if l, err := ledger.New(p); err == nil {
			t.Errorf("a budget out of nothing: %v", l)
		}
	}
}

func TestGrant(t *testing.T) {
	l, err := ledger.New(files("proc/meminfo", meminfo))
	if err != nil {
		t.Fatal(err)
	}
	dense, err := l.Grant("dense weights", 2<<30)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Grant("experts", 9<<30)
	const want = "not enough memory for experts: 9.0 GiB needed, 7.8 GiB free (MemAvailable 11.2 GiB less 1.4 GiB kept for the system and " +
		"2.0 GiB granted already); free some memory"
	if !errors.Is(err, ledger.ErrNoRoom) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	budget, _ := l.Budget()
	rest, err := l.Grant("experts", budget-dense.Bytes())
	if err != nil {
		t.Fatalf("exactly what is free was refused: %v", err)
	}
	if free, known := l.Free(); free != 0 || !known {
		t.Errorf("%d free", free)
	}
	if _, err := l.Grant("one more", 1); !errors.Is(err, ledger.ErrNoRoom) {
		t.Errorf("%v", err)
	}
	dense.Hold(1 << 20)
	if diff := cmp.Diff([]ledger.Entry{{"experts", rest.Bytes(), rest.Bytes()}, {"dense weights", 2 << 30, 1 << 20}}, l.Report()); diff != "" {
		t.Error(diff)
	}
	if got, want := l.String(), "9.8 GiB of MemAvailable 11.2 GiB: experts 7.8 GiB, dense weights 2.0 GiB"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	dense.Release()
	dense.Release()
	if free, _ := l.Free(); free != 2<<30 {
		t.Errorf("%d free after a release", free)
	}
	if _, err := l.Grant("debt", -1); err == nil {
		t.Error("a negative lease")
	}
}

// What a control group refuses is not had by ending other programs alone.
func TestGrantInGroup(t *testing.T) {
	l, err := ledger.New(group("0::/a", "a/memory.max", "1073741824\n", "a/memory.current", "0\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Grant("experts", 1<<30)
	const want = "not enough memory for experts: 1.0 GiB needed, 768 MiB free (memory.max of control group /a 1.0 GiB less 256 MiB kept for the " +
		"system); free some memory, or raise that limit"
	if !errors.Is(err, ledger.ErrNoRoom) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// silent is a system that does not tell.
type silent struct{}

func (silent) Memory() (ledger.Memory, error) { return ledger.Memory{}, nil }

func TestUnknownBudget(t *testing.T) {
	l, err := ledger.New(silent{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Grant("experts", 1<<50); err != nil {
		t.Error(err)
	}
	if _, known := l.Free(); known {
		t.Error("what is free is known")
	}
}

func TestDevice(t *testing.T) {
	const gib = int64(1) << 30
	for name, tt := range map[string]struct{ total, free, budget int64 }{
		"a small one":           {2 * gib, gib, gib - 64<<20},
		"a large one":           {140 * gib, 139 * gib, 138 * gib},
		"free is not known":     {8 * gib, 0, 8*gib - gib/2},
		"hardly anything":       {gib, 100 << 20, 50 << 20},
		"no memory of its own":  {0, 0, 0},
		"the driver says minus": {-5, -5, 0},
	} {
		if got, known := ledger.Device("card", tt.total, tt.free, nil).Budget(); got != tt.budget || !known {
			t.Errorf("%s: budget %d, want %d", name, got, tt.budget)
		}
	}

	l := ledger.Device("card", 8*gib, 4*gib, nil)
	for _, name := range []string{"weights", "KV cache", "weights"} {
		if _, err := l.Grant(name, gib); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.Grant("weights", gib)
	const want = "not enough memory for weights: 1.0 GiB needed, 768 MiB free (free on card 4.0 GiB less 256 MiB kept for the driver and " +
		"3.0 GiB granted already); end other programs that use the device, or give it less with --gpu-layers"
	if !errors.Is(err, ledger.ErrNoRoom) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if diff := cmp.Diff([]ledger.Entry{{"weights", 2 * gib, 2 * gib}, {"KV cache", gib, gib}}, l.Report()); diff != "" {
		t.Error(diff)
	}
}

// A device without memory of its own takes RAM.
func TestSharedDevice(t *testing.T) {
	const gib = int64(1) << 30
	ram, err := ledger.New(files("proc/meminfo", meminfo)) // 9.8 GiB to grant
	if err != nil {
		t.Fatal(err)
	}
	l := ledger.Device("integrated", 16*gib, 0, ram)
	if _, err := ram.Grant("dense weights", 6*gib); err != nil {
		t.Fatal(err)
	}
	free, _ := ram.Free()
	if got, known := l.Free(); got != free || !known {
		t.Errorf("%d free on the device, %d in RAM", got, free)
	}
	x, err := l.Grant("layers", 3*gib)
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := ram.Free(); now != free-3*gib {
		t.Errorf("a lease of 3 GiB took %d of RAM", free-now)
	}
	if _, err := l.Grant("layers", 3*gib); !errors.Is(err, ledger.ErrNoRoom) || !strings.Contains(err.Error(), "MemAvailable") {
		t.Errorf("granted beyond the RAM there is: %v", err)
	}
	x.Release()
	x.Release()
	if now, _ := ram.Free(); now != free || len(l.Report()) > 0 {
		t.Errorf("%d of %d free after a release; %v", now, free, l.Report())
	}
}

func TestSystem(t *testing.T) {
	l, err := ledger.New(ledger.System())
	if err != nil {
		t.Fatal(err)
	}
	if b, known := l.Budget(); known != (runtime.GOOS == "linux") || known && (b <= 0 || b > 1<<50) {
		t.Errorf("budget %d, known %v", b, known)
	}
}

func TestParseSize(t *testing.T) {
	const whole = 1 << 33
	for s, want := range map[string]int64{
		"8GiB": 8 << 30, "8G": 8 << 30, "8g": 8 << 30, "8 GiB": 8 << 30, "8192MiB": 8 << 30, "8GB": 8e9, "1.5k": 1536, "123": 123, "123B": 123,
		"75%": 6 << 30, "12.5 %": 1 << 30, "100%": whole, "0": 0, " 2t ": 2 << 40, "1KB": 1000,
	} {
		if got, err := ledger.ParseSize(s, whole); err != nil || got != want {
			t.Errorf("%q: %d, %v, not %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "GiB", "-1G", "1e9", "inf", "0x10", "8Q", "8GiBs", "101%", "%", "1..5G", "9999999999T", "NaN"} {
		if got, err := ledger.ParseSize(s, whole); err == nil || !strings.Contains(err.Error(), "8GiB") {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	if _, err := ledger.ParseSize("50%", 0); err == nil {
		t.Error("a half of nothing")
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 512: "512 B", 1000: "1.0 KiB", 1536: "1.5 KiB", 640 << 20: "640 MiB", 12<<30 + 300<<20: "12.3 GiB", 99<<30 + 1000<<20: "100 GiB",
		1000 << 20: "1.0 GiB", math.MaxInt64: "8.0 EiB", -2048: "-2.0 KiB",
	} {
		if got := ledger.FormatSize(n); got != want {
			t.Errorf("%d: %s, not %s", n, got, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"8GiB", "75%", "1.5k", "", "%", "..", "9223372036854775807"} {
		f.Add(s, int64(1<<33))
	}
	f.Fuzz(func(t *testing.T, s string, whole int64) {
		n, err := ledger.ParseSize(s, whole)
		if err == nil && n < 0 {
			t.Errorf("%q of %d is %d", s, whole, n)
		}
	})
}

func FuzzProbe(f *testing.F) {
	f.Add(meminfo, "0::/a/b\n", v2mount, "123\n")
	f.Add("MemAvailable: 1 kB", "4:memory:/../..\n", "31 25 0:27 /.. /sys/../../.. rw - cgroup cgroup rw,memory\n", "max")
	f.Fuzz(func(t *testing.T, meminfo, cgroup, mounts, number string) {
		l, err := ledger.New(files("proc/meminfo", meminfo, "proc/self/cgroup", cgroup, "proc/self/mountinfo", mounts,
			v2+"memory.max", number, v2+"memory.current", number, v2+"memory/memory.limit_in_bytes", number))
		if err != nil {
			return
		}
		if b, _ := l.Budget(); b < 0 {
			t.Errorf("budget %d", b)
		}
	})
}
