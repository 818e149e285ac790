package gpu

import "slices"

// unit is a node with the neighbours that run in the same kernels.
type unit struct {
	*node

	quantize *node // the integer form of the result is written with it
	add      *node // the result is added to add.dst, and kept nowhere else
	norm     *node // and that is normalised; quantize is then of the norm
	download *node // the result goes to the host, and nowhere else
	route    *node // the result is a router's, which chooses as soon as it is there
	post     *post // what is done with queries, keys and values before attention: then node is the store
	attend   *node // and attention; quantize is then of that
}

// post is the work on queries, keys and values between their projections and attention, a row at a time: norms, clamp, rotation, and the
// rows' way into the cache. Keys and values stay nowhere else.
type post struct {
	q, k  *node  // the norms
	clamp uint32 // limit of all three, 0 for none
	rope  *node  // of q; that of k is the same
}

// fusion is a kind of fusion, for the counters.
type fusion uint8

const (
	fuseNormQuantize fusion = iota
	fuseAttendQuantize
	fuseGLUQuantize
	fusePost
	fusePostAttend
	fuseMatMulAdd
	fuseExpertsAdd
	fuseMatMulNorm
	fuseExpertsNorm
	fuseDownload
	fuseRouter
	fusions
)

var fusionNames = [fusions]string{
	"norm+quantize", "attention+quantize", "glu+quantize", "qkv post", "qkv post+attention", "matmul+add", "experts+add", "matmul+add+norm", "experts+add+norm",
	"matmul+download", "router",
}

func (f fusion) String() string { return fusionNames[f] }

// fused is the result of the pass.
type fused struct {
	units     []unit
	swallowed []int32 // tensors whose values are not kept anywhere
	fired     [fusions]int
}

// fuse finds the nodes that can share kernels. allow says which fusions there are kernels for, at the given node.
//
// A tensor that only exists between fused nodes is not written: it is swallowed if no other node of the list reads it, and what reads it
// after the list finds it marked. A caller who wants to see it asks before it records on, and then the list ends there.
func fuse(nodes []node, allow func(f fusion, n *node) bool) fused {
	p := fusing{nodes: nodes, allow: allow, taken: make([]bool, len(nodes))}
	for i := range nodes {
		if p.taken[i] {
			continue
		}
		p.units = append(p.units, p.unit(i))
	}
	return p.fused
}

type fusing struct {
	fused
	nodes []node
	allow func(f fusion, n *node) bool
	taken []bool
}

func (p *fusing) unit(i int) unit {
	n := &p.nodes[i]
	switch n.op {
	case opNorm:
		if u, ok := p.post(i); ok {
			return u
		}
		return unit{node: n, quantize: p.quantized(i, fuseNormQuantize)}
	case opAttend:
		return unit{node: n, quantize: p.quantized(i, fuseAttendQuantize)}
	case opGLU:
		return unit{node: n, quantize: p.quantized(i, fuseGLUQuantize)}
	case opMatMul:
		u := unit{node: n, add: p.added(i, fuseMatMulAdd), download: p.downloaded(i), route: p.routed(i)}
		return p.normed(u, i, fuseMatMulNorm)
	case opExperts:
		return p.normed(unit{node: n, add: p.added(i, fuseExpertsAdd)}, i, fuseExpertsNorm)
	}
	return unit{node: n}
}

// take says that node i is done by another's kernels.
func (p *fusing) take(i int) *node {
	p.taken[i] = true
	return &p.nodes[i]
}

// quantized takes the node that makes the integer form of what node i writes. It may come later: until the tensor is written again
// nothing in between can tell. A gated unit then has no float32 result, so nothing else may read that.
func (p *fusing) quantized(i int, f fusion) *node {
	n := &p.nodes[i]
	if !p.allow(f, n) {
		return nil
	}
	for j := i + 1; j < len(p.nodes); j++ {
		m := &p.nodes[j]
		if m.op == opQuantize && m.x.id == n.dst.id {
			if f == fuseGLUQuantize {
				if !p.unread(n.dst.id, i+1, j) || !p.unread(n.dst.id, j+1, -1) {
					return nil
				}
				p.swallow(n.dst.id, i+1)
			}
			p.fired[f]++
			return p.take(j)
		}
		if m.writes(n.dst.id) {
			return nil
		}
	}
	return nil
}

// added takes the node after i if it adds i's result to another tensor and nothing else reads that result.
func (p *fusing) added(i int, f fusion) *node {
	n := &p.nodes[i]
	if i+1 == len(p.nodes) || !p.allow(f, n) {
		return nil
	}
	a := &p.nodes[i+1]
	if a.op != opAdd || a.x.id != n.dst.id || a.dst.id == n.dst.id || n.reads(a.dst.id) || !p.unread(n.dst.id, i+2, -1) {
		return nil
	}
	p.fired[f]++
	p.swallow(n.dst.id, i+2)
	return p.take(i + 1)
}

// normed takes the node after the addition if it normalises the sum, and the one that makes the norm's integer form.
func (p *fusing) normed(u unit, i int, f fusion) unit {
	if u.add == nil || i+2 == len(p.nodes) {
		return u
	}
	n := &p.nodes[i+2]
	sum := u.add.dst
	if n.op != opNorm || n.x.id != sum.id || n.dst.id == sum.id || n.dst.id == u.x.id || int32(n.n[0]) != sum.cols || !p.allow(f, u.node) {
		return u
	}
	if from := u.x.layer; from >= 0 && n.dst.layer > from && (n.dst.layer-from)%2 == 0 {
		return u // the norm may lie where what is multiplied does: see arena
	}
	p.fired[f]++
	u.norm, u.quantize = p.take(i+2), p.quantized(i+2, fuseNormQuantize)
	return u
}

// downloaded takes the node after i if it is the only one that reads i's result, for the host.
func (p *fusing) downloaded(i int) *node {
	n := &p.nodes[i]
	if i+1 == len(p.nodes) || p.nodes[i+1].op != opDownload || p.nodes[i+1].x.id != n.dst.id {
		return nil
	}
	if !p.allow(fuseDownload, n) || !p.unread(n.dst.id, i+2, -1) {
		return nil
	}
	p.fired[fuseDownload]++
	p.swallow(n.dst.id, i+2)
	return p.take(i + 1)
}

// routed takes the node after i if it chooses experts by i's result. The result is kept.
func (p *fusing) routed(i int) *node {
	n := &p.nodes[i]
	if i+1 == len(p.nodes) || p.nodes[i+1].op != opRoute || p.nodes[i+1].x.id != n.dst.id || !p.allow(fuseRouter, n) {
		return nil
	}
	p.fired[fuseRouter]++
	return p.take(i + 1)
}

// post matches norm q, norm k, clamps of q, k and v if any, rope q, rope k, store k and v.
func (p *fusing) post(i int) (unit, bool) {
	l := p.nodes[i:]
	next := func(o op, of int32) *node {
		if len(l) == 0 || l[0].op != o || of >= 0 && l[0].dst.id != of {
			return nil
		}
		n := &l[0]
		l = l[1:]
		return n
	}
	var x post
	if x.q = next(opNorm, -1); x.q == nil || x.q.x.id != x.q.dst.id {
		return unit{}, false
	}
	if x.k = next(opNorm, -1); x.k == nil || x.k.x.id != x.k.dst.id || x.k.n[1] != x.q.n[1] {
		return unit{}, false
	}
	q, k := x.q.dst.id, x.k.dst.id
	var clampV *node
	if c := next(opClamp, q); c != nil {
		ck := next(opClamp, k)
		clampV = next(opClamp, -1)
		if ck == nil || clampV == nil || ck.n != c.n || clampV.n != c.n {
			return unit{}, false
		}
		x.clamp = c.n[1]
	}
	x.rope = next(opRope, q)
	rk := next(opRope, k)
	s := next(opStore, -1)
	if x.rope == nil || rk == nil || s == nil {
		return unit{}, false
	}
	same := rk.places == x.rope.places && s.places == x.rope.places && rk.host == x.rope.host && rk.n == x.rope.n
	if !same || s.x.id != k || clampV != nil && clampV.dst.id != s.y.id || k == q || s.y.id == k || s.y.id == q {
		return unit{}, false
	}
	end := len(p.nodes) - len(l)
	if !p.unread(k, end, -1) || !p.unread(s.y.id, end, -1) || !allowPost(&x, s) || !p.allow(fusePost, s) {
		return unit{}, false
	}
	p.swallow(k, end)
	p.swallow(s.y.id, end)
	for j := i; j < end; j++ {
		p.take(j)
	}
	p.fired[fusePost]++
	return p.attended(unit{node: s, post: &x}, end), true
}

// attended takes node i if it is the attention behind u, the work on queries, keys and values. The queries are then kept nowhere else, too.
func (p *fusing) attended(u unit, i int) unit {
	if i == len(p.nodes) || p.nodes[i].op != opAttend {
		return u
	}
	a, q := &p.nodes[i], u.post.q.dst.id
	inPlace := a.dst.id == q || a.dst.id == u.x.id || a.dst.id == u.y.id
	if a.x.id != q || inPlace || a.table != u.table || a.places != u.places || !p.unread(q, i+1, -1) {
		return u
	}
	if !p.allow(fusePostAttend, a) || !allowPostAttend(u, a) {
		return u
	}
	p.fired[fusePostAttend]++
	p.swallow(q, i+1)
	u.attend, u.quantize = p.take(i), p.quantized(i, fuseAttendQuantize)
	return u
}

// unread says whether no node from `from` to `to`, -1 for the list's end, reads the values that tensor id has there.
func (p *fusing) unread(id int32, from, to int) bool {
	if to < 0 {
		to = len(p.nodes)
	}
	for j := from; j < to; j++ {
		switch n := &p.nodes[j]; {
		case n.reads(id):
			return false
		case n.writes(id):
			return true
		}
	}
	return true
}

// swallow marks a tensor whose values are not kept, unless it gets new ones.
func (p *fusing) swallow(id int32, from int) {
	if !slices.ContainsFunc(p.nodes[from:], func(n node) bool { return n.writes(id) }) {
		p.swallowed = append(p.swallowed, id)
	}
}
