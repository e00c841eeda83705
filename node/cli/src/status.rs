//! The status: how a running peer is, told to whoever on this machine, or in this run, asks for it.
//!
//! Like the display in a lift: it says where the lift is and whether anything is wrong, and pressing one's nose against it
//! does not slow the lift down.
//!
//! ```text
//!   driver --- events ---> observer ---> report (words or JSON of `peer start`)
//!     ^                      |   '----> event log: one line of JSON an event, on disk          [`log`]
//!     | overview, on request |
//!   service <-------------------'--- what happened of late, rates
//!     ^--- socket in the data directory, stream of libp2p                                     [`server`]
//!     ^--- numbers for Prometheus on loopback                                                 [`metrics`]
//! ```
//! # Invariants
//! - Whoever asks costs the driver one look at its own state, and nothing while nobody asks.
//! - What is told is bounded by the number of members; those who ask are a few at a time, and each has little time.
//! - Nobody is told anything who is neither the user that started the peer nor in possession of the run's secret.
//!
//! # The form
//! [`Status`] is what travels and what `--json` prints: one JSON object. Fields may be added; none changes its meaning or
//! goes without another [`FORMAT`]. `docs/status.md` explains each, and a test compares the two.

use serde::{Deserialize, Serialize};

pub mod connection;
pub mod log;
pub mod metrics;
pub mod monitoring;
pub mod observer;
pub(crate) mod rate_meter;
pub mod server;
pub mod service;

pub use connection::{StatusConnection, StatusError, connect_directory, connect_run};
pub use metrics::{DEFAULT_METRICS_PORT, MetricsPort, MetricsServer};
pub use monitoring::{EventStreams, Monitoring};
pub use observer::{Observations, Observer};
pub use server::{AdminCommand, StatusServer};
pub use service::StatusService;

/// The number of the form that this program writes and reads.
pub const FORMAT: u32 = 1;

/// How a peer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`FORMAT`].
    pub format: u32,
    /// The release of the program.
    pub version: String,
    /// The peer that tells this.
    pub peer: String,
    /// The run, once it is known.
    pub run: Option<String>,
    /// How long its process has run.
    pub uptime_seconds: f64,
    /// What it is doing, in one word.
    pub phase: Phase,
    /// Whether all is as it should be.
    pub is_well: bool,
    /// What is going on, or what is wrong and what to do, in a sentence.
    pub summary: String,
    /// Where training is, once this peer is a member.
    pub training: Option<TrainingStatus>,
    /// The view that is installed here.
    pub view: Option<ViewStatus>,
    /// The members of the view, in the order of their ranks.
    pub members: Vec<MemberStatus>,
    /// Peers that are not in the view: they want to come in, or found the run with this one.
    pub others: Vec<OtherStatus>,
    /// How far another secret has come that was asked for here.
    pub rekey: Option<RekeyStatus>,
    /// Peers and addresses that are wanted and cannot be reached, one entry for each.
    #[serde(default)]
    pub unreached: Vec<UnreachedStatus>,
    /// Bytes over all links.
    pub traffic: TrafficStatus,
    /// What happened last, the newest at the end; steps left out.
    pub events: Vec<EventStatus>,
}

/// What a peer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It founds a run and waits for peers.
    Bootstrapping,
    /// It asks to be let in.
    Joining,
    /// It was a member before it stopped, and nobody of those trains: it waits for others to be back.
    Recovering,
    /// It is in, and gets the parameters.
    CatchingUp,
    /// It trains.
    Training,
    /// The members agree on another view, since something is wrong with this one.
    Agreeing,
    /// Too few members can be reached: it waits.
    Paused,
    /// It waits for the others to be done.
    Closing,
    /// It evaluates what the run has come to.
    Evaluating,
    /// The run has ended here; the process is about to.
    Ended,
    /// It is too busy to say.
    Busy,
}

/// Where training is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingStatus {
    /// Committed steps.
    pub steps: u64,
    /// Steps of the whole run, as they are expected.
    pub steps_expected: u64,
    /// The epoch that is trained, from 1.
    pub epoch: u64,
    /// Passes of the run.
    pub epochs: u64,
    /// The mean loss over the samples of the newest committed step, before its update.
    pub loss: Option<f64>,
    /// The learning rate of that step.
    pub rate: Option<f64>,
    /// Committed steps a second, of late.
    pub steps_per_second: f64,
    /// What the step in progress waits for here.
    pub waits_for: String,
    /// Elements of the parameter vector.
    pub parameters: u64,
    /// Chunks that it is cut into.
    pub chunks: u64,
    /// Chunks that have yet to move to their new owners.
    pub chunks_to_move: u64,
}

/// Another secret of the run, which was asked for at this peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RekeyStatus {
    /// Members that have not confirmed it.
    pub missing: Vec<String>,
}

/// A view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewStatus {
    /// Its number in its lineage.
    pub number: u64,
    /// The digest that names it.
    pub digest: String,
    /// The digests of those that it follows: none of the first.
    pub parents: Vec<String>,
    /// Peers that were put out of the run for good, the last at the end.
    pub expelled: Vec<Expelled>,
    /// How long this peer has been in it.
    pub age_seconds: f64,
}

/// A peer that was put out of the run for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expelled {
    /// Who.
    pub peer: String,
    /// The member on whose word.
    pub by: String,
    /// `request` of a user, or `violations`.
    pub cause: String,
}

/// A member, as the peer that tells this sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Who.
    pub peer: String,
    /// Whether it is the one that tells this.
    pub is_this: bool,
    /// What it is doing, or what is wrong with it.
    pub state: MemberState,
    /// How much it offers to own.
    pub capacity: u8,
    /// Elements of the parameter vector that it owns.
    pub owned: u64,
    /// The same as a part of all.
    pub share: f64,
    /// Elements of whose optimizer state it keeps a copy.
    pub replicated: u64,
    /// Steps that are complete there, as it said last.
    pub steps: Option<u64>,
    /// How long nothing has been heard of it.
    pub silent_seconds: Option<f64>,
    /// The link to it; none to oneself.
    pub link: Option<LinkStatus>,
}

/// What a member is doing, or what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It works.
    Working,
    /// It is new and has no parameters yet.
    CatchingUp,
    /// It hands over what it owns, to leave.
    HandingOver,
    /// There was no link to it yet in this view.
    Connecting,
    /// It waits: too few can be reached.
    Paused,
    /// It computes the same step for far too long.
    Hanging,
    /// It has been silent for longer than it should.
    Suspected,
    /// Its link is gone.
    Unreachable,
    /// It has said that it stops.
    Stopped,
    /// Others listen to it, in a swarm of many.
    Unwatched,
}

/// A peer that is not in the view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherStatus {
    /// Who.
    pub peer: String,
    /// What it is to the one that tells this.
    pub state: OtherState,
    /// The link to it.
    pub link: Option<LinkStatus>,
}

/// What a peer that is not in the view is to the one that tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherState {
    /// It was welcomed, and fetches and prepares the data.
    Preparing,
    /// It has task and data, and waits to be let in.
    Ready,
    /// There is a link to it: one of those whom a joiner asks.
    Linked,
    /// It was a member and was lost; where all parts of a swarm go on, it may have gone on by itself.
    Missing,
}

/// Somebody who is tried again and again and cannot be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnreachedStatus {
    /// Who; none where only an address is known.
    pub peer: Option<String>,
    /// One of the places where it is tried.
    pub address: String,
    /// What came of it, in words.
    pub trouble: String,
    /// How often in a row it was tried.
    pub tries: u32,
    /// How long ago the last time was.
    pub seconds_ago: f64,
}

/// The way to another peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// What frames to it go over: `direct` (TLS over TCP), `tcp` or `quic` (a substream of libp2p); none while it is down.
    pub lane: Option<String>,
    /// How long its answer to the last ping took.
    pub round_trip_seconds: Option<f64>,
    /// Why it is down, if it was up before.
    pub trouble: Option<String>,
    /// Bytes written to it since this process started.
    pub sent_bytes: u64,
    /// Bytes read from it.
    pub received_bytes: u64,
    /// Bytes written to it a second, of late.
    pub sent_bytes_per_second: f64,
    /// Bytes read from it a second, of late.
    pub received_bytes_per_second: f64,
}

/// Bytes over all links, since the process started and a second of late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// Bytes written.
    pub sent_bytes: u64,
    /// Bytes read.
    pub received_bytes: u64,
    /// Bytes written a second, of late.
    pub sent_bytes_per_second: f64,
    /// Bytes read a second, of late.
    pub received_bytes_per_second: f64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventStatus {
    /// How long ago.
    pub seconds_ago: f64,
    /// Its name in the event log: "view", "member_suspected", "notice".
    pub event: String,
    /// What it is to a person.
    pub text: String,
}

#[cfg(test)]
mod tests;
