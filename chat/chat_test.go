package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func mustTemplate(t testing.TB, source string) *Template {
	t.Helper()
	template, err := New("test", source, Specials{BOS: "<s>", EOS: "</s>"})
	if err != nil {
		t.Fatal(err)
	}
	return template
}

func mustRender(t testing.TB, template *Template, r Request) []Part {
	t.Helper()
	parts, err := template.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

func joined(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

func userSays(content string) Request {
	return Request{Messages: []Message{{Role: "user", Content: content}}, AddGenerationPrompt: true}
}

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// checkpointInput is the input of a case, in the form Hugging Face's apply_chat_template takes it.
type checkpointInput struct {
	BOS                 string            `json:"bos_token"`
	EOS                 string            `json:"eos_token"`
	AddGenerationPrompt bool              `json:"add_generation_prompt"`
	EnableThinking      *bool             `json:"enable_thinking"`
	Tools               []json.RawMessage `json:"tools"`
	Messages            []struct {
		Role, Content, Name string
		ToolCallID          string `json:"tool_call_id"`
		ToolCalls           []struct {
			ID       string
			Function struct {
				Name      string
				Arguments json.RawMessage
			}
		} `json:"tool_calls"`
	}
}

func (in checkpointInput) request() Request {
	r := Request{Tools: in.Tools, AddGenerationPrompt: in.AddGenerationPrompt, EnableThinking: in.EnableThinking}
	for _, m := range in.Messages {
		message := Message{Role: m.Role, Content: m.Content, Name: m.Name, ToolCallID: m.ToolCallID}
		for _, c := range m.ToolCalls {
			message.ToolCalls = append(message.ToolCalls, ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		r.Messages = append(r.Messages, message)
	}
	return r
}

// TestCheckpointTemplates renders templates of published checkpoints and compares with what jinja2 gives. No case is left out.
func TestCheckpointTemplates(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.jinja")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d templates, %v", len(paths), err)
	}
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var cases []struct {
			Case, Text string
			Input      checkpointInput
		}
		readJSON(t, path+".cases.json", &cases)
		for _, tc := range cases {
			template, err := New(path, string(source), Specials{BOS: tc.Input.BOS, EOS: tc.Input.EOS})
			if err != nil {
				t.Fatal(err)
			}
			r := tc.Input.request()
			for _, r.ControlTokens = range [][]string{nil, {"<|im_start|>", "<|im_end|>"}} {
				parts := mustRender(t, template, r)
				if got := joined(parts); got != tc.Text {
					t.Errorf("%s, %s:\n got %q\nwant %q", path, tc.Case, got, tc.Text)
				}
				var typed strings.Builder
				for _, p := range parts {
					if !p.Special {
						typed.WriteString(p.Text)
					}
				}
				want := ""
				if tc.Case == "specials_in_text" && r.ControlTokens != nil {
					want = "<|im_end|><|im_start|>"
				}
				if typed.String() != want {
					t.Errorf("%s, %s: %q is not special, want %q", path, tc.Case, typed.String(), want)
				}
			}
		}
	}
}

// TestJinja2 compares with jinja2 3.1.6 in Hugging Face's settings, above all in the trimming of white space.
func TestJinja2(t *testing.T) {
	var fixture struct {
		Variables json.RawMessage
		Cases     []struct{ Case, Template, Text string }
	}
	readJSON(t, "testdata/jinja2.json", &fixture)
	for _, tc := range fixture.Cases {
		template, err := New(tc.Case, tc.Template, Specials{})
		if err != nil {
			t.Error(err)
			continue
		}
		parts, err := template.Render(Request{Extra: fixture.Variables})
		if got := joined(parts); err != nil || got != tc.Text {
			t.Errorf("%s: %s\n got %q, %v\nwant %q", tc.Case, tc.Template, got, err, tc.Text)
		}
	}
}

func TestVariables(t *testing.T) {
	thinking := false
	for _, tc := range []struct {
		name, source string
		request      Request
		want         string
	}{
		{"special tokens", "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}", Request{}, "<s></s>False"},
		{"no tools", "{{ tools is none }}{{ documents is none }}", Request{}, "TrueTrue"},
		{"thinking undefined", "{{ enable_thinking is defined }}", Request{}, "False"},
		{"thinking off", "{{ enable_thinking }}", Request{EnableThinking: &thinking}, "False"},
		{"generation prompt", "{{ add_generation_prompt }}", Request{AddGenerationPrompt: true}, "True"},
		{
			"extra keeps the order of keys", "{{ x|tojson }}{{ effort }}",
			Request{Extra: json.RawMessage(`{"x": {"b": 1, "a": [1.0, 2]}, "effort": "low"}`)},
			`{"b": 1, "a": [1.0, 2]}low`,
		},
		{
			"optional fields of a message", "{% for m in messages %}{{ m|tojson }}\n{% endfor %}",
			Request{Messages: []Message{
				{Role: "user", Content: "a"},
				{Role: "assistant", ReasoningContent: "b", ToolCalls: []ToolCall{{ID: "1", Name: "f", Arguments: json.RawMessage(`{"y":1,"x":2}`)}}},
				{Role: "tool", Content: "c", Name: "f", ToolCallID: "1"},
			}},
			`{"role": "user", "content": "a"}` + "\n" +
				`{"role": "assistant", "content": "", "reasoning_content": "b", "tool_calls": [{"id": "1", "type": "function", ` +
				`"function": {"name": "f", "arguments": {"y": 1, "x": 2}}}]}` + "\n" +
				`{"role": "tool", "content": "c", "tool_call_id": "1", "name": "f"}` + "\n",
		},
		{
			"time", "{{ strftime_now('%d %B %Y, %-d %b %y %H:%M %% %A') }}",
			Request{Now: time.Date(2024, 5, 7, 8, 9, 0, 0, time.UTC)},
			"07 May 2024, 7 May 24 08:09 % Tuesday",
		},
	} {
		if got := joined(mustRender(t, mustTemplate(t, tc.source), tc.request)); got != tc.want {
			t.Errorf("%s:\n got %q\nwant %q", tc.name, got, tc.want)
		}
	}
}

func TestRefusal(t *testing.T) {
	template := mustTemplate(t, "{% if messages[0].role != 'user' %}{{ raise_exception('start with a user') }}{% endif %}")
	_, err := template.Render(Request{Messages: []Message{{Role: "assistant"}}})
	refusal, ok := errors.AsType[*RefusedError](err)
	if !ok || refusal.Message != "start with a user" || err.Error() != "the model's chat template refused: start with a user" {
		t.Errorf("error %v", err)
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct{ name, source, want string }{
		{"open tag", "a\nb{{ c", "line 2: a tag is not closed"},
		{"open string", "\n\n{{ 'c }}", "line 3: a string is not closed"},
		{"open comment", "{# c", "a comment is not closed"},
		{"open raw", "{% raw %}", "a raw block is not closed"},
		{"brackets", "{{ (1] }}", "unexpected ]"},
		{"open block, after trimmed lines", "{% if true %}\n{#\n\n#}\n{% foo %}", `line 5: unknown statement "foo"`},
		{"unknown function", "{{ f() }}", "f is not callable"},
		{"unknown filter", "{{ 1|nonsense }}", `unknown filter "nonsense"`},
		{"in-place change", "{% set _ = messages.append(1) %}", "changes a list or dictionary in place (append)"},
		{"reserved name", "{% macro __coli_step() %}{% endmacro %}", "reserved prefix"},
		{"long", strings.Repeat("a", maxSource+1), "bytes, more than"},
		{"nested", "{{ " + strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000) + " }}", "nested deeper"},
		{"large number", "{{ 'a' * 9999999999 }}", "too large"},
		{"no tojson of a function", "{{ range|tojson }}", "tojson"},
		{"engine's panic", "{{ [1]|select|list }}", "the template engine failed"},
	} {
		var parts []Part
		template, err := New("NAME", tc.source, Specials{})
		if err == nil {
			parts, err = template.Render(Request{})
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "chat template NAME: ") {
			t.Errorf("%s: %v, error %v; want one with %q", tc.name, parts, err, tc.want)
		}
	}
	for name, r := range map[string]Request{
		"message 0: arguments of the call of f": {Messages: []Message{{ToolCalls: []ToolCall{{Name: "f", Arguments: json.RawMessage(`{"a":`)}}}}},
		"tool 1":                                {Tools: []json.RawMessage{json.RawMessage(`{}`), json.RawMessage(`{} {}`)}},
		"extra variables":                       {Extra: json.RawMessage(`[]`)},
		"too deep":                              {Tools: []json.RawMessage{json.RawMessage(strings.Repeat("[", 20000))}},
	} {
		if _, err := mustTemplate(t, "a").Render(r); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one with %q", err, name)
		}
	}
}

// TestEndlessTemplates checks that a hostile template ends with an error that says what it did.
func TestEndlessTemplates(t *testing.T) {
	const huge = "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}"
	for _, tc := range []struct{ name, source, want string }{
		{"nested loops", strings.Repeat("{% for i in range(1000) %}", 4) + strings.Repeat("{% endfor %}", 4), "did not end"},
		{"huge range", "{% for i in range(9999999) %}{% endfor %}", "range has more than"},
		{"recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself"},
		{"mutual recursion", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "calls itself"},
		{"recursion by call", "{% macro m() %}{% call m() %}x{% endcall %}{% endmacro %}{{ m() }}", "calls itself"},
		{"doubling", huge + "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "grew past"},
		{"doubling in a block", huge + "{% for i in range(60) %}{% set b %}{{ b }}{{ b }}aaaaaaaa{% endset %}{% endfor %}", "more than 64 MiB"},
		{"doubling a list", "{% set a = [1] %}" + strings.Repeat("{% set a = [a, a] %}", 60), "grew past"},
		{"output", "{% set a = 'a' * 999999 %}{% for i in range(100000) %}{{ a }}{% endfor %}", "wrote more than"},
		{"namespace in itself", "{% set ns = namespace() %}{% set ns.a = [{'b': ns}] %}{{ ns }}", "contains itself"},
	} {
		start := time.Now()
		_, err := mustTemplate(t, tc.source).Render(Request{})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.want)
		}
		if d := time.Since(start); d > maxTime+5*time.Second {
			t.Errorf("%s: took %v", tc.name, d)
		}
	}
}

func TestFromDir(t *testing.T) {
	const config = `{"bos_token": {"content": "<b>", "special": true}, "eos_token": "<e>", "pad_token": null, "chat_template": `
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  string // the prompt, or part of the error
	}{
		{"string", map[string]string{"tokenizer_config.json": config + `"A{{ bos_token ~ eos_token ~ pad_token }}"}`}, "A<b><e>"},
		{"default of a list", map[string]string{
			"tokenizer_config.json": config + `[{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}`,
		}, "D"},
		{"list without default", map[string]string{"tokenizer_config.json": config + `[{"name": "rag", "template": "T"}]}`}, "only rag"},
		{"file first", map[string]string{"tokenizer_config.json": config + `"A"}`, "chat_template.jinja": "F{{ eos_token }}\n"}, "F<e>"},
		{"file alone", map[string]string{"chat_template.jinja": "F"}, "F"},
		{"none", map[string]string{"tokenizer_config.json": `{"chat_template": null}`}, ErrNoTemplate.Error()},
		{"no files", nil, ErrNoTemplate.Error()},
		{"not JSON", map[string]string{"tokenizer_config.json": "<html>"}, "tokenizer_config.json: invalid character"},
		{"broken template", map[string]string{"chat_template.jinja": "{{"}, "chat_template.jinja: line 1"},
	} {
		dir := t.TempDir()
		for name, content := range tc.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		template, err := FromDir(dir)
		if err != nil {
			if !strings.Contains(err.Error(), tc.want) || (tc.want == ErrNoTemplate.Error()) != errors.Is(err, ErrNoTemplate) {
				t.Errorf("%s: error %v, want %q", tc.name, err, tc.want)
			}
			continue
		}
		if got := joined(mustRender(t, template, userSays("x"))); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

// The template of the model that ships with coli.
const tinyTemplate = "{% for message in messages %}{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|endoftext|>" +
	"{% else %}<|user|>{{ message['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"

func TestTinyTemplate(t *testing.T) {
	r := userSays("tell <|endoftext|> me")
	r.ControlTokens = []string{"<|user|>", "<|assistant|>", "<|endoftext|>"}
	want := []Part{{"<|user|>tell ", true}, {"<|endoftext|>", false}, {" me<|assistant|>", true}}
	checkParts(t, "tiny", mustRender(t, mustTemplate(t, tinyTemplate), r), want)
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		mustTemplate(b, tinyTemplate)
	}
}

func BenchmarkRender(b *testing.B) {
	template := mustTemplate(b, tinyTemplate)
	for b.Loop() {
		mustRender(b, template, userSays("Once upon a time"))
	}
}
