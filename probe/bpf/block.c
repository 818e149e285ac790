// Programs that count the block I/O of one process, per drive. They run at every request of the machine, so they are made to cost little:
// no hash map, no lock, no helper but the clock and the thread's identity, and memory that the reader has mapped.
//
// The life of a request, and who looks:
//   block_io_start   in the thread that wants the data: the only place where the process is known. The request gets an entry.
//   block_rq_merge   another request takes over what it was for, and it is gone.
//   block_rq_issue   in any thread: the drive gets it. Requests, bytes and the wait in the queue count now, since a request grows by
//                    merging until then, and since completions may be missed.
//   block_io_done    in any context: the time in the drive.
//
// Before Linux 6.5 there are no block_io_start and block_io_done. There a request is first seen in its thread at block_rq_insert, or at
// block_rq_issue if it goes to the drive at once, and last at block_rq_complete. Since the issue may also be in the thread of somebody who
// happens to run the queue, requests of others get entries too, so that they are known not to be ours.
//
// A completion that nobody sees leaves its entry behind. The kernel has a fixed set of requests and uses them again, so it is noticed at
// the latest when its address starts anew, by whichever process; the reader looks for old ones before that.

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define BUCKETS 42 // of loghist.Hist
#define DRIVES 16
#define SETS 1024
#define WAYS 8

// An entry is a request that is under way. Whoever swaps issued for 0 counts the end of it, and nobody else.
struct entry {
	__u64 start, issued; // nanoseconds; issued is 0 unless the drive has it, and whenever the entry's key is 0
	__u32 bytes;
	__u8 drive, write;
	__u8 foreign; // nothing of it counts
	__u8 pad;
};

// A set has the entries of requests whose address has the same hash; the keys fill a line of the cache.
struct set {
	__u64 key[WAYS]; // a request's address, 0 if free
	struct entry entry[WAYS];
};

// A drive is known by its place in the array from its first request on.
struct drive {
	__u32 dev; // major << 20 | minor, 0 if free
	char name[32];
};

struct ops {
	__u64 requests, bytes, queue_sum, queue[BUCKETS];        // written by issue only
	__u64 completed, completed_bytes, device_sum, device[BUCKETS]; // by done only
	__u64 lost;                                              // by start and merge
};

// stat has a processor's figures of a drive, filled up to whole lines of the cache. A program does not interrupt itself, nor is it moved
// to another processor, so that plain additions are enough.
struct stat {
	struct ops read, write;
	__u64 pad[2];
};

// The process that counts: its number in its pid namespace, and the namespace as stat(2) tells it; pidns_ino is 0 for the machine's own.
volatile const __u32 tgid;
volatile const __u64 pidns_dev, pidns_ino;

struct set table[SETS];
struct drive drives[DRIVES];
__u64 untracked; // requests that found no room

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DRIVES); // times processors, set when it is loaded
	__type(key, __u32);
	__type(value, struct stat);
} stats SEC(".maps");

static __always_inline int ours(void)
{
	if (!pidns_ino)
		return bpf_get_current_pid_tgid() >> 32 == tgid;
	struct bpf_pidns_info in_ns = {};
	return !bpf_get_ns_current_pid_tgid(pidns_dev, pidns_ino, &in_ns, sizeof(in_ns)) && in_ns.tgid == tgid;
}

// set_of hashes the lower half of the address: the verifier knows that a key is a pointer and allows no arithmetic on it, but takes a copy
// of 32 bits for a number.
static __always_inline struct set *set_of(__u64 key)
{
	__u32 hash;
	asm("%0 = %1" : "=w"(hash) : "w"((__u32)key));
	return &table[hash * 0x9e3779b9u >> 22]; // 10 bits of Fibonacci hashing
}

static __always_inline int find(struct set *s, __u64 key)
{
#pragma unroll
	for (int i = 0; i < WAYS; i++)
		if (*(volatile __u64 *)&s->key[i] == key)
			return i;
	return -1;
}

static __always_inline void release(struct set *s, int i)
{
	*(volatile __u64 *)&s->key[i & (WAYS - 1)] = 0;
}

static __always_inline struct ops *ops_of(const struct entry *e)
{
	__u32 i = bpf_get_smp_processor_id() * DRIVES + e->drive;
	struct stat *s = bpf_map_lookup_elem(&stats, &i);
	if (!s)
		return 0;
	return e->write ? &s->write : &s->read;
}

static __always_inline __u32 bucket(__u64 ns)
{
	if (ns >> BUCKETS)
		return BUCKETS - 1;
	__u32 b = 0;
	if (ns >> 32) { ns >>= 32; b = 32; }
	if (ns >> 16) { ns >>= 16; b += 16; }
	if (ns >> 8) { ns >>= 8; b += 8; }
	if (ns >> 4) { ns >>= 4; b += 4; }
	if (ns >> 2) { ns >>= 2; b += 2; }
	return b + (ns >> 1 & 1);
}

static __always_inline __u64 since(__u64 now, __u64 then)
{
	return now > then ? now - then : 0;
}

// lose counts an entry whose completion was missed.
static __always_inline void lose(struct entry *e)
{
	if (!__sync_lock_test_and_set(&e->issued, 0))
		return;
	struct ops *o = ops_of(e);
	if (o)
		o->lost++;
}

static __always_inline int drive_of(struct request *rq)
{
	struct gendisk *disk = rq->q->disk;
	__u32 dev = (__u32)disk->major << 20 | (__u32)disk->first_minor;
	if (!dev)
		return -1;
	for (int i = 0; i < DRIVES; i++) {
		struct drive *d = &drives[i];
		if (d->dev == dev)
			return i;
		if (d->dev)
			continue;
		__u32 was = __sync_val_compare_and_swap(&d->dev, 0, dev);
		if (!was)
			bpf_probe_read_kernel_str(d->name, sizeof(d->name), disk->disk_name);
		if (!was || was == dev)
			return i;
	}
	return -1;
}

// begin gives a request its entry and returns the entry's place in the set, or -1; i is the place if it has one already, since its last
// completion was missed. Foreign requests get one only if it is to be known that they are.
static __always_inline int begin(struct request *rq, struct set *s, int i, int know_foreign)
{
	if (i >= 0)
		lose(&s->entry[i & (WAYS - 1)]);
	__u64 key = (__u64)rq;
	__u32 op = rq->cmd_flags & REQ_OP_MASK;
	int foreign = op > REQ_OP_WRITE || !ours();
	int drive = foreign ? 0 : drive_of(rq);
	if ((foreign && !know_foreign) || drive < 0) {
		if (i >= 0)
			release(s, i);
		if (drive < 0)
			__sync_fetch_and_add(&untracked, 1);
		return -1;
	}
	if (i < 0) {
#pragma unroll
		for (int w = 0; w < WAYS; w++)
			if (i < 0 && !s->key[w] && !__sync_val_compare_and_swap(&s->key[w], 0, key))
				i = w;
	}
	if (i < 0) {
		if (!foreign)
			__sync_fetch_and_add(&untracked, 1);
		return -1;
	}
	struct entry *e = &s->entry[i & (WAYS - 1)];
	e->drive = drive;
	e->write = op;
	e->foreign = foreign;
	e->start = bpf_ktime_get_ns();
	return i;
}

static __always_inline void handed_over(struct request *rq, struct entry *e)
{
	if (e->issued || e->foreign) // issued: the drive had refused it, and gets it again
		return;
	__u64 now = bpf_ktime_get_ns(), waited = since(now, e->start);
	__u32 bytes = rq->__data_len;
	e->bytes = bytes;
	*(volatile __u64 *)&e->issued = now;
	struct ops *o = ops_of(e);
	if (!o)
		return;
	o->requests++;
	o->bytes += bytes;
	o->queue_sum += waited;
	o->queue[bucket(waited)]++;
}

static __always_inline void completed(struct request *rq)
{
	struct set *s = set_of((__u64)rq);
	int i = find(s, (__u64)rq);
	if (i < 0)
		return;
	struct entry *e = &s->entry[i & (WAYS - 1)];
	struct ops *o = ops_of(e);
	__u32 bytes = e->bytes;
	__u64 issued = __sync_lock_test_and_set(&e->issued, 0);
	release(s, i);
	if (!issued || !o)
		return;
	__u64 took = since(bpf_ktime_get_ns(), issued);
	o->completed++;
	o->completed_bytes += bytes;
	o->device_sum += took;
	o->device[bucket(took)]++;
}

SEC("tp_btf/block_io_start")
int BPF_PROG(start, struct request *rq)
{
	struct set *s = set_of((__u64)rq);
	begin(rq, s, find(s, (__u64)rq), 0);
	return 0;
}

SEC("tp_btf/block_rq_insert")
int BPF_PROG(insert, struct request *rq)
{
	struct set *s = set_of((__u64)rq);
	begin(rq, s, find(s, (__u64)rq), 1);
	return 0;
}

SEC("tp_btf/block_rq_merge")
int BPF_PROG(merge, struct request *rq)
{
	struct set *s = set_of((__u64)rq);
	int i = find(s, (__u64)rq);
	if (i >= 0) {
		lose(&s->entry[i & (WAYS - 1)]);
		release(s, i);
	}
	return 0;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(issue, struct request *rq)
{
	struct set *s = set_of((__u64)rq);
	int i = find(s, (__u64)rq);
	if (i >= 0)
		handed_over(rq, &s->entry[i & (WAYS - 1)]);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(issue_first, struct request *rq)
{
	struct set *s = set_of((__u64)rq);
	int i = find(s, (__u64)rq);
	if (i < 0)
		i = begin(rq, s, i, 1);
	if (i >= 0)
		handed_over(rq, &s->entry[i & (WAYS - 1)]);
	return 0;
}

SEC("tp_btf/block_io_done")
int BPF_PROG(done, struct request *rq)
{
	completed(rq);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(complete, struct request *rq)
{
	completed(rq);
	return 0;
}

// The kernel gives its tracing helpers to programs under the GPL only; this file may be used under it as well as under the project's licence.
char LICENSE[] SEC("license") = "GPL";
