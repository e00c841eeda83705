//! Beginnings: which peers are admitted, where the data comes from, and what refused peers hear.

use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::plan::Topology;
use peergrad_core::io::{Event, Failure};
use peergrad_core::program::loader::Loader;
use peergrad_protocol::RunId;
use peergrad_protocol::message::Refusal;
use peergrad_simulations::cluster::{Cluster, UserCommand};
use peergrad_simulations::host::{EntryMode, HostId, HostSetup};

use crate::common::{
    assert_nobody_is_blamed, ended, events_of, found, join, lan, run_out, run_until, run_until_training,
    setup, slow_down, squares,
};

/// A host for the small task, without a data file.
fn without_data() -> HostSetup {
    setup(Arc::new(squares(Topology::Ring)), None)
}

/// Hosts that train the small task once they have `data`: one with the file, and one without it.
fn with_and_without(data: Arc<[u8]>) -> (HostSetup, HostSetup) {
    let mut loader = squares(Topology::Ring);
    loader.data = Some(Arc::clone(&data));
    let loader: Arc<dyn Loader> = Arc::new(loader);
    (setup(Arc::clone(&loader), Some(data)), setup(loader, None))
}

/// A founder that waits for three peers, and one joiner that is ready.
fn two_of_three() -> (Cluster, HostId, HostId) {
    let mut cluster = lan(0);
    let founder = found(&mut cluster, 3, without_data());
    let joiner = join(&mut cluster, founder, without_data());
    run_until(&mut cluster, "the joiner is ready", |cluster| {
        let peer = cluster.hosts().peer(joiner);
        events_of(cluster, founder).any(|event| {
            matches!(event, Event::PeerReady { peer: ready_peer, ready: 2, wanted: 3 } if *ready_peer == peer)
        })
    });
    (cluster, founder, joiner)
}

#[test]
fn data_that_a_joiner_lacks_comes_from_the_swarm() {
    let data = (0..3_000_000_u32).map(|index| (index * 7 + index / 255) as u8).collect();
    let (has_data, lacks_data) = with_and_without(data);
    let mut cluster = lan(0);
    let founder = found(&mut cluster, 3, has_data.clone());
    let with = join(&mut cluster, founder, has_data);
    let without = join(&mut cluster, founder, lacks_data);
    run_out(&mut cluster);
    let fetched =
        |host| events_of(&cluster, host).filter(|event| matches!(event, Event::FetchingData { .. })).count();
    assert_eq!((fetched(with), fetched(without)), (0, 92), "2.9 MiB in pieces of 32 KiB");
    for host in [founder, with, without] {
        assert_eq!(ended(&cluster, host).outcome, Ok(()));
    }
}

#[test]
fn a_founder_whose_disk_is_slow_still_ships_its_data() {
    let (has_data, lacks_data) = with_and_without(vec![3; 1_000_000].into());
    let mut cluster = lan(0);
    let slow_disk = HostSetup { reading_time: Duration::from_millis(100), ..has_data };
    let founder = found(&mut cluster, 2, slow_disk);
    let joiner = join(&mut cluster, founder, lacks_data);
    run_out(&mut cluster);
    for host in [founder, joiner] {
        assert_eq!(ended(&cluster, host).outcome, Ok(()));
    }
}

#[test]
fn a_joiner_that_still_prepares_when_the_run_begins_joins_later() {
    let (has_data, lacks_data) = with_and_without(vec![1; 3_000_000].into());
    let mut cluster = lan(0);
    let founder = found(&mut cluster, 2, has_data.clone());
    let quick = join(&mut cluster, founder, has_data);
    let late = join(&mut cluster, founder, lacks_data);
    slow_down(&mut cluster, &[founder, quick, late]);
    run_until_training(&mut cluster);
    assert!(events_of(&cluster, late).any(|event| matches!(event, Event::Welcomed { .. })));
    run_out(&mut cluster);
    for host in [founder, quick, late] {
        assert_eq!(ended(&cluster, host).outcome, Ok(()));
    }
    assert_nobody_is_blamed(&cluster);
}

#[test]
fn a_peer_that_comes_during_training_joins_through_any_member() {
    let mut cluster = lan(0);
    let founder = found(&mut cluster, 2, without_data());
    let member = join(&mut cluster, founder, without_data());
    run_until_training(&mut cluster);
    let late = join(&mut cluster, member, without_data());
    run_out(&mut cluster);
    for host in [founder, member, late] {
        assert_eq!(ended(&cluster, host).outcome, Ok(()));
    }
    let first = events_of(&cluster, late).find_map(|event| match event {
        Event::Committed(committed) => Some(committed.step.0),
        _ => None,
    });
    assert!(first > Some(0), "what was committed before is not its own: {first:?}");
}

#[test]
fn a_joiner_of_another_run_is_refused_with_the_reason() {
    let mut cluster = lan(0);
    let founder = found(&mut cluster, 2, without_data());
    let stranger = cluster.add(without_data());
    let other_run = Some(RunId([1; 32]));
    cluster.start(stranger, EntryMode::Join { run: other_run, bootstraps: vec![founder] });
    let member = join(&mut cluster, founder, without_data());
    run_out(&mut cluster);
    let run = cluster.run_id().expect("it was founded");
    let outcome = &ended(&cluster, stranger).outcome;
    let expected = Refusal::OtherRun { run };
    assert!(matches!(outcome, Err(Failure::Refused { refusal, .. }) if *refusal == expected), "{outcome:?}");
    for host in [founder, member] {
        assert_eq!(ended(&cluster, host).outcome, Ok(()));
    }
}

#[test]
fn joiners_hear_of_a_founder_that_gives_up() {
    let (mut cluster, founder, joiner) = two_of_three();
    cluster.command(founder, UserCommand::Leave);
    run_out(&mut cluster);
    assert_eq!(ended(&cluster, founder).outcome, Err(Failure::Left));
    let outcome = &ended(&cluster, joiner).outcome;
    let founder = cluster.hosts().peer(founder);
    assert!(matches!(outcome, Err(Failure::FounderLeft { by, .. }) if *by == founder), "{outcome:?}");
}

#[test]
fn a_founder_hears_why_a_joiner_gives_up() {
    let (mut cluster, founder, joiner) = two_of_three();
    cluster.command(joiner, UserCommand::Leave);
    let withdrawn = |cluster: &Cluster| {
        events_of(cluster, founder).find_map(|event| match event {
            Event::PeerWithdrawn { peer, reason, ready: 1, wanted: 3 } => Some((*peer, reason.clone())),
            _ => None,
        })
    };
    run_until(&mut cluster, "the founder hears of it", |cluster| withdrawn(cluster).is_some());
    assert_eq!(withdrawn(&cluster), Some((cluster.hosts().peer(joiner), Failure::Left.to_string())));
    assert_eq!(ended(&cluster, joiner).outcome, Err(Failure::Left));
}
