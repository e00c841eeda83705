//! A node's memory does not grow while other peers join and depart: measured by what is freed when it is dropped, early and late.

#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

#[path = "swarms/common.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use common::{join, run_until, run_until_training, setup, squares};
use peergrad_collectives::plan::Topology;
use peergrad_core::program::loader::Loader;
use peergrad_protocol::placement::Replicas;
use peergrad_simulations::compute_model::ComputeModel;
use peergrad_simulations::host::{Crash, HostId};

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to `System` with the same arguments, so `System` keeps the contract; counting only changes a number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and `block` came from `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Number of peers at a time.
const PEERS: usize = 5;
/// Every two seconds one of them crashes, and a new one joins.
const EVERY: Duration = Duration::from_secs(2);

#[test]
fn churn_does_not_make_a_node_grow() {
    let (early, late) = (footprint(20), footprint(200));
    println!("a node of {early} bytes after 40 s of churn is one of {late} after 400 s");
    assert!(late < early + early / 10, "{early} bytes early, {late} late");
}

/// Bytes that are freed with a node after this number of other peers have crashed and as many have joined.
fn footprint(losses: usize) -> isize {
    let mut fixed = squares(Topology::Ring);
    (fixed.loaded.config.epochs, fixed.loaded.config.replicas) = (1_000_000, Replicas::Number(2));
    let fixed = Arc::new(fixed);
    let host = || {
        let compute_model = ComputeModel::steady(Duration::from_millis(10));
        peergrad_simulations::host::HostSetup {
            compute_model,
            ..setup(Arc::clone(&fixed) as Arc<dyn Loader>, None)
        }
    };
    let mut cluster = common::lan(4);
    let eldest = common::found(&mut cluster, PEERS, host());
    let mut others: Vec<HostId> = (1..PEERS).map(|_| join(&mut cluster, eldest, host())).collect();
    run_until_training(&mut cluster);
    for _ in 0..losses {
        let until = cluster.now().after(EVERY);
        run_until(&mut cluster, "time passes", |cluster| cluster.now() >= until);
        cluster.crash(others.remove(0), Crash::Killed);
        others.push(join(&mut cluster, eldest, host()));
    }
    // The state is as before, except for what the node may have kept.
    let until = cluster.now().after(Duration::from_secs(20));
    run_until(&mut cluster, "time passes", |cluster| cluster.now() >= until);
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    cluster.crash(eldest, Crash::Killed);
    before - LIVE_BYTES.load(Ordering::Relaxed)
}
