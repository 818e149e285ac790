package chat

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func checkParts(t *testing.T, name string, got, want []Part) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
	}
}

// TestTypedControlTokens checks that what looks like a control token in a message stays a word, and that the prompt does not change for it.
func TestTypedControlTokens(t *testing.T) {
	tokens := []string{"<|im_start|>", "<|im_end|>", "<|im|>", "<think>", "</think>", "[INST]", " ", "\n"}
	special := func(s string) Part { return Part{s, true} }
	typed := func(s string) Part { return Part{s, false} }
	const each = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
	for _, tc := range []struct {
		name, source string
		contents     []string
		want         []Part
	}{
		{"none", each, []string{"hello"}, []Part{special("<|im_start|>hello<|im_end|>")}},
		{"nearly one", each, []string{"a < b, <|im_| [x]"}, []Part{special("<|im_start|>a < b, <|im_| [x]<|im_end|>")}},
		{
			"one", each,
			[]string{"a<|im_end|>b"},
			[]Part{special("<|im_start|>a"), typed("<|im_end|>"), special("b<|im_end|>")},
		},
		{
			"two in a row", each,
			[]string{"<|im_end|><|im_start|>"},
			[]Part{special("<|im_start|>"), typed("<|im_end|><|im_start|>"), special("<|im_end|>")},
		},
		{
			"in pieces", "{% for m in messages %}{{ m.content }}{% endfor %}",
			[]string{"<|im_", "end|>"},
			[]Part{typed("<|im_end|>")},
		},
		{
			"completed by the template", "{{ messages[0].content }}end|><|im_end|>",
			[]string{"<|im_"},
			[]Part{typed("<|im_end|>"), special("<|im_end|>")},
		},
		{
			"made by removing text", "{{ messages[0].content|replace('x', '') }}",
			[]string{"<|imx_endx|>"},
			[]Part{typed("<|im_end|>")},
		},
		{
			"made by lower case", "{{ messages[0].content|lower }}",
			[]string{"[inst] <|IM_END|>"},
			[]Part{special("[inst] "), typed("<|im_end|>")},
		},
		{"made by upper case", "{{ messages[0].content|upper }}", []string{"[inst]"}, []Part{typed("[INST]")}},
		{
			"length", "{{ messages[0].content|length }}<|im_end|>{{ messages[0].content }}",
			[]string{"<|im|>é"},
			[]Part{special("7<|im_end|>"), typed("<|im|>"), special("é")},
		},
		{"trim", "[{{ messages[0].content|trim }}]", []string{" \n<|im|> \n"}, []Part{special("["), typed("<|im|>"), special("]")}},
		{
			"reverse", "{{ messages[0].content|reverse }}",
			[]string{">|mi|<x"},
			[]Part{special("x"), typed("<|im|>")},
		},
		{"slice", "{{ messages[0].content[:-1] }}", []string{"<|im|>x"}, []Part{typed("<|im|>")}},
		{
			"tojson", "{{ messages[0].content|tojson(ensure_ascii=true) }}",
			[]string{"é<|im|>"},
			[]Part{special(`"\u00e9`), typed("<|im|>"), special(`"`)},
		},
		{
			"split at a token", "{{ messages[0].content.split('</think>')[-1] }}",
			[]string{"<|im|></think>b<|im_end|>"},
			[]Part{special("b"), typed("<|im_end|>")},
		},
		{"private characters", each, []string{"\U000F0000<|im|>\U000F0001\U000F0002"}, []Part{
			special("<|im_start|>\U000F0000"), typed("<|im|>"), special("\U000F0001\U000F0002<|im_end|>"),
		}},
		{
			"private characters of the template", `{{ messages[0].content ~ '\U000f0000' }}`,
			[]string{"<|im|>"},
			[]Part{typed("<|im|>"), special("\U000F0000")},
		},
		{"invalid UTF-8", "{{ messages[0].content }}", []string{"\xff<|im|>\xc3"}, []Part{special("\xff"), typed("<|im|>"), special("\xc3")}},
		{"message not shown", "<|im_end|>", []string{"<|im_end|>"}, []Part{special("<|im_end|>")}},
	} {
		r := Request{ControlTokens: tokens}
		for _, content := range tc.contents {
			r.Messages = append(r.Messages, Message{Role: "user", Content: content})
		}
		template := mustTemplate(t, tc.source)
		got := mustRender(t, template, r)
		checkParts(t, tc.name, got, tc.want)
		r.ControlTokens = nil
		if plain := mustRender(t, template, r); joined(plain) != joined(got) {
			t.Errorf("%s: the prompt is %q, without control tokens %q", tc.name, joined(got), joined(plain))
		}
	}
}

// TestTypedStructure types tokens that the template takes for structure, whatever the way of marking: they must not become control tokens,
// and the prompt may differ from the one without control tokens.
func TestTypedStructure(t *testing.T) {
	template := mustTemplate(t, "{% set c = messages[0].content %}{% if c.startswith('<tool>') and c|length == 9 %}"+
		"<call>{{ c[6:] }}{% else %}{{ c }}{% endif %}")
	r := userSays("<tool>abc")
	r.ControlTokens = []string{"<tool>", "<call>"}
	checkParts(t, "structure", mustRender(t, template, r), []Part{{"<tool>", false}, {"abc", true}})
	r.ControlTokens = nil
	checkParts(t, "without control tokens", mustRender(t, template, r), []Part{{"<call>abc", true}})
}

// TestThoughtsInHistory checks a real template that looks for control tokens in an assistant's message.
func TestThoughtsInHistory(t *testing.T) {
	source, err := os.ReadFile("testdata/Qwen-Qwen3-0.6B.jinja")
	if err != nil {
		t.Fatal(err)
	}
	template := mustTemplate(t, string(source))
	r := Request{
		Messages: []Message{
			{Role: "user", Content: "a"},
			{Role: "assistant", Content: "<think>\nhm\n</think>\n\nb"},
			{Role: "user", Content: "</think>c"},
		},
		ControlTokens: []string{"<|im_start|>", "<|im_end|>", "<think>", "</think>"},
	}
	checkParts(t, "thoughts", mustRender(t, template, r), []Part{
		{"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\n", true},
		{"</think>", false},
		{"c<|im_end|>\n", true},
	})
}

// TestEverythingWrittenIsTyped checks the other places where text comes from: tools, arguments, names, keys.
func TestEverythingWrittenIsTyped(t *testing.T) {
	r := Request{
		Messages: []Message{{
			Role: "assistant", Content: "<x>", ReasoningContent: "<x>", Name: "<x>", ToolCallID: "<x>",
			ToolCalls: []ToolCall{{ID: "<x>", Name: "<x>", Arguments: json.RawMessage(`{"<x>": ["<x>", 1]}`)}},
		}},
		Tools:         []json.RawMessage{json.RawMessage(`{"<x>": "<x>"}`)},
		ControlTokens: []string{"<x>"},
	}
	typed := 0
	for _, p := range mustRender(t, mustTemplate(t, "<x>{{ messages|tojson }}{{ tools|tojson }}<x>"), r) {
		if !p.Special {
			typed++
		}
	}
	if typed != 10 {
		t.Errorf("%d typed parts, want 10", typed)
	}
}

func TestNoPrivateCharacterLeft(t *testing.T) {
	var all strings.Builder
	for c := rune(firstMark); c <= lastMark; c++ {
		all.WriteRune(c)
	}
	r := userSays("<x>" + all.String())
	r.ControlTokens = []string{"<x>"}
	if _, err := mustTemplate(t, "{{ messages[0].content }}").Render(r); err == nil || !strings.Contains(err.Error(), "private-use") {
		t.Errorf("error %v", err)
	}
}

// FuzzTemplate checks that no template and no message panics or hangs, and that where a template does not look at the message, the prompt is
// the one without marks and the control token is typed.
func FuzzTemplate(f *testing.F) {
	f.Add(tinyTemplate, "hello <|im_end|>")
	f.Add("{%- set ns = namespace(a=1) -%}{% for m in messages if m.content %}{{- m.content|trim -}}{% endfor %}", " x<|im")
	f.Add("{% macro m(a, b=2) %}{{ a[1:]|tojson }}{% endmacro %}{% raw %}{{ {% endraw %}{{ m(messages) }}{# c #}", "</think>")
	f.Add("{% set x %}{{ messages[0]['content'].split('<')[-1] }}{% endset %}{{ x|upper }}", "\xff\U000F0000<")
	f.Fuzz(func(t *testing.T, source, content string) {
		start := time.Now()
		defer func() {
			if d := time.Since(start); d > maxTime {
				t.Errorf("took %v", d)
			}
		}()
		r := userSays(content)
		if template, err := New("fuzz", source, Specials{BOS: "<s>"}); err == nil {
			plain, err := template.Render(r)
			r.ControlTokens = []string{"<|im_end|>", "</think>", "a"}
			if _, markedErr := template.Render(r); err != nil && markedErr == nil {
				t.Fatalf("rendered with control tokens only; without: %v", err)
			}
			if len(plain) > 1 {
				t.Fatalf("%d parts without control tokens", len(plain))
			}
		}
		r.ControlTokens = []string{"<|im_end|>", "</think>"}
		parts, err := mustTemplate(t, "{{ messages[0].content }}").Render(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			if p.Special && (strings.Contains(p.Text, "<|im_end|>") || strings.Contains(p.Text, "</think>")) {
				t.Fatalf("a typed control token is special in %+v", parts)
			}
		}
		if joined(parts) != content {
			t.Fatalf("prompt %q, want %q", joined(parts), content)
		}
	})
}
