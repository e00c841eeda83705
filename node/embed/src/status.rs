//! The status of a running peer, offered to its user on this machine and to anyone who knows the run's secret.
//!
//! It is like the display in a lift: it shows the floor and any fault, and reading it does not slow the lift down.
//!
//! ```text
//!   driver --- events ---> observer ---> report (text or JSON of `peer start`)
//!     ^                      |   '----> event log: one line of JSON per event, on disk          [`log`]
//!     | overview, on request |
//!   service <-------------------'--- recent events, rates
//!     ^--- socket in the data directory, libp2p stream                                        [`server`]
//!     ^--- Prometheus metrics on loopback                                                     [`metrics`]
//! ```
//! # Invariants
//! - A request costs the driver one read of its own state; without requests, there is no cost.
//! - The size of an answer is bounded by the number of members. The number of clients and the time of each are limited.
//! - Only the user who started the peer, and clients that prove the run's secret, get an answer.
//!
//! # Format
//! [`Status`] is the JSON object that travels and that `--json` prints. New fields may be added; changing or removing one requires
//! another [`FORMAT`] number. `docs/status.md` explains every field, and a test compares the two.

use serde::{Deserialize, Serialize};

pub mod connection;
mod lines;
pub mod log;
pub mod metrics;
pub mod monitoring;
pub mod observer;
pub mod rate_meter;
pub mod server;
pub mod service;

pub use connection::{StatusConnection, StatusError, connect_directory, connect_run};
pub use metrics::{DEFAULT_METRICS_PORT, MetricsPort, MetricsServer};
pub use monitoring::{EventStreams, Monitoring};
pub use observer::{Observations, Observer};
pub use server::{AdminCommand, StatusServer};
pub use service::StatusService;

/// The number of the status format that this program writes and reads.
pub const FORMAT: u32 = 1;

/// The state of a peer. It is wide because it is the JSON object that clients read, which stays flat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`FORMAT`].
    pub format: u32,
    /// The release of the peer's program.
    pub version: String,
    /// The id of the peer.
    pub peer: String,
    /// The id of the run; null until it is known.
    pub run: Option<String>,
    /// How long the peer's process has run, in seconds.
    pub uptime_seconds: f64,
    /// What the peer is doing.
    pub phase: Phase,
    /// Whether everything is in order; false where a user may have to act.
    pub is_well: bool,
    /// A sentence that says what the peer is doing, or what is wrong and what to do.
    pub summary: String,
    /// The progress of training; null while this peer is not a member.
    pub training: Option<TrainingStatus>,
    /// The view that this peer has installed; null while it is not a member.
    pub view: Option<ViewStatus>,
    /// The members of the view, in the order of their ranks; empty without a view.
    pub members: Vec<MemberStatus>,
    /// Peers outside the view: joiners, co-founders, and members lost in a partition.
    pub others: Vec<OtherStatus>,
    /// The state of a change of secret that a user of this peer requested; null if no user did.
    pub rekey: Option<RekeyStatus>,
    /// Peers and addresses that this peer tries to reach without success, one entry each.
    #[serde(default)]
    pub unreached: Vec<UnreachedStatus>,
    /// The traffic over all links.
    pub traffic: TrafficStatus,
    /// The newest events except committed steps, oldest first.
    pub events: Vec<EventStatus>,
}

/// What a peer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It founds a run and waits for other peers.
    Bootstrapping,
    /// It asks members for admission.
    Joining,
    /// All members had stopped, and it waits for enough of them to be back.
    Recovering,
    /// It is a member and receives the parameters.
    CatchingUp,
    /// It trains.
    Training,
    /// The members agree on the next view.
    Agreeing,
    /// It waits, because too few members are reachable, or none that has the needed state.
    Paused,
    /// It has finished and waits for the other members.
    Closing,
    /// It evaluates the final model.
    Evaluating,
    /// The run has ended at this peer, and its process is about to end.
    Ended,
    /// It had no time to report its state.
    Busy,
}

/// The progress of training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingStatus {
    /// Committed steps.
    pub steps: u64,
    /// The expected number of steps of the whole run.
    pub steps_expected: u64,
    /// The current epoch, counted from 1.
    pub epoch: u64,
    /// The number of epochs of the run.
    pub epochs: u64,
    /// The mean loss over the samples of the newest committed step, before its update; null before the first step, and if it is not
    /// finite.
    pub loss: Option<f64>,
    /// The learning rate of that step; null before the first.
    pub rate: Option<f64>,
    /// Committed steps per second, over the last seconds.
    pub steps_per_second: f64,
    /// Samples per second, over the last seconds: those of committed steps, over all members; with tables, those of this peer.
    #[serde(default)]
    pub samples_per_second: f64,
    /// Tokens per second of those samples, if they are text.
    #[serde(default)]
    pub tokens_per_second: Option<f64>,
    /// Floating-point operations per second of those samples, if the task says how many each takes.
    #[serde(default)]
    pub flops_per_second: Option<f64>,
    /// The newest evaluation on held-out samples during the run; null before the first.
    #[serde(default)]
    pub evaluation: Option<EvaluationStatus>,
    /// What this peer currently waits for, in one word: `start`, `view`, `program`, `sums`, `shards`, `rows`, `closing` or
    /// `evaluation`.
    pub waits_for: String,
    /// The number of elements of the parameter vector.
    pub parameters: u64,
    /// The number of chunks of the parameter vector.
    pub chunks: u64,
    /// Chunks that have not yet moved to their new owners.
    pub chunks_to_move: u64,
}

/// An evaluation on held-out samples during the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationStatus {
    /// The number of steps behind the parameters.
    pub steps: u64,
    /// The number of held-out samples.
    pub samples: u32,
    /// Their mean loss; null if it is not finite.
    pub loss: Option<f64>,
    /// The share of them that the model classifies correctly; null for a model without classes.
    pub accuracy: Option<f64>,
    /// The number of steps behind the parameters with the lowest loss that this peer has heard of.
    pub best_steps: u64,
    /// That loss.
    pub best_loss: Option<f64>,
}

/// A change of the run's secret, requested by a user of this peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RekeyStatus {
    /// The ids of members that have not confirmed the new secret.
    pub missing: Vec<String>,
}

/// A view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewStatus {
    /// Its number: one more than that of its first parent.
    pub number: u64,
    /// Its digest, which identifies it.
    pub digest: String,
    /// The digests of the views before it: two after a merge, none for the first view.
    pub parents: Vec<String>,
    /// The peers that were expelled from the run so far, oldest first.
    pub expelled: Vec<Expelled>,
    /// How long this peer has been in this view, in seconds.
    pub age_seconds: f64,
}

/// A peer that was expelled from the run permanently.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expelled {
    /// The id of the expelled peer.
    pub peer: String,
    /// The member that reported it, or whose user requested it.
    pub by: String,
    /// `request` (by a user) or `violations` (of the protocol).
    pub cause: String,
}

/// A member, as seen by the peer that reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The id of the member.
    pub peer: String,
    /// Whether it is the reporting peer itself.
    pub is_this: bool,
    /// What it is doing, or what is wrong with it.
    pub state: MemberState,
    /// Its capacity: how much it offers to own, relative to the others, 0 to 16.
    pub capacity: u8,
    /// How many samples it computes in a second, by which batches are divided; null while that is not known.
    #[serde(default)]
    pub samples_per_second: Option<f64>,
    /// Elements of the parameter vector that it owns.
    pub owned: u64,
    /// The same as a fraction of all elements, 0 to 1.
    pub share: f64,
    /// Elements of other owners whose optimizer state it replicates.
    pub replicated: u64,
    /// The steps that it has completed, as it reported last; null if it has reported none in this view.
    pub steps: Option<u64>,
    /// How long nothing has been heard from it, in seconds; null for the reporting peer itself.
    pub silent_seconds: Option<f64>,
    /// The link between the reporting peer and this member; null for the reporting peer itself.
    pub link: Option<LinkStatus>,
}

/// What a member is doing, or what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It trains, or is ready to.
    Working,
    /// It is new and has no parameters yet.
    CatchingUp,
    /// It hands over what it owns before it leaves.
    HandingOver,
    /// There has been no link to it yet in this view.
    Connecting,
    /// It waits, because it can reach too few members.
    Paused,
    /// It has said that its step takes long, and the others wait for it.
    Busy,
    /// It has been computing the same step for far too long.
    Hanging,
    /// It has been silent for too long.
    Suspected,
    /// The link to it is broken.
    Unreachable,
    /// It has announced that it stops.
    Stopped,
    /// Other members monitor it, as in a large swarm each member monitors a few.
    Unwatched,
}

/// A peer that is not in the view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherStatus {
    /// The id of the peer.
    pub peer: String,
    /// Its relation to the reporting peer.
    pub state: OtherState,
    /// The link between the two peers; null while they have none.
    pub link: Option<LinkStatus>,
}

/// The relation of a peer outside the view to the reporting peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherState {
    /// It was welcomed, and is fetching and preparing the data.
    Preparing,
    /// It has prepared the task and waits for admission.
    Ready,
    /// The reporting peer is a joiner and has a link to it.
    Linked,
    /// It was lost in a partition and may be training in another part of the swarm.
    Missing,
}

/// A peer or an address that is tried repeatedly without success.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnreachedStatus {
    /// The id of the peer; null where only an address is known.
    pub peer: Option<String>,
    /// One of the addresses that were tried.
    pub address: String,
    /// Why the last attempt failed, as text.
    pub trouble: String,
    /// The number of failed attempts in a row.
    pub tries: u32,
    /// How long ago the last attempt was, in seconds.
    pub seconds_ago: f64,
}

/// The link to another peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The lane of its frames: `direct` (TLS over TCP), `tcp` or `quic` (a libp2p substream); null while the link is down.
    pub lane: Option<String>,
    /// How many TCP connections carry the frames to the peer, 1 to 16; null unless the lane is direct.
    #[serde(default)]
    pub connections: Option<usize>,
    /// The round-trip time of the last ping, in seconds; null before the first answer.
    pub round_trip_seconds: Option<f64>,
    /// The most bytes that the peer has recently acknowledged in a second: what the line carries, if more waited to be sent; null before
    /// the first measurement.
    #[serde(default)]
    pub line_bytes_per_second: Option<f64>,
    /// Why the link is down; null while it is up, and before it was ever up.
    pub trouble: Option<String>,
    /// Bytes written to the peer since this process started.
    pub sent_bytes: u64,
    /// Bytes read from the peer since this process started.
    pub received_bytes: u64,
    /// Bytes written to the peer per second, over the last seconds.
    pub sent_bytes_per_second: f64,
    /// Bytes read from the peer per second, over the last seconds.
    pub received_bytes_per_second: f64,
}

/// The traffic over all links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// Bytes written since the process started.
    pub sent_bytes: u64,
    /// Bytes read since the process started.
    pub received_bytes: u64,
    /// Bytes written per second, over the last seconds.
    pub sent_bytes_per_second: f64,
    /// Bytes read per second, over the last seconds.
    pub received_bytes_per_second: f64,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventStatus {
    /// How long ago it happened, in seconds.
    pub seconds_ago: f64,
    /// Its name in the event log, such as "view", "member_suspected" or "notice".
    pub event: String,
    /// A sentence that describes it.
    pub text: String,
}

#[cfg(test)]
mod tests;
