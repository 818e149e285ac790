// Package embedded is the model that ships inside the command: tiny-moe, a story teller of 23.6 million parameters (OLMoE architecture,
// 8 layers, 18 experts of which 4 answer). SOURCES.md lists the public-domain texts it learned from.
//
// The Q8_0 file was chosen among the model's conversions because it is closest to the trained weights (perplexity 17.19 on held-out text,
// 17.17 in float16, 17.50 in MXFP4, 17.53 in Q4_0), runs on the fastest kernel, and holds tokenizer and chat template in the one file.
//
// The package only puts that file on disk, so that its experts are read like any other model's; opening it is package weights' job.
package embedded

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Name of the model, as shown to users.
const Name = "tiny-moe-Q8_0"

// sum is the SHA-256 of the file; a test compares it with the bytes. It is a constant so that a start need not read 25 MB to find its name.
const sum = "4d50fa99d02b3c136b1f2a3d49987f639d68477c2d5a1dfa25645f208caaa531"

//go:embed tiny-moe-Q8_0.gguf
var data string

// CacheDirEnv names the environment variable that replaces the user's cache directory.
const CacheDirEnv = "COLI_CACHE_DIR"

// CacheDir is the directory for what coli may lose and make again: $COLI_CACHE_DIR, or coli inside the user's cache directory. It need not
// exist yet.
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheDirEnv); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w; set %s to a directory coli may write to", err, CacheDirEnv)
	}
	return filepath.Join(dir, "coli"), nil
}

// Path returns the path of a file that holds the model, unpacking it first where needed. Any number of processes may do so at once.
// Where the cache directory cannot be written to, a directory for temporary files takes its place and warn is called with one line
// saying so, unless the cache directory was asked for by COLI_CACHE_DIR.
func Path(ctx context.Context, warn func(string)) (string, error) {
	return newStore().path(ctx, warn)
}

// store is a model to be put on disk. Tests replace its fields.
type store struct {
	name, sum, data string
	write           func(w io.Writer, p string) (int, error)
}

func newStore() store { return store{name: Name, sum: sum, data: data, write: io.WriteString} }

func (s store) path(ctx context.Context, warn func(string)) (string, error) {
	dir, err := CacheDir()
	if err == nil {
		var path string
		path, err = s.unpack(ctx, filepath.Join(dir, "models"))
		if err == nil || os.Getenv(CacheDirEnv) != "" || !unwritable(err) {
			return path, err
		}
	}
	// Anyone may have made a directory of this name, so what it holds is trusted by its hash only.
	tmp := filepath.Join(os.TempDir(), fmt.Sprintf("coli-%d", os.Getuid()), "models")
	if path := s.file(tmp); hashFile(path) != s.sum {
		os.Remove(path) //nolint:errcheck // unpack reports what matters
	}
	path, tmpErr := s.unpack(ctx, tmp)
	if tmpErr != nil {
		return "", errors.Join(err, tmpErr)
	}
	warn(fmt.Sprintf("%v; using %s", err, tmp))
	return path, nil
}

// unwritable tells an unusable cache directory, which another directory can stand in for, from a full disk, which must be reported.
func unwritable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrNotExist)
}

func (s store) file(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("%s-%s.gguf", s.name, s.sum[:12]))
}

// unpack makes sure that dir has the file and returns its path. A file of the right name and size was complete when it got its name, and
// is taken as it is; another size means damage, and it is replaced.
func (s store) unpack(ctx context.Context, dir string) (string, error) {
	path := s.file(dir)
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Size() == int64(len(s.data)) {
		return path, nil
	}
	err := s.replace(ctx, dir, path)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return "", fmt.Errorf("unpacking the embedded model needs %d MB: %w; free some space, or set %s to a directory on another disk",
			len(s.data)>>20+1, err, CacheDirEnv)
	case unwritable(err):
		return "", fmt.Errorf("unpacking the embedded model: %w; set %s to a directory coli may write to", err, CacheDirEnv)
	default:
		return "", fmt.Errorf("unpacking the embedded model: %w", err)
	}
}

// replace writes the file under a temporary name and renames it when it is whole and on disk.
func (s store) replace(ctx context.Context, dir, path string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()           //nolint:errcheck // already failing
			os.Remove(f.Name()) //nolint:errcheck
		}
	}()
	const piece = 1 << 20
	for rest := s.data; rest != ""; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := s.write(f, rest[:min(piece, len(rest))])
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if got := hashFile(f.Name()); got != s.sum {
		return fmt.Errorf("%s: what was read back has SHA-256 %q instead of %s: the disk or memory is faulty", f.Name(), got, s.sum)
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// hashFile returns the SHA-256 of a file in hex, or "" if it cannot be read.
func hashFile(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
