//! Commands: the operations of a program, as the machine sees them, and the answers that begin a step or a clock.

use std::ops::Range;
use std::sync::Arc;

use futures_channel::oneshot;
use peergrad_collectives::groups::Groups;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{IdempotencyKey, Map, Reduce, RowSet, Rows};
use peergrad_protocol::{Buffer, StepNumber};

use crate::io::{JobOutput, Work};
use crate::program::batch::Batch;
use crate::program::contribution::{Contribution, ContributionPart};
use crate::state::owner_rule::OwnerRule;
use crate::table::TableLayout;

/// The sender of a command's answer.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// One operation of a program, as the machine sees it.
pub(crate) enum ProgramCommand {
    /// Answer when there is a view to train in.
    Ready(Reply<()>),
    /// Answer with the next step.
    Begin(Reply<StepStart>),
    /// Run a job.
    Compute { turn: u64, cost: u64, work: Work, reply: JobReply },
    /// Sum the first elements of this member's contribution with those of all others, while the rest is still being computed. The whole
    /// contribution follows in a [`ReduceScatter`](Self::ReduceScatter).
    ContributePart { turn: u64, part: ContributionPart },
    /// Sum all contributions; answer when the shard of this member is summed.
    ReduceScatter { turn: u64, contribution: Contribution, among: Option<Groups>, reply: Reply<()> },
    /// Turn the sums of this member's shard into new parameters.
    UpdateOwned { turn: u64, rule: OwnerRule, reply: Reply<()> },
    /// Send this member's shard to every member; answer when every shard has arrived.
    AllGather { turn: u64, reply: Reply<()> },
    /// Answer with the next clock.
    BeginClock(Reply<ClockStart>),
    /// Read from tables, add to them, or end the clock.
    Operate { turn: u64, operation: TableOperation },
    /// The run ends before its epochs are over: no further samples are handed out.
    EndRun,
    /// The program has ended: answer when the programs of all members have.
    Finished(Reply<()>),
}

/// An operation of a program on its tables.
pub(crate) enum TableOperation {
    /// Answer with rows.
    Get { rows: RowSet, reply: Reply<Vec<f32>> },
    /// Answer with those of these rows that are not zero.
    Pull { rows: RowSet, reply: Reply<Rows> },
    /// Answer with all of the parameters.
    Parameters(Reply<Arc<Buffer>>),
    /// Compute with vectors of these chunks; with a key, unless a worker has done so before.
    Map { key: Option<IdempotencyKey>, chunks: Range<usize>, map: Map },
    /// Answer with numbers computed from vectors of these chunks.
    Reduce { chunks: Range<usize>, reduce: Reduce, reply: Reply<Vec<f64>> },
    /// Add to rows.
    Add(Rows),
    /// Add to rows, unless a worker has done so before.
    AddOnce(IdempotencyKey, Rows),
    /// Send the additions so far; answer when they would survive the loss of their owners.
    Push(Reply<()>),
    /// The clock is over; the statistics are those of its samples.
    End(SampleStats),
    /// The clock is over, and all additions so far are sent; answer when they would survive the loss of their owners.
    Commit {
        /// The statistics of the clock's samples.
        stats: SampleStats,
        /// The answer.
        reply: Reply<()>,
    },
    /// This worker has no more clocks.
    Finish,
}

/// Where the result of a program's job goes.
pub(crate) enum JobReply {
    /// To the program. The reply converts the answer to its type.
    Program(Box<dyn FnOnce(JobOutput) + Send>),
    /// It is a contribution to the sums of the step, and so are the parts of it that come before. The program gets an answer when this
    /// member's shard is summed.
    Sums { turn: u64, reply: Reply<()> },
}

/// The answer to [`ProgramCommand::Begin`]: a step.
pub(crate) struct StepStart {
    /// The number of the step in the run, from 0.
    pub(crate) number: StepNumber,
    /// The samples that this member is to compute.
    pub(crate) batch: Batch,
    /// The parameters that the step starts from.
    pub(crate) parameters: Arc<Buffer>,
    /// A buffer of the same length for a gradient.
    pub(crate) room: Buffer,
}

/// The answer to [`ProgramCommand::BeginClock`]: a clock.
pub(crate) struct ClockStart {
    /// The number of clocks that the worker has completed.
    pub(crate) number: u64,
    /// The samples that the worker is to compute; empty if it has none in this clock.
    pub(crate) batch: Batch,
    /// The position of the first of them in the order of their epoch.
    pub(crate) position: u64,
    /// Whether this worker was the last to complete them, in the epoch before.
    pub(crate) is_kept: bool,
    /// The names, sizes and rules of the tables.
    pub(crate) layout: Arc<TableLayout>,
}
