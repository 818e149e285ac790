// The few things of the kernel that block.c looks at, instead of a vmlinux.h of its 130 000 lines. Where a member lies is found when the
// programs are loaded, by the running kernel's own type information (CO-RE): here names and types count, not the order nor what is left out.
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum { BPF_MAP_TYPE_ARRAY = 2 };
enum { BPF_F_MMAPABLE = 1 << 10 };

// include/linux/blk_types.h
enum { REQ_OP_MASK = 0xff, REQ_OP_READ = 0, REQ_OP_WRITE = 1 };

struct bpf_pidns_info {
	__u32 pid, tgid;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct gendisk {
	int major, first_minor;
	char disk_name[32];
};

struct request_queue {
	struct gendisk *disk;
};

struct request {
	struct request_queue *q;
	__u32 cmd_flags;
	__u32 __data_len;
};

#pragma clang attribute pop
