package probe

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// fakeSys makes files ("block/sda/size") with contents, and links with a target that begins with "->".
func fakeSys(t *testing.T, files map[string]string) string {
	t.Helper()
	sys := t.TempDir()
	for name, content := range files {
		path := filepath.Join(sys, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := cutLink(content); ok {
			err = os.Symlink(filepath.Join(sys, to), path)
		} else {
			err = os.WriteFile(path, []byte(content+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return sys
}

func cutLink(s string) (string, bool) {
	if len(s) > 2 && s[:2] == "->" {
		return s[2:], true
	}
	return "", false
}

// A machine with a disk whose second partition is half of a RAID, an NVMe drive that is the other half below a volume, and a loop device.
var machineFiles = map[string]string{
	"devices/sda/dev": "8:0", "devices/sda/size": "100", "devices/sda/queue/rotational": "1", "devices/sda/device/model": "Spinning Rust",
	"devices/sda/sda1/partition": "1", "devices/sda/sda2/partition": "2",
	"devices/sda/stat":     "      11  2   24  4   35  6   80  8  0  10  11",
	"devices/sda/inflight": "       3        4",
	"devices/nvme0n1/dev":  "259:0", "devices/nvme0n1/size": "200", "devices/nvme0n1/queue/rotational": "0", "devices/nvme0n1/device/model": "Fast One",
	"devices/virtual/md127/dev": "9:127", "devices/virtual/md127/size": "50",
	"devices/virtual/md127/slaves/sda2":    "->devices/sda/sda2",
	"devices/virtual/md127/slaves/nvme0n1": "->devices/nvme0n1",
	"devices/virtual/dm-0/dev":             "252:0", "devices/virtual/dm-0/slaves/md127": "->devices/virtual/md127",
	"devices/virtual/loop0/dev": "7:0", "devices/virtual/loop0/size": "9",
	"devices/vdb/dev": "254:16", "devices/vdb/size": "1", "devices/vdb/device/driver": "->bus/virtio/drivers/virtio_blk",
	"devices/sr0/dev": "11:0", "devices/sr0/size": "0", "devices/sr0/device/model": "Empty",

	"block/sda": "->devices/sda", "block/nvme0n1": "->devices/nvme0n1", "block/md127": "->devices/virtual/md127",
	"block/loop0": "->devices/virtual/loop0", "block/vdb": "->devices/vdb", "block/sr0": "->devices/sr0",

	"dev/block/8:0": "->devices/sda", "dev/block/8:1": "->devices/sda/sda1", "dev/block/259:0": "->devices/nvme0n1",
	"dev/block/9:127": "->devices/virtual/md127", "dev/block/252:0": "->devices/virtual/dm-0", "dev/block/254:16": "->devices/vdb",
}

func TestDrivesBelow(t *testing.T) {
	sys := fakeSys(t, machineFiles)
	rust := Disk{Major: 8, Name: "sda", Model: "Spinning Rust", Rotational: true}
	fast := Disk{Major: 259, Name: "nvme0n1", Model: "Fast One"}
	for _, c := range []struct {
		name         string
		major, minor uint32
		disks        []Disk
		volume       string
	}{
		{"whole drive", 259, 0, []Disk{fast}, ""},
		{"partition", 8, 1, []Disk{rust}, ""},
		{"RAID", 9, 127, []Disk{fast, rust}, "md127"},
		{"volume on a RAID", 252, 0, []Disk{fast, rust}, "dm-0"},
		{"drive without a model", 254, 16, []Disk{{Major: 254, Minor: 16, Name: "vdb", Model: "virtio_blk"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := below(sys, "file", c.major, c.minor, Location{Filesystem: "xfs"})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(l.Disks, c.disks) || l.Disk != c.disks[0] || l.Volume != c.volume || l.Filesystem != "xfs" {
				t.Errorf("%+v", l)
			}
		})
	}
	if l, err := below(sys, "file", 0, 27, Location{Filesystem: "tmpfs"}); !errors.Is(err, ErrNoDrive) || l.Filesystem != "tmpfs" {
		t.Errorf("no device: %+v, %v", l, err)
	}
}

func TestDriveOfAFile(t *testing.T) {
	if _, err := Drive(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	l, err := Drive("/proc/self/stat")
	if !errors.Is(err, ErrNoDrive) || l.Filesystem != "proc" {
		t.Errorf("a file of no drive: %+v, %v", l, err)
	}
}

func TestMount(t *testing.T) {
	const table = "22 27 0:21 / /proc rw - proc proc rw\n" +
		"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n" +
		"3 1 0:5 / / rw shared:1 master:2 - btrfs /dev/sda1 rw\n" +
		"40 1 nonsense\n"
	for _, c := range []struct {
		id                 uint64
		filesystem, source string
	}{{22, "proc", "proc"}, {36, "ext3", "/dev/root"}, {3, "btrfs", "/dev/sda1"}, {40, "", ""}, {2, "", ""}} {
		if f, s := mount(table, c.id); f != c.filesystem || s != c.source {
			t.Errorf("mount %d: %q from %q, want %q from %q", c.id, f, s, c.filesystem, c.source)
		}
	}
}

func TestMachinesDrivesInTimedMode(t *testing.T) {
	p, err := Open(Options{Timed: true, sys: fakeSys(t, machineFiles)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var s Snapshot
	if err := p.Read(&s); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range s.Devices {
		names = append(names, d.Name)
		if !d.Machine {
			t.Errorf("%s: not said to be everybody's", d.Name)
		}
	}
	if !slices.Equal(names, []string{"nvme0n1", "sda", "vdb"}) {
		t.Fatalf("drives %v", names)
	}
	want := Device{
		Disk: Disk{Major: 8, Name: "sda", Model: "Spinning Rust", Rotational: true}, Machine: true,
		Read:  Ops{Requests: 11, Bytes: 24 * 512, Completed: 11, CompletedBytes: 24 * 512, InFlight: 3},
		Write: Ops{Requests: 35, Bytes: 80 * 512, Completed: 35, CompletedBytes: 80 * 512, InFlight: 4},
	}
	if s.Devices[1] != want {
		t.Errorf("%+v", s.Devices[1])
	}
	if n := testing.AllocsPerRun(100, func() { _ = p.Read(&s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Read(&s); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
