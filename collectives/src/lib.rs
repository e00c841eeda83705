//! Moving slices of vectors between members: every member ends with the same sum, bit for bit.
//!
//! Eight people add up eight long columns of numbers. Instead of everyone sending everything to one of them, each one is
//! responsible for a slice: slips with that slice go around the table, everyone adds their own number and passes the slip
//! on, and the responsible one announces the total. All hands are busy at once, and nobody holds more than a few slips.
//!
//! # Words
//! A *vector* has a *shard* for each rank (unequal, non-contiguous, possibly empty), cut into *segments*. A [`plan`] says
//! who sends what to whom; a [`round`](round::Round) carries it out once; [`credit`] counts how many segments may be on
//! their way. The two halves are a [`reduce_scatter`] and an [`all_gather`]; beside them a [`mirror`] tells the sums of a
//! shard to those who keep replicas of its owner's optimizer state.
//!
//! A [`codec`] says how a segment's elements look as bytes, in fewer than four each if need be, and a
//! [`residual`](residual::Residual) keeps what that leaves out.
//!
//! # Cost
//! For `n` ranks and a vector of `s` bytes in equal shards; every member sends as much as it receives.
//!
//! | topology | hops, one after the other | bytes sent by a member |
//! |---|---|---|
//! | ring | 2 (n - 1) | 2 (n - 1) / n x s |
//! | direct | 2 | 2 (n - 1) / n x s |
//! | mirror, with c replicas | 1 | (c - 1) / n x s |
//!
//! With as many replicas as ranks there is no mirror: the sums themselves are gathered. With unequal shards the two topologies differ:
//! [`cost`] says which takes less time.
//!
//! # Invariants
//! - A shard is summed in the order owner + 1, owner + 2, ..., owner (modulo n) under every topology, and everyone gets the
//!   owner's bits.
//! - A member holds at most a link's window of received segments per link, however slow it or others are.
//! - Nothing here knows about sockets, views or time.

#![forbid(unsafe_code)]

pub mod all_gather;
pub mod codec;
pub mod combine;
pub mod cost;
pub mod credit;
pub mod groups;
pub mod mirror;
pub mod payload;
pub mod plan;
pub mod reduce_scatter;
pub mod residual;
pub mod round;
