package probe

import "errors"

// Disk is a drive as the kernel knows it.
type Disk struct {
	Major, Minor uint32
	Name         string // "nvme0n1"
	Model        string // as the drive says, or the kernel's driver for it ("virtio_blk"); empty if neither is known
	Rotational   bool   // it says that it has to seek
}

// Location is where a file lies. The embedded Disk is the first of Disks.
type Location struct {
	Disk
	Disks      []Disk // whole drives, several below a RAID or a volume that spans some
	Volume     string // the device that the file system is on if it is no drive or partition of one: "dm-0", "md127"
	Filesystem string // its type: "ext4"
}

// ErrNoDrive is the error of Drive for a file that lies on none: on a network, in memory, on a file system that hides it (overlay).
var ErrNoDrive = errors.New("no drive is known below it")

// Drive finds the drives that a file lies on. With ErrNoDrive the file system's type is still returned.
func Drive(path string) (Location, error) { return drive("/sys", path) }
