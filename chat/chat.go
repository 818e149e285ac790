// Package chat renders a conversation into a prompt with the chat template that comes with a checkpoint: a Jinja program in
// chat_template.jinja, tokenizer_config.json or the GGUF key tokenizer.chat_template.
//
// The prompt is a list of parts, because a template's own text contains control tokens, such as <|im_end|>, that the same words typed by a
// user must not turn into; see Render. Templates are rendered as Hugging Face does it (jinja2 with trim_blocks and lstrip_blocks), in bounded
// time: they are programs from the network.
//
// Turning parts into token ids belongs to tokenizer; what a model answers is parsed nowhere in this package.
package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ardanlabs/jinja"
)

// ErrNoTemplate says that a checkpoint has no chat template: a base model, to be used with plain text.
var ErrNoTemplate = errors.New("no chat template")

// RefusedError is a template's own objection to a conversation, its raise_exception.
type RefusedError struct{ Message string }

func (e *RefusedError) Error() string { return "the model's chat template refused: " + e.Message }

// Specials are the texts of the tokens a template may name, as bos_token and so on. An empty one is undefined in the template.
type Specials struct{ BOS, EOS, Pad, Unk string }

// Template is a compiled chat template. It is immutable and may be used by any number of goroutines.
type Template struct {
	name     string
	specials Specials
	source   string // as rewritten
	program  *jinja.Template
}

// New compiles the source of a template. The name, a file's or a GGUF key, appears in errors.
func New(name, source string, specials Specials) (t *Template, err error) {
	defer recoverInto(&err, name)
	rewritten, err := rewrite(source)
	if err != nil {
		return nil, fmt.Errorf("chat template %s: %w", name, err)
	}
	program, err := jinja.Compile(rewritten)
	if err != nil {
		return nil, fmt.Errorf("chat template %s: %w", name, err)
	}
	return &Template{name: name, specials: specials, source: rewritten, program: program}, nil
}

// recoverInto turns a panic of the template library into an error: what a file contains must not end the program.
func recoverInto(err *error, name string) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("chat template %s: the template engine failed: %v", name, r)
	}
}

// FromDir compiles the template of a checkpoint in Hugging Face's layout: chat_template.jinja if there is one, else the entry chat_template of
// tokenizer_config.json, which is a string or a list of named templates of which "default" is taken. The special tokens come from
// tokenizer_config.json. Where neither file has a template the error is ErrNoTemplate.
func FromDir(dir string) (*Template, error) {
	path := filepath.Join(dir, "tokenizer_config.json")
	var config struct {
		ChatTemplate named        `json:"chat_template"`
		BOS          specialToken `json:"bos_token"`
		EOS          specialToken `json:"eos_token"`
		Pad          specialToken `json:"pad_token"`
		Unk          specialToken `json:"unk_token"`
	}
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(data, &config); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	source := string(config.ChatTemplate)
	jinjaPath := filepath.Join(dir, "chat_template.jinja")
	switch data, err := os.ReadFile(jinjaPath); {
	case err == nil:
		path, source = jinjaPath, string(data)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if source == "" {
		return nil, fmt.Errorf("%s: %w in chat_template.jinja or tokenizer_config.json", dir, ErrNoTemplate)
	}
	return New(path, source, Specials{
		BOS: string(config.BOS), EOS: string(config.EOS), Pad: string(config.Pad), Unk: string(config.Unk),
	})
}

// named is a template given as a string, or the one called "default" of a list.
type named string

func (n *named) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("[")) {
		return json.Unmarshal(data, (*string)(n))
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	names := make([]string, len(list))
	for i, entry := range list {
		if entry.Name == "default" {
			*n = named(entry.Template)
			return nil
		}
		names[i] = entry.Name
	}
	if len(list) > 0 {
		return fmt.Errorf("chat_template has no entry named \"default\", only %s", strings.Join(names, ", "))
	}
	return nil
}

// specialToken is a token given as a string, null, or an object with its content.
type specialToken string

func (s *specialToken) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("{")) {
		return json.Unmarshal(data, (*string)(s))
	}
	var token struct{ Content string }
	err := json.Unmarshal(data, &token)
	*s = specialToken(token.Content)
	return err
}
