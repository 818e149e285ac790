package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/chat"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/engine/sampler"
	"github.com/coli-moe/coli/tokenizer"
)

// assistant answers conversations with a model and the settings in force.
type assistant struct {
	model    *engine.Model
	path     string // of the model, as given
	session  *engine.Session
	tok      *tokenizer.Tokenizer
	template *chat.Template // nil: conversations are plain text to be continued
	control  []string       // texts that only the template may turn into tokens
	settings
}

// settings of an answer.
type settings struct {
	sampler.Params
	predict int // most tokens of an answer; negative: until the context is full
	stop    []string
	think   thinking
}

// thinking says whether the template is told to let the model think; "auto" leaves it to the template.
type thinking string

func (t *thinking) Set(s string) error {
	switch s {
	case "auto", "on", "off":
		*t = thinking(s)
		return nil
	}
	return errors.New("want auto, on or off")
}

func (t *thinking) String() string { return string(*t) }

func (t *thinking) Type() string { return "string" }

// newAssistant prepares a model to answer. Without a chat template in the checkpoint, or with raw, it continues plain text.
func newAssistant(m *engine.Model, path string, ctxSize int, raw bool, s settings) (*assistant, error) {
	session, err := m.NewSession(ctxSize)
	if err != nil {
		return nil, err
	}
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	a := &assistant{model: m, path: path, session: session, tok: tok, settings: s}
	if raw {
		return a, nil
	}
	a.template, err = m.Template()
	if errors.Is(err, chat.ErrNoTemplate) {
		err = nil
	}
	a.control = controlTokens(tok)
	return a, err
}

// controlTokens lists the texts that the tokenizer turns into single ids in a template's own text but must not in what is typed: control
// tokens, and those spelled like tags.
func controlTokens(tok *tokenizer.Tokenizer) []string {
	var texts []string
	for id := range int32(tok.Size()) {
		text := string(tok.Token(id))
		if tok.IsControl(id) || strings.HasPrefix(text, "<") && strings.HasSuffix(text, ">") {
			texts = append(texts, text)
		}
	}
	return texts
}

// encode returns the whole conversation as the model is to see it, up to where its answer begins.
func (a *assistant) encode(c conversation) ([]int32, error) {
	if a.template == nil {
		var texts []string
		if c.System != "" {
			texts = append(texts, c.System)
		}
		for _, m := range c.Messages {
			texts = append(texts, m.Content)
		}
		return append(a.tok.Prefix(), a.tok.Encode(strings.Join(texts, "\n"))...), nil
	}
	request := chat.Request{Messages: c.forTemplate(), AddGenerationPrompt: true, ControlTokens: a.control}
	if a.think != "auto" {
		on := a.think == "on"
		request.EnableThinking = &on
	}
	rendered, err := a.template.Render(request)
	if err != nil {
		return nil, err
	}
	parts := make([]tokenizer.Part, len(rendered))
	for i, p := range rendered {
		parts[i] = tokenizer.Part(p)
	}
	return a.tok.EncodeParts(parts), nil
}

// answer continues the conversation, whose last message is the user's, and hands the text to emit as it comes. What the session holds of
// the conversation is not computed again.
func (a *assistant) answer(ctx context.Context, c conversation, emit func(text string) error) (engine.Result, error) {
	prompt, err := a.encode(c)
	if err != nil {
		return engine.Result{}, err
	}
	s, err := sampler.New(a.Params)
	if err != nil {
		return engine.Result{}, err
	}
	return a.session.Generate(ctx, engine.Request{Prompt: prompt, Sampler: s, MaxTokens: a.predict, Stop: a.stop, Emit: emit})
}

func (a *assistant) contextSize() int { return a.session.Size() }

// parameters of /set parameter: names are the flags' with underscores; ollama's are understood.
var parameterNames = map[string]string{
	"temperature": "temp", "num_predict": "predict", "num_ctx": "ctx_size", "num_thread": "threads", "topp": "top_p",
}

// set changes a parameter. On an error nothing is changed.
func (a *assistant) set(name, value string) error {
	name = strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_")
	if own, ok := parameterNames[name]; ok {
		name = own
	}
	s := a.settings
	var err error
	switch name {
	case "temp":
		err = parseFloat(value, &s.Temperature)
	case "top_k":
		err = parseInt(value, &s.TopK)
	case "top_p":
		err = parseFloat(value, &s.TopP)
	case "min_p":
		err = parseFloat(value, &s.MinP)
	case "repeat_penalty":
		err = parseFloat(value, &s.RepeatPenalty)
	case "repeat_last_n":
		err = parseInt(value, &s.RepeatLastN)
	case "seed":
		s.Seed, err = strconv.ParseInt(value, 10, 64)
	case "predict":
		err = parseInt(value, &s.predict)
	case "stop":
		s.stop = append(slices.Clone(s.stop), value)
	case "ctx_size":
		return a.resize(value)
	case "threads":
		return errors.New("threads cannot be changed while the model is loaded; start again with --threads")
	default:
		return fmt.Errorf("unknown parameter %q; /show parameters lists them", name)
	}
	if err != nil {
		return fmt.Errorf("%s %s: want a number", name, value)
	}
	drawn, err := sampler.New(s.Params)
	if err != nil {
		return err
	}
	s.Seed = drawn.Seed()
	a.settings = s
	return nil
}

func parseFloat(s string, to *float32) error {
	v, err := strconv.ParseFloat(s, 32)
	*to = float32(v)
	return err
}

func parseInt(s string, to *int) (err error) {
	*to, err = strconv.Atoi(s)
	return err
}

// resize gives the conversation another context; what was computed of it is computed again with the next answer.
func (a *assistant) resize(value string) error {
	var n int
	if err := parseInt(value, &n); err != nil {
		return fmt.Errorf("ctx_size %s: want a whole number", value)
	}
	session, err := a.model.NewSession(n)
	if err != nil {
		return err
	}
	a.session.Close()
	a.session = session
	return nil
}

// show prints what /show asks for.
func (a *assistant) show(w io.Writer, topic string) error {
	switch topic {
	case "info":
		c := a.model.Config
		fmt.Fprintf(w, "model         %s\n", a.path)
		fmt.Fprintf(w, "architecture  %s, %d layers, %d experts of which %d answer\n", c.ModelType, c.NumHiddenLayers, c.NumExperts, c.NumExpertsPerTok)
		fmt.Fprintf(w, "context       %d of %d tokens used\n", len(a.session.Tokens()), a.session.Size())
		if why := a.model.LayersWhy; why != "" {
			fmt.Fprintf(w, "device        %s\n", why)
		}
		fmt.Fprintf(w, "threads       %d (%s)\n", a.model.Threads(), a.model.ThreadsWhy)
		fmt.Fprintf(w, "memory        %d MB resident\n", engine.ResidentBytes()>>20)
	case "parameters":
		fmt.Fprintf(w, "temp            %v\ntop_k           %d\ntop_p           %v\nmin_p           %v\nrepeat_penalty  %v\nrepeat_last_n   %d\n",
			a.Temperature, a.TopK, a.TopP, a.MinP, a.RepeatPenalty, a.RepeatLastN)
		fmt.Fprintf(w, "seed            %d\npredict         %d\nctx_size        %d\n", a.Seed, a.predict, a.session.Size())
		for _, s := range a.stop {
			fmt.Fprintf(w, "stop            %q\n", s)
		}
	case "template":
		if a.template == nil {
			fmt.Fprintln(w, "none: what is typed is continued as plain text")
			return nil
		}
		parts, err := a.template.Render(chat.Request{
			Messages: conversation{"SYSTEM", []message{{"user", "QUESTION"}, {"assistant", "ANSWER"}}}.forTemplate(), AddGenerationPrompt: true,
		})
		if err != nil {
			return err
		}
		for _, p := range parts {
			fmt.Fprint(w, p.Text)
		}
		fmt.Fprintln(w)
	default:
		return fmt.Errorf("unknown topic %q; /show info, parameters, template or system", topic)
	}
	return nil
}

func (a *assistant) setThink(on bool) {
	a.think = "off"
	if on {
		a.think = "on"
	}
}
