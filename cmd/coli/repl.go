package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/coli-moe/coli/engine"
)

// errInterrupted is what a lineReader returns for Ctrl+C.
var errInterrupted = errors.New("interrupted")

// lineReader reads what the user types, a line at a time: io.EOF at its end, errInterrupted for Ctrl+C.
type lineReader interface {
	ReadLine(prompt string) (string, error)
}

// talker is the part of an assistant that a conversation needs.
type talker interface {
	answer(ctx context.Context, c conversation, emit func(text string) error) (engine.Result, error)
	contextSize() int
	set(name, value string) error
	setThink(on bool)
	show(w io.Writer, topic string) error
}

// repl is a conversation at a terminal.
type repl struct {
	lines   lineReader
	talk    talker
	out     io.Writer // the model's words and what a command was asked to show
	notes   io.Writer // all that coli says by itself
	verbose bool      // a line of statistics follows each answer
	// interruptible derives a context that Ctrl+C cancels; stop gives Ctrl+C back.
	interruptible func(context.Context) (_ context.Context, stop context.CancelFunc)

	conversation
}

const replHelp = `/set parameter NAME VALUE   change a sampling or length parameter
/set system TEXT            give the conversation a system message
/set verbose | quiet        statistics after each answer, or none
/set think | nothink        let a model that can think do so, or not
/show info | parameters | template | system
/clear                      start a new conversation
/save FILE, /load FILE      keep the conversation, take it up again
/bye                        leave, as does Ctrl+D
"""                         begins and ends a text of several lines
Ctrl+C                      stops an answer`

// run talks until the user leaves. Its error is one of reading or writing; what goes wrong with an answer is said, and the talk goes on.
func (r *repl) run(ctx context.Context) error {
	interrupts := 0
	for {
		line, literal, err := r.read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errInterrupted):
			if interrupts++; interrupts == 2 {
				return nil
			}
			fmt.Fprintln(r.notes, "Ctrl+C again, Ctrl+D or /bye leaves")
			continue
		case err != nil:
			return err
		}
		interrupts = 0
		switch {
		case strings.TrimSpace(line) == "":
		case strings.HasPrefix(line, "/") && !literal:
			leave, err := r.command(line)
			if leave {
				return nil
			}
			if err != nil {
				note(r.notes, "%v", err)
			}
		default:
			if err := r.ask(ctx, line); err != nil {
				return err
			}
		}
	}
}

const (
	fence     = `"""`
	setSystem = "/set system "
)

// read returns one entry: a line, or the lines between two fences, alone or as the text of /set system. literal marks an entry that is
// no command whatever it begins with.
func (r *repl) read() (entry string, literal bool, err error) {
	line, err := r.lines.ReadLine(">>> ")
	if err != nil {
		return "", false, err
	}
	line = strings.TrimSpace(line)
	command := ""
	if rest, ok := strings.CutPrefix(line, setSystem); ok {
		command, line = setSystem, strings.TrimSpace(rest)
	}
	text, fenced := strings.CutPrefix(line, fence)
	if !fenced {
		return command + line, false, nil
	}
	for {
		if block, ok := strings.CutSuffix(strings.TrimRight(text, " \t"), fence); ok {
			return command + strings.Trim(block, "\n"), command == "", nil
		}
		line, err := r.lines.ReadLine("... ")
		if err != nil {
			return "", false, err
		}
		text += "\n" + line
	}
}

// command carries out a line that begins with a slash.
func (r *repl) command(line string) (leave bool, err error) {
	name, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch name {
	case "/help", "/?":
		fmt.Fprintln(r.out, replHelp)
	case "/bye", "/exit", "/quit":
		return true, nil
	case "/clear":
		r.Messages = nil
		fmt.Fprintln(r.notes, "a new conversation")
	case "/set":
		return false, r.set(rest)
	case "/show":
		if rest == "system" {
			fmt.Fprintln(r.out, r.System)
			return false, nil
		}
		return false, r.talk.show(r.out, rest)
	case "/save":
		if rest == "" {
			return false, errors.New("/save needs the name of a file")
		}
		if err := r.save(rest); err != nil {
			return false, err
		}
		fmt.Fprintf(r.notes, "saved to %s\n", rest)
	case "/load":
		if rest == "" {
			return false, errors.New("/load needs the name of a file")
		}
		c, err := loadConversation(rest)
		if err != nil {
			return false, err
		}
		r.conversation = c
		fmt.Fprintf(r.notes, "loaded %d messages\n", len(c.Messages))
	default:
		return false, fmt.Errorf("unknown command %s; /help lists them, and %s around a text sends it as it is", name, fence)
	}
	return false, nil
}

func (r *repl) set(args string) error {
	what, rest, _ := strings.Cut(args, " ")
	rest = strings.TrimSpace(rest)
	switch what {
	case "parameter":
		name, value, ok := strings.Cut(rest, " ")
		if !ok {
			return errors.New("/set parameter needs a name and a value; /show parameters lists them")
		}
		return r.talk.set(name, strings.TrimSpace(value))
	case "system":
		r.System = rest
	case "verbose", "quiet":
		r.verbose = what == "verbose"
	case "think", "nothink":
		r.talk.setThink(what == "think")
	default:
		return errors.New("/set parameter, system, verbose, quiet, think or nothink; /help says more")
	}
	return nil
}

// ask sends a text and prints the answer. Only an error of writing the answer is returned.
func (r *repl) ask(ctx context.Context, text string) error {
	ctx, stop := r.interruptible(ctx)
	defer stop()
	said := words{w: r.out}
	c := r.conversation
	c.Messages = append(c.Messages[:len(c.Messages):len(c.Messages)], message{"user", text})
	res, err := r.talk.answer(ctx, c, said.emit)
	if said.err != nil {
		return said.err
	}
	if err := said.end(); err != nil {
		return err
	}
	var tooLong *engine.ContextError
	switch {
	case errors.As(err, &tooLong) && len(c.Messages) > 1:
		note(r.notes, "the conversation has grown to %d tokens and the context holds %d; /clear starts a new one", tooLong.Tokens, tooLong.Size)
		return nil
	case err != nil && res.Reason != engine.ReasonInterrupted:
		note(r.notes, "%v", err)
		return nil
	case err != nil && said.text.Len() == 0:
		return nil
	}
	// What was said before an interruption stays part of the conversation.
	r.Messages = append(c.Messages, message{"assistant", said.text.String()})
	if r.verbose {
		note(r.notes, "%s", statsLine(res, r.talk.contextSize(), engine.ResidentBytes()))
		if res.Experts != nil {
			note(r.notes, "%s", expertsLine(*res.Experts))
		}
	} else if why := ending(res, r.talk.contextSize()); why != "" {
		note(r.notes, "%s", why)
	}
	if res.Reason == engine.ReasonContext {
		note(r.notes, "/clear starts a new conversation")
	}
	fmt.Fprintln(r.notes)
	return nil
}

// words prints an answer as it comes and keeps it.
type words struct {
	w    io.Writer // nil: only keep
	text strings.Builder
	err  error // the first of writing
}

func (p *words) emit(text string) error {
	p.text.WriteString(text)
	if p.w != nil && p.err == nil {
		_, p.err = io.WriteString(p.w, text)
	}
	return p.err
}

// end completes the last line.
func (p *words) end() error {
	if s := p.text.String(); p.w != nil && p.err == nil && s != "" && !strings.HasSuffix(s, "\n") {
		_, p.err = io.WriteString(p.w, "\n")
	}
	return p.err
}
