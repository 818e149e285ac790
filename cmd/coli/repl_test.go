package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/engine"
)

// script is a lineReader over given lines; "^C" is Ctrl+C, the end is Ctrl+D. It records the prompts shown.
type script struct {
	lines   []string
	prompts []string
}

func (s *script) ReadLine(prompt string) (string, error) {
	s.prompts = append(s.prompts, prompt)
	if len(s.lines) == 0 {
		return "", io.EOF
	}
	line := s.lines[0]
	s.lines = s.lines[1:]
	if line == "^C" {
		return "", errInterrupted
	}
	return line, nil
}

// parrot is a talker that repeats what it is told and records how it was called.
type parrot struct {
	calls     []string
	cancel    context.CancelFunc // pressed by an answer to "stop me"
	lastHeard conversation
}

func (p *parrot) answer(ctx context.Context, c conversation, emit func(string) error) (engine.Result, error) {
	p.lastHeard = c
	text := c.Messages[len(c.Messages)-1].Content
	p.calls = append(p.calls, fmt.Sprintf("answer %d %q", len(c.Messages), text))
	res := engine.Result{Reason: engine.ReasonEOS}
	switch text {
	case "too long":
		return res, &engine.ContextError{Tokens: 99, Size: 64}
	case "break":
		return res, errors.New("it broke")
	case "fill":
		res.Reason = engine.ReasonContext
	case "stop me":
		if err := emit("half of"); err != nil {
			return res, err
		}
		p.cancel()
		res.Reason = engine.ReasonInterrupted
		return res, ctx.Err()
	case "stop me at once":
		p.cancel()
		res.Reason = engine.ReasonInterrupted
		return res, ctx.Err()
	}
	return res, emit("you said " + text)
}

func (p *parrot) contextSize() int { return 64 }

func (p *parrot) set(name, value string) error {
	p.calls = append(p.calls, "set "+name+"="+value)
	if name == "bad" {
		return errors.New("no such parameter")
	}
	return nil
}

func (p *parrot) setThink(on bool) { p.calls = append(p.calls, fmt.Sprint("think ", on)) }

func (p *parrot) show(w io.Writer, topic string) error {
	_, err := fmt.Fprintf(w, "shown: %s\n", topic)
	return err
}

type session struct {
	*repl
	*parrot
	*script
	stdout, stderr strings.Builder
}

func talkTo(t *testing.T, lines ...string) *session {
	s := &session{parrot: &parrot{}, script: &script{lines: lines}}
	s.repl = &repl{lines: s.script, talk: s.parrot, out: &s.stdout, notes: &s.stderr}
	s.interruptible = func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		s.cancel = cancel
		return ctx, cancel
	}
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestREPL(t *testing.T) {
	for _, c := range []struct {
		name   string
		lines  []string
		calls  []string
		out    string
		notes  []string // each must occur in what is noted
		left   int      // lines not read
		system string
	}{
		{
			name: "answers", lines: []string{"hello", "", "  again "},
			calls: []string{`answer 1 "hello"`, `answer 3 "again"`}, out: "you said hello\nyou said again\n",
		},
		{
			name: "several lines", lines: []string{`"""first`, "", "  second", `third"""`, `"""one"""`, `"""`, "/bye", `"""`},
			calls: []string{`answer 1 "first\n\n  second\nthird"`, `answer 3 "one"`, `answer 5 "/bye"`},
			out:   "you said first\n\n  second\nthird\nyou said one\nyou said /bye\n",
		},
		{name: "block left by Ctrl+C", lines: []string{`"""first`, "^C", "hello"}, calls: []string{`answer 1 "hello"`}, out: "you said hello\n"},
		{name: "Ctrl+C twice leaves", lines: []string{"^C", "^C", "hello"}, notes: []string{"leaves"}, left: 1},
		{name: "Ctrl+C once does not", lines: []string{"^C", "hello", "^C"}, calls: []string{`answer 1 "hello"`}, out: "you said hello\n"},
		{name: "/bye leaves", lines: []string{"/bye", "hello"}, left: 1},
		{
			name: "/clear forgets", lines: []string{"hello", "/clear", "hello"},
			calls: []string{`answer 1 "hello"`, `answer 1 "hello"`}, out: "you said hello\nyou said hello\n", notes: []string{"new conversation"},
		},
		{
			name: "an interrupted answer stays", lines: []string{"stop me", "go on"},
			calls: []string{`answer 1 "stop me"`, `answer 3 "go on"`}, out: "half of\nyou said go on\n", notes: []string{"interrupted"},
		},
		{
			name: "an answer interrupted before its first word does not", lines: []string{"stop me at once", "go on"},
			calls: []string{`answer 1 "stop me at once"`, `answer 1 "go on"`}, out: "you said go on\n",
		},
		{
			name: "a conversation too long", lines: []string{"hello", "too long", "again"},
			calls: []string{`answer 1 "hello"`, `answer 3 "too long"`, `answer 3 "again"`}, out: "you said hello\nyou said again\n",
			notes: []string{"grown to 99 tokens and the context holds 64; /clear"},
		},
		{name: "a prompt too long", lines: []string{"too long"}, calls: []string{`answer 1 "too long"`}, notes: []string{"99 tokens do not fit"}},
		{name: "a full context", lines: []string{"fill"}, calls: []string{`answer 1 "fill"`}, out: "you said fill\n", notes: []string{"64 tokens is full", "/clear"}},
		{
			name: "an error does not end the talk", lines: []string{"break", "hello"},
			calls: []string{`answer 1 "break"`, `answer 1 "hello"`}, out: "you said hello\n", notes: []string{"coli: it broke"},
		},
		{
			name:  "settings",
			lines: []string{"/set parameter temp 0.5", "/set parameter stop THE END", "/set think", "/set nothink", "/set parameter bad 1", "/set parameter temp"},
			calls: []string{"set temp=0.5", "set stop=THE END", "think true", "think false", "set bad=1"},
			notes: []string{"no such parameter", "needs a name and a value"},
		},
		{name: "system", lines: []string{"/set system be brief", "/show system"}, out: "be brief\n", system: "be brief"},
		{name: "system of several lines", lines: []string{`/set system """be`, `brief"""`}, system: "be\nbrief"},
		{name: "verbose", lines: []string{"/set verbose", "hello"}, calls: []string{`answer 1 "hello"`}, out: "you said hello\n", notes: []string{"prompt tokens"}},
		{name: "show", lines: []string{"/show info"}, out: "shown: info\n"},
		{name: "help", lines: []string{"/help"}, out: replHelp + "\n"},
		{name: "help by its other name", lines: []string{"/?"}, out: replHelp + "\n"},
		{name: "unknown command", lines: []string{"/frobnicate it"}, notes: []string{"unknown command /frobnicate; /help"}},
		{name: "unknown setting", lines: []string{"/set", "/set colour"}, notes: []string{"/set parameter, system"}},
		{name: "files need names", lines: []string{"/save", "/load"}, notes: []string{"/save needs", "/load needs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := talkTo(t, c.lines...)
			if diff := cmp.Diff(c.calls, s.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.out, s.stdout.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			for _, n := range c.notes {
				if !strings.Contains(s.stderr.String(), n) {
					t.Errorf("notes %q lack %q", s.stderr.String(), n)
				}
			}
			if len(s.script.lines) != c.left {
				t.Errorf("%d lines were not read, want %d", len(s.script.lines), c.left)
			}
			if s.System != c.system {
				t.Errorf("system message %q, want %q", s.System, c.system)
			}
		})
	}
}

func TestPromptsShowBlocks(t *testing.T) {
	s := talkTo(t, `"""one`, `two"""`)
	if diff := cmp.Diff([]string{">>> ", "... ", ">>> "}, s.prompts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConversationIsSavedAndTakenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "talk.json")
	talkTo(t, "/set system be brief", "hello", "/save "+path)
	s := talkTo(t, "/load "+path, "again")
	want := conversation{"be brief", []message{{"user", "hello"}, {"assistant", "you said hello"}, {"user", "again"}}}
	if diff := cmp.Diff(want, s.lastHeard); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s := talkTo(t, "hello", "/load "+path+".none", "again"); len(s.lastHeard.Messages) != 3 {
		t.Error("a file that cannot be read replaced the conversation")
	}
}

// full is a writer whose disk is full.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestOutputThatFailsEndsTheTalk(t *testing.T) {
	r := &repl{lines: &script{lines: []string{"hello", "again"}}, talk: &parrot{}, out: full{}, notes: io.Discard, interruptible: context.WithCancel}
	if err := r.run(t.Context()); err == nil || err.Error() != "disk full" {
		t.Errorf("got %v", err)
	}
}
