package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var fox = conversation{System: "be brief", Messages: []message{{"user", "Tell me of a \"fox\".\n"}, {"assistant", "Ein Füchslein <|x|>"}}}

func TestSavedConversationsAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fox.json")
	for range 2 { // the second replaces the first
		if err := fox.save(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := loadConversation(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fox, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("%d files, want the conversation alone", len(entries))
	}
}

func TestSaveThatFailsLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := fox.save(path); err == nil {
		t.Fatal("a directory was replaced by a file")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files, want the old one alone", len(entries))
	}
}

func TestSaveThatFailsNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "fox.json")
	if err := fox.save(path); err == nil || !strings.HasPrefix(err.Error(), "write "+path+": ") {
		t.Errorf("got %v", err)
	}
}

func TestOtherFilesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":             "EOF",
		"<html>":       "invalid character",
		`{"a":1}`:      "unknown field",
		`{} {}`:        "more after its end",
		`{"messages":`: "unexpected EOF",
		`{"messages":[{"role":"tool","content":""}]}`: `message 1 is of "tool", want "user"`,
		`{"messages":[{"role":"user","content":""}]}`: "no answer",
	} {
		if _, err := parseConversation("f.json", []byte(text)); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "f.json is not a saved conversation: ") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseConversation(f *testing.F) {
	f.Add([]byte(`{"system":"s","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`))
	f.Add([]byte(`{"messages":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConversation("f", data)
		if err == nil && len(c.Messages)%2 != 0 {
			t.Error("a question without an answer was accepted")
		}
	})
}
