package probe

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// counters is a file of the kernel's that is read again and again, without allocating.
type counters struct {
	fd  int // -1: not there
	buf [1024]byte
}

func openCounters(path string) *counters {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	return &counters{fd: fd}
}

func (c *counters) read() []byte {
	if c.fd < 0 {
		return nil
	}
	n, _ := unix.Pread(c.fd, c.buf[:], 0)
	return c.buf[:max(n, 0)]
}

func (c *counters) close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
}

// procIO is /proc/self/io.
type procIO struct{ *counters }

func openProcIO() *procIO { return &procIO{openCounters("/proc/self/io")} }

func (p *procIO) readBytes() uint64 {
	_, rest, _ := bytes.Cut(p.read(), []byte("\nread_bytes:"))
	return number(&rest)
}

// number takes a decimal number off the front of b, with the blanks before it; 0 if there is none.
func number(b *[]byte) (n uint64) {
	s := bytes.TrimLeft(*b, " ")
	for len(s) > 0 && '0' <= s[0] && s[0] <= '9' {
		n = n*10 + uint64(s[0]-'0')
		s = s[1:]
	}
	*b = s
	return n
}

// machine has the kernel's own counters of the machine's drives.
type machine struct{ drives []machineDrive }

type machineDrive struct {
	disk           Disk
	stat, inFlight *counters
}

// openMachine finds the drives in sys/block: everything with a size but what has no hardware below (loop devices, memory, volumes).
func openMachine(sys string) *machine {
	m := &machine{}
	entries, _ := os.ReadDir(filepath.Join(sys, "block"))
	for _, e := range entries {
		dir := filepath.Join(sys, "block", e.Name())
		if _, err := os.Stat(filepath.Join(dir, "device")); err != nil || readLine(dir, "size") == "0" {
			continue
		}
		m.drives = append(m.drives, machineDrive{
			disk: diskIn(dir),
			stat: openCounters(filepath.Join(dir, "stat")), inFlight: openCounters(filepath.Join(dir, "inflight")),
		})
	}
	return m
}

// read fills in the devices. The fields of stat are those of Documentation/block/stat.rst: reads completed, merged, sectors of 512 bytes,
// milliseconds, and the same for writes. Those of inflight are reads and writes.
func (m *machine) read(s *Snapshot) {
	s.Devices, s.Untracked = s.Devices[:0], 0
	for i := range m.drives {
		drive := &m.drives[i]
		d := s.next(i)
		*d = Device{Disk: drive.disk, Machine: true}
		stat, flying := drive.stat.read(), drive.inFlight.read()
		for _, ops := range [...]*Ops{&d.Read, &d.Write} {
			ops.Completed = number(&stat)
			number(&stat)
			ops.CompletedBytes = 512 * number(&stat)
			number(&stat)
			ops.Requests, ops.Bytes = ops.Completed, ops.CompletedBytes
			ops.InFlight = int64(number(&flying))
		}
	}
}

func (m *machine) close() {
	for _, d := range m.drives {
		d.stat.close()
		d.inFlight.close()
	}
}

// diskIn describes the drive of a folder in /sys/block.
func diskIn(dir string) Disk {
	d := Disk{Name: filepath.Base(dir), Rotational: readLine(dir, "queue/rotational") == "1", Model: model(dir)}
	number := readLine(dir, "dev")
	d.Major, d.Minor = majorMinor(number)
	return d
}

// model is what the drive calls itself (SCSI, NVMe: model; MMC: name), or else the name of its driver.
func model(dir string) string {
	for _, file := range []string{"device/model", "device/name"} {
		if s := readLine(dir, file); s != "" {
			return s
		}
	}
	if driver, err := os.Readlink(filepath.Join(dir, "device", "driver")); err == nil {
		return filepath.Base(driver)
	}
	return ""
}

func majorMinor(s string) (major, minor uint32) {
	b := []byte(s)
	major = uint32(number(&b))
	b = bytes.TrimPrefix(b, []byte(":"))
	return major, uint32(number(&b))
}

// readLine returns the text of a file of /sys, empty if it cannot be read.
func readLine(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// release is the kernel's version.
func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
