package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// FromJSON reads the tokenizer.json at path, and from tokenizer_config.json beside it, if there is one, which tokens begin and end a text.
// A component that this package does not know is an error that names its place in the file.
func FromJSON(path string) (*Tokenizer, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("tokenizer: %w; put the model's %s beside its weights", err, filepath.Base(path))
	case err != nil:
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t, err := parseJSON(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	path = filepath.Join(filepath.Dir(path), "tokenizer_config.json")
	data, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if err := t.configure(data); err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

// document is a tokenizer.json whose parts are not yet put together.
type document struct {
	added                                            []addedJSON
	normalizer, preTokenizer, postProcessor, decoder json.RawMessage
	model                                            modelJSON
	r                                                *jsonReader
}

type addedJSON struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type modelJSON struct {
	kind, unk, prefix, suffix           string
	dropout                             float64
	fuseUNK, byteFallback, ignoreMerges bool
	vocab                               []entry
	merges                              []mergeJSON
}

// entry and mergeJSON are spans of the reader's data.
type entry struct {
	key span
	id  int32
}

type mergeJSON struct{ left, right span }

func parseJSON(data []byte) (*Tokenizer, error) {
	if len(data) > math.MaxInt32 {
		return nil, fmt.Errorf("%d bytes are too many for a vocabulary", len(data))
	}
	doc := document{r: newJSONReader(data)}
	if err := doc.read(); err != nil {
		if bytes.HasPrefix(data, []byte("version https://git-lfs")) {
			err = errors.New("this is a git-lfs pointer, not the file itself: fetch it with git lfs pull")
		}
		return nil, err
	}
	return doc.build()
}

// idLimit bounds token ids, and with them the memory for a vocabulary, by the document's size: an entry takes six bytes and more.
func (r *jsonReader) idLimit() int { return r.end / 4 }

func (doc *document) read() error {
	r := doc.r
	fields := map[string]any{
		"added_tokens": &doc.added, "normalizer": &doc.normalizer, "pre_tokenizer": &doc.preTokenizer,
		"post_processor": &doc.postProcessor, "decoder": &doc.decoder,
	}
	err := r.object(func(key span) error {
		name := string(r.text(key))
		if name == "model" && r.peek() == '{' {
			return doc.model.read(r)
		}
		return readField(r, "", name, fields)
	})
	if err != nil {
		return err
	}
	if r.peek(); r.pos < r.end {
		return r.errorf("something follows the document")
	}
	return nil
}

// readField reads the next value into the field of that name; others are skipped.
func readField(r *jsonReader, path, name string, fields map[string]any) error {
	raw, err := r.raw()
	if err != nil {
		return err
	}
	if field := fields[name]; field != nil {
		if err := json.Unmarshal(raw, field); err != nil {
			return fmt.Errorf("%s%s: %w", path, name, err)
		}
	}
	return nil
}

func (m *modelJSON) read(r *jsonReader) error {
	fields := map[string]any{
		"type": &m.kind, "unk_token": &m.unk, "continuing_subword_prefix": &m.prefix, "end_of_word_suffix": &m.suffix,
		"dropout": &m.dropout, "fuse_unk": &m.fuseUNK, "byte_fallback": &m.byteFallback, "ignore_merges": &m.ignoreMerges,
	}
	return r.object(func(key span) error {
		switch name := string(r.text(key)); {
		case name == "vocab" && r.peek() == '{':
			return r.object(func(key span) error {
				id, err := r.id(r.idLimit())
				m.vocab = append(m.vocab, entry{key, id})
				return err
			})
		case name == "merges" && r.peek() == '[':
			return r.array(func() error { return m.readMerge(r) })
		default:
			return readField(r, "model.", name, fields)
		}
	})
}

// readMerge reads a merge in one of its two forms, ["a", "b"] and "a b".
func (m *modelJSON) readMerge(r *jsonReader) error {
	if r.peek() == '"' {
		both, err := r.str()
		if err != nil {
			return err
		}
		text := r.text(both)
		if len(m.merges) == 0 && bytes.HasPrefix(text, []byte("#version")) {
			return nil
		}
		at := bytes.IndexByte(text, ' ')
		if at < 0 {
			return fmt.Errorf("model.merges[%d]: %q has no space", len(m.merges), text)
		}
		middle := both.start + uint32(at)
		m.merges = append(m.merges, mergeJSON{span{both.start, middle}, span{middle + 1, both.end}})
		return nil
	}
	var sides [2]span
	for i, before := range [2]byte{'[', ','} {
		if err := r.expect(before); err != nil {
			return err
		}
		s, err := r.str()
		if err != nil {
			return err
		}
		sides[i] = s
	}
	m.merges = append(m.merges, mergeJSON{sides[0], sides[1]})
	return r.expect(']')
}

// build makes the tokenizer of a document.
func (doc *document) build() (*Tokenizer, error) {
	m := &doc.model
	switch {
	case m.kind != "" && m.kind != "BPE":
		return nil, fmt.Errorf("model.type: %q is not supported, only \"BPE\" is", m.kind)
	case len(m.vocab) == 0:
		return nil, errors.New("model.vocab: there are no tokens")
	case m.prefix != "":
		return nil, fmt.Errorf("model.continuing_subword_prefix: %q is not supported", m.prefix)
	case m.suffix != "":
		return nil, fmt.Errorf("model.end_of_word_suffix: %q is not supported", m.suffix)
	case m.dropout != 0:
		return nil, fmt.Errorf("model.dropout: %v would tokenize at random, only 0 is supported", m.dropout)
	}
	size := 0
	for _, e := range m.vocab {
		size = max(size, int(e.id)+1)
	}
	limit := doc.r.idLimit()
	for i, a := range doc.added {
		if a.ID < 0 || a.ID >= int64(limit) {
			return nil, fmt.Errorf("added_tokens[%d].id: %d is not a token id below %d", i, a.ID, limit)
		}
		size = max(size, int(a.ID)+1)
	}
	t := newTokenizer(size)
	t.model.fuseUNK, t.model.byteFallback, t.model.ignoreMerges = m.fuseUNK, m.byteFallback, m.ignoreMerges

	c := &components{t: t}
	if err := errors.Join(
		c.addNormalizer(doc.normalizer, "normalizer"),
		c.addPreTokenizer(doc.preTokenizer, "pre_tokenizer"),
		c.addDecoder(doc.decoder, "decoder"),
	); err != nil {
		return nil, err
	}
	if c.bytesDecoded && !t.model.byteLevel {
		return nil, errors.New("decoder: ByteLevel without a ByteLevel pre_tokenizer is not supported")
	}
	doc.addTokens(t)
	if err := m.addVocab(t, doc.r, c.byteFallback); err != nil {
		return nil, err
	}
	if m.unk != "" {
		id, ok := t.ID(m.unk)
		if !ok {
			return nil, fmt.Errorf("model.unk_token: %q is not a token", m.unk)
		}
		t.unk = id
	}
	if err := m.addMerges(t, doc.r); err != nil {
		return nil, err
	}
	return t, c.addPostProcessor(doc.postProcessor, "post_processor")
}

func newTokenizer(size int) *Tokenizer {
	t := &Tokenizer{info: make([]tokenInfo, size), unk: -1, bos: -1, eos: -1, pad: -1}
	for i := range t.info {
		t.info[i].byteVal = -1
	}
	for b := range t.model.byteIDs {
		t.model.byteIDs[b] = -1
	}
	return t
}

// addAdded registers an added token.
func (t *Tokenizer) addAdded(a addedToken) {
	index := int32(len(t.added))
	t.added = append(t.added, a)
	t.info[a.id] = tokenInfo{added: index + 1, byteVal: -1, control: a.control}
	// A guarded token is looked for in the text as it is: its bounds are those of the caller's special text.
	if a.normalized && !a.guarded && len(t.normalizers) > 0 {
		for _, normalize := range t.normalizers {
			a.content = normalize(a.content)
		}
		if a.content != "" {
			t.normal.add(&a, index)
		}
		return
	}
	t.literal.add(&a, index)
}

// addTokens registers the added tokens. One that the vocabulary has too goes by the id it has there.
func (doc *document) addTokens(t *Tokenizer) {
	ids := make(map[string]int32, len(doc.added))
	for _, a := range doc.added {
		ids[a.Content] = int32(a.ID)
	}
	for _, e := range doc.model.vocab {
		key := doc.r.text(e.key)
		if id, ok := ids[string(key)]; ok && id != e.id {
			ids[string(key)] = e.id
			t.warnings = append(t.warnings, fmt.Sprintf("added token %q has the id %d, but the vocabulary's %d counts", key, id, e.id))
		}
	}
	for _, a := range doc.added {
		if a.Content == "" {
			continue
		}
		t.addAdded(addedToken{
			content: a.Content, id: ids[a.Content], singleWord: a.SingleWord, lstrip: a.LStrip, rstrip: a.RStrip,
			normalized: a.Normalized, control: a.Special, guarded: a.Special || tagged(a.Content),
		})
	}
}

// addVocab fills the vocabulary. byteTokens says that tokens such as <0x0A> decode to bytes.
func (m *modelJSON) addVocab(t *Tokenizer, r *jsonReader, byteTokens bool) error {
	total := 0
	for _, e := range m.vocab {
		total += len(r.text(e.key))
	}
	t.vocab = newVocab(len(t.info), total)
	for _, e := range m.vocab {
		if t.vocab.keys[e.id] != (span{}) {
			return fmt.Errorf("model.vocab: %q and another token have the id %d", r.text(e.key), e.id)
		}
		if err := t.addKey(e.id, r.text(e.key), byteTokens); err != nil {
			return fmt.Errorf("model.vocab: %w", err)
		}
	}
	return nil
}

// addKey gives id its spelling. Control tokens and byte tokens cannot be found by it, so that no text is merged into them.
func (t *Tokenizer) addKey(id int32, spelling []byte, byteTokens bool) error {
	info := &t.info[id]
	key, findable := spelling, !info.control && len(spelling) > 0
	if t.model.byteLevel {
		var buf [64]byte
		if k, ok := unmapBytes(buf[:0], string(spelling)); ok {
			key = k
			if len(k) == 1 && findable {
				t.model.byteIDs[k[0]] = id
			}
		} else {
			findable = false
		}
	} else if b, ok := byteToken(string(spelling)); ok && (byteTokens || t.model.byteFallback) {
		if t.model.byteFallback {
			t.model.byteIDs[b] = id
			findable = false
		}
		if byteTokens {
			info.byteVal = int16(b)
		}
	}
	t.vocab.set(id, key)
	if findable {
		if other, dup := t.vocab.insert(id); dup {
			return fmt.Errorf("tokens %d and %d are both %q", other, id, spelling)
		}
	}
	return nil
}

func (m *modelJSON) addMerges(t *Tokenizer, r *jsonReader) error {
	t.model.pairs = newPairTable(len(m.merges))
	for i, p := range m.merges {
		if err := t.addMerge(i, r.text(p.left), r.text(p.right)); err != nil {
			return fmt.Errorf("model.merges[%d]: %w", i, err)
		}
	}
	return nil
}

// addMerge records the merge of two tokens, given by their spelling, at its place in the list. A merge that has a control token or a byte
// token in it is left out: addKey says why.
func (t *Tokenizer) addMerge(rank int, left, right []byte) error {
	var buf [128]byte
	n, both := len(left), append(append(buf[:0], left...), right...)
	if t.model.byteLevel {
		var bufBytes [128]byte
		l, ok1 := unmapBytes(bufBytes[:0], string(left))
		n = len(l)
		raw, ok2 := unmapBytes(l, string(right))
		if ok1 && ok2 {
			both = raw
		} else {
			n = len(left)
		}
	}
	var ids [3]int32
	for k, key := range [3][]byte{both[:n], both[n:], both} {
		id, ok := t.vocab.lookupBytes(key)
		if !ok {
			spelling := [3]string{string(left), string(right), string(left) + string(right)}[k]
			if _, ok := t.ID(spelling); ok {
				return nil
			}
			return fmt.Errorf("%q is not a token", spelling)
		}
		ids[k] = id
	}
	t.model.pairs.add(ids[0], ids[1], ids[2], rank)
	return nil
}

// component holds the fields of every kind of normalizer, pre-tokenizer, decoder and post-processor; each uses some.
type component struct {
	Type             string
	Normalizers      []json.RawMessage
	Pretokenizers    []json.RawMessage
	Decoders         []json.RawMessage
	Processors       []json.RawMessage
	Pattern          struct{ String, Regex *string }
	Behavior         string
	Invert           bool
	Content          string
	Prepend          string
	StripLeft        bool  `json:"strip_left"`
	StripRight       bool  `json:"strip_right"`
	AddPrefixSpace   *bool `json:"add_prefix_space"`
	UseRegex         *bool `json:"use_regex"`
	IndividualDigits bool  `json:"individual_digits"`
	Replacement      string
	PrependScheme    string `json:"prepend_scheme"`
	Split            *bool
	Start, Stop      int
	Single           []struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	}
	SpecialTokens map[string]struct{ IDs []int32 } `json:"special_tokens"`
}

// components adds the components of a document to a tokenizer.
type components struct {
	t            *Tokenizer
	bytesDecoded bool // by a ByteLevel decoder
	byteFallback bool // the decoder turns <0x0A> into its byte
	fused        bool // what follows in the decoder sees the whole text
}

// maxNesting bounds Sequences within Sequences.
const maxNesting = 8

// parse reads a component; it is nil where the document has null or nothing.
func parse(raw json.RawMessage, path string) (*component, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if strings.Count(path, "[") > maxNesting {
		return nil, unsupported(path, "so deep a nesting")
	}
	c := new(component)
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// each adds the members of a Sequence.
func each(list []json.RawMessage, path string, add func(json.RawMessage, string) error) error {
	for i, raw := range list {
		if err := add(raw, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	return nil
}

func unsupported(path, what string) error {
	return fmt.Errorf("%s: %s is not supported", path, what)
}

var forms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}

func (c *components) addNormalizer(raw json.RawMessage, path string) error {
	j, err := parse(raw, path)
	if j == nil {
		return err
	}
	var n normalizer
	switch j.Type {
	case "Sequence":
		return each(j.Normalizers, path+".normalizers", c.addNormalizer)
	case "NFC", "NFD", "NFKC", "NFKD":
		n = form(forms[j.Type])
	case "Lowercase":
		n = strings.ToLower
	case "Prepend":
		n = prepend(j.Prepend)
	case "Strip":
		n = strip(j.StripLeft, j.StripRight)
	case "Replace":
		switch p := j.Pattern; {
		case p.String != nil:
			n = replace(*p.String, j.Content)
		case p.Regex != nil:
			re, err := compile(*p.Regex)
			if err != nil {
				return fmt.Errorf("%s.pattern: %w", path, err)
			}
			n = replacePattern(re, j.Content)
		default:
			return unsupported(path+".pattern", "a pattern that is neither String nor Regex")
		}
	default:
		return unsupported(path, fmt.Sprintf("a normalizer of type %q", j.Type))
	}
	c.t.normalizers = append(c.t.normalizers, n)
	return nil
}

func (c *components) addPreTokenizer(raw json.RawMessage, path string) error {
	j, err := parse(raw, path)
	if j == nil {
		return err
	}
	t := c.t
	if t.model.byteLevel {
		return unsupported(path, "a pre-tokenizer after ByteLevel")
	}
	switch j.Type {
	case "Sequence":
		return each(j.Pretokenizers, path+".pretokenizers", c.addPreTokenizer)
	case "ByteLevel":
		t.model.byteLevel = true
		if j.AddPrefixSpace != nil && *j.AddPrefixSpace {
			t.steps = append(t.steps, spaceStep{})
		}
		if j.UseRegex == nil || *j.UseRegex {
			t.steps = append(t.steps, &splitStep{match: matchGPT2})
		}
		return nil
	case "Digits":
		pattern := patternNumber
		if j.IndividualDigits {
			pattern = patternDigit
		}
		t.steps = append(t.steps, &splitStep{match: matchers[pattern]})
		return nil
	case "Metaspace":
		st := metaspaceStep{replacement: j.Replacement, prepend: j.PrependScheme, split: j.Split == nil || *j.Split}
		if st.prepend == "" {
			st.prepend = "always"
		}
		if j.AddPrefixSpace != nil && !*j.AddPrefixSpace {
			st.prepend = "never"
		}
		if !slices.Contains([]string{"always", "first", "never"}, st.prepend) {
			return unsupported(path+".prepend_scheme", fmt.Sprintf("%q", st.prepend))
		}
		if st.replacement == "" {
			return unsupported(path+".replacement", "an empty string")
		}
		t.steps = append(t.steps, st)
		return nil
	case "Split":
		var st *splitStep
		switch p := j.Pattern; {
		case p.String != nil:
			st = &splitStep{literal: *p.String}
		case p.Regex != nil:
			if st, err = newSplit(*p.Regex); err != nil {
				return fmt.Errorf("%s.pattern: %w", path, err)
			}
		default:
			return unsupported(path+".pattern", "a pattern that is neither String nor Regex")
		}
		b, ok := behaviors[j.Behavior]
		if !ok {
			return unsupported(path+".behavior", fmt.Sprintf("%q", j.Behavior))
		}
		st.behavior, st.invert = b, j.Invert
		t.steps = append(t.steps, st)
		return nil
	}
	return unsupported(path, fmt.Sprintf("a pre-tokenizer of type %q", j.Type))
}

func (c *components) addDecoder(raw json.RawMessage, path string) error {
	j, err := parse(raw, path)
	if j == nil {
		return err
	}
	d := &c.t.decoder
	switch j.Type {
	case "Sequence":
		return each(j.Decoders, path+".decoders", c.addDecoder)
	case "ByteLevel":
		c.bytesDecoded = true
	case "ByteFallback":
		c.byteFallback = true
	case "Fuse":
		c.fused = true
	case "Replace":
		if j.Pattern.String == nil || *j.Pattern.String == "" {
			return unsupported(path+".pattern", "a pattern that is not a String")
		}
		d.replace = append(d.replace, [2]string{*j.Pattern.String, j.Content})
	case "Metaspace":
		if j.Replacement == "" {
			return unsupported(path+".replacement", "an empty string")
		}
		d.replace = append(d.replace, [2]string{j.Replacement, " "})
		if j.PrependScheme != "never" && (j.AddPrefixSpace == nil || *j.AddPrefixSpace) {
			d.lead = " "
		}
	case "Strip":
		if !c.fused || j.Start > 1 || j.Stop != 0 {
			return unsupported(path, "a Strip other than of one leading character after Fuse")
		}
		if j.Start == 1 {
			d.lead = j.Content
		}
	default:
		return unsupported(path, fmt.Sprintf("a decoder of type %q", j.Type))
	}
	return nil
}

func (c *components) addPostProcessor(raw json.RawMessage, path string) error {
	j, err := parse(raw, path)
	if j == nil {
		return err
	}
	switch j.Type {
	case "Sequence":
		return each(j.Processors, path+".processors", c.addPostProcessor)
	case "ByteLevel": // trims offsets, which are not kept here
		return nil
	case "TemplateProcessing":
		to := &c.t.prefix
		for i, piece := range j.Single {
			switch {
			case piece.Sequence != nil:
				to = &c.t.suffix
			case piece.SpecialToken != nil:
				token, ok := j.SpecialTokens[piece.SpecialToken.ID]
				if !ok {
					return fmt.Errorf("%s.single[%d]: %q is not in special_tokens", path, i, piece.SpecialToken.ID)
				}
				for _, id := range token.IDs {
					if id < 0 || int(id) >= c.t.Size() {
						return fmt.Errorf("%s.special_tokens: %q has the id %d, which is no token", path, piece.SpecialToken.ID, id)
					}
					*to = append(*to, id)
				}
			}
		}
		return nil
	}
	return unsupported(path, fmt.Sprintf("a post-processor of type %q", j.Type))
}

// tokenName is a token in tokenizer_config.json: its content, an object with the content, or null.
type tokenName string

// UnmarshalJSON accepts the three forms.
func (n *tokenName) UnmarshalJSON(data []byte) error {
	if data[0] != '{' {
		return json.Unmarshal(data, (*string)(n))
	}
	var object struct{ Content string }
	err := json.Unmarshal(data, &object)
	*n = tokenName(object.Content)
	return err
}

// configure applies a tokenizer_config.json. Its add_bos_token and add_eos_token, where present, overrule the post-processor.
func (t *Tokenizer) configure(data []byte) error {
	var config struct {
		AddBOS *bool     `json:"add_bos_token"`
		AddEOS *bool     `json:"add_eos_token"`
		BOS    tokenName `json:"bos_token"`
		EOS    tokenName `json:"eos_token"`
		PAD    tokenName `json:"pad_token"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return err
	}
	named := map[string]tokenName{"bos_token": config.BOS, "eos_token": config.EOS, "pad_token": config.PAD}
	ids := map[string]*int32{"bos_token": &t.bos, "eos_token": &t.eos, "pad_token": &t.pad}
	for _, field := range slices.Sorted(maps.Keys(named)) {
		if named[field] == "" {
			continue
		}
		id, ok := t.ID(string(named[field]))
		if !ok {
			t.warnings = append(t.warnings, fmt.Sprintf("%s names %q, which is not a token", field, named[field]))
			continue
		}
		*ids[field] = id
	}
	return errors.Join(
		override(&t.prefix, config.AddBOS, t.bos, "add_bos_token is true, but there is no bos_token"),
		override(&t.suffix, config.AddEOS, t.eos, "add_eos_token is true, but there is no eos_token"))
}

// override puts id into a list, or takes it out, as add says; nil leaves the list as it is.
func override(list *[]int32, add *bool, id int32, missing string) error {
	switch {
	case add == nil:
	case !*add:
		*list = slices.DeleteFunc(*list, func(x int32) bool { return x == id })
	case id < 0:
		return errors.New(missing)
	case !slices.Contains(*list, id):
		*list = append(*list, id)
	}
	return nil
}
