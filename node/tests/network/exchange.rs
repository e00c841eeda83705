//! Much data in both directions at once: intact, in order, once.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::io::FoundData;
use peergrad_net::{
    CheckpointStore, Checkpoints, Compute, Environment, Identity, MonotonicClock, Network, StableStorage,
    Traffic, drive,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::courier::Courier;
use super::{SECRET, start, within_reason};

/// A network that drives a courier to its end.
pub(crate) async fn run(network: Network, mut courier: Courier) -> (Courier, Traffic) {
    let counters = network.counters();
    let (events, _heard) = mpsc::unbounded_channel();
    let folder = tempfile::tempdir().unwrap();
    let environment = Environment {
        network,
        compute: Compute::start(Arc::clone(&counters), NonZeroUsize::MIN).unwrap(),
        clock: MonotonicClock::start(),
        find_data: Arc::new(|_| FoundData::Nothing),
        store: StableStorage::start(folder.path().join("durable"), ()).unwrap().0,
        checkpoints: Checkpoints::start(CheckpointStore::in_directory(folder.path()), ()).unwrap(),
        events,
        admin_requests: mpsc::channel(1).1,
        busy: watch::channel(Duration::ZERO).1,
    };
    drive(&mut courier, environment, std::future::pending()).await;
    (courier, counters.read())
}

/// `count` networks, each with a courier that dials the earlier ones.
pub(crate) async fn couriers(count: usize, total: u64) -> Vec<(Network, Courier)> {
    let mut networks = Vec::new();
    for _ in 0..count {
        networks.push(start(Identity::generate(), SECRET).await.0);
    }
    let contacts: Vec<_> = networks.iter().map(Network::contact).collect();
    let peers: Vec<_> = networks.iter().map(Network::peer).collect();
    let with_courier = |(index, network): (usize, Network)| {
        let courier = Courier::new(network.peer(), contacts[..index].to_vec(), &peers, total);
        (network, courier)
    };
    networks.into_iter().enumerate().map(with_courier).collect()
}

/// Runs all to their ends. If one panics the test ends at once, or the others would wait for it.
async fn run_all(all: Vec<(Network, Courier)>) -> Vec<(Courier, Traffic)> {
    let mut running: JoinSet<_> = all.into_iter().map(|(network, courier)| run(network, courier)).collect();
    let mut ended = Vec::new();
    while let Some(one) = running.join_next().await {
        ended.push(one.unwrap());
    }
    ended
}

pub(crate) fn assert_undisturbed(courier: &Courier) {
    let mut ups: Vec<_> = courier.history.iter().filter(|entry| entry.starts_with("up")).collect();
    let count = ups.len();
    ups.dedup();
    assert_eq!(ups.len(), count, "{:?}", courier.history);
    let is_expected = |entry: &&String| entry.starts_with("up") || entry.ends_with("it left");
    assert!(courier.history.iter().all(|entry| is_expected(&entry)), "{:?}", courier.history);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_peers_exchange_300_mebibytes() {
    within_reason(async {
        let total = 1200;
        for (courier, traffic) in run_all(couriers(2, total).await).await {
            assert_undisturbed(&courier);
            assert_eq!(traffic.received_frames, total + total / 10);
            assert_eq!((traffic.resumed_links, traffic.bad_streams), (0, 0));
            assert!(traffic.direct_bytes > traffic.sent_bytes / 2, "most of it went directly: {traffic:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_peers_exchange_with_each_other() {
    within_reason(async {
        for (courier, traffic) in run_all(couriers(3, 300).await).await {
            assert_undisturbed(&courier);
            assert_eq!(traffic.bad_streams, 0);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_loses_and_repeats_no_frame() {
    within_reason(async {
        let mut all = couriers(2, 400).await;
        let (network, courier) = &mut all[0];
        courier.disconnector = Some((network.disconnector(), 60));
        let ended = run_all(all).await;
        let resumed: u64 = ended.iter().map(|(_, traffic)| traffic.resumed_links).sum();
        for (courier, _) in &ended {
            assert_undisturbed(courier);
        }
        assert!(resumed > 0, "the connection was cut and came back");
    })
    .await;
}
