//! Training in virtual time: a swarm computes what one loop computes, members agree bit for bit, and a run's beginnings
//! and endings are what a user is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad::alone::train_alone;
use peergrad::io::{Ended, Event, Failure};
use peergrad::loader::{Loader, Training};
use peergrad::optimizer::Rule;
use peergrad::schedule::Schedule;
use peergrad::task::{Evaluation, Task};
use peergrad_collectives::plan::Topology;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::Refusal;
use peergrad_protocol::{PeerId, RunId};
use peergrad_simulations::cluster::{Cluster, Settings};
use peergrad_simulations::toy::{Fixed, Toy};

const ADAM: Rule = Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };

fn training(topology: Topology) -> Training {
    Training {
        seed: 3,
        batch_size: 30,
        passes: 8,
        rule: ADAM,
        schedule: Schedule::constant(0.01),
        topology,
        segment_elements: 100,
        digest_every: 1,
    }
}

fn toy(topology: Topology) -> Fixed {
    Fixed::new(Toy::new(5000, 740), training(topology))
}

/// A founder and `count - 1` joiners, run to the end.
fn swarm(count: u8, loader: &Arc<Fixed>, seed: u64) -> (Cluster, Vec<PeerId>) {
    let (mut cluster, peers) = gathered(count, loader, seed);
    cluster.run();
    (cluster, peers)
}

fn gathered(count: u8, loader: &Arc<Fixed>, seed: u64) -> (Cluster, Vec<PeerId>) {
    let mut cluster = Cluster::new(Settings { seed, ..Settings::default() });
    let loader = |_| Arc::clone(loader) as Arc<dyn Loader>;
    let founder = cluster.found(0, usize::from(count), b"toy"[..].into(), loader(0), None);
    let mut peers = vec![founder];
    for name in 1..count {
        // Every other one is told of a joiner, not of the founder.
        let bootstrap = peers[usize::from(name / 2)];
        peers.push(cluster.join(name, None, bootstrap, loader(name), None));
    }
    (cluster, peers)
}

fn ended(cluster: &Cluster, peer: PeerId) -> &Ended {
    let mut ends = cluster.events.iter().filter_map(|(_, at, event)| match event {
        Event::Ended(ended) if *at == peer => Some(ended),
        _ => None,
    });
    let end = ends.next().unwrap_or_else(|| panic!("{peer:?} never ended: {:?}", cluster.events.last()));
    assert!(ends.next().is_none(), "{peer:?} ended twice");
    end
}

fn losses(cluster: &Cluster, peer: PeerId) -> Vec<f64> {
    let committed = cluster.events.iter().filter_map(|(_, at, event)| match event {
        Event::Committed(committed) if *at == peer => Some(committed),
        _ => None,
    });
    let committed: Vec<_> = committed.collect();
    assert!(committed.iter().enumerate().all(|(index, committed)| committed.step.0 == index as u64));
    committed.iter().map(|committed| committed.loss).collect()
}

#[test]
fn a_swarm_of_any_size_follows_the_plain_reference() {
    for topology in [Topology::Ring, Topology::Direct] {
        let loader = Arc::new(toy(topology));
        let mut plain_losses = Vec::new();
        let plain_parameters = train_alone(&loader.loaded, |step| plain_losses.push(step.loss));
        for count in [1, 2, 4, 8] {
            let (cluster, peers) = swarm(count, &loader, 11);
            for (_, at, event) in &cluster.events {
                assert!(!matches!(event, Event::Violation { .. }), "at {at:?}: {event:?}");
            }
            for peer in peers {
                assert_eq!(ended(&cluster, peer).outcome, Ok(()));
                let losses = losses(&cluster, peer);
                assert_eq!(losses.len(), 200);
                for (step, (ours, plain)) in losses.iter().zip(&plain_losses).enumerate() {
                    let apart = (ours - plain).abs() / plain.abs();
                    assert!(apart < 5e-6, "{count} peers, step {step}: {ours} and {plain}");
                }
                let state = ended(&cluster, peer).state.as_ref().expect("it trained");
                let pairs = state.parameters.iter().zip(&plain_parameters);
                assert!(pairs.clone().all(|(ours, plain)| (ours - plain).abs() < 1e-4));
                assert_eq!(state.samples, 8 * 740);
            }
        }
    }
}

#[test]
fn members_hold_the_same_bits_after_every_step() {
    let (cluster, peers) = swarm(5, &Arc::new(toy(Topology::Ring)), 2);
    let mut digests: BTreeMap<u64, Vec<ContentDigest>> = BTreeMap::new();
    for (_, _, event) in &cluster.events {
        if let Event::Committed(committed) = event {
            let digest = committed.digest.expect("asked for at every step");
            digests.entry(committed.step.0).or_default().push(digest);
        }
    }
    assert_eq!(digests.len(), 200);
    for (step, digests) in digests {
        assert_eq!(digests.len(), peers.len());
        assert!(digests.iter().all(|digest| *digest == digests[0]), "members differ after step {step}");
    }
}

#[test]
fn one_seed_gives_one_run_and_another_another() {
    let loader = Arc::new(toy(Topology::Ring));
    let trace = |seed| swarm(4, &loader, seed).0.trace_hash();
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

#[test]
fn optimizer_memory_falls_with_the_number_of_members() {
    let loader = Arc::new(toy(Topology::Ring));
    for count in [1_u8, 2, 4, 8] {
        let (cluster, peers) = swarm(count, &loader, 1);
        let sizes: Vec<u64> = peers
            .iter()
            .map(|peer| ended(&cluster, *peer).state.as_ref().expect("it trained").optimizer_bytes)
            .collect();
        // Two moments, committed and pending, of 5,000 parameters.
        assert_eq!(sizes.iter().sum::<u64>(), 2 * 2 * 5000 * 4);
        let fair = 2 * 2 * 5000 * 4 / u64::from(count);
        assert!(sizes.iter().all(|size| *size <= fair * 5 / 4 + 16 * 16), "{sizes:?} of {fair}");
    }
}

#[test]
fn data_that_a_joiner_lacks_comes_from_the_swarm() {
    let mut loader = toy(Topology::Ring);
    let data: Arc<[u8]> = (0..3_000_000_u32).map(|index| (index * 7 + index / 255) as u8).collect();
    loader.data = Some(Arc::clone(&data));
    let loader: Arc<dyn Loader> = Arc::new(loader);
    let mut cluster = Cluster::new(Settings::default());
    let founder = cluster.found(0, 3, b"toy"[..].into(), Arc::clone(&loader), Some(Arc::clone(&data)));
    let with = cluster.join(1, None, founder, Arc::clone(&loader), Some(data));
    let without = cluster.join(2, None, founder, loader, None);
    cluster.run();
    let fetched = |peer| {
        cluster
            .events
            .iter()
            .filter(|(_, at, event)| *at == peer && matches!(event, Event::Fetching { .. }))
            .count()
    };
    assert_eq!((fetched(with), fetched(without)), (0, 92), "2.9 MiB in pieces of 32 KiB");
    for peer in [founder, with, without] {
        assert_eq!(ended(&cluster, peer).outcome, Ok(()));
    }
}

#[test]
fn a_lost_peer_is_named_and_the_last_committed_state_stands() {
    let loader = Arc::new(toy(Topology::Ring));
    for kill_at in [0, 1, 2, 500, 2000, 5000] {
        let (mut cluster, peers) = gathered(4, &loader, 9);
        while !cluster.events.iter().any(|(_, _, event)| matches!(event, Event::Began)) {
            assert!(cluster.tick());
        }
        for _ in 0..kill_at {
            cluster.tick();
        }
        let victim = peers[2];
        cluster.kill(victim);
        cluster.run();
        let digest_after = |steps: u64, peer: PeerId| {
            cluster.events.iter().find_map(|(_, at, event)| match event {
                Event::Committed(committed) if *at == peer && committed.step.0 + 1 == steps => {
                    committed.digest
                }
                _ => None,
            })
        };
        for &peer in peers.iter().filter(|&&peer| peer != victim) {
            let end = ended(&cluster, peer);
            assert!(
                matches!(&end.outcome, Err(Failure::PeerLost { peer, .. }) if *peer == victim),
                "{end:?}"
            );
            let state = end.state.as_ref().expect("it trained");
            if state.steps > 0 {
                assert_eq!(Some(state.digest), digest_after(state.steps, peer), "killed at event {kill_at}");
            }
        }
    }
}

#[test]
fn a_peer_lost_at_the_closing_barrier_leaves_nobody_waiting() {
    for topology in [Topology::Ring, Topology::Direct] {
        let mut fixed = toy(topology);
        fixed.loaded.training.passes = 1;
        let loader = Arc::new(fixed);
        let (mut cluster, peers) = gathered(4, &loader, 9);
        let mut event_count = 0;
        while cluster.tick() {
            event_count += 1;
        }
        assert_eq!(ended(&cluster, peers[0]).outcome, Ok(()));
        for kill_at in (event_count - 300..event_count).step_by(7) {
            for victim in 0..peers.len() {
                let (mut cluster, peers) = gathered(4, &loader, 9);
                (0..kill_at).for_each(|_| assert!(cluster.tick()));
                cluster.kill(peers[victim]);
                cluster.run();
                for peer in peers.iter().filter(|&&peer| peer != peers[victim]) {
                    ended(&cluster, *peer);
                }
            }
        }
    }
}

#[test]
fn a_joiner_that_prepares_while_the_run_begins_is_told_so() {
    let (here, slow) = (Arc::new(toy(Topology::Ring)), Arc::new(toy(Topology::Ring)));
    let data: Arc<[u8]> = vec![1; 3_000_000].into();
    let with_data = |loader: Arc<Fixed>| {
        let mut loader = Arc::into_inner(loader).expect("ours alone");
        loader.data = Some(Arc::clone(&data));
        Arc::new(loader) as Arc<dyn Loader>
    };
    let (here, slow) = (with_data(here), with_data(slow));
    let mut cluster = Cluster::new(Settings::default());
    let founder = cluster.found(0, 2, b"toy"[..].into(), Arc::clone(&here), Some(Arc::clone(&data)));
    let quick = cluster.join(1, None, founder, here, Some(Arc::clone(&data)));
    let late = cluster.join(2, None, founder, slow, None);
    cluster.run();
    for peer in [founder, quick] {
        assert_eq!(ended(&cluster, peer).outcome, Ok(()));
    }
    let outcome = &ended(&cluster, late).outcome;
    assert!(matches!(outcome, Err(Failure::Refused { refusal: Refusal::Started, .. })), "{outcome:?}");
    assert!(!cluster.events.iter().any(|(_, _, event)| matches!(event, Event::Violation { .. })));
}

#[test]
fn joiners_hear_of_a_founder_that_gives_up() {
    let loader: Arc<dyn Loader> = Arc::new(toy(Topology::Ring));
    let mut cluster = Cluster::new(Settings::default());
    let founder = cluster.found(0, 3, b"toy"[..].into(), Arc::clone(&loader), None);
    let joiner = cluster.join(1, None, founder, loader, None);
    cluster.run();
    cluster.leave(founder);
    cluster.run();
    assert_eq!(ended(&cluster, founder).outcome, Err(Failure::Left));
    let outcome = &ended(&cluster, joiner).outcome;
    assert!(matches!(outcome, Err(Failure::NotFounded { by, .. }) if *by == founder), "{outcome:?}");
}

#[test]
fn a_founder_hears_why_a_joiner_gives_up() {
    let loader: Arc<dyn Loader> = Arc::new(toy(Topology::Ring));
    let mut cluster = Cluster::new(Settings::default());
    let founder = cluster.found(0, 3, b"toy"[..].into(), Arc::clone(&loader), None);
    let joiner = cluster.join(1, None, founder, loader, None);
    cluster.run();
    cluster.leave(joiner);
    cluster.run();
    let said = cluster.events.iter().find_map(|(_, at, event)| match event {
        Event::Withdrawn { peer, reason, ready: 1, wanted: 3 } if *at == founder => Some((*peer, reason)),
        _ => None,
    });
    assert_eq!(said, Some((joiner, &Failure::Left.to_string())));
}

#[test]
fn a_founder_whose_disk_is_slow_still_ships_its_data() {
    let mut loader = toy(Topology::Ring);
    let data: Arc<[u8]> = vec![3; 1_000_000].into();
    loader.data = Some(Arc::clone(&data));
    let loader: Arc<dyn Loader> = Arc::new(loader);
    let disk_time = std::time::Duration::from_millis(100);
    let mut cluster = Cluster::new(Settings { disk_time, ..Settings::default() });
    let founder = cluster.found(0, 2, b"toy"[..].into(), Arc::clone(&loader), Some(data));
    let joiner = cluster.join(1, None, founder, loader, None);
    cluster.run();
    for peer in [founder, joiner] {
        assert_eq!(ended(&cluster, peer).outcome, Ok(()));
    }
}

#[test]
fn a_peer_that_comes_too_late_or_to_another_run_is_told_so() {
    let loader: Arc<dyn Loader> = Arc::new(toy(Topology::Ring));
    let mut cluster = Cluster::new(Settings::default());
    let founder = cluster.found(0, 2, b"toy"[..].into(), Arc::clone(&loader), None);
    let other = RunId([1; 32]);
    let stranger = cluster.join(1, Some(other), founder, Arc::clone(&loader), None);
    let member = cluster.join(2, None, founder, Arc::clone(&loader), None);
    while !cluster.events.iter().any(|(_, _, event)| matches!(event, Event::Began)) {
        assert!(cluster.tick());
    }
    let late = cluster.join(3, None, member, loader, None);
    cluster.run();
    let refusal = |peer| match &ended(&cluster, peer).outcome {
        Err(Failure::Refused { refusal, .. }) => *refusal,
        outcome => panic!("{outcome:?}"),
    };
    assert!(matches!(refusal(stranger), Refusal::OtherRun { run } if run == RunId::derive(b"toy", &[7; 32])));
    assert_eq!(refusal(late), Refusal::Started);
    for peer in [founder, member] {
        assert_eq!(ended(&cluster, peer).outcome, Ok(()));
    }
}

/// A task whose gradient overflows for some samples, in ways that a worker sees, and in one that only a sum shows.
struct Overflowing(Toy);

impl Task for Overflowing {
    fn manifest(&self) -> Manifest {
        self.0.manifest()
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        self.0.initial(seed, parameters);
    }

    fn sample_count(&self) -> u32 {
        self.0.sample_count()
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        let loss = self.0.gradient(parameters, samples, gradient);
        if samples.contains(&5) {
            gradient[17] = f32::NAN;
        }
        // Finite at each member, infinite in their sum.
        gradient[18] = 3e38;
        loss
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        self.0.evaluate(parameters)
    }
}

#[test]
fn an_overflow_is_left_out_and_told_and_ruins_nobody() {
    let loader = Arc::new(Fixed::new(Overflowing(Toy::new(5000, 740)), training(Topology::Ring)));
    let (cluster, peers) = swarm(3, &loader, 4);
    let states: Vec<_> =
        peers.iter().map(|peer| ended(&cluster, *peer).state.as_ref().expect("it trained")).collect();
    for state in &states {
        assert_eq!(state.digest, states[0].digest);
        assert!(state.parameters.iter().all(|parameter| parameter.is_finite()));
        // The part of the batch that sample 5 was dealt to, once a pass.
        assert_eq!((state.left_out, state.samples), (80, 8 * 740 - 80));
    }
    assert!(states[0].evaluation.expect("it finished").loss < 0.2, "the others were trained");
}
