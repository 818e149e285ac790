package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test binary is also the process that a test needs beside its own: one with other rights, in another namespace, or just another one.
const childEnv = "COLI_PROBE_CHILD"

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		if err := child(job, os.Getenv(childEnv+"_FILE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// report is what a child found.
type report struct {
	Pid       int
	Mode      Mode
	Why       string
	ReadBytes int64 // by the child itself
	Counted   Ops
	Findings  []Finding
}

func child(job, file string) error {
	var r report
	r.Pid = os.Getpid()
	if job == "hide BTF" {
		err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/sys/kernel/btf", "tmpfs", 0, ""))
		if err != nil {
			return err
		}
	}
	p, err := Open(Options{Timed: job == "read"})
	if err != nil {
		return err
	}
	defer p.Close()
	r.Mode, r.Why, r.Findings = p.Mode(), p.Why(), Check()
	if file != "" {
		var begin, end Snapshot
		if err := p.Read(&begin); err != nil {
			return err
		}
		if r.ReadBytes, err = readWhole(file); err != nil {
			return err
		}
		if err := p.Read(&end); err != nil {
			return err
		}
		d := end.Since(&begin)
		r.Counted = d.Reads()
	}
	return json.NewEncoder(os.Stdout).Encode(&r)
}

// inChild runs a job in a process of its own, and returns what it found.
func inChild(t *testing.T, job, file string, attr *syscall.SysProcAttr) report {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	// By its descriptor, since a user with fewer rights cannot look into the folder of the test's binary.
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Env = append(os.Environ(), childEnv+"="+job, childEnv+"_FILE="+file)
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	return r
}

// directBuffer returns memory that direct reads accept, of 4 KiB or more.
func directBuffer(size int) []byte {
	b := make([]byte, size+4096)
	return b[-uintptr(unsafe.Pointer(&b[0]))&4095:][:size]
}

// readWhole reads a file directly, 1 MiB at a time.
func readWhole(path string) (read int64, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := directBuffer(1 << 20)
	for {
		n, err := f.ReadAt(buf, read)
		read += int64(n)
		if errors.Is(err, io.EOF) {
			return read, nil
		}
		if err != nil {
			return read, err
		}
	}
}
