package bench

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/probe"
	"github.com/coli-moe/coli/weights/format"
)

// Env is the machine a record was made on, and the program that made it. A field is empty where the system does not tell. The machine's
// name is no part of it.
type Env struct {
	Coli   string `json:"coli"`             // the module's version
	Commit string `json:"commit,omitempty"` // of the build
	Dirty  bool   `json:"dirty,omitempty"`  // it was built from files that differ from the commit's
	Go     string `json:"go"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel,omitempty"` // release of the operating system's kernel

	CPU      string    `json:"cpu,omitempty"`
	Cores    int       `json:"cores"`               // that this process may use
	CoresAre string    `json:"cores_are,omitempty"` // what limits them
	ISA      string    `json:"isa"`                 // instruction set of the kernels
	Governor string    `json:"governor,omitempty"`  // of the first processor's frequency
	Turbo    string    `json:"turbo,omitempty"`     // on or off
	RAM      int64     `json:"ram,omitempty"`       // bytes
	RAMLimit int64     `json:"ram_limit,omitempty"` // bytes that the control group allows, where that is less
	GPU      string    `json:"gpu,omitempty"`       // the device, where one is used
	Drive    string    `json:"drive,omitempty"`     // model of the one that the files are on
	DriveIs  string    `json:"drive_is,omitempty"`  // "rotating" for one that has to seek
	FS       string    `json:"fs,omitempty"`        // type of the file system that the files are on
	Date     time.Time `json:"date"`                // to the second, in UTC
}

// Environment describes the machine; files are those that the experiment reads, if any.
func Environment(files []string) Env {
	e := Env{
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuid.CPU.BrandName,
		ISA: kernels.For(format.Q8_0).ISA, Date: time.Now().UTC().Truncate(time.Second),
	}
	e.Cores, e.CoresAre = engine.DefaultThreads()
	if info, ok := debug.ReadBuildInfo(); ok {
		e.Coli = strings.Trim(info.Main.Version, "()")
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				e.Commit = s.Value[:min(12, len(s.Value))]
			case "vcs.modified":
				e.Dirty = s.Value == "true"
			}
		}
	}
	e.system("/")
	if len(files) > 0 {
		e.drive(probe.Drive(files[0]))
	}
	return e
}

// drive fills in where the files lie. On a network, or in memory, there is no drive.
func (e *Env) drive(at probe.Location, err error) {
	e.FS = at.Filesystem
	if err != nil {
		return
	}
	e.Drive = cmp.Or(at.Model, at.Name)
	if n := len(at.Disks); n > 1 {
		e.Drive = fmt.Sprintf("%d × %s", n, e.Drive)
	}
	if at.Rotational && !strings.HasPrefix(at.Model, "virtio") { // a virtual drive says so whatever is below it
		e.DriveIs = "rotating"
	}
}

// line is what a small file below root holds, "" if it cannot be read.
func line(root, path string) string {
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// String is the environment in a line.
func (e *Env) String() string { return strings.Join(e.lines(), "; ") }
