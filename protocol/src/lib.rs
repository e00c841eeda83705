//! The language of peers: what they call things, what they agree on, and what they send.
//!
//! Everything here is pure: no sockets, no tasks, no clock. A peer is given time and bytes and answers with
//! bytes, so the same code runs between two continents and inside a simulator.
//!
//! # Words
//! One word, one meaning, in code, logs, commands and documents.
//!
//! | word | meaning |
//! |---|---|
//! | peer | anyone with a [`PeerId`] (an ed25519 key) |
//! | run | one training job; its [`RunId`] is the hash of its specification and of 32 random bytes drawn when it was founded |
//! | incarnation | a number that grows with each start of a peer, and each time it comes back after an exclusion |
//! | member, rank | a peer in one incarnation in the view; its index there, meaningless without the view |
//! | view | an agreed [record](view::View): number, digests of its parents, members, recovery decision, cursor, moves |
//! | view number, lineage | the number of a view; the chain of view digests. An *epoch* is one pass over the data, never a view |
//! | cursor | what has been trained: epoch, position in the epoch's permutation, ranges given back and put off |
//! | chunk | contiguous block of the flat parameter vector: unit of placement, versioning, hashing and transfer |
//! | shard | the chunks that one member owns |
//! | owner, copy | the member whose state of a chunk is authoritative; another member's kept copy of it |
//! | segment | wire-sized piece of a shard |
//! | codec, residual | how elements look as bytes, exactly or not; what a codec that is not exact has left out of a member's contributions so far |
//! | step, round | one optimizer step of the run; one collective operation |
//! | worker, contribution | a member that computes; what it adds to a round, with its weight |
//! | master copy | the exact parameters, kept by owner and replicas where everyone computes with less precise ones |
//! | backup, late | a member whose contribution a step need not wait for; one whose contribution was not waited for |
//! | complete, commit | a member *completes* a step when it holds every new chunk and the new optimizer state of the chunks that it owns or copies; a step is *committed* when it is known to be complete at every member |
//! | checkpoint | what a member has written down of a committed step: all parameters, and the optimizer state that it keeps |
//! | branch | the run's history since its beginning, or since the last time that all had stopped and it went on from checkpoints, or that it forked |
//! | fork, ancestor | a view that several lineages come from; a view that one comes from, as later ones name it |
//! | merge, yield | a lineage *leads*, and takes into its state that of another one which *yields*, or lets its members in |
//! | bequest, will, heir | the state that a lineage which yields keeps for the other; the word of what it is, and who has it; a member that fetches its part |
//! | companion | of a peer that was a member when it stopped: another one that was in the same view, and is back too |
//! | expelled | put out of the run for good, by name, in every view from then on |
//! | secret, rekey | what all show in the handshake of each connection; to give a run that goes on another one |
//! | table, row | shared state that workers read and add to; the unit of both |
//! | clock, tick | what a worker has completed so many of, where there are tables; the word that one is over |
//! | staleness | how many clocks old what a worker reads may be |
//! | writer, keeper | a worker in one incarnation, as a chunk remembers it; an owner or copy of chunks of tables |
//! | hand | samples that a worker was dealt for a clock |
//! | column | the numbers at one place of all rows of a table |
//! | shared, split | what a program keeps in tables, and how its workers go on; whether a batch is of all workers or of each |
//! | gateway | the router of a home, as one that can be asked to forward a port |
//! | link, lane, frame | a way from one peer to another; the kind of connection under it; one message's bytes |
//! | task, program | what a user brings: a model with its loss, gradient and data; an algorithm, the same on every peer |
//!
//! # Where to start
//! [`message`] lists everything a peer can say and when; [`wire`] is how it looks as bytes; [`view`] and
//! [`placement`] say who is in and who owns what; [`limits`] holds the bounds on what a run and
//! its messages may hold.

#![forbid(unsafe_code)]

pub mod agreement;
pub mod buffer;
pub mod chunk_set;
pub mod clique;
pub mod cursor;
pub mod durable;
pub mod failure_detector;
pub mod id;
pub mod invite;
pub mod limits;
pub mod manifest;
pub mod message;
pub mod placement;
pub mod table;
pub mod time;
pub mod view;
pub mod wire;

pub use buffer::{Buffer, Pool};
pub use id::{Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};
pub use time::Instant;
pub use wire::Frame;
