//! Collective operations: reduce-scatter and all-gather of a vector. Every member ends with the same sum, bit for bit.
//!
//! Eight people add up eight long columns of numbers. Each person is responsible for one slice of the columns: slips with that slice
//! go around the table, every person adds its own number and passes the slip on, and the responsible person announces the total. All
//! work at the same time, and each holds only a few slips.
//!
//! # Words
//! A *vector* has a *shard* for each rank (unequal, non-contiguous, possibly empty), cut into *segments*. A [`plan`] says
//! which rank sends which segment where; a [`round`](round::Round) executes it once; [`credit`] limits the segments in flight. The
//! two halves of a round are a [`reduce_scatter`] and an [`all_gather`]; beside them a [`mirror`] sends the sums of a shard to the
//! replicas of its owner's optimizer state.
//!
//! A [`codec`] encodes a segment's elements as bytes, some in fewer than four each, and a [`residual`](residual::Residual) stores
//! what a lossy codec leaves out, to add it to the next contribution.
//!
//! # Cost
//! For `n` ranks and a vector of `s` bytes in equal shards; every member sends as much as it receives.
//!
//! | topology | hops, one after the other | bytes sent by a member |
//! |---|---|---|
//! | ring | 2 (n - 1) | 2 (n - 1) / n x s |
//! | direct | 2 | 2 (n - 1) / n x s |
//! | mirror, with c replicas, the owner's included | 1 | (c - 1) / n x s |
//!
//! With as many replicas as ranks there is no mirror: the sums themselves are gathered. With unequal shards the two topologies take
//! different times, which [`cost`] estimates.
//!
//! # Invariants
//! - A shard is summed in the order owner + 1, owner + 2, ..., owner (modulo n) under every topology, and all members get
//!   the owner's bits.
//! - A member holds at most one window of received segments per link, however slow it or others are.
//! - No sockets, views or time in this crate.

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
