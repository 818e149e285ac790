// Package prefetcher owns the disk: it reads the records of routed experts into memory that the tier lends it.
//
// What to read next is decided by a pure queue; reader goroutines carry it out, with direct I/O where the file system allows it. Beside
// that live the arena of slots and the drive's raw rate to compare with. Which experts are worth reading is the tier's matter, where
// their bytes lie package weights', and how many to read at a time package balancer's.
package prefetcher

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/weights"
)

// Source says how experts are read; *weights.Records is one. It must be safe for concurrent use.
type Source interface {
	Files() []string
	Record(layer, expert int) (*weights.Record, error)
}

// DefaultReaders is how many reads of small experts keep a drive busy.
const DefaultReaders = 4

// inFlight is how many bytes asked for at once keep a drive busy: bandwidth times latency, some 2.5 GB/s by 0.3 to 0.8 ms where measured.
const inFlight = 2 << 20

// ReadersFor returns how many reads of the given size, in bytes, to have in flight: as few as keep the drive busy. More do not raise its
// rate; they share it, so that what a step waits for lands later, all of it at the end instead of one expert after the other.
func ReadersFor(size int64) int {
	return int(min(max((inFlight+size-1)/max(size, 1), 1), DefaultReaders))
}

// MaxReaders bounds the threads that can be blocked in reads.
const MaxReaders = 64

// Config configures a Prefetcher. All functions may be nil.
type Config struct {
	Source  Source
	Readers int // reads at a time, until a messages.Policy; default DefaultReaders
	Direct  Mode
	Tier    messages.Address // gets Landed
	// Note takes a line for the user: how the files are read, and when that changes or a file is written to. Any goroutine calls it.
	Note func(string)
	// Open opens files, by default the system's.
	Open func(path string, direct bool) (File, error)
	// Trace is called by a reader after each of its reads, before Landed is sent. A reader's number is below MaxReaders.
	Trace func(reader int, l *messages.Landed, t Times)
	// Begin and Observe are called by a reader before and after each of its reads, for whoever measures them.
	Begin   func()
	Observe func(bytes int64, took time.Duration, failed bool)
}

// Times of a read, from its record's lookup to its landing.
type Times struct{ Begin, End time.Time }

// Stats count reads since the start.
type Stats struct {
	Reads, Bytes    int64
	Failed, Retried int64
	Busy            time.Duration // while at least one read was in flight: Bytes/Busy is the rate
	Took            time.Duration // of the reads that have ended, summed: Took/Busy were in flight on average
}

// Prefetcher is the actor's state and its readers. Receive is called by its mailbox, one message at a time; readers take their next read
// from the queue themselves, under a lock, since another trip through a mailbox would leave the drive idle while the cores compute.
type Prefetcher struct {
	source Source
	files  []*openedFile
	tier   messages.Address
	note   func(string)
	hooks  Config             // its functions
	begin  chan messages.Read // room for every reader
	ended  sync.WaitGroup     // readers
	number int                // of them; they are started when there is a read too many for those that are there

	patience time.Duration // of Close

	mu    sync.Mutex // guards the rest
	queue *queue
	stats Stats
	since time.Time // of the first of the reads in flight
	now   int       // reads in flight
	down  bool
}

// openedFile is a weight file; direct is nil where reads go through the page cache.
type openedFile struct {
	path   string
	at     Stamp // when it was opened
	cached File

	mu      sync.RWMutex
	direct  File
	retired File // a direct one that was given up
	warned  bool // that it was written to
}

// New opens the files. Close must be called.
func New(cfg Config) (*Prefetcher, error) {
	p := &Prefetcher{source: cfg.Source, tier: cfg.Tier, note: cfg.Note, hooks: cfg, patience: closeWait}
	if p.note == nil {
		p.note = func(string) {}
	}
	if err := p.open(cfg); err != nil {
		return nil, errors.Join(err, p.closeFiles())
	}
	if p.hooks.Trace == nil {
		p.hooks.Trace = func(int, *messages.Landed, Times) {}
	}
	if p.hooks.Begin == nil {
		p.hooks.Begin = func() {}
	}
	if p.hooks.Observe == nil {
		p.hooks.Observe = func(int64, time.Duration, bool) {}
	}
	p.queue, p.begin = newQueue(bounded(cmp.Or(cfg.Readers, DefaultReaders))), make(chan messages.Read, MaxReaders)
	return p, nil
}

func bounded(readers int) int { return min(max(readers, 1), MaxReaders) }

func (p *Prefetcher) open(cfg Config) error {
	open := cfg.Open
	if open == nil {
		open = openFile
	}
	var direct int
	var why string
	for _, path := range cfg.Source.Files() {
		cached, err := open(path, false)
		if err != nil {
			return fmt.Errorf("%w; check that the file is still there and may be read", err)
		}
		f := &openedFile{path: path, cached: cached}
		p.files = append(p.files, f)
		if f.at, err = cached.Stat(); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if cfg.Direct == Off {
			continue
		}
		file, answer, err := probeDirect(open, path, f.at.Size)
		switch {
		case answer == yes:
			f.direct = file
			direct++
		case cfg.Direct == On:
			return fmt.Errorf("%s: direct reads: %w; use --direct auto", path, err)
		case answer == no:
			why = fmt.Sprintf("the file system of %s refuses direct reads", filepath.Base(path))
		default:
			why = fmt.Sprintf("whether %s can be read directly is unknown: %v", filepath.Base(path), err)
		}
	}
	switch {
	case cfg.Direct == Off:
		p.note("experts are read through the page cache, as asked")
	case direct == len(p.files):
		p.note("experts are read directly (O_DIRECT)")
	default:
		p.note(fmt.Sprintf("experts are read through the page cache in %d of %d files: %s", len(p.files)-direct, len(p.files), why))
	}
	return nil
}

// Receive handles Read, Raise and Cancel, and takes them back to their pools; and Policy, of which it looks at Readers: reads in flight go
// on if these are more now. It panics on any other message.
func (p *Prefetcher) Receive(m messages.Message) {
	switch m := m.(type) {
	case *messages.Read:
		p.mu.Lock()
		p.queue.add(m)
		p.mu.Unlock()
		messages.Reads.Put(m)
	case *messages.Raise:
		p.mu.Lock()
		p.queue.raise(m.Key)
		p.mu.Unlock()
		messages.Raises.Put(m)
	case *messages.Cancel:
		p.mu.Lock()
		p.queue.cancel(m.Key)
		p.mu.Unlock()
		messages.Cancels.Put(m)
	case *messages.Policy:
		p.mu.Lock()
		p.queue.allow(bounded(m.Readers))
		p.mu.Unlock()
	default:
		panic(fmt.Sprintf("prefetcher: message %T", m))
	}
	p.dispatch()
}

// dispatch hands the reads that may begin to readers, of which there is one for each read in flight.
func (p *Prefetcher) dispatch() {
	for {
		r, ok := p.take()
		if !ok {
			return
		}
		p.mu.Lock()
		need := p.queue.inFlight
		p.mu.Unlock()
		for ; p.number < need; p.number++ {
			id := p.number
			p.ended.Go(func() { p.reader(id) })
		}
		p.begin <- r
	}
}

// take returns the next read to begin, and answers those that were refused on the way.
func (p *Prefetcher) take() (messages.Read, bool) {
	for {
		p.mu.Lock()
		e, ok := p.queue.next()
		p.mu.Unlock()
		if !ok {
			return messages.Read{}, false
		}
		if e.err == nil {
			return e.read, true
		}
		l := landed(&e.read)
		l.Err = e.err
		p.tier.Send(l)
	}
}

func landed(r *messages.Read) *messages.Landed {
	l := messages.Landeds.Get()
	l.Key, l.Slot, l.Priority, l.Flow = r.Key, r.Slot, r.Priority, r.Flow
	return l
}

// reader carries out reads until Close.
func (p *Prefetcher) reader(id int) {
	for r := range p.begin {
		for ok := true; ok; {
			key := r.Key
			p.hooks.Begin()
			l, t := p.read(&r)
			p.hooks.Observe(l.Bytes, t.End.Sub(t.Begin), l.Err != nil)
			p.hooks.Trace(id, l, t)
			p.account(l, t)
			p.tier.Send(l)
			p.mu.Lock()
			p.queue.done(key)
			p.mu.Unlock()
			r, ok = p.take()
		}
	}
}

// read carries out one read. A panic in it, the source's for one, is the read's error.
func (p *Prefetcher) read(r *messages.Read) (l *messages.Landed, t Times) {
	l = landed(r)
	t.Begin = time.Now()
	p.mu.Lock()
	if p.now == 0 {
		p.since = t.Begin
	}
	p.now++
	p.mu.Unlock()
	defer func() {
		if cause := recover(); cause != nil {
			l.Err = fmt.Errorf("reading expert %d of layer %d: panic: %v\n%s", r.Key.Expert, r.Key.Layer, cause, debug.Stack())
		}
		if l.Err != nil {
			l.Data = nil
		}
		t.End = time.Now()
		l.Nanos = int64(t.End.Sub(t.Begin))
	}()
	rec, err := p.source.Record(int(r.Key.Layer), int(r.Key.Expert))
	switch {
	case err != nil:
		l.Err = err
		return l, t
	case int64(len(r.Dst)) < rec.Bytes:
		l.Err = fmt.Errorf("expert %d of layer %d needs %d bytes of memory, its slot has %d", r.Key.Expert, r.Key.Layer, rec.Bytes, len(r.Dst))
		return l, t
	}
	l.Data = r.Dst[:rec.Bytes:rec.Bytes]
	for _, x := range rec.Extents {
		n, err := p.extent(x, l.Data)
		l.Bytes += n
		if err != nil {
			l.Err = p.explain(x, n, err, r.Key)
			return l, t
		}
	}
	rec.Assemble(l.Data)
	return l, t
}

func (p *Prefetcher) account(l *messages.Landed, t Times) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	if p.now == 0 {
		p.stats.Busy += t.End.Sub(p.since)
	}
	p.stats.Bytes += l.Bytes
	p.stats.Took += t.End.Sub(t.Begin)
	if l.Err != nil {
		p.stats.Failed++
	} else {
		p.stats.Reads++
	}
}

// Stats returns what has been counted; any goroutine may call it.
func (p *Prefetcher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	if p.now > 0 {
		s.Busy += time.Since(p.since)
	}
	return s
}

var (
	errEnd        = errors.New("end of file") // before the extent's
	errNoProgress = errors.New("the file system returns no whole block")
)

// Calls that read nothing new, interrupted ones for instance, are repeated up to maxIdle times in a row; failed ones maxRetries times.
const (
	maxIdle    = 1000
	maxRetries = 1
)

// extent reads x into the record's memory and returns the bytes read.
func (p *Prefetcher) extent(x weights.RecordExtent, mem []byte) (int64, error) {
	if x.File < 0 || x.File >= len(p.files) {
		return 0, fmt.Errorf("file %d of %d", x.File, len(p.files))
	}
	f := p.files[x.File]
	whole := min((x.Size+blockSize-1)/blockSize*blockSize, int64(len(mem))-x.At)
	dst := mem[x.At:][:whole]
	if direct := f.directFile(); direct != nil && whole%blockSize == 0 && sliceAddress(dst)%blockSize == 0 {
		n, err := p.fill(direct, dst, x, blockSize)
		if !refused(err) {
			return n, p.check(f, err)
		}
		f.giveUpDirect()
		p.note(fmt.Sprintf("experts of %s are read through the page cache from now on: %v", filepath.Base(f.path), err))
	}
	n, err := p.fill(f.cached, dst[:x.Size], x, 1)
	f.cached.Drop(x.Offset, x.Size)
	return n, p.check(f, err)
}

// fill reads until dst holds the x.Size bytes of the extent. Every call begins at a multiple of align, whatever the last one returned.
func (p *Prefetcher) fill(f File, dst []byte, x weights.RecordExtent, align int64) (int64, error) {
	var got int64
	idle, retries := 0, 0
	for got < x.Size {
		from := got / align * align
		n, err := f.ReadAt(dst[from:], x.Offset+from)
		end := from + int64(n)
		switch {
		case end >= x.Size:
			return x.Size, nil
		case end > got:
			got, idle, retries = end, 0, 0
		case err == nil && n > 0 && ended(f, x.Offset+got):
			return got, errEnd
		case interrupted(err) || err == nil && n > 0:
			if idle++; idle == maxIdle {
				return got, cmp.Or(err, errNoProgress)
			}
		case err == nil || errors.Is(err, io.EOF):
			return got, errEnd
		case refused(err) || retries == maxRetries:
			return got, err
		default:
			retries++
			p.mu.Lock()
			p.stats.Retried++
			p.mu.Unlock()
		}
	}
	return got, nil
}

// ended reports whether the file now ends at or before off. A direct read cannot ask: it begins at a block, and gets its first part again.
func ended(f File, off int64) bool {
	now, err := f.Stat()
	return err == nil && now.Size <= off
}

// check looks, after a read, whether the file was written to while it was open, and says so once.
func (p *Prefetcher) check(f *openedFile, err error) error {
	if err != nil {
		return err
	}
	now, serr := f.cached.Stat()
	if serr != nil || now.Size == f.at.Size && now.ModifiedNanos == f.at.ModifiedNanos {
		return nil
	}
	f.mu.Lock()
	first := !f.warned
	f.warned = true
	f.mu.Unlock()
	if first {
		p.note(fmt.Sprintf("%s was written to after it was opened: what is read from it may be wrong; run again once it is complete", f.path))
	}
	return nil
}

// explain turns the error of a read into one that says what became of the file and what to try.
func (p *Prefetcher) explain(x weights.RecordExtent, got int64, err error, key messages.Key) error {
	what := fmt.Sprintf("reading %d bytes for expert %d of layer %d", x.Size, key.Expert, key.Layer)
	e := &weights.Error{Offset: x.Offset + got, Err: err, What: what}
	if x.File < 0 || x.File >= len(p.files) {
		return e
	}
	f := p.files[x.File]
	e.File = f.path
	e.Try = "check the drive (dmesg, smartctl) and compare the file with the publisher's checksum"
	now, serr := f.cached.Stat()
	named, nerr := statPath(f.path)
	switch {
	case serr != nil:
	case errors.Is(err, errEnd):
		e.Err = weights.ErrTruncated
		e.What += fmt.Sprintf(": the file had %d bytes when it was opened and has %d now", f.at.Size, now.Size)
		e.Try = "restore the file and run again"
	case nerr != nil || named.Inode != f.at.Inode || named.Dev != f.at.Dev:
		e.What += ": the file was removed or replaced while running"
		e.Try = "run again"
	case now.ModifiedNanos != f.at.ModifiedNanos:
		e.What += ": the file was written to while running"
		e.Try = "run again once it is complete"
	}
	return e
}

func (f *openedFile) directFile() File {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.direct
}

// giveUpDirect makes later reads go through the page cache. The descriptor stays open for readers that use it still.
func (f *openedFile) giveUpDirect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.direct != nil {
		f.retired = f.direct
		f.direct = nil
	}
}

// closeWait bounds how long Close waits for reads in flight.
const closeWait = 10 * time.Second

// Close answers what has not begun with messages.ErrStopped, waits for the reads in flight, and closes the files. It must not run
// concurrently with Receive; a Read received later is answered with ErrStopped. If the drive does not answer for ten seconds, Close
// returns an error and leaves readers and files behind.
func (p *Prefetcher) Close() error {
	if p.down {
		return nil
	}
	p.down = true
	p.mu.Lock()
	p.queue.stop(messages.ErrStopped)
	p.mu.Unlock()
	p.dispatch()
	close(p.begin)
	ended := make(chan struct{})
	go func() { p.ended.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(p.patience):
		return fmt.Errorf("reads of experts have not ended after %v; the drive may hang", p.patience)
	}
	return p.closeFiles()
}

func (p *Prefetcher) closeFiles() error {
	var err error
	for _, f := range p.files {
		for _, open := range []File{f.cached, f.direct, f.retired} {
			if open != nil {
				err = errors.Join(err, open.Close())
			}
		}
	}
	p.files = nil
	return err
}

// Refuse answers a read that Receive has not taken, and takes it back to its pool: for the supervisor, when the mailbox failed with the
// message in hand.
func (p *Prefetcher) Refuse(m *messages.Read, err error) {
	l := landed(m)
	l.Err = err
	messages.Reads.Put(m)
	p.tier.Send(l)
}
