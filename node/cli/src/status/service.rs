//! The service: puts together what a peer tells of itself, for whoever asks.
//!
//! Three know parts of it: the node (members, view, steps), the network (links), the observer (what happened, rates). Many
//! may ask at once, on sockets and over the network; those who come within a moment of each other are given the same answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::node::Wait;
use peergrad_core::node_report::{Condition, MemberDetails, NodeReport, ObservedMember};
use peergrad_core::partition_policy::PartitionPolicy;
use peergrad_net::{AdminRequest, Lane, LinkSnapshot, NetworkHandle, NetworkStatus, Unreached};
use peergrad_protocol::view::Expulsion;
use peergrad_protocol::{Instant, PeerId};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

use super::observer::{Observations, ObservedState};
use super::{
    EventStatus, Expelled, FORMAT, LinkStatus, MemberState, MemberStatus, OtherState, OtherStatus, Phase,
    RekeyStatus, Status, TrafficStatus, TrainingStatus, UnreachedStatus, ViewStatus,
};
use crate::text::event_json::cause_text;
use crate::text::event_text::{regrouping_text, short_names};
use crate::text::text_table::{count, plural};

mod commands;

/// Where to ask how a peer is. Its clones are one service.
#[derive(Clone, Debug)]
pub struct StatusService {
    inner: Arc<ServiceState>,
}

#[derive(Debug)]
struct ServiceState {
    me: PeerId,
    admin_requests: mpsc::Sender<AdminRequest>,
    network: NetworkHandle,
    observations: Arc<Observations>,
    /// The last answer, and when it was given.
    last: Mutex<Option<(Instant, Arc<Status>)>>,
}

/// The driver had no time to say how its node stands.
struct Busy;

/// What a status is put together from.
struct StatusParts<'a> {
    me: PeerId,
    now: Instant,
    node_report: Result<NodeReport, Busy>,
    links: &'a BTreeMap<PeerId, LinkStatus>,
    unreached: &'a [Unreached],
    recent: &'a ObservedState,
}

impl StatusService {
    /// A service, and where the driver hears who asks.
    #[must_use]
    pub fn new(
        me: PeerId,
        network: NetworkHandle,
        observations: Arc<Observations>,
    ) -> (Self, mpsc::Receiver<AdminRequest>) {
        let (admin_requests, asked) = mpsc::channel(ADMIN_REQUESTS_MAX);
        let inner = ServiceState { me, admin_requests, network, observations, last: Mutex::default() };
        (Self { inner: Arc::new(inner) }, asked)
    }

    /// How the peer is.
    pub async fn status(&self) -> Arc<Status> {
        let inner = &*self.inner;
        // Those who come meanwhile wait here, and are given the same.
        let mut last = inner.last.lock().await;
        let now = inner.observations.clock.now();
        if let Some((at, status)) = &*last
            && now.since(*at) < FRESH
        {
            return Arc::clone(status);
        }
        let status = Arc::new(inner.collect().await);
        *last = Some((inner.observations.clock.now(), Arc::clone(&status)));
        status
    }

    /// What happened, for whoever counts.
    pub(super) fn observations(&self) -> &Observations {
        &self.inner.observations
    }
}

impl ServiceState {
    /// How this member is, if it is one.
    async fn member(&self) -> Result<MemberDetails, String> {
        match self.node_report().await {
            Ok(NodeReport::Member(member)) => Ok(*member),
            Ok(_) => Err("this peer is no member now: ask at one that trains".to_owned()),
            Err(Busy) => Err("this peer is too busy: try again".to_owned()),
        }
    }

    fn submit(&self, request: AdminRequest) -> Result<(), String> {
        let asked = self.admin_requests.try_send(request);
        asked.map_err(|_| "this peer is too busy, or ends: try again".to_owned())
    }

    async fn collect(&self) -> Status {
        let node_report = self.node_report().await;
        let NetworkStatus { links, unreached } =
            timeout(ANSWER_MAX, self.network.status()).await.unwrap_or_default();
        let (now, bytes) = (self.observations.clock.now(), self.observations.counters.by_peer());
        let recent = self.observations.recent();
        let rates = recent.bytes_per_second(now, &bytes);
        let links = links.into_iter().map(|link| (link.peer, link_status(link, &bytes, &rates))).collect();
        let traffic = self.observations.counters.read();
        let sum = |of: fn(&(f64, f64)) -> f64| rates.values().map(of).sum();
        let parts = StatusParts {
            me: self.me,
            now,
            node_report,
            links: &links,
            unreached: &unreached,
            recent: &recent,
        };
        parts.status(TrafficStatus {
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
            sent_bytes_per_second: sum(|rates| rates.0),
            received_bytes_per_second: sum(|rates| rates.1),
        })
    }

    async fn node_report(&self) -> Result<NodeReport, Busy> {
        let (reply, answer) = oneshot::channel();
        match self.admin_requests.try_send(AdminRequest::Report(reply)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(Busy),
            Err(TrySendError::Closed(_)) => return Ok(NodeReport::Ended),
        }
        match timeout(ANSWER_MAX, answer).await {
            Ok(Ok(node_report)) => Ok(node_report),
            // It ended meanwhile.
            Ok(Err(_)) => Ok(NodeReport::Ended),
            Err(_) => Err(Busy),
        }
    }
}

fn link_status(
    link: LinkSnapshot,
    bytes: &BTreeMap<PeerId, (u64, u64)>,
    rates: &BTreeMap<PeerId, (f64, f64)>,
) -> LinkStatus {
    let (sent_bytes, received_bytes) = bytes.get(&link.peer).copied().unwrap_or_default();
    let (sent_rate, received_rate) = rates.get(&link.peer).copied().unwrap_or_default();
    let lane = link.lane.map(|lane| match lane {
        Lane::Direct => "direct",
        Lane::Tcp => "tcp",
        Lane::Quic => "quic",
    });
    LinkStatus {
        lane: lane.map(str::to_owned),
        round_trip_seconds: link.round_trip.map(|time| time.as_secs_f64()),
        trouble: link.trouble,
        sent_bytes,
        received_bytes,
        sent_bytes_per_second: sent_rate,
        received_bytes_per_second: received_rate,
    }
}

impl StatusParts<'_> {
    fn status(self, traffic: TrafficStatus) -> Status {
        let events = self.recent.events().map(|happened| EventStatus {
            seconds_ago: self.now.since(happened.at).as_secs_f64(),
            event: happened.event.to_owned(),
            text: happened.words.clone(),
        });
        let mut status = Status {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            peer: self.me.to_string(),
            run: self.recent.run.map(|run| run.to_string()),
            uptime_seconds: self.now.since(Instant::default()).as_secs_f64(),
            phase: Phase::Ended,
            is_well: true,
            summary: "the run has ended here".to_owned(),
            training: None,
            view: None,
            members: Vec::new(),
            others: Vec::new(),
            rekey: None,
            unreached: self.unreached.iter().map(unreached_status).collect(),
            traffic,
            events: events.collect(),
        };
        match &self.node_report {
            Ok(NodeReport::Bootstrap { run, wanted, peers }) => {
                status.run = Some(run.to_string());
                status.phase = Phase::Bootstrapping;
                let ready = peers.iter().filter(|(_, is_ready)| *is_ready).count();
                status.summary = format!(
                    "waiting for {} more before training begins: {ready} of {wanted} ready, this one included",
                    plural(wanted.saturating_sub(ready), "peer")
                );
                status.others = self.others(peers.iter().map(coming));
            }
            Ok(NodeReport::Join { run, sponsor, is_ready, out_of_reach, recovery }) => {
                status.run = run.map(|run| run.to_string()).or(status.run);
                if let Some(recovery) = recovery {
                    status.phase = Phase::Recovering;
                    status.is_well = false;
                    status.summary =
                        format!("it was a member when it stopped: {}", regrouping_text(recovery));
                } else {
                    status.phase = Phase::Joining;
                    (status.is_well, status.summary) =
                        joining_text(sponsor.as_ref(), *is_ready, out_of_reach);
                }
                status.others = self.others(self.links.keys().map(|peer| (*peer, OtherState::Linked)));
            }
            Ok(NodeReport::Member(member)) => self.member(member, &mut status),
            Ok(NodeReport::Ended) => {}
            Err(Busy) => {
                status.phase = Phase::Busy;
                status.is_well = false;
                status.summary = "too busy to say how it is: ask again, and if this goes on, look at what else this machine does".to_owned();
            }
        }
        status
    }

    fn member(&self, member: &MemberDetails, status: &mut Status) {
        let MemberDetails { progress: standing, run_size, .. } = member;
        let total = run_size.parameters.max(1) as f64;
        status.members = member.members.iter().map(|seen| self.seen(seen, total)).collect();
        let missing = member.estranged.iter().map(|peer| (*peer, OtherState::Missing));
        status.others = self.others(missing.chain(member.joiners.iter().map(coming)));
        status.view = Some(ViewStatus {
            number: standing.view.number.0,
            digest: standing.digest.to_string(),
            parents: standing.view.parents.iter().map(ToString::to_string).collect(),
            expelled: standing.view.expelled.iter().map(expelled).collect(),
            age_seconds: member.view_age.as_secs_f64(),
        });
        let committed = self.recent.committed.as_ref();
        let finite = |of: fn(&peergrad_core::io::Committed) -> f64| {
            committed.map(of).filter(|value| value.is_finite())
        };
        status.training = Some(TrainingStatus {
            steps: standing.committed,
            steps_expected: committed
                .map_or(run_size.steps, |committed| committed.steps_expected)
                .max(standing.complete),
            epoch: (member.epoch + 1).min(run_size.epochs),
            epochs: run_size.epochs,
            loss: finite(|committed| committed.loss),
            rate: finite(|committed| committed.rate),
            steps_per_second: self.recent.steps_per_second(self.now),
            waits_for: wait_text(standing.wait).to_owned(),
            parameters: run_size.parameters as u64,
            chunks: member.chunks as u64,
            chunks_to_move: member.moves_left as u64,
        });
        let missing = member.without_secret.as_ref();
        status.rekey =
            missing.map(|peers| RekeyStatus { missing: peers.iter().map(ToString::to_string).collect() });
        status.phase = phase(member);
        (status.is_well, status.summary) = member_text(member, status.phase, &self.me);
    }

    fn seen(&self, seen: &ObservedMember, total: f64) -> MemberStatus {
        MemberStatus {
            peer: seen.peer.to_string(),
            is_this: seen.peer == self.me,
            state: state(seen.condition),
            capacity: seen.capacity,
            owned: seen.owned as u64,
            share: seen.owned as f64 / total,
            replicated: seen.replicated as u64,
            steps: seen.complete.map(|step| step.0),
            silent_seconds: seen.silence.map(|silence| silence.as_secs_f64()),
            link: self.links.get(&seen.peer).filter(|_| seen.peer != self.me).cloned(),
        }
    }

    fn others(&self, peers: impl Iterator<Item = (PeerId, OtherState)>) -> Vec<OtherStatus> {
        let others = peers.filter(|(peer, _)| *peer != self.me);
        let form = |(peer, state): (PeerId, _)| OtherStatus {
            peer: peer.to_string(),
            state,
            link: self.links.get(&peer).cloned(),
        };
        others.map(form).collect()
    }
}

/// One that cannot be reached, as often as it was tried and wherever.
fn unreached_status(unreached: &Unreached) -> UnreachedStatus {
    let Unreached { peer, address, trouble, tries, since_last } = unreached;
    UnreachedStatus {
        peer: peer.map(|peer| peer.to_string()),
        address: address.to_string(),
        trouble: trouble.to_string(),
        tries: *tries,
        seconds_ago: since_last.as_secs_f64(),
    }
}

/// One that wants to come in.
fn coming((peer, is_ready): &(PeerId, bool)) -> (PeerId, OtherState) {
    (*peer, if *is_ready { OtherState::Ready } else { OtherState::Preparing })
}

fn phase(member: &MemberDetails) -> Phase {
    match member.progress.wait {
        _ if member.paused.is_some() || member.is_orphaned || member.missing_chunks > 0 => Phase::Paused,
        Wait::Evaluation => Phase::Evaluating,
        Wait::Closing => Phase::Closing,
        Wait::View => Phase::Agreeing,
        _ if !member.progress.has_parameters => Phase::CatchingUp,
        _ => Phase::Training,
    }
}

fn state(condition: Condition) -> MemberState {
    match condition {
        Condition::Stopped => MemberState::Stopped,
        Condition::Unreachable => MemberState::Unreachable,
        Condition::Suspected => MemberState::Suspected,
        Condition::Hanging => MemberState::Hanging,
        Condition::Paused => MemberState::Paused,
        Condition::Connecting => MemberState::Connecting,
        Condition::CatchingUp => MemberState::CatchingUp,
        Condition::HandingOver => MemberState::HandingOver,
        Condition::Working => MemberState::Working,
        Condition::Unwatched => MemberState::Unwatched,
    }
}

fn wait_text(wait: Wait) -> &'static str {
    match wait {
        Wait::Start => "start",
        Wait::View => "view",
        Wait::Program => "program",
        Wait::Sums => "sums",
        Wait::Shards => "shards",
        Wait::Rows => "rows",
        Wait::Closing => "closing",
        Wait::Evaluation => "evaluation",
    }
}

fn joining_text(host: Option<&PeerId>, is_ready: bool, out_of_reach: &[PeerId]) -> (bool, String) {
    match (host, is_ready) {
        (None, _) => (false, "looking for a member that lets it in".to_owned()),
        (Some(host), true) if out_of_reach.is_empty() => {
            (true, format!("ready; peer {} sees to it that it is let in", host.short()))
        }
        (Some(_), true) => (
            false,
            format!(
                "ready, but has to reach these members too before it is let in: {}",
                short_names(out_of_reach)
            ),
        ),
        (Some(host), false) => {
            (true, format!("welcomed by peer {}; fetching and preparing the data", host.short()))
        }
    }
}

fn expelled(expulsion: &Expulsion) -> Expelled {
    let Expulsion { peer, by, cause } = expulsion;
    Expelled { peer: peer.to_string(), by: by.to_string(), cause: cause_text(*cause).to_owned() }
}

/// Whether all is well at a member, and a sentence about it.
fn member_text(member: &MemberDetails, phase: Phase, me: &PeerId) -> (bool, String) {
    let total = member.members.len();
    let others = || member.members.iter().filter(|seen| seen.peer != *me);
    let of = |condition: Condition| -> Vec<PeerId> {
        others().filter(|seen| seen.condition == condition).map(|seen| seen.peer).collect()
    };
    let troubled: Vec<PeerId> =
        others().filter(|seen| seen.condition.is_trouble()).map(|seen| seen.peer).collect();
    if let Some((reached, needed)) = member.paused {
        let lacking = needed.saturating_sub(reached);
        let missing =
            if troubled.is_empty() { String::new() } else { format!(" of {}", short_names(&troubled)) };
        return (
            false,
            format!(
                "paused: {reached} of {total} peers can be reached and {needed} are needed; waiting for {lacking} more{missing}. Start one of them again from its data directory, or mend the network: training goes on by itself"
            ),
        );
    }
    if member.is_orphaned {
        return (false, "paused: nobody who can be reached has the parameters".to_owned());
    }
    if member.missing_chunks > 0 {
        let chunks = plural(member.missing_chunks, "chunk");
        return (
            false,
            format!(
                "paused: nobody who can be reached has {chunks} of the tables as they are now. Mend the network, or, if those who had \
                 them have stopped, `declare-lost` on this machine goes on without"
            ),
        );
    }
    match phase {
        Phase::Evaluating => return (true, "trained; evaluating the model".to_owned()),
        Phase::Closing => return (true, "done; waiting for the others to finish the last step".to_owned()),
        _ => {}
    }
    if !troubled.is_empty() {
        let word = |condition, words: &str| {
            let peers = of(condition);
            (!peers.is_empty()).then(|| format!("{} {words}", short_names(&peers)))
        };
        let words: Vec<String> = [
            word(Condition::Unreachable, "cannot be reached"),
            word(Condition::Suspected, "silent for too long"),
            word(Condition::Hanging, "hanging in one step"),
            word(Condition::Stopped, "stopping"),
        ]
        .into_iter()
        .flatten()
        .collect();
        return (false, format!("{}: the others are about to go on without", words.join(", ")));
    }
    let lost = lost_text(member);
    let is_well = lost.is_none();
    match phase {
        Phase::Agreeing => (is_well, "the members agree on the next view".to_owned()),
        Phase::CatchingUp => (is_well, "in the view; the parameters come with the first step".to_owned()),
        _ => {
            let mut words = match (lost, total) {
                (None, _) => format!("training with {}", plural(total, "peer")),
                (Some(lost), 1) => format!("training {lost}"),
                (Some(lost), _) => format!("training with {}, {lost}", plural(total, "peer")),
            };
            for (condition, said) in [
                (Condition::CatchingUp, "gets its parameters"),
                (Condition::HandingOver, "hands over and leaves"),
                (Condition::Connecting, "is being connected"),
            ] {
                let peers = of(condition);
                if !peers.is_empty() {
                    words.push_str(&format!("; {} {said}", short_names(&peers)));
                }
            }
            if member.moves_left > 0 {
                words.push_str(&format!("; {} chunks have yet to move", count(member.moves_left as u64)));
            }
            (is_well, words)
        }
    }
}

/// What is said of those whom this part of a swarm has lost, if there are any, and what comes of it when they meet again.
fn lost_text(member: &MemberDetails) -> Option<String> {
    let becomes = match member.policy {
        PartitionPolicy::Majority => return None,
        PartitionPolicy::Merge => "what both have learnt is merged",
        PartitionPolicy::Winner => "the part that is further is kept",
    };
    let lost = &member.estranged;
    (!lost.is_empty()).then(|| {
        let peers = plural(lost.len(), "peer");
        let whose = if member.members.len() == 1 { "it has" } else { "they have" };
        format!("without {peers} {whose} lost: {}; when they meet again, {becomes}", short_names(lost))
    })
}

/// As many may wait for the driver at once.
const ADMIN_REQUESTS_MAX: usize = 16;
/// How long parts may take to come.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// An answer is given again within this time.
const FRESH: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use peergrad_protocol::Incarnation;
    use peergrad_protocol::view::{Member, View};

    use super::*;
    use peergrad_core::io::RunSize;
    use peergrad_core::node::MemberProgress;

    /// One of these members, which has lost those, and trains.
    fn member(members: &[u8], lost: &[u8], policy: PartitionPolicy) -> MemberDetails {
        let peers = |names: &[u8]| names.iter().map(|name| PeerId([*name; 32])).collect::<Vec<_>>();
        let seen = |peer| ObservedMember {
            peer,
            capacity: 4,
            condition: Condition::Working,
            complete: None,
            silence: None,
            owned: 5,
            replicated: 0,
        };
        let record = |peer| Member { peer, incarnation: Incarnation(1), addresses: vec![], capacity: 4 };
        let view =
            View::first(peergrad_protocol::RunId([9; 32]), peers(members).into_iter().map(record).collect());
        MemberDetails {
            progress: MemberProgress {
                digest: view.digest(),
                view: Arc::new(view),
                has_parameters: true,
                complete: 10,
                committed: 10,
                wait: Wait::Sums,
                held_segments: 0,
            },
            run_size: RunSize { parameters: 10, samples: 100, steps: 80, epochs: 8 },
            epoch: 1,
            chunks: 1,
            moves_left: 0,
            view_age: Duration::from_secs(1),
            members: peers(members).into_iter().map(seen).collect(),
            joiners: vec![],
            estranged: peers(lost),
            policy,
            paused: None,
            is_orphaned: false,
            missing_chunks: 0,
            without_secret: None,
            is_troubled: false,
        }
    }

    #[test]
    fn a_part_of_a_swarm_says_whom_it_has_lost_and_what_comes_of_it() {
        let words = |member: &MemberDetails| member_text(member, phase(member), &PeerId([1; 32]));
        let [two, three] = [2, 3].map(|name| PeerId([name; 32]).short());
        let alone = member(&[1], &[2, 3], PartitionPolicy::Merge);
        assert_eq!(
            words(&alone),
            (
                false,
                format!(
                    "training without 2 peers it has lost: {two}, {three}; when they meet again, what both have learnt is merged"
                )
            )
        );
        assert_eq!(
            words(&member(&[1, 2], &[3], PartitionPolicy::Winner)),
            (
                false,
                format!(
                    "training with 2 peers, without 1 peer they have lost: {three}; when they meet again, the part that is further is kept"
                )
            )
        );
        assert_eq!(
            words(&member(&[1, 2], &[], PartitionPolicy::Merge)),
            (true, "training with 2 peers".to_owned())
        );
        // Those who are lost have left the run.
        assert!(words(&member(&[1, 2], &[3], PartitionPolicy::Majority)).0);
    }

    #[test]
    fn members_that_were_lost_have_a_row_each() {
        let (member, recent) = (member(&[1], &[2, 3], PartitionPolicy::Merge), ObservedState::default());
        let parts = StatusParts {
            me: PeerId([1; 32]),
            now: Instant(0),
            node_report: Ok(NodeReport::Member(Box::new(member))),
            links: &BTreeMap::new(),
            unreached: &[],
            recent: &recent,
        };
        let status = parts.status(TrafficStatus {
            sent_bytes: 0,
            received_bytes: 0,
            sent_bytes_per_second: 0.0,
            received_bytes_per_second: 0.0,
        });
        let missing = status.others.iter().map(|other| (other.peer.clone(), other.state)).collect::<Vec<_>>();
        let expected = [2, 3].map(|name| (PeerId([name; 32]).to_string(), OtherState::Missing));
        assert_eq!(missing, expected);
        assert!(!status.is_well);
    }
}
