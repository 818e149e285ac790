package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/internal/sharedtest"
)

func tinyMoE(t testing.TB) *Tokenizer {
	return loadJSON(t, filepath.Join("testdata", "tiny-moe", "tokenizer.json"))
}

func gpt2(t testing.TB) *Tokenizer {
	return loadGGUF(t, filepath.Join("testdata", "ggml-vocab-gpt-2.gguf"))
}

func llama(t testing.TB) *Tokenizer {
	return loadGGUF(t, filepath.Join("testdata", "ggml-vocab-llama-spm.gguf"))
}

// TestTinyMoE compares with Hugging Face's tokenizers, which know control tokens everywhere.
func TestTinyMoE(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "tiny-moe", "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Text string
		IDs  []int32
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, tok *Tokenizer) {
		for _, c := range cases {
			if diff := cmp.Diff(c.IDs, tok.EncodeSpecial(c.Text)); diff != "" {
				t.Errorf("%q (-want +got):\n%s", c.Text, diff)
			}
			if got := tok.Decode(c.IDs); got != c.Text {
				t.Errorf("%q decodes to %q", c.Text, got)
			}
		}
	}
	t.Run("tokenizer.json", func(t *testing.T) { check(t, tinyMoE(t)) })
	t.Run("gguf", func(t *testing.T) { check(t, loadGGUF(t, sharedtest.Dir(t, "models", "tiny-moe-Q8_0.gguf"))) })
}

func TestTinyMoETokens(t *testing.T) {
	tok := tinyMoE(t)
	if tok.Size() != 4096 {
		t.Errorf("%d tokens", tok.Size())
	}
	if id, ok := tok.EOS(); id != 2 || !ok {
		t.Errorf("EOS %d, %v", id, ok)
	}
	for name, token := range map[string]func() (int32, bool){"BOS": tok.BOS, "UNK": tok.UNK, "AddBOS": tok.AddBOS} {
		if id, ok := token(); ok {
			t.Errorf("%s is %d, want none", name, id)
		}
	}
	for id := range int32(tok.Size()) {
		if got := tok.IsControl(id); got != (id < 3) {
			t.Errorf("token %d %q: control is %v", id, tok.Token(id), got)
		}
	}
	for spelling, want := range map[string]int32{"<|assistant|>": 1, "Ġa": 261, "Ġ": 223} {
		if id, ok := tok.ID(spelling); !ok || id != want {
			t.Errorf("%q is token %d, %v, want %d", spelling, id, ok, want)
		}
	}
	for _, spelling := range []string{" a", "", "no such token", "<0x0A>"} {
		if id, ok := tok.ID(spelling); ok {
			t.Errorf("%q is token %d", spelling, id)
		}
	}
	for _, id := range []int32{-1, 4096, 1 << 30} {
		if got := tok.Token(id); got != nil {
			t.Errorf("token %d is %q", id, got)
		}
		if tok.IsControl(id) {
			t.Errorf("token %d is a control token", id)
		}
	}
}

func TestControlTokensNeedSpecialText(t *testing.T) {
	tok := tinyMoE(t)
	const user, assistant = 0, 1
	tests := []struct {
		name  string
		parts []Part
		want  []int32 // the control tokens
	}{
		{"typed by a user", []Part{{"<|user|>Hi<|assistant|>", false}}, nil},
		{"a template's", []Part{{"<|user|>Hi<|assistant|>", true}}, []int32{user, assistant}},
		{"around what a user typed", []Part{{"<|user|>", true}, {"<|assistant|>", false}, {"<|assistant|>", true}}, []int32{user, assistant}},
		{"half typed", []Part{{"<|us", true}, {"er|>", false}}, nil},
		{"half typed, the other half", []Part{{"<|us", false}, {"er|>", true}}, nil},
		{"one inside", []Part{{"<|us", true}, {"er|", false}, {">", true}}, nil},
		{"in two special parts", []Part{{"<|us", true}, {"", false}, {"er|>", true}}, []int32{user}},
		{"at the end of a special part", []Part{{"x<|user|>", true}, {"y", false}}, []int32{user}},
		{"in the middle of one", []Part{{"x", false}, {"y<|user|>z", true}}, []int32{user}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ids := tok.EncodeParts(tt.parts)
			var text string
			for _, p := range tt.parts {
				text += p.Text
			}
			if got := tok.Decode(ids); got != text {
				t.Errorf("comes back as %q", got)
			}
			control := slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return !tok.IsControl(id) })
			if !slices.Equal(control, tt.want) {
				t.Errorf("control tokens %v, want %v", control, tt.want)
			}
		})
	}
}

// TestPartsAreOneText draws random cuts of a text: they must not show in its ids.
func TestPartsAreOneText(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, tok := range map[string]*Tokenizer{"bytes": gpt2(t), "SentencePiece": llama(t), "tiny-moe": tinyMoE(t)} {
		text := "I'll  say: don't\n\n stop 1234567, für 日本語 🦙!"
		plain, special := tok.Encode(text), tok.EncodeSpecial("<|user|>"+text+"</s>")
		for range 50 {
			a := rng.IntN(len(text) + 1)
			b := a + rng.IntN(len(text)-a+1)
			parts := []Part{{text[:a], rng.IntN(2) == 0}, {text[a:b], rng.IntN(2) == 0}, {text[b:], rng.IntN(2) == 0}}
			if got := tok.EncodeParts(parts); !slices.Equal(got, plain) {
				t.Fatalf("%s: parts %+v give %v, the whole %v", name, parts, got, plain)
			}
			parts = append([]Part{{"<|user|>", true}}, append(parts, Part{"</s>", true})...)
			if got := tok.EncodeParts(parts); !slices.Equal(got, special) {
				t.Fatalf("%s: parts %+v give %v, the whole %v", name, parts, got, special)
			}
		}
	}
	if got := tinyMoE(t).EncodeParts(nil); len(got) != 0 {
		t.Errorf("no parts give %v", got)
	}
}

// TestMergesAgainstDefinition compares both ways of merging, and the cache, with the definition: merge the best pair, leftmost first, until
// there is none.
func TestMergesAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	alphabet := []string{"a", "b", "e", "h", "t", " ", "  ", "in", "ing", "the", "ll", "é", "1", "\n", "日", "-", "▁"}
	for name, tok := range map[string]*Tokenizer{"bytes": gpt2(t), "SentencePiece": llama(t)} {
		for range 300 {
			var text strings.Builder
			for range 1 + rng.IntN(30) {
				text.WriteString(alphabet[rng.IntN(len(alphabet))])
			}
			piece := strings.ReplaceAll(text.String(), " ", "▁")
			e := newEncoder(tok)
			want := mergeByDefinition(e, piece)
			for _, way := range []struct {
				name  string
				merge func()
			}{
				{"long", func() { e.split(piece); e.mergeLong(piece) }},
				{"piece", func() { e.piece(piece) }},
				{"piece again", func() { e.piece(piece) }},
			} {
				e.out = e.out[:0]
				way.merge()
				if !slices.Equal(e.out, want) {
					t.Fatalf("%s, %s, %q: %v, want %v", name, way.name, piece, e.out, want)
				}
			}
		}
	}
}

func mergeByDefinition(e *encoder, s string) []int32 {
	e.split(s)
	syms := slices.Clone(e.syms)
	for {
		best, at, token := uint32(noMerge), -1, int32(-1)
		for i := range len(syms) - 1 {
			if rank, id := e.pair(s, &syms[i], &syms[i+1]); rank < best {
				best, at, token = rank, i, id
			}
		}
		if at < 0 {
			break
		}
		syms[at].end, syms[at].id = syms[at+1].end, token
		syms = slices.Delete(syms, at+1, at+2)
	}
	e.out = e.out[:0]
	unknown := false
	for i := range syms {
		unknown = e.emit(s, &syms[i], unknown)
	}
	return slices.Clone(e.out)
}

// TestLongPieces has single pieces so long that merging must not be quadratic.
func TestLongPieces(t *testing.T) {
	for name, tok := range map[string]*Tokenizer{"bytes": gpt2(t), "SentencePiece": llama(t), "tiny-moe": tinyMoE(t)} {
		for _, unit := range []string{"a", " ", "\n", " \n", "ab", "é", "=", "1", "\xff", "<|", "🦙"} {
			text := strings.Repeat(unit, 100_000)
			ids := tok.EncodeSpecial(text)
			if got := tok.Decode(ids); got != text {
				t.Errorf("%s: %q repeated does not come back", name, unit)
			}
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := gpt2(t)
	texts := []string{"Once upon a time", "there was a 🦙", "who said: 'I'll go'", "\n\n  and went."}
	var want [][]int32
	for _, s := range texts {
		want = append(want, tok.Encode(s))
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				k := (g + i) % len(texts)
				if got := tok.Encode(texts[k]); !slices.Equal(got, want[k]) {
					t.Errorf("%q: %v, alone %v", texts[k], got, want[k])
				}
			}
		})
	}
	wg.Wait()
}

func TestEncodeAllocatesOnlyItsResult(t *testing.T) {
	tok := gpt2(t)
	text := strings.Repeat("It was the best of times, it was the worst of times. ", 100)
	tok.Encode(text)
	// The result, the closure over the text, and now and then a new encoder when the pool was emptied.
	if n := testing.AllocsPerRun(20, func() { tok.Encode(text) }); n > 4 {
		t.Errorf("%v allocations for %d bytes", n, len(text))
	}
}

// FuzzRoundTrip checks that decoding undoes encoding: for every byte string in byte-level BPE, for every valid text in SentencePiece.
func FuzzRoundTrip(f *testing.F) {
	for _, s := range splitTexts {
		f.Add(s)
	}
	f.Add("<|user|><s></s><unk><0x0A><|endoftext|>▁")
	f.Add("\xff\xc0\x80 \xf0\x9f")
	bytes := map[string]*Tokenizer{"gpt-2": gpt2(f), "tiny-moe": tinyMoE(f)}
	spm := llama(f)
	f.Fuzz(func(t *testing.T, text string) {
		for name, tok := range bytes {
			ids := tok.Encode(text)
			if got := tok.Decode(ids); got != text {
				t.Errorf("%s: %q comes back as %q", name, text, got)
			}
			if slices.ContainsFunc(ids, tok.IsControl) {
				t.Errorf("%s: %q has a control token: %v", name, text, ids)
			}
			if got := tok.Decode(tok.EncodeSpecial(text)); got != text {
				t.Errorf("%s: %q, special, comes back as %q", name, text, got)
			}
		}
		if !utf8.ValidString(text) || strings.Contains(text, spaceMark) {
			t.Skip("SentencePiece takes ▁ for a space")
		}
		ids := spm.Encode(text)
		if got := spm.Decode(ids); got != text {
			t.Errorf("SentencePiece: %q comes back as %q", text, got)
		}
		if slices.ContainsFunc(ids, spm.IsControl) {
			t.Errorf("SentencePiece: %q has a control token: %v", text, ids)
		}
	})
}

func TestStream(t *testing.T) {
	tok := gpt2(t)
	stream := func(s *Stream, ids []int32) (out []string) {
		for _, id := range ids {
			out = append(out, s.Push(id))
		}
		return append(out, s.Flush())
	}
	byteIDs := func(s string) (ids []int32) {
		for _, b := range []byte(s) {
			ids = append(ids, tok.model.byteIDs[b])
		}
		return ids
	}
	end, _ := tok.EOS()
	tests := []struct {
		name string
		ids  []int32
		want []string
	}{
		{"a character in four tokens", byteIDs("a🦙b"), []string{"a", "", "", "", "🦙", "b", ""}},
		{"an invalid byte", byteIDs("\xffa"), []string{"\uFFFD", "a", ""}},
		{"a stray continuation", byteIDs("\x80\x80"), []string{"\uFFFD", "\uFFFD", ""}},
		{"a character cut short by another", byteIDs("\xe6\x97a"), []string{"", "", "\uFFFD\uFFFDa", ""}},
		{"a character cut short by the end", byteIDs("\xf0\x9f\xa6"), []string{"", "", "", "\uFFFD\uFFFD\uFFFD"}},
		{"an impossible beginning", byteIDs("\xf5\xc0"), []string{"\uFFFD", "\uFFFD", ""}},
		{"a surrogate", byteIDs("\xed\xa0\x80"), []string{"", "\uFFFD\uFFFD", "\uFFFD", ""}},
		{"a control token", append(byteIDs("a"), end), []string{"a", "", ""}},
		{"no token", []int32{-1, 1 << 30}, []string{"", "", ""}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, stream(tok.NewStream(false), tt.ids)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if got := stream(tok.NewStream(true), []int32{end}); got[0] != "<|endoftext|>" {
		t.Errorf("a control token to be shown: %q", got)
	}
	spm := llama(t)
	if got := strings.Join(stream(spm.NewStream(false), spm.Encode("Hello\nÄ")), ""); got != " Hello\nÄ" {
		t.Errorf("SentencePiece: %q", got)
	}
}

// FuzzStream checks that a stream says what Decode says, with U+FFFD for each invalid byte, and never holds back a complete character.
func FuzzStream(f *testing.F) {
	f.Add("a🦙b\xff\xe6\x97", uint8(1))
	f.Add("\xf0\x9f\xa6\x99\xc3", uint8(3))
	tok := gpt2(f)
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		s := tok.NewStream(false)
		var got strings.Builder
		for chunk := range slices.Chunk([]byte(text), 1+int(size%5)) {
			for _, id := range tok.Encode(string(chunk)) {
				got.WriteString(s.Push(id))
				if len(s.held) > 0 && utf8.FullRune(s.held) {
					t.Fatalf("%q is held back", s.held)
				}
			}
		}
		got.WriteString(s.Flush())
		if want := string([]rune(text)); got.String() != want {
			t.Errorf("%q streams as %q, want %q", text, got.String(), want)
		}
	})
}
