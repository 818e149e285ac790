package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights"
)

// decoderKeys are the hyper-parameters every decoder here needs; a checkpoint without one of them is refused.
var decoderKeys = []string{
	"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
}

// unsupported reports a hyper-parameter whose value changes the forward pass in a way coli does not compute.
func unsupported(cfg *weights.Config, key, value string) error {
	return &weights.Error{
		Err: weights.ErrValue, File: cfg.File, Key: cfg.Key(key), Offset: -1,
		What: fmt.Sprintf("%s is not supported for %s", value, cfg.ModelType),
		Try:  "use a checkpoint without it: ignoring it would change the answers",
	}
}

// checkVariants refuses, rather than ignores, what the blocks below do not compute: RoPE is the default one over the whole head, the
// activation SiLU.
func checkVariants(cfg *weights.Config) error {
	if sc := cfg.RopeScaling; sc != nil && sc.Type != "default" {
		return unsupported(cfg, "rope_scaling", sc.Type)
	}
	if f := cfg.PartialRotaryFactor; f != 0 && f != 1 {
		return unsupported(cfg, "partial_rotary_factor", fmt.Sprint(f))
	}
	if cfg.HeadDim%2 != 0 { // a head is rotated in pairs
		return unsupported(cfg, "head_dim", fmt.Sprint(cfg.HeadDim))
	}
	if act := cfg.HiddenAct; act != "" && act != "silu" {
		return unsupported(cfg, "hidden_act", act)
	}
	return nil
}

// ends are the tensors outside the layers.
type ends struct {
	embed *ops.Matrix // [vocab_size, hidden_size]
	norm  *ops.Vector // [hidden_size]
	head  *ops.Matrix // [vocab_size, hidden_size]; embed where tied
	eps   float32
}

func loadEnds(cfg *weights.Config, l *loader) ends {
	g := l.global()
	d := ends{
		embed: g.matrix(cfg.VocabSize, cfg.HiddenSize, "embed_tokens.weight", "token_embd.weight"),
		norm:  g.vector(cfg.HiddenSize, "norm.weight", "output_norm.weight"),
		eps:   float32(cfg.RMSNormEps),
	}
	g.hf = ""
	if isTrue(cfg.TieWordEmbeddings) {
		l.used["lm_head.weight"] = true // some tied checkpoints store the copy
		d.head = d.embed
	} else {
		d.head = g.matrix(cfg.VocabSize, cfg.HiddenSize, "lm_head.weight", "output.weight")
	}
	return d
}

// Embed gathers the rows of the embedding on the host.
func (d *ends) Embed(e ops.Executor, st *Step) Stream {
	n, cols := len(st.Tokens), d.embed.Cols
	st.host = slices.Grow(st.host[:0], n*cols)[:n*cols]
	for r, id := range st.Tokens {
		d.embed.DecodeRow(st.host[r*cols:(r+1)*cols], int(id))
	}
	return st.stream(st.emit(e, "embed", -1, e.Upload("embed", -1, n, cols, st.host)))
}

// Head normalises the residual of the asked rows and multiplies them with lm_head.
func (d *ends) Head(e ops.Executor, st *Step, in Stream, rows []int) *ops.Tensor {
	x := in[0]
	if len(rows) < x.Rows {
		x = e.Gather("head_rows", x, rows)
	}
	n := e.New("final_norm", -1, x.Rows, x.Cols)
	e.RMSNorm(n, x, ops.Norm{Weight: d.norm, Eps: d.eps})
	st.emit(e, "final_norm", -1, n)
	logits := e.New("logits", -1, x.Rows, d.head.Rows)
	st.multiply(e, n, ops.Projection{Dst: logits, W: d.head})
	return st.emit(e, "logits", -1, logits)
}

// attention is grouped-query attention with normalised queries and keys, in the variants of the supported architectures.
type attention struct {
	ops.Attention
	q, k, v, o     *ops.Matrix
	qb, kb, vb, ob *ops.Vector // nil without attention_bias
	qNorm, kNorm   ops.Norm
	clip           float32 // clip_qkv, 0 for none
	rope           *ops.Rope
}

// loadAttention declares the tensors; queries and keys are normalised head by head if normPerHead, otherwise over the whole projection.
func loadAttention(cfg *weights.Config, s scope, normPerHead bool) *attention {
	hidden, hd := cfg.HiddenSize, cfg.HeadDim
	qw, kvw := cfg.NumAttentionHeads*hd, cfg.NumKeyValueHeads*hd
	a := &attention{
		Attention: ops.Attention{Heads: cfg.NumAttentionHeads, KVHeads: cfg.NumKeyValueHeads, HeadDim: hd, Scale: float32(1 / math.Sqrt(float64(hd)))},
		q:         s.matrix(qw, hidden, "self_attn.q_proj.weight", "attn_q.weight"),
		k:         s.matrix(kvw, hidden, "self_attn.k_proj.weight", "attn_k.weight"),
		v:         s.matrix(kvw, hidden, "self_attn.v_proj.weight", "attn_v.weight"),
		o:         s.matrix(hidden, qw, "self_attn.o_proj.weight", "attn_output.weight"),
		qb:        s.bias(isTrue(cfg.AttentionBias), qw, "self_attn.q_proj.bias", "attn_q.bias"),
		kb:        s.bias(isTrue(cfg.AttentionBias), kvw, "self_attn.k_proj.bias", "attn_k.bias"),
		vb:        s.bias(isTrue(cfg.AttentionBias), kvw, "self_attn.v_proj.bias", "attn_v.bias"),
		ob:        s.bias(isTrue(cfg.AttentionBias), hidden, "self_attn.o_proj.bias", "attn_output.bias"),
	}
	if a.q != nil {
		a.rope = s.rope(cfg)
	}
	qn, kn := qw, kvw
	if normPerHead {
		qn, kn = hd, hd
	}
	a.qNorm = ops.Norm{Weight: s.vector(qn, "self_attn.q_norm.weight", "attn_q_norm.weight"), Eps: float32(cfg.RMSNormEps), Segment: qn}
	a.kNorm = ops.Norm{Weight: s.vector(kn, "self_attn.k_norm.weight", "attn_k_norm.weight"), Eps: float32(cfg.RMSNormEps), Segment: kn}
	if cfg.ClipQKV != nil {
		a.clip = *cfg.ClipQKV
	}
	return a
}

// state is the layer state of the block.
func (a *attention) state() ops.StateSpec {
	w := a.KVHeads * a.HeadDim
	return ops.StateSpec{Kind: ops.KVRows, KWidth: w, VWidth: w}
}

// forward returns Wo·attention(q, k, v) of the normalised rows n.
func (a *attention) forward(e ops.Executor, st *Step, il int, n *ops.Tensor) *ops.Tensor {
	q := e.New("attn_q", il, n.Rows, a.q.Rows)
	k := e.New("attn_k", il, n.Rows, a.k.Rows)
	v := e.New("attn_v", il, n.Rows, a.v.Rows)
	st.multiply(e, n, ops.Projection{Dst: q, W: a.q, Bias: a.qb}, ops.Projection{Dst: k, W: a.k, Bias: a.kb},
		ops.Projection{Dst: v, W: a.v, Bias: a.vb})
	e.RMSNorm(q, q, a.qNorm)
	e.RMSNorm(k, k, a.kNorm)
	st.emit(e, "attn_q_norm", il, q)
	st.emit(e, "attn_k_norm", il, k)
	if a.clip > 0 {
		e.Clamp(q, a.clip)
		e.Clamp(k, a.clip)
		e.Clamp(v, a.clip)
	}
	e.RoPE(q, st.Places, a.rope)
	e.RoPE(k, st.Places, a.rope)
	st.emit(e, "attn_q_rope", il, q)
	st.emit(e, "attn_k_rope", il, k)
	st.emit(e, "attn_v", il, v)
	kv := st.State[il]
	e.StoreKV(kv, k, v, st.Places)
	out := e.New("attn_mix", il, n.Rows, a.q.Rows)
	e.Attention(out, q, kv, st.Places, a.Attention)
	st.emit(e, "attn_mix", il, out)
	o := e.New("attn_out", il, n.Rows, a.o.Rows)
	st.multiply(e, out, ops.Projection{Dst: o, W: a.o, Bias: a.ob})
	return st.emit(e, "attn_out", il, o)
}

// moe is a router and its experts.
type moe struct {
	gate    *ops.Matrix // [experts, hidden_size]
	params  router.Params
	experts ops.ExpertSet
}

// loadMoE declares layer il's router and experts; normalize applies where the checkpoint does not say norm_topk_prob.
func loadMoE(cfg *weights.Config, l *loader, il int, normalize bool) *moe {
	if cfg.NormTopKProb != nil {
		normalize = *cfg.NormTopKProb
	}
	m := &moe{
		gate:   l.layer(il).matrix(cfg.NumExperts, cfg.HiddenSize, "mlp.gate.weight", "ffn_gate_inp.weight"),
		params: router.Params{Gating: router.SoftmaxTopK, TopK: cfg.NumExpertsPerTok, Normalize: normalize},
	}
	if m.gate != nil { // its shape vouches for the number of experts
		m.experts = l.experts(il, cfg.NumExperts, cfg.MoEIntermediateSize, cfg.HiddenSize)
		l.noExpert(il, cfg.NumExperts)
	}
	l.partial = l.partial || m.experts == nil
	return m
}

func (m *moe) forward(e ops.Executor, st *Step, il int, n *ops.Tensor) *ops.Tensor {
	logits := e.New("ffn_moe_logits", il, n.Rows, m.gate.Rows)
	st.multiply(e, n, ops.Projection{Dst: logits, W: m.gate})
	st.emit(e, "ffn_moe_logits", il, logits)
	routes := e.Route(logits, m.params)
	st.emitRoutes(e, il, routes)
	out := e.New("ffn_moe_out", il, n.Rows, n.Cols)
	e.Experts(out, n, routes, m.experts, ops.SiLU)
	return st.emit(e, "ffn_moe_out", il, out)
}

func (m *moe) matrices() []*ops.Matrix { return []*ops.Matrix{m.gate} }

// mlp is a dense gated unit.
type mlp struct{ gate, up, down *ops.Matrix }

func loadMLP(cfg *weights.Config, s scope) *mlp {
	return &mlp{
		gate: s.matrix(cfg.IntermediateSize, cfg.HiddenSize, "mlp.gate_proj.weight", "ffn_gate.weight"),
		up:   s.matrix(cfg.IntermediateSize, cfg.HiddenSize, "mlp.up_proj.weight", "ffn_up.weight"),
		down: s.matrix(cfg.HiddenSize, cfg.IntermediateSize, "mlp.down_proj.weight", "ffn_down.weight"),
	}
}

func (m *mlp) forward(e ops.Executor, st *Step, il int, n *ops.Tensor) *ops.Tensor {
	gate := e.New("ffn_gate", il, n.Rows, m.gate.Rows)
	up := e.New("ffn_up", il, n.Rows, m.up.Rows)
	st.multiply(e, n, ops.Projection{Dst: gate, W: m.gate}, ops.Projection{Dst: up, W: m.up})
	e.GLU(gate, gate, up, ops.SiLU)
	st.emit(e, "ffn_act", il, gate)
	out := e.New("ffn_out", il, n.Rows, n.Cols)
	st.multiply(e, gate, ops.Projection{Dst: out, W: m.down})
	return st.emit(e, "ffn_out", il, out)
}

func (m *mlp) matrices() []*ops.Matrix { return []*ops.Matrix{m.gate, m.up, m.down} }

// feedForward is what follows attention in a layer.
type feedForward interface {
	forward(e ops.Executor, st *Step, il int, n *ops.Tensor) *ops.Tensor
	// matrices are its weights besides routed experts.
	matrices() []*ops.Matrix
}

// decoder is the pre-norm layer x += attention(norm x); x += ffn(norm x), shared by the architectures that differ in its parts only.
type decoder struct {
	ends
	layers []decoderLayer
}

type decoderLayer struct {
	inputNorm, postNorm *ops.Vector
	attention           *attention
	ffn                 feedForward
}

// loadDecoder declares a decoder's tensors; normPerHead is loadAttention's, ffn declares what follows attention in a layer. It stops early
// where the file is so wrong that no one would read on.
func loadDecoder(cfg *weights.Config, l *loader, normPerHead bool, ffn func(il int) feedForward) *decoder {
	d := &decoder{ends: loadEnds(cfg, l), layers: make([]decoderLayer, cfg.NumHiddenLayers)}
	for il := 0; il < len(d.layers) && !l.full(); il++ {
		s := l.layer(il)
		d.layers[il] = decoderLayer{
			inputNorm: s.vector(cfg.HiddenSize, "input_layernorm.weight", "attn_norm.weight"),
			postNorm:  s.vector(cfg.HiddenSize, "post_attention_layernorm.weight", "ffn_norm.weight"),
			attention: loadAttention(cfg, s, normPerHead),
			ffn:       ffn(il),
		}
	}
	return d
}

// Layers is the number of layers.
func (d *decoder) Layers() int { return len(d.layers) }

// State declares the key and value rows of layer il.
func (d *decoder) State(il int) ops.StateSpec { return d.layers[il].attention.state() }

// Experts are layer il's routed experts; nil where its feed-forward part is dense.
func (d *decoder) Experts(il int) ops.ExpertSet {
	if m, ok := d.layers[il].ffn.(*moe); ok {
		return m.experts
	}
	return nil
}

// Weights are the dense tensors of layer il, or of the head.
func (d *decoder) Weights(il int) (matrices []*ops.Matrix, vectors []*ops.Vector) {
	if il == len(d.layers) {
		return []*ops.Matrix{d.head}, []*ops.Vector{d.norm}
	}
	l := &d.layers[il]
	a := l.attention
	matrices = append([]*ops.Matrix{a.q, a.k, a.v, a.o}, l.ffn.matrices()...)
	for _, v := range []*ops.Vector{l.inputNorm, l.postNorm, a.qNorm.Weight, a.kNorm.Weight, a.qb, a.kb, a.vb, a.ob} {
		if v != nil {
			vectors = append(vectors, v)
		}
	}
	return matrices, vectors
}

// Layer runs layer il on the residual.
func (d *decoder) Layer(e ops.Executor, st *Step, il int, in Stream) Stream {
	x, l := in[0], &d.layers[il]
	n := e.New("attn_norm", il, x.Rows, x.Cols)
	e.RMSNorm(n, x, ops.Norm{Weight: l.inputNorm, Eps: d.eps})
	e.Add(x, l.attention.forward(e, st, il, st.emit(e, "attn_norm", il, n)))
	st.emit(e, "attn_residual", il, x)
	if st.Predict != nil {
		for next, left := il+1, st.Horizon; next < len(d.layers) && left > 0; next++ {
			if m, ok := d.layers[next].ffn.(*moe); ok {
				d.predict(e, st, next, m, x)
				left--
			}
		}
	}
	e.RMSNorm(n, x, ops.Norm{Weight: l.postNorm, Eps: d.eps})
	e.Add(x, l.ffn.forward(e, st, il, st.emit(e, "ffn_norm", il, n)))
	return st.stream(st.emit(e, "layer_out", il, x))
}

// predict routes the rows that enter the experts of a layer before with layer il's router: the residual changes little from one layer to
// the next, so most of the experts it chooses will be il's.
func (d *decoder) predict(e ops.Executor, st *Step, il int, m *moe, x *ops.Tensor) {
	n := e.New("predict_norm", il, x.Rows, x.Cols)
	e.RMSNorm(n, x, ops.Norm{Weight: d.layers[il].postNorm, Eps: d.eps})
	logits := e.New("predict_logits", il, x.Rows, m.gate.Rows)
	st.multiply(e, n, ops.Projection{Dst: logits, W: m.gate})
	routes := e.Route(logits, m.foresee(st.Depth))
	ids, _ := e.Chosen(routes)
	st.Predict(il, st.byCount(ids, routes.TopK, m.gate.Rows))
}

// foresee are the parameters that route a row to depth experts, or as many as can be: fewer than a token is routed to are those of the
// greatest weights, more the next candidates.
func (m *moe) foresee(depth int) router.Params {
	p := m.params
	for p.TopK = min(max(depth, 1), m.gate.Rows); p.TopK > m.params.TopK && p.Check(m.gate.Rows) != nil; {
		p.TopK--
	}
	return p
}

// byCount returns the distinct ids of the rows' choices [rows, topK], those of most rows first, then by rank. The result is valid until the
// next call.
func (st *Step) byCount(ids []int32, topK, experts int) []int32 {
	count := slices.Grow(st.count[:0], experts)[:experts]
	clear(count)
	distinct := st.distinct[:0]
	for rank := range topK {
		for at := rank; at < len(ids); at += topK {
			id := ids[at]
			if count[id]++; count[id] == 1 {
				distinct = append(distinct, id)
			}
		}
	}
	slices.SortStableFunc(distinct, func(a, b int32) int { return cmp.Compare(count[b], count[a]) })
	st.count, st.distinct = count, distinct
	return distinct
}

func isTrue(b *bool) bool { return b != nil && *b }
