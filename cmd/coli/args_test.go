package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNormalize(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  string // separated by |
		want  string
		notes string // what each note must contain, separated by |
		err   string
	}{
		{name: "own flags pass", args: "-m|x.gguf|--temp|0|hello", want: "-m|x.gguf|--temp|0|hello"},
		{name: "values are not looked into", args: "-p|-ngl|--system|--sys|-n|-1", want: "-p|-ngl|--system|--sys|-n|-1"},
		{name: "nothing after two dashes is", args: "--|-ngl|99", want: "--|-ngl|99"},
		{name: "renamed", args: "-sys|be kind|--topp|0.9|-ub=64", want: "--system=be kind|--top-p=0.9|--chunk=64"},
		{name: "renamed with a value that begins with a dash", args: "-r|--", want: "--stop=--"},
		{name: "renamed switches", args: "-no-cnv|--no-perf", want: "--raw|--quiet"},
		{name: "one dash for coli's own long flags", args: "-temp|0|-top-k=5|-json", want: "--temp|0|--top-k=5|--json"},
		{name: "number in the same word", args: "-n128|-n-1|-c=64|-t4", want: "-n128|-n-1|-c=64|-t4"},
		{name: "standard input", args: "-|hello", want: "-|hello"},
		{name: "what coli does anyway needs no word", args: "-cnv|--jinja|-st|hello", want: "hello"},
		{
			name: "layers and device", args: "-ngl|99|--n-gpu-layers=-1|-dev|Vulkan0|-mg|1",
			want: "--gpu-layers=99|--gpu-layers=-1|--device=Vulkan0|--device=1",
		},
		{
			name: "what asks for less of the device is accepted", args: "-ncmoe|12|-cmoe|-ot|exps=CPU,.*=CPU|-nkvo|-sm|none|-b|512", want: "",
			notes: "-ncmoe 12|-cmoe|-ot|-nkvo|-sm none|-b 512",
		},
		{name: "optional value given", args: "-fa|on|hi", want: "hi", notes: "-fa on"},
		{name: "optional value left out", args: "-fa|-n|1", want: "-n|1", notes: "-fa"},
		{name: "several devices", args: "-ts|3,1", err: "-ts 3,1 is not supported: this version of coli uses one device"},
		{name: "rows split over devices", args: "-sm|row", err: "-sm row is not supported: this version of coli uses one device"},
		{name: "a list", args: "--list-devices", err: "--list-devices is not supported: coli devices lists them"},
		{name: "tensor override to a GPU", args: "-ot|exps=CPU,attn=CUDA0", err: "-ot exps=CPU,attn=CUDA0 is not supported"},
		{name: "download", args: "-hf|org/model", err: "-hf org/model is not supported: coli does not download"},
		{name: "other ways to talk", args: "-mli|-m|x.gguf", err: "-mli is not supported: without a prompt coli run holds a conversation"},
		{name: "verbosity", args: "-v|--log-disable|--color", want: "--verbose|--quiet"},
		{name: "value missing", args: "-ngl", err: "-ngl needs a value"},
		{name: "no value, attached", args: "-ngl=", want: "--gpu-layers="},
		{name: "unknown with a neighbour", args: "--tmp|1", err: "unknown flag --tmp; did you mean --temp?"},
		{name: "unknown with one dash", args: "-xyzzy", err: "unknown flag -xyzzy; --help lists the flags"},
		{name: "prompt that begins with a dash", args: "- first of a list", err: "put -- before a prompt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := newRunCmd()
			cmd.InitDefaultHelpFlag()
			got, notes, err := normalize(cmd.Flags(), strings.Split(c.args, "|"))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, strings.Join(got, "|")); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			wantNotes := strings.FieldsFunc(c.notes, func(r rune) bool { return r == '|' })
			if len(notes) != len(wantNotes) {
				t.Fatalf("notes %q, want %d", notes, len(wantNotes))
			}
			for i, n := range notes {
				if !strings.Contains(n, wantNotes[i]) || !strings.Contains(n, "has no effect: ") {
					t.Errorf("note %q does not tell of %q", n, wantNotes[i])
				}
			}
		})
	}
}

// A flag of coli's own must not be shadowed by the table of llama.cpp's, and what the table renames to must exist.
func TestLlamaTable(t *testing.T) {
	flags, measuring := newRunCmd().Flags(), newExperimentCmd(experimentCmd{name: "any"}).Flags()
	for name, f := range llama {
		if flags.Lookup(name) != nil || len(name) == 1 && flags.ShorthandLookup(name) != nil {
			t.Errorf("%s is a flag of coli's own", name)
		}
		if f.to == "" {
			continue
		}
		own := flags.Lookup(f.to)
		if own == nil {
			own = measuring.Lookup(f.to)
		}
		if own == nil {
			t.Errorf("%s becomes --%s, which does not exist", name, f.to)
		} else if takesValue(own) != f.value {
			t.Errorf("%s and --%s differ in taking a value", name, f.to)
		}
	}
}

func FuzzNormalize(f *testing.F) {
	for _, seed := range []string{"-ngl|0", "-n-1", "--=|-=", "-fa", "-|--", "-é|--temp=|-\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, args string) {
		in := strings.Split(args, "|")
		out, notes, err := normalize(newRunCmd().Flags(), in)
		if err == nil && len(out)+len(notes) > 2*len(in) {
			t.Errorf("%q became %q and %q", in, out, notes)
		}
	})
}

func TestNearest(t *testing.T) {
	words := []string{"--temp", "--top-k", "--threads"}
	for word, want := range map[string]string{"--tmp": "--temp", "--topk": "--top-k", "--thread": "--threads", "--nothing-alike": ""} {
		if got := nearest(word, words); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
