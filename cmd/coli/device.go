package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/embedded"
)

// deviceOptions are the flags that say which layers run on which device.
type deviceOptions struct {
	device  deviceFlag
	layers  layersFlag
	profile bool
}

func (o *deviceOptions) flags(f *pflag.FlagSet) {
	o.layers.GPULayers = engine.GPUAuto
	f.Var(&o.device, "device", "run layers on this one: `N|NAME|none`, as coli devices lists them (default: the first discrete card)")
	f.Var(&o.layers, "gpu-layers", "most layers on the device, from the first on: `auto|all|N`; as many as fit with auto and all")
	f.BoolVar(&o.profile, "gpu-profile", false, "measure the device's time by op and print where it went")
}

// apply sets the options of a load.
func (o *deviceOptions) apply(opt *engine.Options) {
	opt.Device, opt.GPULayers, opt.DeviceOptions.Profile = string(o.device), o.layers.GPULayers, o.profile
	if dir, err := embedded.CacheDir(); err == nil {
		opt.DeviceOptions.CacheDir = filepath.Join(dir, "vulkan")
	}
}

// deviceFlag is engine.Options.Device. llama.cpp's names are understood: Vulkan1 is its device 1, cpu none.
type deviceFlag string

func (d *deviceFlag) Set(text string) error {
	text = strings.TrimSpace(text)
	if n, ok := strings.CutPrefix(strings.ToLower(text), "vulkan"); ok {
		if _, err := strconv.Atoi(n); err == nil {
			text = n
		}
	}
	if strings.EqualFold(text, "cpu") || strings.EqualFold(text, engine.DeviceNone) {
		text = engine.DeviceNone
	}
	*d = deviceFlag(text)
	return nil
}

func (d *deviceFlag) String() string { return string(*d) }

// Type is what the help calls the value.
func (d *deviceFlag) Type() string { return "device" }

// layersFlag is engine.Options.GPULayers. A negative number is all, as to llama.cpp.
type layersFlag struct{ engine.GPULayers }

func (l *layersFlag) Set(text string) error {
	if n, err := strconv.Atoi(text); err == nil && n < 0 {
		text = string(engine.GPUAll)
	}
	return l.GPULayers.Set(text)
}

// asked says whether the flags ask for work on a device, rather than leave it to what there is.
func (o *deviceOptions) asked() bool {
	return o.device != engine.DeviceNone && o.layers.String() != "0" && (o.device != "" || o.layers.GPULayers != engine.GPUAuto)
}

// deviceWork is what a device did since the model was loaded, as --json prints it.
type deviceWork struct {
	Name        string   `json:"name"`
	Layers      int      `json:"layers"` // on it still
	Head        bool     `json:"head"`
	MatMuls     int64    `json:"matmuls"`
	Pairs       int64    `json:"pairs"`    // (row, expert)
	Frames      int64    `json:"frames"`   // lists of dispatches that were run
	Recorded    int64    `json:"recorded"` // of these, not the same as one before
	Submissions int64    `json:"submissions"`
	Dispatches  int64    `json:"dispatches"`
	Barriers    int64    `json:"barriers"`         // between dispatches
	Failed      string   `json:"failed,omitempty"` // why nothing is on it any more
	Times       []opTime `json:"times,omitempty"`  // of --gpu-profile
}

// opTime is the device's time of an op.
type opTime struct {
	Op         string  `json:"op"`
	Seconds    float64 `json:"seconds"`
	Dispatches int     `json:"dispatches"`
}

// newDeviceWork returns nil where the CPU had all layers from the beginning.
func newDeviceWork(m *engine.Model) *deviceWork {
	if m.DeviceName() == "" {
		return nil
	}
	s := m.Stats().Device
	w := &deviceWork{
		Name: m.DeviceName(), MatMuls: s.MatMuls, Pairs: s.Pairs, Frames: s.Frames, Recorded: s.Recorded, Submissions: s.Submissions,
		Dispatches: s.Dispatches, Barriers: s.Barriers,
	}
	if w.Layers, w.Head = m.LayersOnDevice(); w.Layers == 0 {
		w.Failed = m.LayersWhy
	}
	for _, t := range m.DeviceTimes() {
		w.Times = append(w.Times, opTime{t.Label, t.Time.Seconds(), t.Count})
	}
	return w
}

// printProfile prints where the device's time went, if it was asked for.
func (o *deviceOptions) printProfile(w io.Writer, m *engine.Model) {
	if !o.profile {
		return
	}
	work := newDeviceWork(m)
	if work == nil || len(work.Times) == 0 {
		note(w, "--gpu-profile: no device has measured anything")
		return
	}
	var total float64
	for _, t := range work.Times {
		total += t.Seconds
	}
	note(w, "%.3f ms on %s:", 1e3*total, work.Name)
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "ms\tshare\tdispatches\tµs each\t  op")
	for _, t := range work.Times {
		each := 1e6 * t.Seconds / float64(t.Dispatches)
		fmt.Fprintf(tab, "%.3f\t%.1f%%\t%d\t%.1f\t  %s\n", 1e3*t.Seconds, 100*t.Seconds/total, t.Dispatches, each, t.Op)
	}
	tab.Flush() //nolint:errcheck // there is nowhere left to report it
}

func (w *deviceWork) String() string {
	return fmt.Sprintf("%d matmuls and %d (row, expert) pairs on %s", w.MatMuls, w.Pairs, w.Name)
}

// counters are what --verbose says beyond String.
func (w *deviceWork) counters() string {
	return fmt.Sprintf("%v: %d frames, %d of them recorded, in %d submissions; %d dispatches, %d barriers", w, w.Frames, w.Recorded,
		w.Submissions, w.Dispatches, w.Barriers)
}

// proven is an error if the device has not done its part: it failed, or has layers and computed nothing, or was asked for and never began.
// Why that was so has been said.
func (o *deviceOptions) proven(m *engine.Model) error {
	switch w := newDeviceWork(m); {
	case w == nil && o.asked():
		return errors.New("nothing was computed on a device, which --device or --gpu-layers asks for")
	case w == nil:
		return nil
	case w.Failed != "":
		return fmt.Errorf("%s did not do what it was to do", w.Name)
	case w.MatMuls == 0:
		return fmt.Errorf("%d layers are on %s, and it has computed nothing", w.Layers, w.Name)
	}
	return nil
}
