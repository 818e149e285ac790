package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// foreign says what becomes of a flag of llama.cpp that coli does not have under that name.
type foreign struct {
	value  bool              // it takes a value
	maybe  bool              // the value may be left out
	to     string            // coli's flag of the same meaning; "" if there is none
	accept func(string) bool // without one: the values that ask for what coli does anyway; nil for every value
	why    string            // what the user is told, accepted or not; "" accepts without a word
}

const (
	inLayers = "the routed experts of a layer on the device are there too; a smaller --gpu-layers leaves more to the CPU"
	onHost   = "the KV cache is in RAM, and layers on the device have a copy of theirs"
	oneGPU   = "this version of coli uses one device, which --device names"
	listed   = "coli devices lists them"
	download = "coli does not download models; give the path of a file or directory to -m"
	inREPL   = "without a prompt coli run holds a conversation, where " + fence + " begins and ends a text of several lines"
	mapped   = "this version of coli maps the model's file into memory"
)

func never(string) bool { return false }

// oneOf accepts the given values.
func oneOf(values ...string) func(string) bool {
	return func(v string) bool {
		for _, ok := range values {
			if strings.EqualFold(v, ok) {
				return true
			}
		}
		return false
	}
}

// toCPU accepts an --override-tensor list that places everything on the CPU.
func toCPU(v string) bool {
	for rule := range strings.SplitSeq(v, ",") {
		if !strings.HasSuffix(rule, "=CPU") {
			return false
		}
	}
	return true
}

// llama are llama.cpp's flags by name, without dashes, its one-dash names and its long ones alike.
var llama = func() map[string]foreign {
	table := map[string]foreign{}
	for names, f := range map[string]foreign{
		"sys system-prompt":                     {value: true, to: "system"},
		"temperature":                           {value: true, to: "temp"},
		"topp":                                  {value: true, to: "top-p"},
		"n-predict":                             {value: true, to: "predict"},
		"r reverse-prompt":                      {value: true, to: "stop"},
		"ub ubatch-size":                        {value: true, to: "chunk"},
		"no-cnv no-conversation":                {to: "raw"},
		"no-perf":                               {to: "quiet"},
		"output":                                {value: true, to: "output-format"},
		"cnv conversation st single-turn jinja": {},
		"no-display-prompt no-warmup":           {},
		"b batch-size":                          {value: true, why: "coli has one batch size, --chunk"},
		"tb threads-batch":                      {value: true, why: "coli takes the threads of -t for prompt and answer alike"},
		"fa flash-attn":                         {value: true, maybe: true, accept: oneOf("on", "off", "auto", "1", "0", ""), why: "coli has one form of attention"},
		"ngl n-gpu-layers":                      {value: true, to: "gpu-layers"},
		"dev mg main-gpu":                       {value: true, to: "device"},
		"sm split-mode":                         {value: true, accept: oneOf("none", "layer"), why: oneGPU},
		"ts tensor-split":                       {value: true, accept: never, why: oneGPU},
		"list-devices":                          {accept: never, why: listed},
		"nkvo no-kv-offload":                    {why: onHost},
		"kvo kv-offload op-offload":             {},
		"no-op-offload":                         {why: "coli computes a layer where its weights are"},
		"cmoe cpu-moe":                          {why: inLayers},
		"ncmoe n-cpu-moe":                       {value: true, why: inLayers},
		"ot override-tensor":                    {value: true, accept: toCPU, why: inLayers},
		"ctk cache-type-k ctv cache-type-v":     {value: true, accept: oneOf("f32"), why: "this version of coli keeps the KV cache in f32"},
		"hf hfr hf-repo hff hf-file mu dr model-url docker-repo": {value: true, accept: never, why: download},
		"no-mmap mlock dio direct-io":                            {accept: never, why: mapped},
		"mmap":                                                   {},
		"i interactive if interactive-first mli multiline-input": {accept: never, why: inREPL},
		"e escape":                           {accept: never, why: "the prompt is taken as it is; the shell's $'...' has escapes"},
		"co color no-escape simple-io":       {},
		"log-disable":                        {to: "quiet"},
		"v verbose-prompt":                   {to: "verbose"},
		"presence-penalty frequency-penalty": {value: true, accept: oneOf("0", "0.0"), why: "coli has --repeat-penalty"},
		"lm load-mode":                       {value: true, accept: oneOf("mmap"), why: mapped},
	} {
		for name := range strings.FieldsSeq(names) {
			table[name] = f
		}
	}
	return table
}()

// normalize rewrites command-line arguments so that pflag reads them as their writer meant them: llama.cpp's long flags with one dash
// ("-ngl 0"), its long flags of other names, and coli's own long flags with one dash. It returns lines to be shown on stderr about flags
// that were accepted without effect, and refuses by name what flags does not know.
func normalize(flags *pflag.FlagSet, args []string) (out, notes []string, err error) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...), notes, nil
		}
		if len(arg) < 2 || arg[0] != '-' {
			out = append(out, arg)
			continue
		}
		name, value, attached := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		dashes := arg[:len(arg)-len(strings.TrimLeft(arg, "-"))]

		own := flags.Lookup(name)
		if own == nil && len(name) == 1 && dashes == "-" {
			own = flags.ShorthandLookup(name)
		}
		f, known := llama[name]
		switch {
		case own != nil:
			if len(name) > 1 {
				arg = "--" + strings.TrimLeft(arg, "-")
			}
			out = append(out, arg)
			if takesValue(own) && !attached && i+1 < len(args) {
				i++
				out = append(out, args[i])
			}
			continue
		case !known && dashes == "-" && attachedNumber(flags, arg[1:]):
			out = append(out, arg)
			continue
		case !known:
			return nil, nil, unknownFlag(flags, arg, dashes+name)
		}

		switch next := i + 1; {
		case !f.value || attached || f.maybe && (next == len(args) || !f.accept(args[next])):
		case next == len(args):
			return nil, nil, fmt.Errorf("%s needs a value", arg)
		default:
			i, value = next, args[next]
		}
		said := dashes + name
		if value != "" {
			said += " " + value
		}
		switch {
		case f.to != "" && flags.Lookup(f.to) == nil:
			return nil, nil, unknownFlag(flags, arg, dashes+name)
		case f.to != "" && f.value:
			out = append(out, "--"+f.to+"="+value)
		case f.to != "":
			out = append(out, "--"+f.to)
		case f.accept != nil && !f.accept(value):
			return nil, nil, fmt.Errorf("%s is not supported: %s", said, f.why)
		case f.why != "":
			notes = append(notes, said+" has no effect: "+f.why)
		}
	}
	return out, notes, nil
}

func takesValue(f *pflag.Flag) bool { return f.NoOptDefVal == "" }

// attachedNumber reports whether arg is a one-letter flag and its number in one word, as in -n128 or -n-1.
func attachedNumber(flags *pflag.FlagSet, arg string) bool {
	f := flags.ShorthandLookup(arg[:1])
	if f == nil || !takesValue(f) {
		return false
	}
	rest := strings.TrimLeft(arg[1:], "=-")
	return rest != "" && rest[0] >= '0' && rest[0] <= '9'
}

// unknownFlag is the error about an argument that looks like a flag; shown is the flag without its value.
func unknownFlag(flags *pflag.FlagSet, arg, shown string) error {
	if strings.ContainsAny(shown, " \n") {
		return fmt.Errorf("unknown flag %.20q; put -- before a prompt that begins with a dash", arg)
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	if near := nearest("--"+strings.TrimLeft(shown, "-"), names); near != "" {
		return fmt.Errorf("unknown flag %s; did you mean %s?", shown, near)
	}
	return fmt.Errorf("unknown flag %s; --help lists the flags", shown)
}

// nearest returns the word that differs least from want, by insertions, deletions and changes of a letter, or "" if none is alike.
func nearest(want string, words []string) string {
	best, bestWord := max(2, len(want)/3), ""
	for _, w := range words {
		if d := distance(want, w); d < best {
			best, bestWord = d, w
		}
	}
	return bestWord
}

// distance is the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
