package weights

import (
	"errors"
	"io/fs"
	"os"

	"github.com/coli-moe/coli/weights/internal/badfile"
)

// Error is a checkpoint that cannot be used: file, tensor or key, byte offset, what was found and what to try. It wraps one of the
// causes below or an error of the operating system.
type Error = badfile.Error

// The causes, for errors.Is.
var (
	ErrTruncated     = badfile.ErrTruncated     // the file ends before what its header promises
	ErrMagic         = badfile.ErrMagic         // not a weight file
	ErrVersion       = badfile.ErrVersion       // a version of the file format that coli does not read
	ErrBigEndian     = badfile.ErrBigEndian     // a big-endian GGUF file
	ErrHTML          = badfile.ErrHTML          // a web page in place of weights
	ErrLFSPointer    = badfile.ErrLFSPointer    // a git-lfs pointer in place of weights
	ErrEmpty         = badfile.ErrEmpty         // no byte at all
	ErrHeader        = badfile.ErrHeader        // malformed header, index or config
	ErrUnknownType   = badfile.ErrUnknownType   // a type that coli does not know or cannot compute with
	ErrAlignment     = badfile.ErrAlignment     // an alignment that is no power of two, or an offset that ignores it
	ErrDuplicate     = badfile.ErrDuplicate     // a key or tensor that occurs twice
	ErrShape         = badfile.ErrShape         // zero or overflowing dimensions, or a shape other than the architecture's
	ErrLayout        = badfile.ErrLayout        // overlapping tensors, holes, parts that do not belong together
	ErrMissingShard  = badfile.ErrMissingShard  // parts of a checkpoint that are not there
	ErrMissingTensor = badfile.ErrMissingTensor // tensors an architecture needs
	ErrUnknownTensor = badfile.ErrUnknownTensor // tensors an architecture does not know
	ErrMissingKey    = badfile.ErrMissingKey    // config keys an architecture needs
	ErrValue         = badfile.ErrValue         // a config value that makes no sense
	ErrNoWeights     = badfile.ErrNoWeights     // a directory without a checkpoint
)

// osError turns an error of the operating system about path into an *Error with advice; other errors pass unchanged.
func osError(path string, err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err // path and operation are in the message already
	}
	e := badfile.In(path, err, "")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if target, lerr := os.Readlink(path); lerr == nil {
			e.What = "a symbolic link to " + target
			return e.Advise("download the file again: the target is gone")
		}
		e.Advise("check the path (coli does not download models)")
	case errors.Is(err, fs.ErrPermission):
		e.Advise("check who may read the file")
	}
	return e
}
