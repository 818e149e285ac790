// The experts of a row from its logits, as package router chooses them: see route.go. Every invocation counts how many experts rank before
// each of its own. Before it comes the block of push constants p, with the fields of RoutePush, and float logit_of(row, expert).
#include "reduce.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEEP = 1;   // experts of an invocation
layout(constant_id = 2) const uint GATING = 0; // router.Gating

const uint SOFTMAX_TOPK = 0, TOPK_SOFTMAX = 1, SIGMOID = 2, SQRT_SOFTPLUS = 3;
const uint NORMALIZE = 1, BIAS = 2, HOST = 4;
const uint MOST = 1024;     // experts
const uint MOST_GROUPS = 64;

shared uvec4 keys[MOST / 4];       // of the selection scores, by which experts rank; 0 is out of the choice
shared float chosen[MOST];         // the weight of each rank
shared float group_scores[MOST_GROUPS];
shared float maxima[64];

// The order of floats as an order of integers: what is not a number comes last, both zeros are one.
uint key(float x) {
	uint b = floatBitsToUint(x);
	if ((b & 0x7fffffffu) > 0x7f800000u) {
		return 1;
	}
	if (b == 0x80000000u) {
		b = 0;
	}
	return ((b & 0x80000000u) != 0 ? ~b : b | 0x80000000u) + 1;
}

float score_of(float x) {
	switch (GATING) {
	case SIGMOID:
		return 1 / (1 + exp(-x));
	case SQRT_SOFTPLUS: {
		// ln(1+e), accurate where e is small and 1+e is not: Kahan's log1p.
		float e = exp(-abs(x));
		precise float u = 1 + e;
		precise float less = u - 1;
		float log1p = less == 0 ? e : log(u) * (e / less);
		return isNaN(x) ? x : sqrt(max(x, 0) + log1p);
	}
	default:
		return x;
	}
}

float workgroupMax(float x) {
	x = subgroupMax(x);
	if (subgroupElect()) {
		maxima[gl_SubgroupID] = x;
	}
	barrier();
	x = maxima[0];
	for (uint i = 1; i < gl_NumSubgroups; i++) {
		x = max(x, maxima[i]);
	}
	return x;
}

// route chooses the experts of a row. All invocations call it.
void route(uint row) {
	uint t = place(), n = gl_WorkGroupSize.x;
	uint padded = (p.experts + 3) / 4 * 4;
	float logit[KEEP], score[KEEP], weight[KEEP];
	bool nan = false;
	float top = uintBitsToFloat(0xff800000u);
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint e = k * n + t;
		logit[k] = e < p.experts ? logit_of(row, e) : top;
		nan = nan || isNaN(logit[k]);
	}
	if (GATING == SOFTMAX_TOPK) {
		[[unroll]] for (uint k = 0; k < KEEP; k++) {
			top = max(top, logit[k]);
		}
		top = workgroupMax(top);
		float sum = 0;
		[[unroll]] for (uint k = 0; k < KEEP; k++) {
			score[k] = k * n + t < p.experts ? exp(logit[k] - top) : 0;
			// An infinite logit, or one that is no number, makes every score one.
			if (nan || isinf(top)) {
				score[k] = uintBitsToFloat(0x7fc00000u);
			}
			sum += score[k];
		}
		sum = workgroupSum(sum);
		[[unroll]] for (uint k = 0; k < KEEP; k++) {
			score[k] /= sum;
			if (isNaN(sum)) {
				score[k] = sum;
			}
		}
	} else {
		[[unroll]] for (uint k = 0; k < KEEP; k++) {
			score[k] = score_of(logit[k]);
		}
	}
	uint own[KEEP];
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint e = k * n + t;
		weight[k] = score[k];
		own[k] = e < p.experts ? key((p.flags & BIAS) != 0 ? score[k] + p.bias.v[e] : score[k]) : 0;
		if (e < padded) {
			keys[e / 4][e % 4] = own[k];
		}
	}
	barrier();
	if (p.groups > 1) {
		uint size = p.experts / p.groups;
		if (t < p.groups) {
			uint first = 0, second = 0;
			for (uint e = t * size; e < (t + 1) * size; e++) {
				uint x = keys[e / 4][e % 4];
				second = max(second, min(first, x));
				first = max(first, x);
			}
			// The sum is one of scores, which the keys give back.
			float a = uintBitsToFloat(0), b = a;
			group_scores[t] = 0;
			first -= 1;
			a = first == 0 ? uintBitsToFloat(0x7fc00000u) : uintBitsToFloat((first & 0x80000000u) != 0 ? first & 0x7fffffffu : ~first);
			if (second != 0) {
				second -= 1;
				b = second == 0 ? uintBitsToFloat(0x7fc00000u) : uintBitsToFloat((second & 0x80000000u) != 0 ? second & 0x7fffffffu : ~second);
			}
			group_scores[t] = a + b;
		}
		barrier();
		[[unroll]] for (uint k = 0; k < KEEP; k++) {
			uint e = k * n + t;
			if (e >= p.experts) {
				continue;
			}
			uint g = e / size, mine = key(group_scores[g]), ahead = 0;
			for (uint other = 0; other < p.groups; other++) {
				uint x = key(group_scores[other]);
				ahead += uint(x > mine || x == mine && other < g);
			}
			if (ahead >= p.topk_groups) {
				own[k] = 0;
			}
		}
		barrier();
		[[unroll]] for (uint k = 0; k < KEEP; k++) {
			uint e = k * n + t;
			if (e < padded) {
				keys[e / 4][e % 4] = own[k];
			}
		}
		barrier();
	}
	uint rank[KEEP];
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		rank[k] = 0;
	}
	for (uint i = 0; i < padded / 4; i++) {
		uvec4 x = keys[i];
		[[unroll]] for (uint k = 0; k < KEEP; k++) {
			uint e = k * n + t;
			[[unroll]] for (uint c = 0; c < 4; c++) {
				rank[k] += uint(x[c] > own[k] || x[c] == own[k] && 4 * i + c < e);
			}
		}
	}
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint e = k * n + t;
		if (e < p.experts && rank[k] < p.topk) {
			uint at = row * p.topk + rank[k];
			p.ids.v[at] = int(e);
			if ((p.flags & HOST) != 0) {
				p.host.v[at] = int(e);
			}
			chosen[rank[k]] = weight[k];
		}
	}
	barrier();
	float sum = 0;
	if (GATING == TOPK_SOFTMAX) {
		for (uint i = 0; i < p.topk; i++) {
			sum += exp(chosen[i] - chosen[0]);
		}
	}
	float total = 0;
	if ((p.flags & NORMALIZE) != 0) {
		for (uint i = 0; i < p.topk; i++) {
			total += GATING == TOPK_SOFTMAX ? exp(chosen[i] - chosen[0]) / sum : chosen[i];
		}
		total += 1e-20;
	}
	for (uint i = t; i < p.topk; i += n) {
		float w = GATING == TOPK_SOFTMAX ? exp(chosen[i] - chosen[0]) / sum : chosen[i];
		if ((p.flags & NORMALIZE) != 0) {
			w /= total;
		}
		p.weights.v[row * p.topk + i] = w * p.scale;
	}
}
