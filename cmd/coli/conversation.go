package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/coli-moe/coli/chat"
	"github.com/coli-moe/coli/internal/atomicfile"
)

// message is one turn of a conversation as it is saved.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// conversation is what /save writes and /load reads.
type conversation struct {
	System   string    `json:"system,omitempty"`
	Messages []message `json:"messages"`
}

// forTemplate returns the conversation as a chat template takes it.
func (c conversation) forTemplate() []chat.Message {
	var out []chat.Message
	if c.System != "" {
		out = append(out, chat.Message{Role: "system", Content: c.System})
	}
	for _, m := range c.Messages {
		out = append(out, chat.Message{Role: m.Role, Content: m.Content})
	}
	return out
}

// save writes the conversation to path, which afterwards holds either all of it or what it held before.
func (c conversation) save(path string) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(data, '\n'))
}

// writeFile replaces a file of the user's, which others may not read.
func writeFile(path string, data []byte) error {
	return atomicfile.Write(path, 0o600, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// loadConversation reads what save wrote; anything else is refused.
func loadConversation(path string) (conversation, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return conversation{}, err
	}
	return parseConversation(path, data)
}

func parseConversation(name string, data []byte) (conversation, error) {
	var c conversation
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return conversation{}, fmt.Errorf("%s is not a saved conversation: %w", name, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return conversation{}, fmt.Errorf("%s is not a saved conversation: there is more after its end", name)
	}
	for i, m := range c.Messages {
		if want := [2]string{"user", "assistant"}[i%2]; m.Role != want {
			return conversation{}, fmt.Errorf("%s is not a saved conversation: message %d is of %q, want %q", name, i+1, m.Role, want)
		}
	}
	if len(c.Messages)%2 != 0 {
		return conversation{}, fmt.Errorf("%s is not a saved conversation: its last message has no answer", name)
	}
	return c, nil
}
