//! Table chunks whose replicas are all gone.

use std::path::Path;
use std::time::Duration;

use peergrad_core::io::Event;
use peergrad_simulations::cluster::{Cluster, UserCommand};
use peergrad_simulations::host::{Crash, EntryMode, HostId};
use peergrad_simulations::scenario::file::{Size, parse};
use peergrad_simulations::simulation::Simulation;

use crate::common::run_until;

/// Five peers that train with parameters in a table; two of them store each chunk.
fn five(seed: u64) -> Simulation {
    let text = "about = \"lost\"\npeers = 5\n[links]\npreset = \"lan\"\n\
        [task]\nkind = \"squares\"\nparameters = 10000\nsample_time = \"10ms\"\n[run]\nepochs = 6\nbatch = 32\n\
        [run.sync]\nkind = \"ssp\"\n[expect]\npatience = \"20h\"\n";
    let scenario = parse("lost", text, Path::new("."), Size::Full).expect("it is a scenario");
    let mut simulation = Simulation::new(&scenario, seed);
    run_until(&mut simulation.cluster, "some clocks are over", |cluster| {
        cluster.history().commits.len() > 10
    });
    simulation
}

/// At the end all running peers have the same parameters.
fn run_to_the_end(mut simulation: Simulation, expected: usize) {
    run_until(&mut simulation.cluster, "all come to the end", |cluster| {
        cluster.hosts().running().next().is_none()
    });
    let is_state = |(_, _, event): &(_, _, Event)| match event {
        Event::Ended(ended) => ended.state.as_ref().map(|state| state.digest),
        _ => None,
    };
    let digests: Vec<_> = simulation.cluster.events().iter().filter_map(is_state).collect();
    assert!(digests.len() == expected && digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}

#[test]
fn lost_chunks_are_waited_for_until_a_user_declares_them_lost() {
    for seed in 0..12 {
        let [one, other] = [seed as usize % 5, (seed as usize + 1 + seed as usize / 5) % 5];
        declare_lost(seed, [one, other]);
    }
}

/// Two of the five crash at once, and a user declares what only they had as lost.
fn declare_lost(seed: u64, dead: [usize; 2]) {
    let mut simulation = five(seed);
    let cluster = &mut simulation.cluster;
    let hosts: Vec<HostId> = cluster.hosts().ids().collect();
    dead.iter().for_each(|index| cluster.crash(hosts[*index], Crash::Killed));
    let waits = |cluster: &Cluster| {
        let missing = |(_, host, event): &(_, HostId, Event)| match event {
            Event::ChunksMissing { chunks, .. } => Some((*host, *chunks)),
            _ => None,
        };
        cluster.events().iter().find_map(missing)
    };
    run_until(cluster, "chunks are missing", |cluster| waits(cluster).is_some());
    let (host, missing) = waits(cluster).expect("one waits");
    let later = cluster.now().after(Duration::from_secs(60));
    run_until(cluster, "time goes by", |cluster| cluster.now() >= later);
    let views = |cluster: &Cluster| {
        let installed = |event: &(_, _, Event)| matches!(event.2, Event::ViewInstalled { .. });
        cluster.events().iter().filter(|event| installed(event)).count()
    };
    let before = views(cluster);
    cluster.command(host, UserCommand::DeclareLost);
    run_until(cluster, "they go on", |cluster| views(cluster) == before + 3);
    let lost = |(_, _, event): &(_, _, Event)| matches!(event, Event::ChunksLost { chunks, .. } if *chunks == missing);
    assert_eq!(cluster.events().iter().filter(|event| lost(event)).count(), 3);
    run_to_the_end(simulation, 3);
}

#[test]
fn tables_restart_once_all_members_are_back_or_chunks_are_declared_lost() {
    for is_one_away in [false, true] {
        let mut simulation = five(1);
        let cluster = &mut simulation.cluster;
        let hosts: Vec<HostId> = cluster.hosts().ids().collect();
        hosts.iter().for_each(|host| cluster.crash(*host, Crash::Killed));
        let back = &hosts[usize::from(is_one_away)..];
        let run = cluster.run_id();
        for host in back {
            let bootstraps = back.iter().copied().filter(|other| other != host).collect();
            cluster.start(*host, EntryMode::Join { run, bootstraps });
        }
        let restored = |cluster: &Cluster| {
            let is_restored = |event: &(_, _, Event)| matches!(event.2, Event::Restored { .. });
            cluster.events().iter().filter(|event| is_restored(event)).count()
        };
        if is_one_away {
            let later = cluster.now().after(Duration::from_secs(110));
            run_until(cluster, "time goes by", |cluster| cluster.now() >= later);
            assert_eq!(restored(cluster), 0, "the other may be running somewhere");
            cluster.command(back[0], UserCommand::DeclareLost);
        }
        run_until(cluster, "the lost chunks restart", |cluster| restored(cluster) == back.len());
        run_to_the_end(simulation, back.len());
    }
}
