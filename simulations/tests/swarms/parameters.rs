//! Parameters: all members begin with the same ones, compare them, and notice one whose parameters differ.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use peergrad_collectives::plan::Topology;
use peergrad_core::io::{Event, Failure};
use peergrad_core::program::loader::{Loaded, Loader, TrainingConfig};
use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::{Message, Phase, TrainingMessage};
use peergrad_protocol::placement::Replicas;
use peergrad_protocol::view::MemberFault;
use peergrad_protocol::{Buffer, Frame};
use peergrad_simulations::cluster::Cluster;
use peergrad_simulations::filters::{Envelope, FrameAction};
use peergrad_simulations::host::HostId;
use peergrad_simulations::task::{FixedLoader, Squares};

use crate::common::{ended, events_of, found, join, lan, run_until, setup, training};

/// A task that draws other initial parameters than the one in it.
struct Shifted(Arc<dyn Task>);

impl Task for Shifted {
    fn manifest(&self) -> Manifest {
        self.0.manifest()
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        self.0.initial(seed, parameters);
        parameters.iter_mut().for_each(|parameter| *parameter += 0.5);
    }

    fn sample_count(&self) -> u32 {
        self.0.sample_count()
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        self.0.gradient(parameters, samples, gradient)
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        self.0.evaluate(parameters)
    }
}

/// A swarm of as many peers as there are loaders; the first one founds the run.
fn gathered(loaders: &[Arc<dyn Loader>]) -> (Cluster, Vec<HostId>) {
    let mut cluster = lan(5);
    let mut hosts = vec![found(&mut cluster, loaders.len(), setup(Arc::clone(&loaders[0]), None))];
    for loader in &loaders[1..] {
        hosts.push(join(&mut cluster, hosts[0], setup(Arc::clone(loader), None)));
    }
    (cluster, hosts)
}

fn run_out(cluster: &mut Cluster) {
    run_until(cluster, "every process ends", |cluster| cluster.hosts().running().next().is_none());
}

/// The digests of the final parameters of these hosts, each of which has finished the run.
fn digests(cluster: &Cluster, hosts: &[HostId]) -> BTreeSet<ContentDigest> {
    let digest = |host: &HostId| {
        let ended = ended(cluster, *host);
        assert_eq!(ended.outcome, Ok(()), "{host}");
        ContentDigest::of(ended.state.as_ref().expect("it trained").parameters.bytes())
    };
    hosts.iter().map(digest).collect()
}

fn loader(config: &TrainingConfig, is_shifted: bool) -> Arc<dyn Loader> {
    let fixed = FixedLoader::new(Squares::new(500, 740), config.clone());
    let task = Arc::clone(&fixed.loaded.task);
    let task = if is_shifted { Arc::new(Shifted(task)) } else { task };
    Arc::new(FixedLoader { loaded: Loaded::new(task, config.clone()), data: None })
}

#[test]
fn peers_that_draw_other_initial_parameters_train_with_those_of_the_founder() {
    for replicas in [Replicas::Number(1), Replicas::Number(2), Replicas::All] {
        for count in [2, 3, 5] {
            let config = TrainingConfig { replicas, epochs: 200, ..training(Topology::Direct) };
            // All that differ differ alike: they are not outvoted, but told.
            let loaders: Vec<_> = (0..count).map(|index| loader(&config, index % 2 == 1)).collect();
            let (mut cluster, hosts) = gathered(&loaders);
            run_out(&mut cluster);
            assert_eq!(digests(&cluster, &hosts).len(), 1, "{replicas:?}, {count} peers");
            let is_said = |event: &Event| matches!(event, Event::InitialParametersDiffer(_));
            let said = events_of(&cluster, hosts[0]).filter(|event| is_said(event)).count();
            assert_eq!(said, count / 2, "{replicas:?}, {count} peers");
        }
    }
}

/// Changes one bit of what the members of a step get, for one receiver.
fn alter_for(cluster: &mut Cluster, receiver: HostId, at_step: u64) {
    let mut is_done = false;
    cluster.add_filter(Box::new(move |envelope: &Envelope<'_>| {
        let Some(Message::InView { message: TrainingMessage::Segment(segment), view }) = envelope.message()
        else {
            return FrameAction::Pass;
        };
        let is_it = segment.phase == Phase::Gather && segment.step.0 == at_step && envelope.to == receiver;
        let Some(payload) = envelope.frame.payload.as_ref().filter(|_| is_it && !is_done) else {
            return FrameAction::Pass;
        };
        is_done = true;
        let mut bytes = payload.bytes().to_vec();
        bytes[3] ^= 0x40;
        let message = TrainingMessage::Segment(segment).in_view(view);
        FrameAction::Replace(vec![Frame::encode(&message, Some(Buffer::from_bytes(&bytes)))])
    }));
}

fn config_with_replicas_everywhere() -> TrainingConfig {
    let digest_every = std::num::NonZeroU64::new(10);
    TrainingConfig { replicas: Replicas::All, digest_every, epochs: 200, ..training(Topology::Direct) }
}

#[test]
fn a_member_with_other_parameters_is_left_out_and_gets_those_of_the_others() {
    let config = config_with_replicas_everywhere();
    for count in [3, 5] {
        let loaders: Vec<_> = (0..count).map(|_| loader(&config, false)).collect();
        let (mut cluster, hosts) = gathered(&loaders);
        let odd = hosts[count - 1];
        alter_for(&mut cluster, odd, 109);
        run_out(&mut cluster);
        assert_eq!(digests(&cluster, &hosts).len(), 1, "{count} peers");
        let excluded = |event: &Event| match event {
            Event::Excluded { quarantine, .. } => quarantine.map(|quarantine| quarantine.fault),
            _ => None,
        };
        let at = |host| events_of(&cluster, host).filter_map(excluded).collect::<Vec<_>>();
        assert_eq!(at(odd), [MemberFault::Parameters], "{count} peers");
        assert!(hosts[..count - 1].iter().all(|host| at(*host).is_empty()), "{count} peers");
        // The first step after which all compare their parameters is the 110th.
        let is_noticed = |event: &&Event| matches!(event, Event::FaultNoticed { .. });
        let before = events_of(&cluster, hosts[0]).take_while(|event| !is_noticed(event));
        let steps = before.filter(|event| matches!(event, Event::Committed(_))).count();
        assert!((110..130).contains(&steps), "{count} peers: noticed after {steps} steps");
    }
}

#[test]
fn two_members_with_different_parameters_end_the_run_with_an_error() {
    let config = config_with_replicas_everywhere();
    let (mut cluster, hosts) = gathered(&[loader(&config, false), loader(&config, false)]);
    alter_for(&mut cluster, hosts[1], 109);
    run_out(&mut cluster);
    for host in hosts {
        let ended = ended(&cluster, host);
        assert!(matches!(ended.outcome, Err(Failure::ParametersDiffer { .. })), "{:?}", ended.outcome);
        assert!(ended.state.is_none(), "nothing is saved");
    }
    assert!(cluster.now().0 < Duration::from_secs(60).as_nanos() as u64);
}
