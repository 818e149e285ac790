//go:build !unix

package weights

// mapping is empty where files are read instead of mapped.
type mapping struct{}

// bytes reads a range of the file, which must lie inside it.
func (f *file) bytes(off, size int64) ([]byte, error) {
	b := make([]byte, size)
	if n, err := f.f.ReadAt(b, off); n < len(b) {
		return nil, err
	}
	return b, nil
}

func (f *file) unmap() error { return nil }
