package metrics

import (
	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops/gpu"
	"github.com/coli-moe/coli/probe"
)

// kind of a metric.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// metric is one of the list.
type metric struct {
	kind       kind
	name, help string
	labels     []string
	collect    func(l *engine.Live, s sink)
}

// section is a part of the list.
type section struct {
	title, text string // text is for the reader, and may be empty
	metrics     []metric
}

// The one metric that is there without a model.
const (
	buildName = "coli_build_info"
	buildHelp = "Always 1; the label says which coli this is."
)

// The buckets of histograms, see loghist: for mailboxes from 256 ns to 1 s, for reads from 8 µs to 17 s.
const (
	mailboxFrom, mailboxTo = 7, 29
	ioFrom, ioTo           = 12, 33
)

// table is what Collector collects.
var table = func() (all []metric) {
	for _, s := range sections {
		all = append(all, s.metrics...)
	}
	return all
}()

var (
	byExecutor = []string{"executor"}
	byActor    = []string{"actor"}
	byDevice   = []string{"device", "op"}
	byHolder   = []string{"memory", "holder"}
)

var sections = []section{
	{"Tokens", "", []metric{
		{counter, "coli_tokens_total", "Tokens computed, of prompts (prefill) and of answers (decode).", []string{"phase"}, func(l *engine.Live, s sink) {
			s.value(float64(l.Prefilled), "prefill")
			s.value(float64(l.Decoded), "decode")
		}},
		{counter, "coli_expert_pairs_total", "Pairs of a token and an expert that were computed, by where.", byExecutor, func(l *engine.Live, s sink) {
			executors(l, s, l.Stats.CPU.Pairs, l.Stats.Device.Pairs)
		}},
		{counter, "coli_matmuls_total", "Weight matrices multiplied, an expert's three each counted, by where.", byExecutor, func(l *engine.Live, s sink) {
			executors(l, s, l.Stats.CPU.MatMuls, l.Stats.Device.MatMuls)
		}},
		{gauge, "coli_model_resident_bytes", "Memory of this process, mapped weights included; absent where unknown.", nil, func(l *engine.Live, s sink) {
			if l.Resident > 0 {
				s.value(float64(l.Resident))
			}
		}},
	}},
	{"Actors", "An actor owns a resource and works off its mailbox, one message at a time.", []metric{
		{counter, "coli_actor_messages_total", "Messages taken out of the mailbox.", byActor, ofActors(func(a *actors.ActorStats) uint64 { return a.Handled })},
		{
			counter, "coli_actor_messages_failed_total", "Messages that ended in a panic of the actor, or that it failed when it had stopped.", byActor,
			ofActors(func(a *actors.ActorStats) uint64 { return a.Failed }),
		},
		{counter, "coli_actor_restarts_total", "Times that the actor was started again after a panic.", byActor, ofActors(func(a *actors.ActorStats) uint64 { return a.Restarts })},
		{gauge, "coli_actor_up", "1 while there is the actor; 0 when it is gone for good and coli goes on without it.", byActor, ofActors(func(a *actors.ActorStats) int {
			if a.Dead {
				return 0
			}
			return 1
		})},
		{gauge, "coli_actor_mailbox_length", "Messages in the mailbox now.", byActor, ofActors(func(a *actors.ActorStats) int { return a.Length })},
		{
			histogram, "coli_actor_mailbox_wait_seconds", "Time from a message's sending until the actor has it in hand.", byActor,
			timesOfActors(func(a *actors.ActorStats) *loghist.Hist { return &a.Wait }),
		},
		{
			histogram, "coli_actor_handle_seconds", "Time that an actor has a message in hand.", byActor,
			timesOfActors(func(a *actors.ActorStats) *loghist.Hist { return &a.Handle }),
		},
	}},
	{"Experts in memory", "Of a model that is larger than the memory for its experts; absent otherwise. They are the tier's figures.", []metric{
		{gauge, "coli_tier_slots", "Experts that there is room for.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.Slots })},
		{gauge, "coli_tier_slot_bytes", "Memory of an expert.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.SlotBytes })},
		{gauge, "coli_tier_resident_experts", "Experts in memory now.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.Resident })},
		{counter, "coli_tier_pairs_total", "Pairs of a token and an expert by where the expert was: in memory, on its way there, on disk.", []string{"where"}, withTier(
			func(x *engine.ExpertStats, s sink) {
				s.value(float64(x.PairsInMemory), "memory")
				s.value(float64(x.PairsInFlight), "in_flight")
				s.value(float64(x.PairsOnDisk), "disk")
			})},
		{counter, "coli_tier_reads_total", "Reads of experts by why: a step waits for it, it was predicted, earlier runs used it.", []string{"why"}, withTier(
			func(x *engine.ExpertStats, s sink) {
				s.value(float64(x.DemandReads), "demand")
				s.value(float64(x.PredictedReads), "predicted")
				s.value(float64(x.WarmReads), "warm")
			})},
		{counter, "coli_tier_reads_canceled_total", "Predicted reads withdrawn before they began.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.Canceled })},
		{counter, "coli_tier_reads_failed_total", "Reads that brought no expert.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.FailedReads })},
		{counter, "coli_tier_promotions_total", "Experts that got a place to stay in memory.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.Promotions })},
		{counter, "coli_tier_evictions_total", "Experts that lost it.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.Evictions })},
		{counter, "coli_tier_misses_total", "Experts that a step needed and that were not in memory.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.Needed })},
		{
			counter, "coli_tier_misses_predicted_total", "Of these, those predicted before the step was issued.", nil,
			ofTier(func(x *engine.ExpertStats) int64 { return x.NeededPredicted }),
		},
		{counter, "coli_tier_predictions_used_total", "Predicted reads whose expert was then needed.", nil, ofTier(func(x *engine.ExpertStats) int64 { return x.PredictedUsed })},
		{
			counter, "coli_tier_wait_seconds_total", "Time that steps waited for the disk with nothing to compute.", nil,
			ofTier(func(x *engine.ExpertStats) float64 { return x.Waited.Seconds() }),
		},
		{gauge, "coli_tier_age_seconds", "How old the tier's figures are: 0, unless it does not answer in time.", nil, func(l *engine.Live, s sink) {
			if l.Experts != nil {
				s.value(l.ExpertsAge.Seconds())
			}
		}},
	}},
	{"Reads of experts", "As the program sees them, through the file system; absent where all experts are in memory.", []metric{
		{counter, "coli_prefetcher_reads_total", "Reads that went well.", nil, ofReads(func(l *engine.Live) int64 { return l.Reads.Reads })},
		{counter, "coli_prefetcher_reads_failed_total", "Reads that failed.", nil, ofReads(func(l *engine.Live) int64 { return l.Reads.Failed })},
		{counter, "coli_prefetcher_retries_total", "Calls that failed and were repeated.", nil, ofReads(func(l *engine.Live) int64 { return l.Reads.Retried })},
		{counter, "coli_prefetcher_read_bytes_total", "Bytes read.", nil, ofReads(func(l *engine.Live) int64 { return l.Reads.Bytes })},
		{
			counter, "coli_prefetcher_busy_seconds_total", "Time with at least one read under way.", nil,
			ofReads(func(l *engine.Live) float64 { return l.Reads.Busy.Seconds() }),
		},
		{gauge, "coli_prefetcher_inflight", "Reads under way now.", nil, withOwn(func(o *probe.Own, s sink) { s.value(float64(o.InFlight)) })},
		{
			histogram, "coli_prefetcher_read_seconds", "Time of a read, from its beginning to its end.", nil,
			withOwn(func(o *probe.Own, s sink) { s.times(&o.Took, ioFrom, ioTo) }),
		},
		{
			counter, "coli_storage_read_bytes_total", "Bytes that the kernel read from storage for this process, readahead and mapped files included.", nil,
			withOwn(func(o *probe.Own, s sink) {
				if o.ReadBytes > 0 {
					s.value(float64(o.ReadBytes))
				}
			}),
		},
		{gauge, "coli_drive_bytes_per_second", "What the drive gave at reads of this size when the model was loaded; absent if it was not measured.", nil, withTier(
			func(x *engine.ExpertStats, s sink) {
				if x.DriveRate > 0 {
					s.value(x.DriveRate)
				}
			})},
	}},
	{"Balancer", "Which decides how experts are read; absent where all experts are in memory.", []metric{
		{gauge, "coli_balancer_readers", "Reads that may be under way at a time.", nil, ofPolicy(func(p messages.Policy) int { return p.Readers })},
		{gauge, "coli_balancer_prefetch_depth", "Experts that are predicted for a layer; 0 if none is.", nil, ofPolicy(func(p messages.Policy) int { return p.Depth })},
		{gauge, "coli_balancer_prefetch_horizon", "Layers ahead that are predicted.", nil, ofPolicy(func(p messages.Policy) int { return p.Horizon })},
		{
			counter, "coli_balancer_changes_total", "Times that one of these was changed, trials included.", nil,
			ofPolicy(func(p messages.Policy) uint64 { return max(p.ID, 1) - 1 }),
		},
	}},
	{"Block I/O", "What drives do for this process, as the kernel's block layer tells the probe; absent without it (`coli doctor` says what it needs).", []metric{
		{counter, "coli_block_requests_total", "Requests handed to the drive.", byDevice, ofDrives(func(o *probe.Ops) uint64 { return o.Requests })},
		{counter, "coli_block_bytes_total", "Bytes of these.", byDevice, ofDrives(func(o *probe.Ops) uint64 { return o.Bytes })},
		{counter, "coli_block_lost_total", "Requests that nobody saw complete.", byDevice, ofDrives(func(o *probe.Ops) uint64 { return o.Lost })},
		{gauge, "coli_block_inflight", "Requests in the drive now.", byDevice, ofDrives(func(o *probe.Ops) int64 { return o.InFlight })},
		{
			histogram, "coli_block_queue_seconds", "Time that a request waited before the drive had it.", byDevice,
			timesOfDrives(func(o *probe.Ops) *loghist.Hist { return &o.Queue }),
		},
		{
			histogram, "coli_block_device_seconds", "Time that a request was in the drive.", byDevice,
			timesOfDrives(func(o *probe.Ops) *loghist.Hist { return &o.Device }),
		},
		{counter, "coli_block_untracked_total", "Requests that no other figure has, since there were too many at a time.", nil, func(l *engine.Live, s sink) {
			if l.Block != nil && l.BlockMode == probe.EBPF {
				s.value(float64(l.Block.Untracked))
			}
		}},
	}},
	{"Memory", "What is granted to whom, of the machine's (`RAM`) and of a device's.", []metric{
		{gauge, "coli_ledger_bytes", "Memory granted.", byHolder, ofLedger(func(e *ledger.Entry) int64 { return e.Bytes })},
		{gauge, "coli_ledger_held_bytes", "Memory that the holder has taken so far.", byHolder, ofLedger(func(e *ledger.Entry) int64 { return e.Held })},
		{gauge, "coli_ledger_budget_bytes", "Memory that may be granted; absent where the system does not tell.", []string{"memory"}, func(l *engine.Live, s sink) {
			for _, a := range l.Ledger {
				if a.Known {
					s.value(float64(a.Budget), a.Of)
				}
			}
		}},
	}},
	{"Device", "Absent where all layers were bound to the CPU.", []metric{
		{gauge, "coli_device_info", "Always 1; the label says which device layers were bound to.", []string{"device"}, func(l *engine.Live, s sink) {
			if l.DeviceName != "" {
				s.value(1, l.DeviceName)
			}
		}},
		{counter, "coli_device_frames_total", "Lists of commands run.", nil, ofDevice(func(d *gpu.Stats) int64 { return d.Frames })},
		{counter, "coli_device_frames_recorded_total", "Of these, recorded first.", nil, ofDevice(func(d *gpu.Stats) int64 { return d.Recorded })},
		{counter, "coli_device_submissions_total", "Submissions to the queue.", nil, ofDevice(func(d *gpu.Stats) int64 { return d.Submissions })},
		{counter, "coli_device_dispatches_total", "Dispatches of shaders.", nil, ofDevice(func(d *gpu.Stats) int64 { return d.Dispatches })},
		{counter, "coli_device_barriers_total", "Barriers between dependent dispatches.", nil, ofDevice(func(d *gpu.Stats) int64 { return d.Barriers })},
	}},
}

type number interface{ int | int64 | uint64 | float64 }

func executors(l *engine.Live, s sink, cpu, device int64) {
	s.value(float64(cpu), "cpu")
	if l.DeviceName != "" {
		s.value(float64(device), "device")
	}
}

func ofActors[N number](value func(*actors.ActorStats) N) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		for i := range l.Actors {
			s.value(float64(value(&l.Actors[i])), l.Actors[i].Name)
		}
	}
}

func timesOfActors(times func(*actors.ActorStats) *loghist.Hist) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		for i := range l.Actors {
			s.times(times(&l.Actors[i]), mailboxFrom, mailboxTo, l.Actors[i].Name)
		}
	}
}

func withTier(put func(*engine.ExpertStats, sink)) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		if l.Experts != nil {
			put(l.Experts, s)
		}
	}
}

func ofTier[N number](value func(*engine.ExpertStats) N) func(*engine.Live, sink) {
	return withTier(func(x *engine.ExpertStats, s sink) { s.value(float64(value(x))) })
}

func ofReads[N number](value func(*engine.Live) N) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		if l.Experts != nil {
			s.value(float64(value(l)))
		}
	}
}

func withOwn(put func(*probe.Own, sink)) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		if l.Block != nil {
			put(&l.Block.Own, s)
		}
	}
}

func ofPolicy[N number](value func(messages.Policy) N) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		if l.Policy.Readers > 0 {
			s.value(float64(value(l.Policy)))
		}
	}
}

// drives calls put for each direction of each drive of which this process's part is known.
func drives(l *engine.Live, put func(o *probe.Ops, device, op string)) {
	if l.Block == nil {
		return
	}
	for i := range l.Block.Devices {
		if d := &l.Block.Devices[i]; !d.Machine {
			put(&d.Read, d.Name, "read")
			put(&d.Write, d.Name, "write")
		}
	}
}

func ofDrives[N number](value func(*probe.Ops) N) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		drives(l, func(o *probe.Ops, device, op string) { s.value(float64(value(o)), device, op) })
	}
}

func timesOfDrives(times func(*probe.Ops) *loghist.Hist) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		drives(l, func(o *probe.Ops, device, op string) { s.times(times(o), ioFrom, ioTo, device, op) })
	}
}

func ofLedger(bytes func(*ledger.Entry) int64) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		for _, a := range l.Ledger {
			for i := range a.Entries {
				s.value(float64(bytes(&a.Entries[i])), a.Of, a.Entries[i].Name)
			}
		}
	}
}

func ofDevice(value func(*gpu.Stats) int64) func(*engine.Live, sink) {
	return func(l *engine.Live, s sink) {
		if l.DeviceName != "" {
			s.value(float64(value(&l.Stats.Device)))
		}
	}
}
