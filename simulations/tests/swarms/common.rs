//! Shared by the tests of whole swarms: a small task, hosts that train it, and functions that run a cluster and read its events.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::codec::Codec;
use peergrad_collectives::combine::Combine;
use peergrad_collectives::plan::Topology;
use peergrad_core::io::{Committed, Ended, Event};
use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_core::program::loader::{Dealing, Loader, TrainingConfig};
use peergrad_models::optimizer::{Optimizer, ParameterGroups};
use peergrad_models::schedule::Schedule;
use peergrad_protocol::placement::Replicas;
use peergrad_simulations::cluster::Cluster;
use peergrad_simulations::compute_model::ComputeModel;
use peergrad_simulations::disk::Disk;
use peergrad_simulations::host::{EntryMode, HostId, HostSetup};
use peergrad_simulations::invariants::{InvariantSetup, Invariants};
use peergrad_simulations::links::Links;
use peergrad_simulations::liveness::describe_waiting;
use peergrad_simulations::oracles::replay::Replay;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::task::{FixedLoader, Squares};

/// Parameters of [`squares`].
pub(crate) const PARAMETERS: usize = 5000;
/// Samples of [`squares`]; batches of 30 do not divide them.
pub(crate) const SAMPLES: u32 = 740;
/// Steps of [`squares`]: 8 epochs of 24 whole batches and a smaller one.
pub(crate) const STEPS: usize = 200;

/// The configuration of the small task: digests after every step, and segments that do not divide a shard.
pub(crate) fn training(topology: Topology) -> TrainingConfig {
    TrainingConfig {
        seed: 3,
        batch_size: 30,
        local_steps: 1,
        round_duration: None,
        epochs: 8,
        rule: Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 },
        groups: ParameterGroups::default(),
        clip_norm: None,
        bounds: None,
        schedule: Schedule::constant(0.01),
        fixed_topology: Some(topology),
        gradients: Codec::F32,
        parameters: Codec::F32,
        combine: Combine::Sum,
        dealing: Dealing::EVEN,
        backups: None,
        segment_elements: 100,
        replicas: Replicas::Number(1),
        digest_every: NonZeroU64::new(1),
        patience: Duration::from_secs(10),
        evaluation: None,
        checkpoint_every: None,
        checkpoints_kept: 1,
        policy: PartitionPolicy::Majority,
        is_shuffled: true,
    }
}

/// A loader of the small task.
pub(crate) fn squares(topology: Topology) -> FixedLoader {
    FixedLoader::new(Squares::new(PARAMETERS, SAMPLES), training(topology))
}

/// An empty cluster on a local network.
pub(crate) fn lan(seed: u64) -> Cluster {
    Cluster::new(seed, Links::lan())
}

/// A host with this loader, with or without the data file.
pub(crate) fn setup(loader: Arc<dyn Loader>, data: Option<Arc<[u8]>>) -> HostSetup {
    HostSetup {
        loader,
        data,
        compute_model: ComputeModel::steady(Duration::from_micros(20)),
        disk: Disk::honest(Duration::from_millis(1)),
        reading_time: Duration::ZERO,
        capacity: Some(1),
    }
}

/// The hosts compute so slowly that a run outlasts what happens in it.
pub(crate) fn slow_down(cluster: &mut Cluster, hosts: &[HostId]) {
    for host in hosts {
        cluster.setup_mut(*host).compute_model = ComputeModel::steady(Duration::from_millis(1));
    }
}

/// Adds a host whose peer founds a run of `peers`.
pub(crate) fn found(cluster: &mut Cluster, peers: usize, setup: HostSetup) -> HostId {
    let host = cluster.add(setup);
    cluster.start(host, EntryMode::Found { specification: b"squares"[..].into(), peers });
    host
}

/// Adds a host whose peer joins the run that it finds at `bootstrap`.
pub(crate) fn join(cluster: &mut Cluster, bootstrap: HostId, setup: HostSetup) -> HostId {
    let host = cluster.add(setup);
    cluster.start(host, EntryMode::Join { run: None, bootstraps: vec![bootstrap] });
    host
}

/// A founder and `count - 1` joiners on a local network, under all invariants and the replay.
pub(crate) fn gathered(count: usize, fixed: &Arc<FixedLoader>, seed: u64) -> (Cluster, Vec<HostId>) {
    let mut cluster = lan(seed);
    let known =
        InvariantSetup { loaded: fixed.loaded.clone(), integers: None, patience: Duration::from_secs(30) };
    let mut invariants = Invariants::all(&known);
    invariants.add(Replay::new(&fixed.loaded));
    cluster.set_invariants(invariants);
    let setup = || setup(Arc::clone(fixed) as Arc<dyn Loader>, None);
    let mut hosts = vec![found(&mut cluster, count, setup())];
    for index in 1..count {
        // Most joiners have the address of another joiner, not of the founder.
        hosts.push(join(&mut cluster, hosts[index / 2], setup()));
    }
    (cluster, hosts)
}

/// As [`gathered`], run to the end.
pub(crate) fn swarm(count: usize, fixed: &Arc<FixedLoader>, seed: u64) -> (Cluster, Vec<HostId>) {
    let (mut cluster, hosts) = gathered(count, fixed, seed);
    run_out(&mut cluster);
    (cluster, hosts)
}

/// Processes events until a condition holds, which must happen within [`PATIENCE`].
#[track_caller]
pub(crate) fn run_until(cluster: &mut Cluster, expected: &str, is_so: impl Fn(&Cluster) -> bool) {
    let latest = cluster.now().after(PATIENCE);
    while !is_so(cluster) {
        let is_waiting = cluster.tick() && cluster.now() <= latest;
        assert!(is_waiting, "expected that {expected}; {}", describe_waiting(cluster));
    }
}

/// Processes events until a member has begun to train.
#[track_caller]
pub(crate) fn run_until_training(cluster: &mut Cluster) {
    run_until(cluster, "training begins", |cluster| cluster.history().began.is_some());
}

/// Processes events until every process has ended; no invariant may be violated.
#[track_caller]
pub(crate) fn run_out(cluster: &mut Cluster) {
    run_until(cluster, "every process ends", |cluster| cluster.hosts().running().next().is_none());
    assert_eq!(cluster.invariants().violations(), []);
}

/// The events that the peer on a host reported to its user, in order.
pub(crate) fn events_of(cluster: &Cluster, host: HostId) -> impl Iterator<Item = &Event> {
    cluster.events().iter().filter(move |(_, at, _)| *at == host).map(|(_, _, event)| event)
}

/// How the run ended for the peer on a host.
#[track_caller]
pub(crate) fn ended(cluster: &Cluster, host: HostId) -> &Ended {
    let mut ends = events_of(cluster, host).filter_map(|event| match event {
        Event::Ended(ended) => Some(ended),
        _ => None,
    });
    let Some(end) = ends.next() else { panic!("{host} never ended: {}", describe_waiting(cluster)) };
    assert!(ends.next().is_none(), "{host} ended twice");
    end
}

/// The steps that the peer on a host committed: each once and in order.
#[track_caller]
pub(crate) fn committed(cluster: &Cluster, host: HostId) -> Vec<Committed> {
    let committed = events_of(cluster, host).filter_map(|event| match event {
        Event::Committed(committed) => Some(*committed),
        _ => None,
    });
    let committed: Vec<Committed> = committed.collect();
    assert!(committed.iter().enumerate().all(|(index, committed)| committed.step.0 == index as u64));
    committed
}

/// The final parameters, which are equal at all peers.
#[track_caller]
pub(crate) fn parameters(simulation: &Simulation) -> Vec<f32> {
    let cluster = &simulation.cluster;
    let state = |host| ended(cluster, host).state.as_ref().expect("it has trained");
    let states: Vec<_> = cluster.hosts().ids().map(state).collect();
    assert!(states.windows(2).all(|pair| pair[0].digest == pair[1].digest), "one model in the end");
    states[0].parameters.to_vec()
}

/// Checks that no peer has rejected a message as an offence.
#[track_caller]
pub(crate) fn assert_nobody_is_blamed(cluster: &Cluster) {
    for (_, host, event) in cluster.events() {
        assert!(!matches!(event, Event::Violation { .. }), "at {host}: {event:?}");
    }
}

/// Virtual time within which an expected condition holds; losses are noticed after ten seconds at most.
const PATIENCE: Duration = Duration::from_secs(120);
