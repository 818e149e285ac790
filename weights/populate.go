package weights

import (
	"cmp"
	"context"
	"os"
	"slices"
)

// populateStep is how much is paged in between two calls of a progress function.
const populateStep = 64 << 20

// span is a range of bytes in a file.
type span struct {
	f         *file
	off, size int64
}

// Populate pages the mapped files in, so that the first step does not wait for the disk page by page. progress, if not nil, gets bytes
// done and in total. It reads what fits: where the system refuses, pages come in when they are touched. It returns only ctx's error.
func (c *Checkpoint) Populate(ctx context.Context, progress func(done, total int64)) error {
	var spans []span
	for _, f := range c.files {
		spans = append(spans, span{f, 0, f.size})
	}
	return populate(ctx, spans, progress)
}

// PopulateOnly does what Populate does, but leaves on disk what keep does not name.
func (c *Checkpoint) PopulateOnly(ctx context.Context, keep func(*Tensor) bool, progress func(done, total int64)) error {
	return populate(ctx, c.spans(keep), progress)
}

// PageBytes is how much memory PopulateOnly takes: the whole pages that hold the tensors to keep.
func (c *Checkpoint) PageBytes(keep func(*Tensor) bool) (bytes int64) {
	for _, s := range c.spans(keep) {
		bytes += s.size
	}
	return bytes
}

// spans returns the whole pages that hold the tensors to keep, each once, in file order.
func (c *Checkpoint) spans(keep func(*Tensor) bool) []span {
	page := int64(os.Getpagesize())
	var spans []span
	for _, f := range c.files {
		var kept []*Tensor
		for _, t := range c.tensors {
			if t.file == f && keep(t) {
				kept = append(kept, t)
			}
		}
		slices.SortFunc(kept, func(a, b *Tensor) int { return cmp.Compare(a.Offset, b.Offset) })
		end := int64(0)
		for _, t := range kept {
			lo, hi := max(t.Offset/page*page, end), min(alignUp(t.Offset+t.Size, page), f.size)
			switch {
			case hi <= lo: // inside the last one's pages
				continue
			case lo == end && end > 0:
				spans[len(spans)-1].size += hi - lo
			default:
				spans = append(spans, span{f, lo, hi - lo})
			}
			end = hi
		}
	}
	return spans
}

func populate(ctx context.Context, spans []span, progress func(done, total int64)) error {
	var done, total int64
	for _, s := range spans {
		total += s.size
	}
	for _, s := range spans {
		for at := int64(0); at < s.size; at += populateStep {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(populateStep, s.size-at)
			s.f.populate(s.off+at, n)
			done += n
			if progress != nil {
				progress(done, total)
			}
		}
	}
	return nil
}
