package weights

import (
	"encoding/binary"
	"io"
	"strconv"

	"github.com/coli-moe/coli/weights/container"
	"github.com/coli-moe/coli/weights/gguf"
	"github.com/coli-moe/coli/weights/internal/badfile"
)

// addContainer adds what a coli container holds. The matrices of its experts are in the catalogue one by one, under the names that
// Expert gave them in the checkpoint the container was made from.
func (c *Checkpoint) addContainer(fl *file) error {
	f, err := container.Read(fl.f, fl.size, fl.path)
	if err != nil {
		return err
	}
	if f.MetaSize > 0 {
		if c.gguf, err = gguf.Read(io.NewSectionReader(fl.f, f.Metadata, f.MetaSize), f.MetaSize, fl.path); err != nil {
			return err
		}
		c.metadata = f.Metadata
	}
	for _, t := range f.Dense {
		err := c.add(&Tensor{Name: t.Name, Type: t.Format.String(), Format: t.Format, Shape: t.Shape, Offset: t.Offset, Size: t.Size}, fl)
		if err != nil {
			return err
		}
	}
	c.records = map[int][][3]*Tensor{}
	for i := range f.Layers {
		l := &f.Layers[i]
		experts := make([][3]*Tensor, len(l.Sums))
		for e := range experts {
			at, number := l.Record(e), strconv.Itoa(e)
			for j := range l.Matrices {
				m := &l.Matrices[j]
				t := &Tensor{Name: m.Name(number), Type: m.Format.String(), Format: m.Format, Shape: []int{m.Rows, m.Cols}, Offset: at, Size: m.Size()}
				if err := c.add(t, fl); err != nil {
					return err
				}
				experts[e][j], at = t, at+t.Size
			}
		}
		c.records[l.Index] = experts
	}
	return nil
}

// containerExpert is Expert for a coli container.
func (c *Checkpoint) containerExpert(layer, expert int) (gate, up, down *Tensor, err error) {
	experts := c.records[layer]
	if expert < 0 || expert >= len(experts) {
		return nil, nil, nil, badfile.In(c.where(), ErrMissingTensor, "expert %d of layer %d, which has %d", expert, layer, len(experts)).
			Advise("check that config and weights belong to the same model")
	}
	x := experts[expert]
	return x[0], x[1], x[2], nil
}

// Metadata returns the metadata of the (first) GGUF file as a GGUF header without tensors, the form a coli container keeps it in; nil for
// a model that has none.
func (c *Checkpoint) Metadata() ([]byte, error) {
	if c.gguf == nil {
		return nil, nil
	}
	fl := c.files[0]
	b := make([]byte, c.gguf.MetaEnd) // inside the file: the reader has been there
	if _, err := fl.f.ReadAt(b, c.metadata); err != nil {
		return nil, badfile.At(fl.path, c.metadata, err, "reading the metadata")
	}
	const tensorCount = 8 // where the number of tensors stands
	binary.LittleEndian.PutUint64(b[tensorCount:], 0)
	return b, nil
}

// IsScale reports whether t holds the scales of another tensor, which that tensor's rows include.
func (t *Tensor) IsScale() bool { return t.companion }
