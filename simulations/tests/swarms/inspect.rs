//! Inspection: how members see each other while faults happen; and inspecting a run does not change it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{
    PARAMETERS, gathered, join, run_out, run_until, run_until_training, setup, slow_down, squares,
};
use peergrad_collectives::plan::Topology;
use peergrad_core::node_report::{Condition, MemberDetails, NodeReport};
use peergrad_core::program::loader::Loader;
use peergrad_simulations::cluster::{Cluster, UserCommand};
use peergrad_simulations::host::{Crash, HostId};
use peergrad_simulations::task::FixedLoader;

fn task() -> Arc<FixedLoader> {
    Arc::new(squares(Topology::Direct))
}

fn member(cluster: &Cluster, host: HostId) -> Option<MemberDetails> {
    match cluster.node_report(host)? {
        NodeReport::Member(member) => Some(*member),
        _ => None,
    }
}

/// The condition in which one member sees another; `None` if that one is not in its view.
fn condition(cluster: &Cluster, host: HostId, of: HostId) -> Option<Condition> {
    let peer = cluster.hosts().peer(of);
    Some(member(cluster, host)?.members.iter().find(|seen| seen.peer == peer)?.condition)
}

/// All conditions in which a host is seen until something happens.
fn on_the_way(
    cluster: &mut Cluster,
    host: HostId,
    of: HostId,
    is_there: impl Fn(&Cluster) -> bool,
) -> BTreeSet<String> {
    let seen = std::cell::RefCell::new(BTreeSet::new());
    run_until(cluster, "it gets there", |cluster| {
        seen.borrow_mut().insert(format!("{:?}", condition(cluster, host, of)));
        is_there(cluster)
    });
    seen.into_inner()
}

fn names(conditions: &[Option<Condition>]) -> BTreeSet<String> {
    conditions.iter().map(|condition| format!("{condition:?}")).collect()
}

#[test]
fn a_sleeping_member_is_suspected_before_others_continue_without_it() {
    let (mut cluster, hosts) = gathered(4, &task(), 3);
    slow_down(&mut cluster, &hosts);
    run_until_training(&mut cluster);
    run_until(&mut cluster, "all work", |cluster| {
        hosts.iter().all(|of| condition(cluster, hosts[0], *of) == Some(Condition::Working))
    });
    cluster.sleep(hosts[2]);
    let is_gone = |cluster: &Cluster| condition(cluster, hosts[0], hosts[2]).is_none();
    let thought = on_the_way(&mut cluster, hosts[0], hosts[2], is_gone);
    assert_eq!(thought, names(&[Some(Condition::Working), Some(Condition::Suspected), None]));
    cluster.wake(hosts[2]);
    let is_back = |cluster: &Cluster| condition(cluster, hosts[0], hosts[2]) == Some(Condition::Working);
    let thought = on_the_way(&mut cluster, hosts[0], hosts[2], is_back);
    assert!(
        thought.is_subset(&names(&[
            None,
            Some(Condition::Connecting),
            Some(Condition::CatchingUp),
            Some(Condition::Working)
        ])),
        "{thought:?}"
    );
    run_out(&mut cluster);
}

#[test]
fn a_minority_is_paused_and_reports_how_many_members_it_needs() {
    let (mut cluster, hosts) = gathered(3, &task(), 4);
    run_until_training(&mut cluster);
    cluster.crash(hosts[1], Crash::PowerLost);
    cluster.crash(hosts[2], Crash::PowerLost);
    run_until(&mut cluster, "it is paused", |cluster| {
        member(cluster, hosts[0]).is_some_and(|member| member.paused == Some((1, 2)))
    });
    assert_eq!(condition(&cluster, hosts[0], hosts[0]), Some(Condition::Paused));
    for other in &hosts[1..] {
        let thought = condition(&cluster, hosts[0], *other).unwrap();
        assert!(matches!(thought, Condition::Unreachable | Condition::Suspected), "{thought:?}");
        assert_eq!(cluster.node_report(*other), None, "there is no process");
    }
}

#[test]
fn joiners_and_leavers_are_reported_and_every_parameter_has_an_owner() {
    let fixed = task();
    let (mut cluster, mut hosts) = gathered(3, &fixed, 5);
    run_until_training(&mut cluster);
    let fresh = join(&mut cluster, hosts[0], setup(Arc::clone(&fixed) as Arc<dyn Loader>, None));
    let peer = cluster.hosts().peer(fresh);
    run_until(&mut cluster, "somebody hears of it", |cluster| {
        hosts
            .iter()
            .filter_map(|host| member(cluster, *host))
            .any(|member| member.joiners.iter().any(|comer| comer.0 == peer))
    });
    assert!(matches!(cluster.node_report(fresh), Some(NodeReport::Join { .. })));
    let is_in = |cluster: &Cluster| condition(cluster, hosts[0], fresh) == Some(Condition::Working);
    let thought = on_the_way(&mut cluster, hosts[0], fresh, is_in);
    assert!(thought.contains(&format!("{:?}", Some(Condition::CatchingUp))), "{thought:?}");
    hosts.push(fresh);
    cluster.command(hosts[1], UserCommand::Leave);
    let is_gone = |cluster: &Cluster| condition(cluster, hosts[0], hosts[1]).is_none();
    let thought = on_the_way(&mut cluster, hosts[0], hosts[1], |cluster| {
        for member in hosts.iter().filter_map(|host| member(cluster, *host)) {
            assert_eq!(member.members.iter().map(|seen| seen.owned).sum::<usize>(), PARAMETERS);
        }
        is_gone(cluster)
    });
    assert!(thought.contains(&format!("{:?}", Some(Condition::HandingOver))), "{thought:?}");
    run_out(&mut cluster);
    assert!(
        hosts.iter().all(|host| cluster
            .node_report(*host)
            .is_none_or(|node_report| node_report == NodeReport::Ended))
    );
}

/// The same run, once inspected after every event.
#[test]
fn inspection_does_not_change_a_run() {
    let run = |is_watched: bool| {
        let (mut cluster, hosts) = gathered(4, &task(), 6);
        run_until_training(&mut cluster);
        cluster.crash(hosts[3], Crash::PowerLost);
        run_until(&mut cluster, "every process ends", |cluster| {
            if is_watched {
                hosts.iter().for_each(|host| drop(cluster.node_report(*host)));
            }
            cluster.hosts().running().next().is_none()
        });
        cluster.trace().digest()
    };
    assert_eq!(run(false), run(true));
}
