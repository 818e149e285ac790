package weights

import "context"

// populateStep is how much is paged in between two calls of a progress function.
const populateStep = 64 << 20

// Populate pages the mapped files in, so that the first step does not wait for the disk page by page. progress, if not nil, gets bytes
// done and in total. It reads what fits: where the system refuses, pages come in when they are touched. It returns only ctx's error.
func (c *Checkpoint) Populate(ctx context.Context, progress func(done, total int64)) error {
	var done, total int64
	for _, f := range c.files {
		total += f.size
	}
	for _, f := range c.files {
		for at := int64(0); at < f.size; at += populateStep {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(populateStep, f.size-at)
			f.populate(at, n)
			done += n
			if progress != nil {
				progress(done, total)
			}
		}
	}
	return nil
}
