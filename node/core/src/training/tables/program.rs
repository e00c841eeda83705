//! The program's operations: clocks, reads, additions, and the samples behind them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use peergrad_models::task::Claim;
use peergrad_protocol::cursor::Span;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{RowSet, Rows, SampleLease};
use peergrad_protocol::{Buffer, StepNumber};

use super::super::base::EngineBase;
use super::TableEngine;
use super::exchange::Exchange;
use crate::io::{Committed, Event, Output};
use crate::program::batch::Batch;
use crate::program::command::{ClockStart, ProgramCommand, Reply, TableOperation};
use crate::table::lease_table::LeasePolicy;
use crate::table::member::TableMember;
use crate::table::worker::{AcquiredLease, WorkerStart};
use crate::table::{BatchScope, TableLayout};

/// What the program waits for.
#[derive(Default)]
pub(super) struct Waiting {
    /// The reply to a program that waits for a view to train in; `None` if it does not wait for one.
    pub(super) ready: Option<Reply<()>>,
    /// The reply to a program that waits for its next clock to begin; `None` if it does not wait for one.
    begin: Option<Reply<ClockStart>>,
    /// Requests of a new worker, by which it learns the clock of the others. `None` at other times.
    entering: Option<BTreeSet<u64>>,
    /// Requests by which a worker that is far ahead, or has no samples, learns when it may begin the next clock.
    idling: Option<BTreeSet<u64>>,
    /// The reads that are not answered, with the requests that they wait for.
    reads: Vec<(BTreeSet<u64>, Read)>,
    /// Pushes that are not acknowledged, each with the number of the last addition before it.
    pushed: VecDeque<(u64, Reply<()>)>,
}

/// A read, and the reply that gets its result.
enum Read {
    Rows(RowSet, Reply<Vec<f32>>),
    Pulled(Reply<Rows>),
    Parameters(Reply<Arc<Buffer>>),
    /// The parameters at the end of the run.
    LastParameters(Reply<Arc<Buffer>>),
    Numbers(Reply<Vec<f64>>),
}

/// The clock that the program has begun last.
#[derive(Default)]
pub(super) struct ClockProgress {
    /// Counts the clocks that the program has begun: a command of an older one is void.
    turn: u64,
    /// The turn of the clock in progress, whose results are wanted until it ends. `None` between two clocks.
    pub(super) current: Option<(u64, Claim)>,
    /// Whether the last clock had no samples: then none begins before an input from other members.
    pub(super) is_idle: bool,
}

/// The samples that were leased to the program's worker.
#[derive(Default)]
pub(super) struct LeaseProgress {
    /// The lease of the clock in progress. `None` if that clock has no samples.
    current: Option<OpenLease>,
    /// The newest epoch of any lease.
    epoch: u64,
    /// For each lease, the clock whose additions are not safe yet.
    computed: BTreeMap<u64, ComputedLease>,
    /// The fraction of all samples of the run that were leased, from 0 to 1, when this member got its last lease.
    progress: f64,
    /// The number of clocks that this worker has completed.
    pub(super) clocks: u64,
    /// Whether the last lease was empty.
    has_none: bool,
    /// Once no samples are left: how many all workers have trained.
    trained: Option<u64>,
}

/// Whether the clock in progress continues after an operation.
#[derive(PartialEq, Eq)]
enum ClockState {
    GoesOn,
    Over,
}

/// The lease of the clock in progress.
struct OpenLease {
    /// The number of the lease.
    number: u64,
    /// The epoch of its samples.
    epoch: u64,
    /// The number of its samples.
    samples: u64,
}

/// The result of a clock.
struct ComputedLease {
    /// The number of the clock.
    clock: u64,
    /// The epoch of its samples.
    epoch: u64,
    /// The number of the samples that were computed, and their summed loss.
    stats: SampleStats,
    /// The number of its samples that were not computed.
    left_out: u64,
}

impl TableEngine {
    /// Whether a command belongs to the clock that the program has begun last.
    pub(in crate::training) fn is_current(&self, turn: u64) -> bool {
        self.clock.current.as_ref().is_some_and(|(current, _)| *current == turn)
    }

    /// Carries out a command of the program.
    pub(in crate::training) fn command(&mut self, command: ProgramCommand, out: &mut Vec<Output>) {
        match command {
            ProgramCommand::Ready(reply) => self.waiting.ready = Some(reply),
            ProgramCommand::BeginClock(reply) => {
                if self.clock.current.take().is_some() {
                    // The program has dropped the clock before.
                    let _ = self.carry_out(TableOperation::End(SampleStats::default()));
                }
                self.waiting.begin = Some(reply);
            }
            ProgramCommand::Operate { turn, operation } if self.is_current(turn) => {
                if self.carry_out(operation) == ClockState::Over {
                    self.clock.current = None;
                }
            }
            ProgramCommand::Finished(reply) => return self.close(reply, out),
            // A command of an earlier clock is dropped together with its reply, and so is a command for steps.
            ProgramCommand::Operate { .. }
            | ProgramCommand::ContributePart { .. }
            | ProgramCommand::Compute { .. }
            | ProgramCommand::Begin(_)
            | ProgramCommand::EndRun
            | ProgramCommand::ReduceScatter { .. }
            | ProgramCommand::UpdateOwned { .. }
            | ProgramCommand::AllGather { .. } => return,
        }
        self.make_progress(out);
    }

    /// Asks for the next samples before they are needed.
    pub(super) fn request_lease(&mut self) {
        let worker = &mut self.exchange.member.worker;
        if self.leases.trained.is_some() || self.departure.is_leaving() {
            return;
        }
        if worker.has_finished() {
            self.leases.trained = worker.take_trained();
            return self.request_trained();
        }
        let batch = self.base.loaded.config.batch_size;
        let samples = match self.batch_scope {
            BatchScope::Global => batch.div_ceil(self.base.view().members.len() as u64),
            BatchScope::PerWorker => batch,
        };
        let mut out = Vec::new();
        // Others may wait for these additions; and a worker with too many unfinished leases gets no more.
        if self.leases.has_none || worker.leases().are_many() {
            worker.push_held_back(&mut out);
        }
        // While it holds back additions, it would only get empty leases.
        if !self.leases.has_none || worker.changes().is_flushed() {
            worker.request_lease(u32::try_from(samples).unwrap_or(u32::MAX), &mut out);
        }
        self.exchange.send(out);
        self.exchange.deliver_to_self();
    }

    /// Once this worker has ended, asks how many samples all workers have trained in the end.
    fn request_trained(&mut self) {
        let mut out = Vec::new();
        self.exchange.member.worker.request_trained(&mut out);
        self.exchange.send(out);
        self.exchange.deliver_to_self();
    }

    pub(super) fn begin_clock_if_possible(&mut self) {
        let (rank, member_count) = (self.base.rank, self.base.view().members.len());
        if self.waiting.begin.is_none() || self.departure.is_leaving() {
            return;
        }
        let Self { waiting, exchange, .. } = self;
        let is_idle = self.clock.is_idle && member_count > 1;
        if is_idle || !waiting.has_clock(exchange) || !waiting.may_begin(exchange) {
            return;
        }
        let Some(AcquiredLease { number, lease, is_kept, trained }) = exchange.member.worker.take_lease()
        else {
            return;
        };
        let loaded = &self.base.loaded;
        let order = self.base.cache.order(&loaded.config, lease.epoch, loaded.task.sample_count());
        let of = |span: &Span| order.get(span.start as usize..span.end as usize).unwrap_or(&[]);
        let samples: Arc<[u32]> = lease.spans.iter().flat_map(of).copied().collect();
        self.leases.trained = self.leases.trained.or(trained);
        let is_over = trained.is_some();
        self.leases.take(number, &lease, self.lease_policy);
        self.clock.is_idle = lease.is_empty() && !is_over;
        self.clock.turn += 1;
        let claim = Claim::default();
        let wanted = claim.wanted();
        self.clock.current = Some((self.clock.turn, claim));
        let clock = self.exchange.member.worker.clock();
        let batch = Batch {
            is_over,
            epoch: lease.epoch,
            rate: loaded.config.schedule.rate(clock),
            local_steps: clock..clock + 1,
            samples,
            is_checkpoint: false,
            rank,
            member_count,
            turn: self.clock.turn,
            run_seed: loaded.config.seed,
            part_elements_min: None,
            wanted,
        };
        let (position, layout) = (lease.start(), Arc::clone(&self.exchange.layout));
        let begun = ClockStart { number: clock, batch, position, is_kept, layout };
        if let Some(reply) = self.waiting.begin.take() {
            // The send fails if the program has ended and no longer waits.
            let _ = reply.send(begun);
        }
        self.request_lease();
    }

    /// Ends the clock in progress if another worker has completed a copy of its samples.
    pub(super) fn end_superseded_clock(&mut self) {
        let worker = &mut self.exchange.member.worker;
        if worker.take_superseded() {
            let mut out = Vec::new();
            worker.abandon_clock(&mut out);
            self.leases.abandon(worker.clock());
            self.clock.current = None;
            self.exchange.send(out);
        }
    }

    /// Reports the samples whose additions have become safe.
    pub(super) fn report_completed_leases(&mut self, out: &mut Vec<Output>) {
        while let Some(first) = self.leases.computed.first_entry()
            && *first.key() <= self.exchange.member.worker.leases().completed()
        {
            let ComputedLease { clock, epoch, stats, left_out } = first.remove();
            self.base.omissions.add(left_out);
            self.base.own_trained += stats.samples;
            let loss = stats.loss / stats.samples.max(1) as f64;
            self.base.loss_watch.note(StepNumber(clock), loss);
            out.push(Output::Event(Event::Committed(Committed {
                step: StepNumber(clock),
                epoch,
                steps_expected: self.leases.clocks_expected(clock),
                loss,
                samples: stats.samples,
                left_out,
                may_be_late: false,
                is_own: true,
                rate: self.base.loaded.config.schedule.rate(clock),
                digest: None,
            })));
        }
    }

    /// The samples that were trained: by all workers, once all samples are done; before that, by this worker.
    pub(in crate::training) fn samples(&self) -> u64 {
        let trained = |taken: u64| taken.saturating_sub(self.base.omissions.total());
        self.leases.trained.map_or(self.base.own_trained, trained)
    }

    /// The newest epoch of which this member has leased samples.
    pub(in crate::training) fn epoch(&self) -> u64 {
        self.leases.epoch
    }

    /// Carries out an operation. Returns whether the clock continues.
    fn carry_out(&mut self, operation: TableOperation) -> ClockState {
        let (Exchange { member: TableMember { worker, .. }, layout, .. }, mut out) =
            (&mut self.exchange, Vec::new());
        let mut state = ClockState::GoesOn;
        match operation {
            TableOperation::Add(_) | TableOperation::AddOnce(..) | TableOperation::Map { .. }
                if worker.has_finished() => {}
            TableOperation::End(_) if worker.has_finished() => state = ClockState::Over,
            TableOperation::Get { rows, reply } => {
                let requests = worker.fetch(&rows, &mut out);
                self.waiting.reads.push((requests, Read::Rows(rows, reply)));
            }
            TableOperation::Pull { rows, reply } => {
                let requests = worker.pull(&rows, &mut out);
                self.waiting.reads.push((requests, Read::Pulled(reply)));
            }
            TableOperation::Parameters(reply) if worker.has_finished() => {
                let requests = worker.pull(&layout.parameter_rows(), &mut out);
                self.waiting.reads.push((requests, Read::LastParameters(reply)));
            }
            TableOperation::Map { key, chunks, map } => worker.map(chunks, key, &map, &mut out),
            TableOperation::AddOnce(key, rows) => worker.add_once(key, &rows, &mut out),
            TableOperation::Reduce { chunks, reduce, reply } => {
                let requests = worker.reduce(chunks, &reduce, &mut out);
                self.waiting.reads.push((requests, Read::Numbers(reply)));
            }
            TableOperation::Parameters(reply) => {
                let requests = worker.fetch(&layout.parameter_rows(), &mut out);
                self.waiting.reads.push((requests, Read::Parameters(reply)));
            }
            TableOperation::Add(rows) => {
                let mut values = &rows.values[..];
                for row in rows.indices.iter() {
                    let (added, rest) = values.split_at(layout.width(layout.chunk_of(row)));
                    worker.add(row, added);
                    values = rest;
                }
            }
            TableOperation::Push(reply) => {
                worker.push(&mut out);
                self.waiting.pushed.push_back((worker.changes().last_sequence(), reply));
            }
            TableOperation::End(stats) => {
                self.leases.end(worker.clock(), stats);
                worker.tick(&mut out);
                if self.waiting.reads.is_empty() {
                    worker.evict_stale();
                }
                state = ClockState::Over;
            }
            TableOperation::Commit { stats, reply } => {
                worker.push_held_back(&mut out);
                self.exchange.send(out);
                state = self.carry_out(TableOperation::End(stats));
                let last = self.exchange.member.worker.changes().last_sequence();
                self.waiting.pushed.push_back((last, reply));
                return state;
            }
            TableOperation::Finish => worker.finish(&mut out),
        }
        self.exchange.send(out);
        state
    }
}

/// The rows of the tables of parameters, as a flat vector.
fn flatten(rows: &Rows, layout: &TableLayout, vector: &mut [f32]) {
    vector.fill(0.0);
    let mut rest = &rows.values[..];
    for row in rows.indices.iter() {
        let chunk = layout.chunk_of(row);
        let (values, after) = rest.split_at(layout.width(chunk));
        layout.write_row(chunk, row, values, vector);
        rest = after;
    }
}

impl Waiting {
    /// Chunks have other owners in a new view.
    pub(super) fn reset(&mut self) {
        self.entering = None;
    }

    /// Whether the program waits for rows, for samples, or for its additions to be safe.
    pub(super) fn is_for_tables(&self) -> bool {
        self.begin.is_some() || self.is_reading() || !self.pushed.is_empty()
    }

    /// Whether the program waits for rows.
    pub(super) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Whether this worker has a clock. A new worker starts at the clock of the slowest other one, once it has learnt that.
    fn has_clock(&mut self, exchange: &mut Exchange) -> bool {
        let mut out = Vec::new();
        if exchange.member.worker.is_new() && self.entering.is_none() {
            self.entering = Some(exchange.member.worker.query_clocks(&mut out));
            exchange.send(std::mem::take(&mut out));
            exchange.deliver_to_self();
        }
        let has_entered =
            self.entering.as_ref().is_none_or(|requests| exchange.member.worker.has_all(requests));
        if has_entered {
            self.entering = None;
            exchange.member.worker.catch_up(&mut out);
        }
        exchange.send(out);
        has_entered
    }

    /// Whether the next clock may begin: not while too many additions are unacknowledged. A worker without samples waits for all others. A
    /// worker that has not read for long waits as it would for a read.
    fn may_begin(&mut self, exchange: &mut Exchange) -> bool {
        let worker = &mut exchange.member.worker;
        if worker.changes().has_much_unacknowledged() {
            return false;
        }
        let idles = worker.leases().next_is_empty() && !worker.never_waits();
        if !idles && !worker.is_far_ahead() {
            return true;
        }
        if self.idling.is_none() {
            let mut out = Vec::new();
            let request = if idles { worker.wait_for_all(&mut out) } else { worker.wait_for_clock(&mut out) };
            self.idling = Some(BTreeSet::from([request]));
            exchange.send(out);
            exchange.deliver_to_self();
        }
        let may_begin = self.idling.as_ref().is_some_and(|requests| exchange.member.worker.has_all(requests));
        if may_begin {
            self.idling = None;
        }
        may_begin
    }

    /// Replies to what can be answered now. Returns the parameters, if the program has read them.
    pub(super) fn answer(&mut self, base: &EngineBase, exchange: &mut Exchange) -> Option<Arc<Buffer>> {
        let mut parameters = None;
        // Rows that have changed since they arrived are requested again, perhaps from this member itself.
        while let (newest, true) = self.answer_once(base, exchange) {
            parameters = newest.or(parameters);
            exchange.deliver_to_self();
        }
        parameters
    }

    /// As [`answer`](Self::answer), and whether more may be answered now.
    fn answer_once(&mut self, base: &EngineBase, exchange: &mut Exchange) -> (Option<Arc<Buffer>>, bool) {
        let Exchange { member: TableMember { worker, .. }, layout, .. } = &mut *exchange;
        let mut parameters = None;
        let mut give = |values: &dyn Fn(&mut [f32]), reply: Reply<Arc<Buffer>>| {
            let mut vector = base.vectors.take(base.loaded.manifest.parameter_count());
            values(&mut vector);
            let vector = Arc::new(vector);
            parameters = Some(Arc::clone(&vector));
            let _ = reply.send(vector);
        };
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.reads).into_iter().partition(|(requests, _)| worker.has_all(requests));
        self.reads = waiting;
        let (is_any, mut out) = (!ready.is_empty(), Vec::new());
        // The send fails if the program has ended and no longer waits.
        for (requests, read) in ready {
            match read {
                Read::Rows(rows, reply) => match worker.read(&rows) {
                    Some(values) => _ = reply.send(values),
                    None => {
                        let requests = worker.fetch(&rows, &mut out);
                        self.reads.push((requests, Read::Rows(rows, reply)));
                    }
                },
                Read::Pulled(reply) => _ = reply.send(worker.take_rows(&requests)),
                Read::Numbers(reply) => _ = reply.send(worker.reads_mut().take_numbers(&requests)),
                Read::Parameters(reply) => match worker.read(&layout.parameter_rows()) {
                    Some(values) => give(&|vector| vector.copy_from_slice(&values[..vector.len()]), reply),
                    None => {
                        let requests = worker.fetch(&layout.parameter_rows(), &mut out);
                        self.reads.push((requests, Read::Parameters(reply)));
                    }
                },
                Read::LastParameters(reply) => {
                    let rows = worker.take_rows(&requests);
                    give(&|vector| flatten(&rows, layout, vector), reply);
                }
            }
        }
        let acknowledged_up_to = worker.changes().acknowledged_up_to();
        let are_safe = self.pushed.partition_point(|(sent, _)| *sent <= acknowledged_up_to);
        self.pushed.drain(..are_safe).for_each(|(_, reply)| _ = reply.send(()));
        exchange.send(out);
        (parameters, is_any)
    }
}

impl LeaseProgress {
    /// The progress of a worker that starts like this.
    pub(super) fn at_clock(start: WorkerStart) -> Self {
        let clocks = if let WorkerStart::At(clock) = start { clock } else { 0 };
        Self { clocks, ..Self::default() }
    }

    /// The lease of the next clock was taken.
    fn take(&mut self, number: u64, lease: &SampleLease, lease_policy: LeasePolicy) {
        self.has_none = lease.is_empty();
        self.epoch = self.epoch.max(lease.epoch);
        let samples = lease.spans.iter().map(|span| span.end - span.start).sum();
        self.current = (!lease.is_empty()).then_some(OpenLease { number, epoch: lease.epoch, samples });
        let end = lease.spans.iter().map(|span| span.end).max().unwrap_or(0);
        let leased = lease.epoch as f64 * lease_policy.samples as f64 + end as f64;
        self.progress =
            self.progress.max(leased / (lease_policy.epochs as f64 * lease_policy.samples as f64));
    }

    fn end(&mut self, clock: u64, stats: SampleStats) {
        self.clocks = clock + 1;
        if let Some(OpenLease { number, epoch, samples }) = self.current.take() {
            let left_out = samples.saturating_sub(stats.samples);
            self.computed.insert(number, ComputedLease { clock, epoch, stats, left_out });
        }
    }

    /// The clock in progress has ended before `clock`, without its samples: another worker has computed them.
    fn abandon(&mut self, clock: u64) {
        self.clocks = clock;
        self.current = None;
    }

    /// Takes the number of samples that were left out in clocks whose additions are not safe yet. The run ends with these additions.
    pub(super) fn take_left_out(&mut self) -> u64 {
        self.computed.values_mut().map(|lease| std::mem::take(&mut lease.left_out)).sum()
    }

    /// An estimate of this worker's number of clocks in the whole run, made in this clock from the fraction of samples leased so far.
    fn clocks_expected(&self, clock: u64) -> u64 {
        let clocks = clock + 1;
        ((clocks as f64 / self.progress.max(f64::MIN_POSITIVE)).ceil() as u64).max(clocks)
    }
}

#[cfg(test)]
mod tests {
    use super::super::initial_rows;
    use super::*;
    use crate::table::{Init, Table};

    #[test]
    fn tables_that_start_with_parameters_lie_one_after_the_other_in_the_flat_vector() {
        let table = |name, rows, width, init| Table { init, ..Table::additive(name, rows, width) };
        let layout = TableLayout::new(vec![
            table("long", 4000, 3, Init::Parameters),
            table("zero", 5, 7, Init::Zeros),
            table("wide", 3, 2, Init::Parameters),
        ]);
        let parameters: Vec<f32> = (1..=12_006_u16).map(f32::from).collect();
        let (mut ranges, mut values) = (Vec::new(), Vec::new());
        for chunk in 0..layout.chunk_count() {
            let rows = initial_rows(&layout, chunk, &parameters);
            ranges.extend(rows.indices.ranges());
            values.extend(rows.values);
        }
        let rows = Rows { indices: ranges.into_iter().collect(), values };
        assert!(layout.chunk_count() > 3);
        assert_eq!(rows.indices, layout.parameter_rows());
        let mut vector = vec![-1.0; parameters.len()];
        flatten(&rows, &layout, &mut vector);
        assert_eq!(vector, parameters);
    }
}
