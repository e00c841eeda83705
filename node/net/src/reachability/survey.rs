//! The survey: the findings of the peers that were asked to dial this one, and the conclusion from them.
//!
//! # How it works
//! - A peer counts as *reachable* if each peer that tried has reached it at some address. An owner that only some peers can reach
//!   would be none.
//! - Before any peer has tried, a peer that others see at an address which its machine does not have is behind a router, and is
//!   assumed to be unreachable. Every other peer is assumed to be reachable.
//! - One failure does not prove the opposite: a peer that was reached stays reachable until two attempts in a row have failed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::dial_back::{CHECKED_MAX, DialBackOutcome};
use super::{Advice, PortForwarding, Reachability, ReachabilityState, Tried};
use crate::address::{ip_of, over_quic, over_tcp, port_of, to_multiaddr};

/// What is known so far.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The external addresses that the user gave.
    pub(crate) given: Vec<Multiaddr>,
    /// The router's answer; `None` if no router was asked to forward a port.
    router: Option<PortForwarding>,
    /// The TCP addresses of this machine that other machines can use.
    pub(crate) listening: Vec<Multiaddr>,
    /// The IP address at which each connected peer sees this one.
    seen: BTreeMap<PeerId, IpAddr>,
    checks: BTreeMap<PeerId, Check>,
    standing: Option<ReachabilityState>,
}

/// The findings of one peer.
#[derive(Debug)]
struct Check {
    findings: Vec<(Multiaddr, DialBackOutcome)>,
    /// How many attempts in a row did not reach this peer at all.
    failures: u32,
    due: Instant,
    is_running: bool,
    /// Whether there are new addresses to try since the peer was asked.
    is_stale: bool,
}

impl Survey {
    /// A survey for a peer with the external addresses `given`, on a machine that listens on `listening`.
    pub(crate) fn new(given: Vec<Multiaddr>, listening: Vec<Multiaddr>) -> Self {
        Self { given, listening, ..Self::default() }
    }

    /// A peer sees this one at `address`.
    pub(crate) fn seen_at(&mut self, by: PeerId, address: &Multiaddr) {
        if let Some(ip) = ip_of(address).filter(|ip| !ip.is_loopback()) {
            self.seen.insert(by, ip);
        }
    }

    /// A peer is no longer connected and cannot be asked again. The conclusion holds until other peers find something else.
    pub(crate) fn forget(&mut self, peer: &PeerId) {
        if self.seen.len() > 1 {
            self.seen.remove(peer);
        }
        self.checks.remove(peer);
    }

    /// The router has answered. Returns whether the user should hear of it.
    pub(crate) fn asked_router(&mut self, answer: PortForwarding, now: Instant) -> bool {
        // A failure for another reason is not news.
        let is_news = self.router.is_none() || self.told_by_router() != answer.address();
        self.router = Some(answer);
        if is_news {
            self.ask_again(now);
        }
        is_news
    }

    /// The addresses that the user or the router gave, best first.
    pub(crate) fn given_addresses(&self) -> Vec<Multiaddr> {
        self.given.iter().cloned().chain(self.told_by_router()).collect()
    }

    fn told_by_router(&self) -> Option<Multiaddr> {
        self.router.as_ref().and_then(PortForwarding::address)
    }

    /// The machine has exactly these addresses now. If they have changed, it may be in another network.
    pub(crate) fn listen_on(&mut self, listening: Vec<Multiaddr>, now: Instant) {
        if self.listening != listening {
            self.listening = listening;
            self.standing = None;
            self.seen.clear();
            self.ask_again(now);
        }
    }

    /// The addresses of routers: where others see this peer and which its machine does not have.
    pub(crate) fn routers(&self) -> BTreeSet<IpAddr> {
        let own: BTreeSet<IpAddr> = self.listening.iter().filter_map(ip_of).collect();
        let is_other = |ip: &IpAddr| !own.contains(ip) && own.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
        self.seen.values().copied().filter(is_other).collect()
    }

    /// The addresses to try, the most likely first. Each TCP address is followed by its QUIC address.
    pub(crate) fn candidates(&self) -> Vec<Multiaddr> {
        let port = self.port();
        let behind = self.routers().into_iter().filter_map(|ip| Some(to_multiaddr(ip, port?)));
        let mut candidates = Vec::new();
        for address in self.given_addresses().into_iter().chain(behind).chain(self.listening.iter().cloned())
        {
            for address in [Some(address.clone()), over_quic(&address)].into_iter().flatten() {
                if !candidates.contains(&address) {
                    candidates.push(address);
                }
            }
        }
        candidates.truncate(CHECKED_MAX);
        candidates
    }

    /// The port that this peer listens on; `None` if it does not listen.
    fn port(&self) -> Option<u16> {
        self.listening.iter().find_map(port_of)
    }

    /// The peer, of these, to ask now: a few in all, one at a time, and each again after a pause.
    pub(crate) fn next_helper(
        &mut self,
        mut peers: impl Iterator<Item = PeerId>,
        now: Instant,
    ) -> Option<PeerId> {
        if self.listening.is_empty() {
            // Only this machine can reach the peer, and it knows that it can.
            return None;
        }
        if self.checks.values().any(|check| check.is_running) {
            return None;
        }
        let due = self.checks.iter().find(|(_, check)| check.due <= now).map(|(peer, _)| *peer);
        let next = match due {
            None if self.checks.len() < HELPERS_MAX => peers.find(|peer| !self.checks.contains_key(peer)),
            due => due,
        }?;
        let check = self.checks.entry(next).or_insert_with(|| Check {
            findings: Vec::new(),
            failures: 0,
            due: now,
            is_running: false,
            is_stale: false,
        });
        check.is_running = true;
        check.is_stale = false;
        Some(next)
    }

    /// Asks all helpers again at once: there are new addresses to try.
    pub(crate) fn ask_again(&mut self, now: Instant) {
        for check in self.checks.values_mut() {
            (check.due, check.is_stale) = (now, check.is_running);
        }
    }

    /// A peer has reported its findings. With `None`, or if it may dial nowhere, another peer is asked.
    pub(crate) fn found(
        &mut self,
        by: PeerId,
        findings: Option<Vec<(Multiaddr, DialBackOutcome)>>,
        now: Instant,
    ) {
        let Some(check) = self.checks.get_mut(&by) else { return };
        check.is_running = false;
        let tried = |mut findings: Vec<(Multiaddr, DialBackOutcome)>| {
            findings.retain(|(_, finding)| *finding != DialBackOutcome::NotTried);
            findings
        };
        let Some(findings) = findings.map(tried).filter(|findings| !findings.is_empty()) else {
            check.due = now + PAUSE_MAX;
            return;
        };
        let is_reached = findings.iter().any(|(_, finding)| *finding == DialBackOutcome::Reached);
        check.failures = if is_reached { 0 } else { check.failures + 1 };
        check.findings = findings;
        let doublings = check.failures.saturating_sub(2).min(6);
        let pause = if is_reached { PAUSE_WHERE_REACHED } else { PAUSE_MIN * (1 << doublings) };
        let longest = if is_reached { PAUSE_WHERE_REACHED } else { PAUSE_MAX };
        check.due = if check.is_stale { now } else { now + pause.min(longest) };
        self.judge();
    }

    fn judge(&mut self) {
        let tried = || self.checks.values().filter(|check| !check.findings.is_empty());
        let was_reached = self.standing == Some(ReachabilityState::Reachable);
        let patience = if was_reached { FAILURES_BELIEVED } else { 1 };
        if tried().any(|check| check.failures >= patience) {
            self.standing = Some(ReachabilityState::Unreachable);
        } else if tried().next().is_some() && tried().all(|check| check.failures == 0) {
            self.standing = Some(ReachabilityState::Reachable);
        }
    }

    pub(crate) fn standing(&self) -> ReachabilityState {
        match self.standing {
            Some(standing) => standing,
            _ if self.given_addresses().is_empty() && !self.routers().is_empty() => {
                ReachabilityState::Unreachable
            }
            _ => ReachabilityState::Unknown,
        }
    }

    /// The addresses to announce: those at which at least one peer reached this one in its last attempt.
    pub(crate) fn reached(&self) -> Vec<Multiaddr> {
        let mut reached = Vec::new();
        for tried in self.tried().into_iter().filter(|tried| tried.reached_by > 0) {
            if let Ok(address) = tried.address.parse::<Multiaddr>() {
                let address = over_tcp(address);
                if !reached.contains(&address) {
                    reached.push(address);
                }
            }
        }
        reached
    }

    fn tried(&self) -> Vec<Tried> {
        let mut all: Vec<Tried> = Vec::new();
        for (address, finding) in self.checks.values().flat_map(|check| &check.findings) {
            let text = address.to_string();
            let index = all.iter().position(|tried| tried.address == text).unwrap_or_else(|| {
                all.push(Tried { address: text, reached_by: 0, failed_by: 0, reason: None });
                all.len() - 1
            });
            match finding {
                DialBackOutcome::Reached => all[index].reached_by += 1,
                DialBackOutcome::Failed(reason) => {
                    all[index].failed_by += 1;
                    all[index].reason = Some(reason.clone());
                }
                DialBackOutcome::NotTried => {}
            }
        }
        all.sort_by_key(|tried| std::cmp::Reverse(tried.reached_by));
        all
    }

    /// The report for the user.
    pub(crate) fn report(
        &self,
        announced: Vec<String>,
        relays: Vec<peergrad_protocol::PeerId>,
        (upgraded, relayed): (usize, usize),
    ) -> Reachability {
        let (standing, tried) = (self.standing(), self.tried());
        let seen_at: Vec<IpAddr> = self.routers().into_iter().collect();
        let helpers = self.checks.values().filter(|check| !check.findings.is_empty()).count();
        let port = self.port().unwrap_or_default();
        let is_wrong = |given: &&Multiaddr| {
            let text = given.to_string();
            tried.iter().any(|tried| tried.address == text && tried.reached_by == 0)
        };
        let advice = match standing {
            ReachabilityState::Unknown => Advice::Wait,
            ReachabilityState::Reachable => Advice::Fine,
            ReachabilityState::Unreachable => match self.given.iter().find(is_wrong) {
                Some(given) => Advice::FixExternal { address: given.to_string() },
                _ if seen_at.is_empty() || !self.given_addresses().is_empty() => Advice::Open { port },
                _ => Advice::Forward { port },
            },
        };
        let router = self.router.clone();
        Reachability {
            state: standing,
            announced,
            tried,
            helpers,
            seen_at,
            relays,
            upgraded,
            relayed,
            cut_off: Vec::new(),
            router,
            advice,
        }
    }
}

/// Peers that are asked. More would find the same.
const HELPERS_MAX: usize = 3;
/// How many attempts in a row have to fail before a reachable peer counts as unreachable.
const FAILURES_BELIEVED: u32 = 2;
/// The pause after a failure is short: the user may just be forwarding a port.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);
const PAUSE_WHERE_REACHED: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn peer() -> PeerId {
        Identity::generate().keypair().public().to_peer_id()
    }

    const HOME: &str = "/ip4/192.168.1.10/tcp/4747";
    const ROUTER: &str = "/ip4/203.0.113.1/tcp/4747";

    /// Of one at home, whom `helper` sees at the router.
    fn at_home(helper: PeerId) -> Survey {
        let mut survey = Survey::new(vec![], vec![address(HOME)]);
        survey.seen_at(helper, &address("/ip4/203.0.113.1/tcp/40001"));
        survey
    }

    /// Asks `helper`, who reaches this peer at these addresses and no others.
    fn ask(survey: &mut Survey, helper: PeerId, reached: &[&str], now: Instant) {
        assert_eq!(survey.next_helper([helper].into_iter(), now), Some(helper));
        let finding = |address: &Multiaddr| match reached.contains(&address.to_string().as_str()) {
            true => DialBackOutcome::Reached,
            false => DialBackOutcome::Failed("timed out".to_owned()),
        };
        let findings = survey.candidates().into_iter().map(|address| (address.clone(), finding(&address)));
        let findings = findings.collect();
        survey.found(helper, Some(findings), now);
    }

    fn words(survey: &Survey) -> String {
        survey.report(vec![], vec![], (0, 0)).to_string()
    }

    #[test]
    fn a_peer_that_others_see_at_another_address_is_behind_a_router() {
        let helper = peer();
        let survey = at_home(helper);
        assert_eq!(survey.standing(), ReachabilityState::Unreachable);
        assert_eq!(
            survey.routers().into_iter().collect::<Vec<_>>(),
            ["203.0.113.1".parse::<IpAddr>().unwrap()]
        );
        let candidates: Vec<String> = survey.candidates().iter().map(Multiaddr::to_string).collect();
        let over_quic = |text: &str| text.replace("tcp/4747", "udp/4747/quic-v1");
        assert_eq!(candidates, [ROUTER.to_owned(), over_quic(ROUTER), HOME.to_owned(), over_quic(HOME)]);
        // As long as others see a peer where it listens, or where its user said, nothing suggests that it is unreachable.
        let mut survey = Survey::new(vec![], vec![address(HOME)]);
        survey.seen_at(helper, &address("/ip4/192.168.1.10/tcp/40001"));
        assert_eq!(survey.standing(), ReachabilityState::Unknown);
        let mut survey = Survey::new(vec![address(ROUTER)], vec![address(HOME)]);
        survey.seen_at(helper, &address("/ip4/203.0.113.1/tcp/40001"));
        assert_eq!(survey.standing(), ReachabilityState::Unknown);
    }

    #[test]
    fn a_peer_that_listens_only_on_loopback_asks_no_helper() {
        let mut survey = Survey::new(vec![], vec![]);
        assert_eq!(survey.next_helper([peer()].into_iter(), Instant::now()), None);
    }

    #[test]
    fn a_forwarded_port_is_found_and_its_loss_needs_two_failures() {
        let (helper, now) = (peer(), Instant::now());
        let mut survey = at_home(helper);
        ask(&mut survey, helper, &[], now);
        assert_eq!(survey.standing(), ReachabilityState::Unreachable);
        assert_eq!(survey.next_helper([helper].into_iter(), now), None, "not at once again");
        let soon = now + PAUSE_MIN;
        ask(&mut survey, helper, &[ROUTER], soon);
        assert_eq!(survey.standing(), ReachabilityState::Reachable);
        assert_eq!(survey.reached(), [address(ROUTER)]);
        let later = soon + PAUSE_WHERE_REACHED;
        ask(&mut survey, helper, &[], later);
        assert_eq!(survey.standing(), ReachabilityState::Reachable, "a packet may get lost");
        ask(&mut survey, helper, &[], later + PAUSE_MIN);
        assert_eq!(survey.standing(), ReachabilityState::Unreachable);
    }

    #[test]
    fn an_owner_must_be_reachable_by_every_helper() {
        let (near, far, now) = (peer(), peer(), Instant::now());
        let mut survey = at_home(far);
        ask(&mut survey, near, &[HOME], now);
        assert_eq!(survey.standing(), ReachabilityState::Reachable);
        ask(&mut survey, far, &[], now);
        ask(&mut survey, far, &[], now + PAUSE_MIN);
        assert_eq!(survey.standing(), ReachabilityState::Unreachable);
        let report = survey.report(vec![], vec![], (0, 0));
        assert_eq!(
            (report.tried[0].address.as_str(), report.tried[0].reached_by, report.tried[0].failed_by),
            (HOME, 1, 1)
        );
        survey.forget(&far);
        assert_eq!(survey.standing(), ReachabilityState::Unreachable, "what it came to still holds");
    }

    #[test]
    fn few_helpers_are_asked_and_one_after_the_other() {
        let now = Instant::now();
        let peers: Vec<PeerId> = (0..10).map(|_| peer()).collect();
        let mut survey = at_home(peers[0]);
        let mut asked = BTreeSet::new();
        for _ in 0..10 {
            let Some(helper) = survey.next_helper(peers.iter().copied(), now) else { break };
            assert_eq!(survey.next_helper(peers.iter().copied(), now), None, "one after the other");
            asked.insert(helper);
            survey.found(helper, None, now);
        }
        assert_eq!(asked.len(), HELPERS_MAX);
    }

    #[test]
    fn a_peer_with_a_new_address_is_tested_again() {
        let (helper, now) = (peer(), Instant::now());
        let mut survey = at_home(helper);
        ask(&mut survey, helper, &[], now);
        survey.listen_on(vec![address("/ip4/203.0.113.77/tcp/4747")], now);
        assert_eq!(survey.standing(), ReachabilityState::Unknown);
        ask(&mut survey, helper, &["/ip4/203.0.113.77/tcp/4747"], now);
        assert_eq!(survey.standing(), ReachabilityState::Reachable);
    }

    #[test]
    fn a_forwarded_address_is_tested_at_once_even_during_another_test() {
        let (helper, now) = (peer(), Instant::now());
        let mut survey = at_home(helper);
        assert_eq!(survey.next_helper([helper].into_iter(), now), Some(helper));
        let forwarded = "/ip4/203.0.113.1/tcp/4748";
        let answer = PortForwarding::Done { address: forwarded.to_owned(), is_direct: true };
        assert!(survey.asked_router(answer.clone(), now) && !survey.asked_router(answer, now));
        let unreached = vec![(address(ROUTER), DialBackOutcome::Failed("timed out".to_owned()))];
        survey.found(helper, Some(unreached), now);
        ask(&mut survey, helper, &[forwarded], now);
        assert_eq!(survey.standing(), ReachabilityState::Reachable);
        assert!(words(&survey).contains("the router forwards /ip4/203.0.113.1/tcp/4748 to this peer\n"));
        assert_eq!(survey.next_helper([helper].into_iter(), now), None, "that was all there is to try");
    }

    #[test]
    fn a_report_says_what_to_do() {
        let (helper, now) = (peer(), Instant::now());
        let mut survey = at_home(helper);
        ask(&mut survey, helper, &[], now);
        let said = words(&survey);
        for part in
            ["owns no parameters", "others see it as 203.0.113.1", "forward port 4747", "0 of 1 (timed out)"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        ask(&mut survey, helper, &[ROUTER], now + PAUSE_MIN);
        let said = words(&survey);
        assert!(
            said.contains(&format!("{ROUTER}: reached by 1 of 1")) && said.contains("nothing to do"),
            "{said}"
        );
        // A firewall, and an address that is wrong.
        let mut survey = Survey::new(vec![], vec![address("/ip4/203.0.113.77/tcp/4747")]);
        ask(&mut survey, helper, &[], now);
        assert!(words(&survey).contains("firewall"), "{}", words(&survey));
        let mut survey = Survey::new(vec![address(ROUTER)], vec![address(HOME)]);
        ask(&mut survey, helper, &[], now);
        assert!(words(&survey).contains(&format!("correct --external {ROUTER}")), "{}", words(&survey));
    }
}
