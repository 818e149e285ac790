package weights

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/weights/container"
	"github.com/coli-moe/coli/weights/internal/badfile"
	"github.com/coli-moe/coli/weights/internal/jsonscan"
)

const (
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"
	// globalsName is in folders whose safetensors files all belong to one model, without an index.
	globalsName = "model-globals.safetensors"
)

// shardName is PREFIX-00001-of-00003.EXT.
var shardName = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})\.(gguf|safetensors)$`)

// kind is the layout of a checkpoint's files.
type kind int

const (
	kindSafetensors kind = iota
	kindGGUF
	kindContainer
)

// source says which files make up a checkpoint.
type source struct {
	dir       string
	files     []string
	kind      kind
	indexPath string            // "" without an index
	index     map[string]string // tensor name to file name
}

// locate finds out what path is. Every file it returns existed.
func locate(path string) (source, error) {
	st, err := os.Stat(path)
	if err != nil {
		return source{}, osError(path, err)
	}
	if st.IsDir() {
		return locateDir(path)
	}
	if !st.Mode().IsRegular() {
		return source{}, badfile.In(path, ErrMagic, "not a regular file").Advise("name a model file or folder")
	}
	if filepath.Ext(path) == ".json" {
		return fromIndex(path)
	}
	dir, base := filepath.Split(path)
	dir = filepath.Clean(dir)
	kind, err := sniff(path)
	if err != nil {
		return source{}, err
	}
	m := shardName.FindStringSubmatch(base)
	switch {
	case kind == kindGGUF && m != nil:
		return splitGGUF(dir, m[1], m[3])
	case kind == kindSafetensors && m != nil:
		index := filepath.Join(dir, m[1]+".safetensors.index.json") // a shard means its whole model
		if _, err := os.Lstat(index); errors.Is(err, fs.ErrNotExist) {
			return source{}, badfile.In(path, ErrMissingShard, "a shard without %s", filepath.Base(index)).Advise("download the index and all shards")
		}
		return fromIndex(index)
	}
	return source{dir: dir, files: []string{path}, kind: kind}, nil
}

// sniff tells the layouts apart by content, so that files without an extension (a cache's blobs) open too. What is none of them is left
// to the reader its extension calls for, whose message is the more exact one.
func sniff(path string) (kind, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, osError(path, err)
	}
	defer f.Close()
	head := make([]byte, 64)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, osError(path, err)
	}
	if err := badfile.Sniff(path, head[:n]); err != nil {
		return 0, err
	}
	switch {
	case strings.HasPrefix(string(head[:n]), container.Magic) || filepath.Ext(path) == filepath.Ext(container.Name):
		return kindContainer, nil
	case strings.HasPrefix(string(head[:n]), "GGUF") || filepath.Ext(path) == ".gguf":
		return kindGGUF, nil
	}
	return kindSafetensors, nil
}

func locateDir(dir string) (source, error) {
	dir, err := snapshot(dir)
	if err != nil {
		return source{}, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return source{}, osError(dir, err)
	}
	var tensors, ggufs, others []string
	for _, e := range entries {
		switch name := e.Name(); strings.ToLower(filepath.Ext(name)) {
		case ".safetensors":
			tensors = append(tensors, name)
		case ".gguf":
			if !strings.HasPrefix(name, "mmproj") { // a vision tower beside its language model
				ggufs = append(ggufs, name)
			}
		case ".bin", ".pt", ".pth", ".msgpack", ".h5", ".onnx":
			others = append(others, name)
		}
	}
	has := func(name string) bool { _, err := os.Lstat(filepath.Join(dir, name)); return err == nil }
	switch {
	case has(container.Name):
		return locate(filepath.Join(dir, container.Name))
	case has(singleName):
		return locate(filepath.Join(dir, singleName))
	case has(indexName):
		return fromIndex(filepath.Join(dir, indexName))
	case len(tensors) == 1:
		return locate(filepath.Join(dir, tensors[0]))
	case has(globalsName):
		for i := range tensors {
			tensors[i] = filepath.Join(dir, tensors[i])
		}
		return source{dir: dir, files: tensors}, nil
	case len(tensors) > 1:
		return source{}, badfile.In(filepath.Join(dir, indexName), ErrMissingShard, "%d safetensors files and no index", len(tensors)).
			Advise("download the index, or name one of the files: %s", list(tensors))
	case len(ggufs) > 0:
		return soleGGUF(dir, ggufs)
	case len(others) > 0:
		return source{}, badfile.In(dir, ErrNoWeights, "%s cannot be read", list(others)).Advise("convert the model to safetensors or GGUF")
	}
	return source{}, badfile.In(dir, ErrNoWeights, "neither %s nor %s nor %s nor a .gguf file", singleName, indexName, container.Name).
		Advise("name the folder that holds the model's files")
}

// soleGGUF opens the only model among the GGUF files of a directory.
func soleGGUF(dir string, names []string) (source, error) {
	models := map[string]string{} // what the parts of one model have in common, to one of them
	for _, name := range names {
		key := name
		if m := shardName.FindStringSubmatch(name); m != nil {
			key = m[1] + "-of-" + m[3]
		}
		models[key] = name
	}
	if len(models) > 1 {
		return source{}, badfile.In(dir, ErrNoWeights, "several models: %s", list(names)).Advise("name one of the files")
	}
	return locate(filepath.Join(dir, names[0]))
}

// snapshot resolves a Hugging Face cache folder (models--ORG--NAME with refs/ and snapshots/) to the snapshot that refs/main names, or to
// the only one there is. Any other folder it returns as it is.
func snapshot(dir string) (string, error) {
	root, ref := filepath.Join(dir, "snapshots"), filepath.Join(dir, "refs", "main")
	rev, err := os.ReadFile(ref)
	if err != nil && !strings.HasPrefix(filepath.Base(dir), "models--") {
		return dir, nil
	}
	revs, lerr := os.ReadDir(root)
	if lerr != nil {
		return "", osError(root, lerr)
	}
	name := strings.TrimSpace(string(rev))
	switch {
	case err == nil && filepath.IsLocal(name):
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return "", badfile.In(ref, ErrNoWeights, "it names snapshot %q, which is not there", name).Advise("download the model again")
		}
		return filepath.Join(root, name), nil
	case len(revs) == 1:
		return filepath.Join(root, revs[0].Name()), nil
	}
	return "", badfile.In(root, ErrNoWeights, "%d snapshots, and refs/main names none", len(revs)).Advise("name one of the snapshots")
}

// splitGGUF lists the parts of a split file.
func splitGGUF(dir, prefix, count string) (source, error) {
	n, _ := strconv.Atoi(count) // five digits
	if n == 0 {
		return source{}, badfile.In(filepath.Join(dir, prefix), ErrMissingShard, "a part of %s", count).Advise(badfile.TryDownload)
	}
	src := source{dir: dir, kind: kindGGUF}
	for i := range n {
		src.files = append(src.files, filepath.Join(dir, fmt.Sprintf("%s-%05d-of-%s.gguf", prefix, i+1, count)))
	}
	return src, src.checkFiles(fmt.Sprintf("%s-*-of-%s.gguf", prefix, count))
}

// fromIndex reads the index of a sharded safetensors checkpoint.
func fromIndex(path string) (source, error) {
	data, err := readSmall(path)
	if err != nil {
		return source{}, err
	}
	index, err := parseIndex(path, data)
	if err != nil {
		return source{}, err
	}
	src := source{dir: filepath.Dir(path), indexPath: path, index: index}
	for _, name := range slices.Compact(slices.Sorted(maps.Values(index))) {
		src.files = append(src.files, filepath.Join(src.dir, name))
	}
	return src, src.checkFiles(filepath.Base(path))
}

// parseIndex returns the weight_map.
func parseIndex(path string, data []byte) (map[string]string, error) {
	index := map[string]string{}
	dec, err := jsonscan.New(data)
	if err == nil {
		err = jsonscan.Object(dec, func(key string) error {
			if key != "weight_map" {
				_, err := jsonscan.Any(dec)
				return err
			}
			return jsonscan.Object(dec, func(name string) error {
				v, err := jsonscan.Any(dec)
				if err != nil {
					return err
				}
				shard, ok := v.(string)
				if !ok || shard != filepath.Base(shard) || !filepath.IsLocal(shard) {
					return fmt.Errorf("tensor %q is in %v, which is no file of this folder", name, v)
				}
				index[name] = shard
				return nil
			})
		})
	}
	if err == nil {
		err = jsonscan.End(dec)
	}
	if err != nil {
		return nil, jsonError(path, err)
	}
	if len(index) == 0 {
		return nil, badfile.In(path, ErrHeader, "no weight_map, or an empty one").Advise("name an index such as " + indexName)
	}
	return index, nil
}

func jsonError(path string, err error) error {
	cause := ErrHeader
	if errors.Is(err, jsonscan.ErrDuplicate) {
		cause = ErrDuplicate
	}
	return badfile.In(path, cause, "%v", err).Advise("download the file again")
}

// maxJSON bounds index and config files, in bytes; the largest real index has some ten megabytes.
const maxJSON = 256 << 20

// readSmall reads a JSON file whole and recognises what is commonly found in place of it.
func readSmall(path string) ([]byte, error) {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, osError(path, err)
	case !st.Mode().IsRegular() || st.Size() > maxJSON:
		return nil, badfile.In(path, ErrHeader, "not a regular file of at most %d bytes", maxJSON)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, osError(path, err)
	}
	return data, badfile.Sniff(path, data)
}

// checkFiles reports every file that is not there, in one error.
func (s *source) checkFiles(what string) error {
	var absent []string
	for _, path := range s.files {
		_, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			name := filepath.Base(path)
			if target, lerr := os.Readlink(path); lerr == nil {
				name += " (a link to " + target + ", which is gone)"
			}
			absent = append(absent, name)
		case err != nil:
			return osError(path, err)
		}
	}
	if absent == nil {
		return nil
	}
	return badfile.In(filepath.Join(s.dir, what), ErrMissingShard, "%d of %d files are missing: %s", len(absent), len(s.files),
		strings.Join(absent, ", ")).Advise("download them into the same folder")
}

// checkIndex reports the tensors that the index places in a file which does not have them.
func (s *source) checkIndex(c *Checkpoint) error {
	var absent []string
	for name, shard := range s.index {
		if _, ok := c.byName[name]; !ok {
			absent = append(absent, name+" in "+shard)
		}
	}
	if absent == nil {
		return nil
	}
	slices.Sort(absent)
	return badfile.In(s.indexPath, ErrMissingTensor, "%s", list(absent)).Advise("download index and shards of one and the same revision")
}
