//! One run of a scenario: a cluster, its faults, its invariants and oracles, from the first process to the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use peergrad_core::io::{Committed, Event, Failure, FinalState};
use peergrad_protocol::message::Refusal;
use peergrad_protocol::{Instant, ViewNumber};

use crate::cluster::Cluster;
use crate::fault_injector::{FaultInjector, host_setup};
use crate::history::{History, PeerHistory, PeerState};
use crate::host::{EntryMode, HostId};
use crate::invariants::same_bits::SAME_BITS;
use crate::invariants::single_owner::SINGLE_OWNER;
use crate::invariants::{InvariantSetup, Invariants, Violation};
use crate::liveness::{LIVENESS, Liveness, describe_waiting};
use crate::mutants::Mutant;
use crate::oracles::plain::{self, PLAIN};
use crate::oracles::replay::Replay;
use crate::oracles::sample_counter::{EpochCount, SampleCounter};
use crate::oracles::table_sums::{self, TABLE_SUMS};
use crate::oracles::view_chain::ViewChain;
use crate::scenario::{EXPECTATION, Fault, JoinOutcome, PlannedFault, Scenario, SurvivorOutcome};
use crate::workload::Workload;

/// A scenario in progress under one seed.
pub struct Simulation {
    /// The simulated peers and their network.
    pub cluster: Cluster,
    scenario: Scenario,
    fault_injector: FaultInjector,
    liveness: Liveness,
    next_check_at: Instant,
    stuck: Option<Violation>,
    /// With a planted bug: the invariant that must notice it. Then only that one is checked.
    expected_invariant: Option<&'static str>,
}

/// The result of a run.
pub struct Outcome {
    /// Violations of an invariant, an oracle or an expectation, in order.
    pub violations: Vec<Violation>,
    /// Names of all that was checked.
    pub checked: Vec<&'static str>,
    /// Greatest relative difference of a loss from the plain loop's; `None` if they were not compared.
    pub plain_loss_error: Option<f64>,
    /// What happened during the run.
    pub history: History,
    /// How many peers ended in each way; the key describes the way.
    pub endings: BTreeMap<String, usize>,
    /// Number of peers of the first view, as given by the scenario or by the seed.
    pub peers: usize,
    /// Virtual time since the first process started.
    pub time: Duration,
    /// Number of committed steps.
    pub steps: u64,
    /// Number of samples that they trained.
    pub samples_trained: u64,
    /// Number of samples that were left out because their gradient was not finite.
    pub samples_left_out: u64,
    /// Number of samples that were missing at the end of an epoch.
    pub samples_lost: u64,
    /// For each epoch, how often its samples were trained.
    pub epochs: Vec<EpochCount>,
    /// Evaluation of the final model; `None` if the run was not finished.
    pub evaluation: Option<peergrad_models::task::Evaluation>,
    /// Digest of the final parameters; `None` unless all peers that finished agree.
    pub digest: Option<String>,
    /// Digest of everything that happened.
    pub trace_hash: String,
}

impl Outcome {
    /// How often an epoch trained a sample that it had trained before.
    #[must_use]
    pub fn samples_repeated(&self) -> u64 {
        self.epochs.iter().map(|epoch| epoch.repeated).sum()
    }
}

impl Simulation {
    /// The start of a run.
    #[must_use]
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        Self::prepare(scenario, seed, None)
    }

    /// The start of a run with a bug in it, watched by the one invariant that must notice it.
    #[must_use]
    pub fn with_mutant(scenario: &Scenario, seed: u64, mutant: &Mutant) -> Self {
        Self::prepare(scenario, seed, Some(mutant))
    }

    fn prepare(scenario: &Scenario, seed: u64, mutant: Option<&Mutant>) -> Self {
        let scenario = scenario.clone().swarmed(seed);
        let mut cluster = Cluster::new(seed, scenario.links.clone());
        let template = host_setup(&scenario);
        let host_with = |index: usize| {
            let mut setup = template.clone();
            if let Some(mutant) = mutant {
                mutant.prepare(HostId(index as u32), &scenario.workload, &mut setup);
            }
            setup
        };
        let hosts: Vec<HostId> = (0..scenario.peers).map(|index| cluster.add(host_with(index))).collect();
        let specification = scenario.workload.specification.clone();
        for &host in &hosts {
            let entry = match host {
                HostId(0) => EntryMode::Found { specification: specification.clone(), peers: scenario.peers },
                // Some are given the address of a peer that is itself still joining.
                HostId(index) => {
                    let bootstrap = if index % 3 == 2 { HostId(index / 3) } else { HostId(0) };
                    EntryMode::Join { run: cluster.run_id(), bootstraps: vec![bootstrap] }
                }
            };
            cluster.start(host, entry);
        }
        let invariants = invariants_of(&scenario);
        cluster.set_invariants(match mutant {
            Some(mutant) => invariants.only(mutant.invariant),
            None => invariants,
        });
        if let Some(filter) = mutant.and_then(|mutant| mutant.filter(seed)) {
            cluster.add_filter(filter);
        }
        Self {
            cluster,
            fault_injector: FaultInjector::new(&scenario, template, seed),
            liveness: Liveness::new(scenario.expect.patience),
            next_check_at: Instant::default(),
            stuck: None,
            expected_invariant: mutant.map(|mutant| mutant.invariant),
            scenario,
        }
    }

    /// Processes one event. Returns false once the run is over, is stuck, or has violated an invariant.
    pub fn tick(&mut self) -> bool {
        if !self.cluster.invariants().violations().is_empty() || self.is_over() {
            return false;
        }
        let next = self.cluster.next_at();
        if let Some(at) = self.fault_injector.next_at().filter(|at| next.is_none_or(|next| *at <= next)) {
            self.cluster.advance_to(at);
            self.fault_injector.run_next(&mut self.cluster);
            self.liveness.restart_clock(at);
            return true;
        }
        let Some(next) = next else {
            self.stuck =
                Some(self.progress(format!("no event is left; {}", describe_waiting(&self.cluster))));
            return false;
        };
        if self.next_check_at <= next {
            self.cluster.check_periodically();
            self.next_check_at = next.max(self.next_check_at).after(CHECK_INTERVAL);
            if self.fault_injector.is_idle()
                && let Err(words) = self.liveness.check(&self.cluster)
            {
                self.stuck = Some(self.progress(words));
                return false;
            }
        }
        self.cluster.tick();
        self.fault_injector.schedule_triggered(&self.cluster);
        true
    }

    /// Runs to the end.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while self.tick() {}
        self.finish()
    }

    /// Whether no peer is left that trains or founds, and this cannot change: the remaining peers only ask to join.
    fn is_over(&self) -> bool {
        let has_ended = self.cluster.history().began.is_some() && !self.cluster.has_run();
        self.fault_injector.is_idle() && (self.cluster.hosts().running().next().is_none() || has_ended)
    }

    fn progress(&self, words: String) -> Violation {
        Violation { at: self.cluster.now(), invariant: LIVENESS, message: words }
    }

    /// The result, after all checks at the end.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        let now = self.cluster.now();
        self.cluster.history_mut().close(now);
        let mut violations = self.cluster.invariants().violations().to_vec();
        let mut checked: Vec<&'static str> = self.cluster.invariants().names().collect();
        checked.extend([LIVENESS, ONE_MODEL, EXPECTATION]);
        if self.scenario.expect.survivors != SurvivorOutcome::Wait {
            violations.extend(self.stuck.clone());
        }
        let committed = self.committed();
        let view_chain = ViewChain::of(self.cluster.history());
        let epochs = self.epochs(&view_chain, committed.len() as u64);
        let mut plain_loss_error = None;
        let has_forked = self.cluster.history().has_forked();
        if self.scenario.workload.is_exact_sync()
            && !self.scenario.has_wrong_values()
            && !has_forked
            && violations.is_empty()
            && self.is_asked(PLAIN)
        {
            checked.push(PLAIN);
            let Scenario { workload, expect, .. } = &self.scenario;
            match plain::compare(&workload.loaded, &view_chain, &committed, expect.loss_tolerance) {
                Ok(apart) => plain_loss_error = Some(apart),
                Err(words) => violations.push(Violation { at: now, invariant: PLAIN, message: words }),
            }
        }
        let finals = self.finals();
        let Workload { loaded, integers, .. } = &self.scenario.workload;
        let ends_early = |planned: &PlannedFault| matches!(planned.fault, Fault::EndRun { .. });
        if let (Some(task), Some(end)) = (integers, finals.first())
            && table_sums::applies(loaded)
            && !self.scenario.faults.iter().any(ends_early)
            && self.is_asked(TABLE_SUMS)
        {
            checked.push(TABLE_SUMS);
            if let Err(words) = table_sums::compare(loaded, task, &end.parameters) {
                violations.push(Violation { at: now, invariant: TABLE_SUMS, message: words });
            }
        }
        if violations.is_empty()
            && self.is_asked(EXPECTATION)
            && let Err(words) = self.meets_expectations(&committed)
        {
            violations.push(Violation { at: now, invariant: EXPECTATION, message: words });
        }
        let digests: Vec<String> = finals.iter().map(|state| state.digest.to_string()).collect();
        let may_differ = self.cluster.history().has_forked() && self.ends_apart();
        if violations.is_empty() && !may_differ && digests.windows(2).any(|pair| pair[0] != pair[1]) {
            let words = "peers that finished hold different parameters".to_owned();
            violations.push(Violation { at: now, invariant: ONE_MODEL, message: words });
        }
        Outcome {
            violations,
            checked,
            plain_loss_error,
            peers: self.scenario.peers,
            endings: self.endings(),
            time: now.since(Instant::default()),
            steps: committed.len() as u64,
            samples_trained: committed.iter().map(|committed| committed.samples).sum(),
            samples_left_out: committed.iter().map(|committed| committed.left_out).sum(),
            samples_lost: epochs.lost(),
            epochs: epochs.counts(),
            evaluation: finals.first().and_then(|state| state.evaluation),
            digest: digests.first().filter(|first| digests.iter().all(|d| d == *first)).cloned(),
            trace_hash: self.cluster.trace().digest(),
            history: self.cluster.history().clone(),
        }
    }

    /// Counts the samples of the epochs up to the last committed step, as the views assign them.
    fn epochs(&self, view_chain: &ViewChain, steps: u64) -> SampleCounter {
        let mut epochs = SampleCounter::new(&self.scenario.workload.loaded);
        let history = self.cluster.history();
        for (step, merge) in view_chain.merges() {
            let other = history.views.iter().position(|note| note.digest == merge.view);
            let other = other.map(|view| ViewChain::from_views(history, &history.chain(view)));
            other.iter().for_each(|other| epochs.merge(step, self.epochs(other, merge.steps.0)));
        }
        while epochs.steps() < steps && epochs.count(view_chain).is_some() {}
        epochs
    }

    fn is_asked(&self, invariant: &str) -> bool {
        self.expected_invariant.is_none_or(|asked| asked == invariant)
    }

    /// Steps in order, each as it was first reported. Of an abandoned branch, only the steps that the surviving branch descends from.
    fn committed(&self) -> Vec<Committed> {
        let mut steps: BTreeMap<u64, Committed> = BTreeMap::new();
        let history = self.cluster.history();
        let mut newest = ViewNumber(1);
        let chain = history.main_chain();
        for note in history.commits.iter().filter(|note| chain.contains(&note.view)) {
            let branch = history.views[note.view].view.history.branch;
            if branch.view_number > newest && branch.fork.is_none() {
                newest = branch.view_number;
                steps.split_off(&branch.step.0);
            }
            steps.entry(note.committed.step.0).or_insert(note.committed);
        }
        steps.into_values().collect()
    }

    /// The final states of the peers that finished the run.
    fn finals(&self) -> Vec<&FinalState> {
        let ended = self.cluster.events().iter().filter_map(|(_, _, event)| match event {
            Event::Ended(ended) if ended.outcome.is_ok() => ended.state.as_ref(),
            _ => None,
        });
        ended.collect()
    }

    /// Whether peers finished in different branches, because a partition lasted longer than the run.
    fn ends_apart(&self) -> bool {
        let history = self.cluster.history();
        let last = |state: &PeerState| match state {
            PeerState::Member(view) => Some(history.views[*view].branch_index),
            _ => None,
        };
        let of_lane = |lane: &PeerHistory| lane.spans.iter().rev().find_map(|span| last(&span.state));
        let branches: BTreeSet<usize> = history.peers.iter().filter_map(of_lane).collect();
        branches.len() > 1
    }

    /// For each host whose process ended: its failure, if there was one.
    fn failures(&self) -> BTreeMap<HostId, Option<&Failure>> {
        let events = self.cluster.events().iter();
        let ended = events.filter_map(|(_, host, event)| match event {
            Event::Ended(ended) => Some((*host, ended.outcome.as_ref().err())),
            _ => None,
        });
        ended.collect()
    }

    fn endings(&self) -> BTreeMap<String, usize> {
        let failures = self.failures();
        let mut endings = BTreeMap::new();
        for host in self.cluster.hosts().ids() {
            let words = match (self.cluster.history().state(host), failures.get(&host)) {
                (Some(PeerState::Ended { .. }), Some(None)) => "finished".to_owned(),
                (Some(PeerState::Ended { .. }), Some(Some(failure))) => ending_of(failure).to_owned(),
                (Some(PeerState::Down), _) => "crashed".to_owned(),
                (Some(PeerState::Joining), _) => "still joining".to_owned(),
                (Some(PeerState::Member(_) | PeerState::Paused), _) => "still a member".to_owned(),
                _ => "never started".to_owned(),
            };
            *endings.entry(words).or_default() += 1;
        }
        endings
    }

    fn meets_expectations(&self, committed: &[Committed]) -> Result<(), String> {
        let expect = &self.scenario.expect;
        if (committed.len() as u64) < expect.steps {
            return Err(format!(
                "{} steps were committed; at least {} are expected",
                committed.len(),
                expect.steps
            ));
        }
        let merged = ViewChain::of(self.cluster.history()).merges().count();
        if merged < expect.merged {
            return Err(format!("{merged} branches were merged; at least {} are expected", expect.merged));
        }
        let failures = self.failures();
        for host in (0..self.scenario.peers as u32)
            .map(HostId)
            .filter(|host| !self.fault_injector.affected().contains(host))
        {
            self.survivor_meets(host, expect.survivors, failures.get(&host).copied())?;
        }
        if expect.survivors == SurvivorOutcome::Wait && self.stuck.is_none() {
            return Err("all peers are expected to wait for ever, but none does".to_owned());
        }
        let has_restarted = self.has_restarted();
        if expect.restarted.is_some_and(|expected| expected != has_restarted) {
            let words = if has_restarted { "some chunks did" } else { "no chunk did" };
            return Err(format!(
                "optimizer state was expected to restart from zero: {}; {words}",
                !has_restarted
            ));
        }
        // Peers that were crashed by a fault, perhaps while they joined, are not checked.
        let is_untouched = |host: &&HostId| !self.fault_injector.affected().contains(host);
        for &host in self.fault_injector.newcomers().iter().filter(is_untouched) {
            let was_member = self.cluster.history().peers[host.index()]
                .spans
                .iter()
                .any(|span| matches!(span.state, PeerState::Member(_)));
            let was_refused = matches!(failures.get(&host), Some(Some(Failure::Refused { .. })));
            let is_met = match expect.joiners {
                JoinOutcome::Join => was_member,
                JoinOutcome::Refused => was_refused,
                JoinOutcome::Any => true,
            };
            if !is_met {
                return Err(format!(
                    "{host} joined later and is expected to {} ([expect] joiners)",
                    expect.joiners.text()
                ));
            }
        }
        Ok(())
    }

    /// Whether the state of any chunk was lost and restarted from initial values.
    fn has_restarted(&self) -> bool {
        let mut views = self.cluster.history().views.iter();
        views.any(|note| !note.view.moves.restarted.is_empty())
    }

    /// Whether the others ended before this peer had the time to rejoin.
    fn has_just_been_excluded(&self, host: HostId) -> bool {
        let events = || self.cluster.events().iter().rev();
        let mut own = events().filter(|(_, at, _)| *at == host);
        let newest =
            own.find(|(_, _, event)| matches!(event, Event::Excluded { .. } | Event::ViewInstalled { .. }));
        let is_out = newest.is_some_and(|(_, _, event)| matches!(event, Event::Excluded { .. }));
        // The next loss may be that of the member that was about to let it in.
        let loss = events().find(|(_, _, event)| matches!(event, Event::Excluded { .. }));
        is_out && loss.is_some_and(|(at, ..)| self.cluster.now().since(*at) < RETURN_TIME)
    }

    fn survivor_meets(
        &self,
        host: HostId,
        survivors: SurvivorOutcome,
        ending: Option<Option<&Failure>>,
    ) -> Result<(), String> {
        let found = match ending {
            None => "is still running",
            Some(None) => "finished",
            Some(Some(_)) => "stopped",
        };
        let is_met = match survivors {
            SurvivorOutcome::Finish => match ending {
                Some(None) => true,
                // The peer was removed for a while, and the others have finished without it.
                Some(Some(Failure::Refused { refusal: Refusal::RunComplete, .. })) => true,
                Some(Some(_)) => false,
                None => self.has_just_been_excluded(host),
            },
            SurvivorOutcome::Wait => true,
        };
        if is_met {
            return Ok(());
        }
        let why = ending.flatten().map_or(String::new(), |failure| format!(": {failure}"));
        Err(format!("{host} is expected to {} ([expect] survivors), but it {found}{why}", survivors.text()))
    }
}

fn invariants_of(scenario: &Scenario) -> Invariants {
    let workload = &scenario.workload;
    let known = InvariantSetup {
        loaded: workload.loaded.clone(),
        // Parameters that count samples do so only with right values.
        integers: workload
            .integers
            .clone()
            .filter(|_| workload.is_synchronous() && !scenario.has_wrong_values()),
        patience: DEPARTURE_PATIENCE,
    };
    let mut invariants = Invariants::all(&known);
    if scenario.has_wrong_values() {
        invariants = invariants.without(&[SAME_BITS, SINGLE_OWNER]);
    } else if is_replayed(scenario) {
        invariants.add(Replay::new(&workload.loaded));
    }
    invariants
}

/// Whether an oracle that knows the program computes everything once more for every peer. It does where that takes little time and memory.
fn is_replayed(scenario: &Scenario) -> bool {
    let work = scenario.workload.loaded.manifest.parameter_count() * scenario.peers;
    scenario.workload.is_sync() && work <= ORACLE_WORK_MAX
}

fn ending_of(failure: &Failure) -> &'static str {
    match failure {
        Failure::FounderLeft { .. } => "stopped: the founder left before the start",
        Failure::Refused { .. } => "refused",
        Failure::TaskPanicked(_) => "stopped: its task failed",
        Failure::CheckpointLost { .. } => "stopped: its disk failed",
        Failure::Diverged { .. } => "stopped: its loss was not finite",
        Failure::ParametersDiffer { .. } => "stopped: the members' parameters differ",
        Failure::Left => "left",
        Failure::WrongSpecification { .. }
        | Failure::Unusable(_)
        | Failure::DataMissing { .. }
        | Failure::DataDiffers { .. }
        | Failure::DataNotStored { .. } => "unusable",
    }
}

/// A peer that was removed has rejoined after this time without another loss. It takes longest shortly before the end of a run: then a
/// change of members may be named too late, and another step for it does not exist.
const RETURN_TIME: Duration = Duration::from_secs(6);
/// The name of what holds of every program in the end.
pub const ONE_MODEL: &str = "one model in the end";
/// A member that is silent is noticed after ten seconds at the latest, and a view without it agreed on in as many more,
/// also if the first who tries is lost as well.
const DEPARTURE_PATIENCE: Duration = Duration::from_secs(20);
/// Time between two checks of what can be violated by waiting alone.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Elements over all peers up to which the oracle computes everything once more.
const ORACLE_WORK_MAX: usize = 20_000_000;
