//! The status service: assembles the status of a peer on request.
//!
//! The parts come from three places: the node (members, view, steps), the network (links) and the observer (events, rates). Clients
//! that ask within `FRESH` of each other get the same answer, so many clients cost no more than one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use peergrad_core::node::Wait;
use peergrad_core::node_report::{Condition, MemberDetails, NodeReport, ObservedMember};
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
use crate::text::summary_text::StatusSummary;

mod commands;

/// A handle to the status service of a peer; clones share it.
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
    /// The last answer, and when it was assembled; `None` before the first.
    last: Mutex<Option<(Instant, Arc<Status>)>>,
}

/// The driver had no time to report the state of its node.
struct Busy;

/// The parts of a status.
struct StatusParts<'a> {
    me: PeerId,
    now: Instant,
    node_report: Result<NodeReport, Busy>,
    links: &'a BTreeMap<PeerId, LinkStatus>,
    unreached: &'a [Unreached],
    recent: &'a ObservedState,
}

impl StatusService {
    /// Creates a service, and the receiver from which the driver takes its requests.
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

    /// The status of the peer, at most `FRESH` old.
    pub async fn status(&self) -> Arc<Status> {
        let inner = &*self.inner;
        // Concurrent requests wait here and then share the answer.
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

    /// The observed events, for the metrics.
    pub(super) fn observations(&self) -> &Observations {
        &self.inner.observations
    }
}

impl ServiceState {
    /// The details of this member.
    ///
    /// # Errors
    /// The reason, as text, if the peer is not a member or has no time.
    async fn member(&self) -> Result<MemberDetails, String> {
        match self.node_report().await {
            Ok(NodeReport::Member(member)) => Ok(*member),
            Ok(_) => Err("this peer is not a member now: ask one that trains".to_owned()),
            Err(Busy) => Err("this peer is too busy: try again".to_owned()),
        }
    }

    fn submit(&self, request: AdminRequest) -> Result<(), String> {
        let asked = self.admin_requests.try_send(request);
        asked.map_err(|_| "this peer is busy or ending: try again".to_owned())
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
            // The peer has ended in the meantime.
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
        connections: link.stripe_count,
        round_trip_seconds: link.round_trip.map(|time| time.as_secs_f64()),
        line_bytes_per_second: link.line_bytes_per_second.map(|rate| rate as f64),
        trouble: link.trouble,
        sent_bytes,
        received_bytes,
        sent_bytes_per_second: sent_rate,
        received_bytes_per_second: received_rate,
    }
}

impl StatusParts<'_> {
    fn status(self, traffic: TrafficStatus) -> Status {
        let events = self.recent.events().map(|recorded| EventStatus {
            seconds_ago: self.now.since(recorded.at).as_secs_f64(),
            event: recorded.event.to_owned(),
            text: recorded.text.clone(),
        });
        let mut status = Status {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            peer: self.me.to_string(),
            run: self.recent.run.map(|run| run.to_string()),
            uptime_seconds: self.now.since(Instant::default()).as_secs_f64(),
            phase: Phase::Ended,
            is_well: true,
            summary: String::new(),
            training: None,
            view: None,
            members: Vec::new(),
            others: Vec::new(),
            rekey: None,
            unreached: self.unreached.iter().map(unreached_status).collect(),
            traffic,
            events: events.collect(),
        };
        let mut summary = StatusSummary::ended();
        match &self.node_report {
            Ok(NodeReport::Bootstrap { run, wanted, peers }) => {
                status.run = Some(run.to_string());
                status.phase = Phase::Bootstrapping;
                let ready = peers.iter().filter(|(_, is_ready)| *is_ready).count();
                summary = StatusSummary::bootstrapping(ready, *wanted);
                status.others = self.others(peers.iter().map(joiner));
            }
            Ok(NodeReport::Join { run, sponsor, is_ready, out_of_reach, recovery }) => {
                status.run = run.map(|run| run.to_string()).or(status.run);
                (status.phase, summary) = match (recovery, sponsor) {
                    (Some(recovery), _) => (Phase::Recovering, StatusSummary::recovering(recovery)),
                    (None, None) => (Phase::Joining, StatusSummary::looking_for_sponsor()),
                    (None, Some(sponsor)) if *is_ready => {
                        (Phase::Joining, StatusSummary::awaiting_admission(sponsor, out_of_reach))
                    }
                    (None, Some(sponsor)) => (Phase::Joining, StatusSummary::preparing(sponsor)),
                };
                status.others = self.others(self.links.keys().map(|peer| (*peer, OtherState::Linked)));
            }
            Ok(NodeReport::Member(member)) => {
                self.member(member, &mut status);
                summary = StatusSummary::member(member, &self.me);
            }
            Ok(NodeReport::Ended) => {}
            Err(Busy) => (status.phase, summary) = (Phase::Busy, StatusSummary::busy()),
        }
        let StatusSummary { is_well, text } = summary;
        Status { is_well, summary: text, ..status }
    }

    fn member(&self, member: &MemberDetails, status: &mut Status) {
        let MemberDetails { progress: standing, run_size, .. } = member;
        let total = run_size.owned.max(1) as f64;
        status.members = member.members.iter().map(|seen| self.seen(seen, total)).collect();
        let missing = member.estranged.iter().map(|peer| (*peer, OtherState::Missing));
        status.others = self.others(missing.chain(member.joiners.iter().map(joiner)));
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
        let samples_per_second = self.recent.samples_per_second(self.now);
        let times_samples = |per_sample: u64| per_sample as f64 * samples_per_second;
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
            samples_per_second,
            tokens_per_second: run_size.tokens_per_sample.map(times_samples),
            flops_per_second: run_size.flops_per_sample.map(times_samples),
            evaluation: self.recent.evaluation.clone(),
            waits_for: wait_text(standing.wait).to_owned(),
            parameters: run_size.parameters as u64,
            chunks: member.chunks as u64,
            chunks_to_move: member.moves_left as u64,
        });
        let missing = member.without_secret.as_ref();
        status.rekey =
            missing.map(|peers| RekeyStatus { missing: peers.iter().map(ToString::to_string).collect() });
        status.phase = phase(member);
    }

    fn seen(&self, seen: &ObservedMember, total: f64) -> MemberStatus {
        MemberStatus {
            peer: seen.peer.to_string(),
            is_this: seen.peer == self.me,
            state: state(seen.condition),
            capacity: seen.capacity,
            samples_per_second: seen.samples_per_minute.map(|samples| f64::from(samples) / 60.0),
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

/// The status of a peer that cannot be reached.
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

/// A joiner, by whether it is ready.
fn joiner((peer, is_ready): &(PeerId, bool)) -> (PeerId, OtherState) {
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
        Condition::Busy => MemberState::Busy,
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

fn expelled(expulsion: &Expulsion) -> Expelled {
    let Expulsion { peer, by, cause } = expulsion;
    Expelled { peer: peer.to_string(), by: by.to_string(), cause: cause_text(*cause).to_owned() }
}

/// The most requests that may wait for the driver.
const ADMIN_REQUESTS_MAX: usize = 16;
/// How long to wait for each part.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long an answer is reused.
const FRESH: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use peergrad_core::partition_policy::PartitionPolicy;

    use super::*;
    use crate::text::summary_text::tests::member;

    #[test]
    fn each_lost_member_has_a_row() {
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
