package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ardanlabs/jinja"
)

// Message is one turn of a conversation.
type Message struct {
	Role             string // "system", "user", "assistant", "tool"
	Content          string
	ReasoningContent string     // what an assistant thought before it answered, without the tags around it
	ToolCalls        []ToolCall // of an assistant
	ToolCallID, Name string     // of a tool's answer: the call it belongs to, and the tool
}

// ToolCall is an assistant's wish to call a function.
type ToolCall struct {
	ID, Name  string
	Arguments json.RawMessage // usually an object
}

// Request is what a template is rendered with.
type Request struct {
	Messages            []Message
	Tools               []json.RawMessage // function descriptions as in OpenAI's API; the order of keys is kept
	AddGenerationPrompt bool              // end with the header of an assistant's turn
	EnableThinking      *bool             // the variable enable_thinking; nil leaves it undefined, which is the model's default
	Extra               json.RawMessage   // an object of further variables, such as {"reasoning_effort": "low"}; trusted like the template
	Now                 time.Time         // the time that strftime_now tells; zero is the present

	// ControlTokens are the texts the tokenizer turns into single ids wherever they occur. Render keeps those typed into a message apart.
	ControlTokens []string
}

// variables returns the template's variables. Every string that is not the caller's own (contents, names, arguments, tool descriptions, and
// the keys in those) passes through user.
func (r Request) variables(specials Specials, user func(string) string) (map[string]jinja.Value, error) {
	vars := map[string]jinja.Value{
		"add_generation_prompt": jinja.NewBool(r.AddGenerationPrompt),
		"tools":                 jinja.None(),
		"documents":             jinja.None(),
	}
	for name, text := range map[string]string{
		"bos_token": specials.BOS, "eos_token": specials.EOS, "pad_token": specials.Pad, "unk_token": specials.Unk,
	} {
		if text != "" {
			vars[name] = jinja.NewString(text)
		}
	}
	if r.EnableThinking != nil {
		vars["enable_thinking"] = jinja.NewBool(*r.EnableThinking)
	}

	messages := make([]jinja.Value, len(r.Messages))
	for i, m := range r.Messages {
		v, err := m.value(user)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		messages[i] = v
	}
	vars["messages"] = jinja.NewList(messages)

	if len(r.Tools) > 0 {
		tools := make([]jinja.Value, len(r.Tools))
		for i, tool := range r.Tools {
			v, err := decodeJSON(tool, user)
			if err != nil {
				return nil, fmt.Errorf("tool %d: %w", i, err)
			}
			tools[i] = v
		}
		vars["tools"] = jinja.NewList(tools)
	}

	if len(r.Extra) > 0 {
		extra, err := decodeJSON(r.Extra, func(s string) string { return s })
		if err != nil || !extra.IsDict() {
			return nil, errors.Join(errors.New("the extra variables of the chat template are not a JSON object"), err)
		}
		for _, name := range extra.AsDict().Keys {
			vars[name] = extra.AsDict().Data[name]
		}
	}
	return vars, nil
}

func (m Message) value(user func(string) string) (jinja.Value, error) {
	v := dict("role", jinja.NewString(m.Role), "content", jinja.NewString(user(m.Content)))
	fields := v.AsDict()
	for _, f := range []struct{ name, text string }{
		{"reasoning_content", m.ReasoningContent}, {"tool_call_id", m.ToolCallID}, {"name", m.Name},
	} {
		if f.text != "" {
			fields.Set(f.name, jinja.NewString(user(f.text)))
		}
	}
	var calls []jinja.Value
	for _, c := range m.ToolCalls {
		arguments, err := decodeJSON(c.Arguments, user)
		if err != nil {
			return v, fmt.Errorf("arguments of the call of %s: %w", c.Name, err)
		}
		function := dict("name", jinja.NewString(user(c.Name)), "arguments", arguments)
		calls = append(calls, dict("id", jinja.NewString(user(c.ID)), "type", jinja.NewString("function"), "function", function))
	}
	if calls != nil {
		fields.Set("tool_calls", jinja.NewList(calls))
	}
	return v, nil
}

// dict makes an ordered dictionary of keys, which are strings, and values, which follow their keys.
func dict(pairs ...any) jinja.Value {
	v := jinja.NewDict()
	for i := 0; i < len(pairs); i += 2 {
		v.AsDict().Set(pairs[i].(string), pairs[i+1].(jinja.Value))
	}
	return v
}

// maxJSONDepth is how deep the JSON of a tool may nest: that of encoding/json.
const maxJSONDepth = 10000

// decodeJSON makes a template's value of JSON text. Unlike a Go map it keeps the order of keys, which the prompt shows.
func decodeJSON(data []byte, user func(string) string) (jinja.Value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeNext(d, user, 0)
	if err != nil {
		return v, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return v, errors.New("more text after the JSON value")
	}
	return v, nil
}

func decodeNext(d *json.Decoder, user func(string) string, depth int) (jinja.Value, error) {
	if depth > maxJSONDepth {
		return jinja.Undefined(), errors.New("the JSON value is nested too deep")
	}
	token, err := d.Token()
	if err != nil {
		return jinja.Undefined(), err
	}
	switch token := token.(type) {
	case string:
		return jinja.NewString(user(token)), nil
	case json.Delim:
		object := token == '{'
		v := jinja.NewDict()
		if !object {
			v = jinja.NewList(nil)
		}
		for d.More() {
			var key string
			if object {
				k, err := d.Token()
				if err != nil {
					return v, err
				}
				name, ok := k.(string)
				if !ok { // after some malformed numbers the decoder no longer knows that a key is due
					return v, fmt.Errorf("%v in place of a key", k)
				}
				key = user(name)
			}
			item, err := decodeNext(d, user, depth+1)
			if err != nil {
				return v, err
			}
			if object {
				v.AsDict().Set(key, item)
			} else {
				v.AsList().Append(item)
			}
		}
		_, err := d.Token() // the closing bracket, or what is there instead
		return v, err
	default: // nil, bool, json.Number
		return jinja.FromGoValue(token), nil
	}
}
