//! The fault injector: it starts a scenario's faults in a cluster at their times, and undoes each when its duration is over.
//!
//! The seed decides what a fault leaves open: which peer, and when exactly. The faults that wait for an event are in `triggers.rs`, cuts in
//! `cuts.rs`, and false frames in `forgery.rs`.

use std::sync::Arc;
use std::time::Duration;

use peergrad_core::node::NodeState;
use peergrad_protocol::Instant;
use peergrad_protocol::view::View;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::cluster::{Cluster, Dialability, UserCommand};
use crate::compute_model::{Bursts, ComputeModel};
use crate::disk::{Disk, DiskMode};
use crate::frame_faults::{CountCorrection, FaultyFrames};
use crate::host::{Crash, EntryMode, HostId, HostSetup, TaskFault};
use crate::queue::Queue;
use crate::scenario::{Fault, FaultTime, PlannedFault, Scenario, Targets};
use cuts::{Cut, OpenCut};
use forgery::{send_garbage, send_stale_views};
use triggers::Triggers;

mod cuts;
mod forgery;
mod triggers;

/// The faults of a scenario that are still to come or to be undone.
pub(crate) struct FaultInjector {
    /// The source of what faults leave open.
    generator: ChaCha8Rng,
    /// Faults and ends of faults, by time.
    pending: Queue<Action>,
    /// Faults that wait for an event of the run.
    triggers: Triggers,
    /// The setup of a host without a fault.
    template: HostSetup,
    /// Hosts whose peers were crashed, restarted or told to leave, and hosts that were added after the start.
    affected: Vec<HostId>,
    /// Hosts that were added after the start.
    newcomers: Vec<HostId>,
}

/// Something that the injector does at a time: a fault, or the end of one.
enum Action {
    Fault(Fault),
    Heal(OpenCut),
    Start { host: HostId },
    Wake { host: HostId },
    RestoreSpeed { host: HostId },
    RestoreDisk { host: HostId },
    RestoreLine { host: HostId },
    RestoreReachability { host: HostId },
    Orders { times: u32, every: Duration },
    Churn { times: u32, every: Duration },
}

impl FaultInjector {
    /// The faults of a scenario.
    pub(crate) fn new(scenario: &Scenario, template: HostSetup, seed: u64) -> Self {
        let generator = ChaCha8Rng::seed_from_u64(seed ^ 0x0064_6972_6563_746f);
        let mut fault_injector = Self {
            generator,
            pending: Queue::default(),
            triggers: Triggers::default(),
            template,
            affected: Vec::new(),
            newcomers: Vec::new(),
        };
        for PlannedFault { when, within, fault } in &scenario.faults {
            let delay = fault_injector.random_delay(*within);
            let (triggers, fault) = (&mut fault_injector.triggers, fault.clone());
            match *when {
                FaultTime::Start(time) => {
                    fault_injector.plan(Instant::default().after(time + delay), Action::Fault(fault));
                }
                FaultTime::Training(time) => triggers.on_training.push((time + delay, fault)),
                FaultTime::Step(step) => triggers.on_step.push((step, delay, fault)),
                FaultTime::Merge(time) => triggers.on_merge.push((time + delay, fault)),
            }
        }
        fault_injector
    }

    fn random_delay(&mut self, within: Duration) -> Duration {
        Duration::from_nanos(self.generator.next_u64() % (within.as_nanos() as u64 + 1))
    }

    fn plan(&mut self, at: Instant, action: Action) {
        self.pending.push(at, action);
    }

    /// When the next fault starts or ends.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.pending.next_at()
    }

    /// Whether no fault is left to start or to undo.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.next_at().is_none()
    }

    /// Peers that were crashed, restarted or told to leave, and those added after the start.
    pub(crate) fn affected(&self) -> &[HostId] {
        &self.affected
    }

    /// Peers that were added after the start.
    pub(crate) fn newcomers(&self) -> &[HostId] {
        &self.newcomers
    }

    /// Schedules the faults that waited for the start of training, for a step, or for a view.
    pub(crate) fn schedule_triggered(&mut self, cluster: &Cluster) {
        for (time, fault) in self.triggers.take_due(cluster) {
            self.plan(cluster.now().after(time), Action::Fault(fault));
        }
    }

    /// Does the next action that is due.
    pub(crate) fn run_next(&mut self, cluster: &mut Cluster) {
        let Some((_, action)) = self.pending.pop() else { return };
        match action {
            Action::Fault(fault) => self.fault(cluster, fault),
            Action::Heal(cut) => {
                cut.heal(cluster);
                annotate(cluster, "healed");
            }
            // Two restarts overlapped, and the shorter one is over.
            Action::Start { host } if cluster.hosts().node_state(host).is_some() => {}
            Action::Start { host } => {
                let bootstraps = self.bootstraps(cluster, host);
                let run = cluster.run_id();
                annotate(cluster, &format!("{host} is started again"));
                cluster.start(host, EntryMode::Join { run, bootstraps });
            }
            Action::Wake { host } => {
                annotate(cluster, &format!("{host} wakes up"));
                cluster.wake(host);
            }
            Action::RestoreSpeed { host } => {
                cluster.setup_mut(host).compute_model.slowness_percent =
                    self.template.compute_model.slowness_percent;
            }
            Action::RestoreDisk { host } => cluster.setup_mut(host).disk.mode = DiskMode::Honest,
            Action::RestoreLine { host } => {
                let links = cluster.links().clone();
                cluster.throttle(host, links.up, links.down);
            }
            Action::RestoreReachability { host } => {
                annotate(cluster, &format!("{host} can be dialed again"));
                cluster.notify_reachability(host, Dialability::Public);
            }
            Action::Orders { times, every } => self.order(cluster, times, every),
            Action::Churn { times, every } => self.churn(cluster, times, every),
        }
    }

    fn fault(&mut self, cluster: &mut Cluster, fault: Fault) {
        annotate(cluster, &format!("{fault:?}"));
        match fault {
            Fault::Partition { groups, duration } => {
                let cut = Cut::partition(cluster, &groups);
                self.cut(cluster, cut, duration);
            }
            Fault::Cut { between, directions, duration } => {
                let between = between.map(|index| HostId(index as u32));
                self.cut(cluster, Cut::between(between, directions), duration);
            }
            Fault::Flap { fault, times, every } => {
                for turn in 0..times {
                    self.plan(cluster.now().after(every * turn), Action::Fault(Fault::clone(&fault)));
                }
            }
            Fault::Blackout { duration, every, count, damaged } => {
                self.blackout(cluster, duration, every, count, damaged)
            }
            Fault::Slow { targets, percent, duration } => {
                self.slow(cluster, &targets, duration, |model| model.slowness_percent = percent)
            }
            Fault::Bursts { targets, per_mille, percent } => {
                let bursts = Bursts { per_mille, slowness_percent: percent };
                self.slow(cluster, &targets, None, |model| model.bursts = Some(bursts))
            }
            Fault::Noise { targets, percent } => {
                self.slow(cluster, &targets, None, |model| model.noise_percent = percent)
            }
            Fault::Panic { targets } => self.break_tasks(cluster, &targets, TaskFault::Panic),
            Fault::Hang { targets } => self.break_tasks(cluster, &targets, TaskFault::Hang),
            Fault::Join { count } => {
                for _ in 0..count {
                    let host = self.add(cluster);
                    self.plan(cluster.now(), Action::Start { host });
                }
            }
            Fault::Orders { times, every } => self.order(cluster, times, every),
            Fault::Churn { times, every } => self.churn(cluster, times, every),
            Fault::Crash { ref targets, .. }
            | Fault::Restart { ref targets, .. }
            | Fault::Leave { ref targets }
            | Fault::Remove { ref targets }
            | Fault::Unreachable { ref targets, .. }
            | Fault::Pause { ref targets, .. }
            | Fault::Busy { ref targets, .. }
            | Fault::EndRun { ref targets }
            | Fault::Clone { ref targets }
            | Fault::Garbage { ref targets, .. }
            | Fault::StaleViews { ref targets }
            | Fault::Frames { ref targets, .. }
            | Fault::Disk { ref targets, .. }
            | Fault::Throttle { ref targets, .. } => {
                self.for_each_target(cluster, targets, |injector, cluster, host| {
                    injector.host_fault(cluster, host, &fault);
                })
            }
        }
    }

    /// What a fault does to one of its targets; nothing, if it has none.
    fn host_fault(&mut self, cluster: &mut Cluster, host: HostId, fault: &Fault) {
        match *fault {
            Fault::Crash { crash, .. } => self.crash(cluster, host, crash),
            Fault::Restart { duration, keeps_disk, .. } => {
                self.crash(cluster, host, Crash::Killed);
                let host = if keeps_disk { host } else { self.add(cluster) };
                self.plan(cluster.now().after(duration), Action::Start { host });
            }
            Fault::Leave { .. } => {
                self.mark_affected(host);
                cluster.note(host, "asked to leave");
                cluster.command(host, UserCommand::Leave);
            }
            Fault::Remove { .. } => {
                let Some(&asked) = self.bootstraps(cluster, host).first() else { return };
                self.mark_affected(host);
                cluster.note(host, &format!("removed by a user at {asked}"));
                cluster.command(asked, UserCommand::Expel(host));
            }
            Fault::Unreachable { duration, .. } => {
                cluster.note(host, "cannot be dialed");
                cluster.notify_reachability(host, Dialability::Hidden);
                if let Some(duration) = duration {
                    self.plan(cluster.now().after(duration), Action::RestoreReachability { host });
                }
            }
            Fault::Pause { duration, .. } => {
                cluster.sleep(host);
                self.plan(cluster.now().after(duration), Action::Wake { host });
            }
            Fault::Busy { duration, .. } => busy(cluster, host, duration),
            Fault::EndRun { .. } => end_run(cluster, host),
            Fault::Clone { .. } => {
                let copy = cluster.add_clone(host);
                self.newcomers.push(copy);
                // Of two peers with one identity, the one that started last remains.
                self.mark_affected(host);
                self.plan(cluster.now(), Action::Start { host: copy });
            }
            Fault::Garbage { count, .. } => send_garbage(cluster, host, count, &mut self.generator),
            Fault::StaleViews { .. } => send_stale_views(cluster, host),
            Fault::Frames { fault, kind, per_million, duration, .. } => {
                // The others may remove it from the run.
                self.mark_affected(host);
                cluster.note(host, &format!("its frames are {fault:?}"));
                let generator = ChaCha8Rng::seed_from_u64(self.generator.next_u64());
                let until = duration.map(|duration| cluster.now().after(duration));
                let withheld = CountCorrection::default();
                let faulty = FaultyFrames { host, fault, kind, per_million, until, generator, withheld };
                cluster.break_frames(faulty);
            }
            Fault::Disk { mode, duration, .. } => {
                if mode != DiskMode::Full {
                    self.mark_affected(host);
                }
                cluster.note(host, &format!("its disk is {mode:?}"));
                cluster.setup_mut(host).disk.mode = mode;
                if let Some(duration) = duration {
                    self.plan(cluster.now().after(duration), Action::RestoreDisk { host });
                }
            }
            Fault::Throttle { up, down, duration, .. } => {
                cluster.throttle(host, Some(up), Some(down));
                cluster.note(host, &format!("line now {up} up, {down} down bit/s"));
                if let Some(duration) = duration {
                    self.plan(cluster.now().after(duration), Action::RestoreLine { host });
                }
            }
            _ => {}
        }
    }

    /// Makes a cut, and plans its end if it has one.
    fn cut(&mut self, cluster: &mut Cluster, cut: Cut, duration: Option<Duration>) {
        let cut = cut.open(cluster);
        if let Some(duration) = duration {
            self.plan(cluster.now().after(duration), Action::Heal(cut));
        }
    }

    // Processes.

    fn crash(&mut self, cluster: &mut Cluster, host: HostId, crash: Crash) {
        self.mark_affected(host);
        let words = match crash {
            Crash::Killed => "killed",
            Crash::PowerLost => "lost power",
        };
        cluster.note(host, words);
        cluster.crash(host, crash);
    }

    /// Cuts the power of all hosts; it comes back at one host after the other.
    fn blackout(
        &mut self,
        cluster: &mut Cluster,
        duration: Duration,
        every: Duration,
        count: Option<usize>,
        damaged: usize,
    ) {
        let all = running(cluster);
        let back = self.choose(all.clone(), count.unwrap_or(all.len()));
        all.into_iter().for_each(|host| self.crash(cluster, host, Crash::PowerLost));
        for (index, &host) in back.iter().enumerate() {
            if index < damaged {
                cluster.setup_mut(host).disk.damage_newest();
            }
            let at = cluster.now().after(duration + every * index as u32);
            self.plan(at, Action::Start { host });
        }
        // These peers are expected to finish the run.
        self.affected.retain(|host| !back.contains(host));
    }

    fn mark_affected(&mut self, host: HostId) {
        self.affected.push(host);
    }

    fn add(&mut self, cluster: &mut Cluster) -> HostId {
        let host = cluster.add(self.template.clone());
        self.newcomers.push(host);
        host
    }

    /// Members that are awake, as an invite would name them; any host if there is no such member.
    fn bootstraps(&mut self, cluster: &Cluster, newcomer: HostId) -> Vec<HostId> {
        let others: Vec<HostId> = running(cluster).into_iter().filter(|&host| host != newcomer).collect();
        let is_in = |host: &HostId| {
            matches!(cluster.hosts().node_state(*host), Some(NodeState::Bootstrap | NodeState::Member(_)))
        };
        let is_awake = |host: &HostId| !cluster.hosts().is_asleep(*host);
        let members: Vec<HostId> = others.iter().copied().filter(is_in).filter(is_awake).collect();
        self.choose(if members.is_empty() { others } else { members }, BOOTSTRAPS)
    }

    /// A user tells a peer to leave, removes one, or starts a new one. Then schedules the next order, sometimes for the same moment.
    fn order(&mut self, cluster: &mut Cluster, times: u32, every: Duration) {
        if times == 0 {
            return;
        }
        let targets = Targets::Any(1);
        let fault = match self.generator.next_u32() % 8 {
            0..5 => Fault::Leave { targets },
            5..7 => Fault::Remove { targets },
            _ => Fault::Join { count: 1 },
        };
        self.fault(cluster, fault);
        let is_together = self.generator.next_u32().is_multiple_of(4);
        let delay = if is_together { Duration::ZERO } else { self.random_delay(every) };
        self.plan(cluster.now().after(delay), Action::Orders { times: times - 1, every });
    }

    /// Crashes a peer or starts a new one, and schedules the next time. No peer is crashed while there are few members, or if the remaining
    /// voters would be too few to agree: other scenarios are about such losses.
    fn churn(&mut self, cluster: &mut Cluster, times: u32, every: Duration) {
        if times == 0 {
            return;
        }
        let view_of = |host: HostId| match cluster.hosts().node_state(host) {
            Some(NodeState::Member(standing)) => Some(standing.view),
            _ => None,
        };
        let views: Vec<Arc<View>> = running(cluster).into_iter().filter_map(view_of).collect();
        let newest = views.iter().max_by_key(|view| view.number);
        let quorum = newest.map_or(0, |view| view.members.len() / 2 + 1);
        // All members of the newest view can vote in it.
        let voters =
            views.iter().filter(|view| Some(view.number) == newest.map(|newest| newest.number)).count();
        let fault = match self.generator.next_u32() % 2 {
            0 if voters > CHURNING_MIN.max(quorum) => {
                Fault::Crash { targets: Targets::Any(1), crash: Crash::Killed }
            }
            _ => Fault::Join { count: 1 },
        };
        self.fault(cluster, fault);
        self.plan(cluster.now().after(every), Action::Churn { times: times - 1, every });
    }

    // Tasks and machines.

    fn slow(
        &mut self,
        cluster: &mut Cluster,
        targets: &Targets,
        duration: Option<Duration>,
        change: impl Fn(&mut ComputeModel),
    ) {
        self.for_each_target(cluster, targets, |fault_injector, cluster, host| {
            change(&mut cluster.setup_mut(host).compute_model);
            cluster.note(host, "slow");
            if let Some(duration) = duration {
                fault_injector.plan(cluster.now().after(duration), Action::RestoreSpeed { host });
            }
        });
    }

    fn break_tasks(&mut self, cluster: &mut Cluster, targets: &Targets, task_fault: TaskFault) {
        self.for_each_target(cluster, targets, |fault_injector, cluster, host| {
            // What this peer does from now on is not the fault of the others.
            fault_injector.mark_affected(host);
            cluster.note(host, &format!("{task_fault:?} in its task"));
            cluster.set_task_fault(host, Some(task_fault));
        });
    }

    /// Applies an action to each target; the targets are determined at this moment.
    fn for_each_target(
        &mut self,
        cluster: &mut Cluster,
        targets: &Targets,
        mut action: impl FnMut(&mut Self, &mut Cluster, HostId),
    ) {
        let count = cluster.hosts().ids().count();
        let hosts = match targets {
            Targets::Peers(peers) => {
                peers.iter().map(|&peer| HostId(peer as u32)).filter(|h| h.index() < count).collect()
            }
            Targets::Any(wanted) => self.choose(running(cluster), *wanted),
        };
        for host in hosts {
            action(self, cluster, host);
        }
    }

    fn choose(&mut self, mut from: Vec<HostId>, count: usize) -> Vec<HostId> {
        let mut chosen = Vec::new();
        while chosen.len() < count && !from.is_empty() {
            let index = self.generator.next_u64() as usize % from.len();
            chosen.push(from.swap_remove(index));
        }
        chosen
    }
}

/// The host setup of a scenario.
pub(crate) fn host_setup(scenario: &Scenario) -> HostSetup {
    HostSetup {
        loader: scenario.workload.loader(),
        data: scenario.workload.data.clone(),
        compute_model: ComputeModel::steady(scenario.sample_time),
        disk: Disk::honest(scenario.write_time),
        reading_time: Duration::from_millis(5),
        capacity: scenario.capacity,
    }
}

fn running(cluster: &Cluster) -> Vec<HostId> {
    cluster.hosts().running().collect()
}

fn annotate(cluster: &mut Cluster, words: &str) {
    let now = cluster.now();
    cluster.trace_mut().annotate(now, words.to_owned());
}

/// How many addresses a new peer is given.
const BOOTSTRAPS: usize = 2;
/// Churn crashes no peer unless there are more voters than this.
const CHURNING_MIN: usize = 3;
/// The task takes long at one step, and the user says so.
fn busy(cluster: &mut Cluster, host: HostId, duration: Duration) {
    cluster.note(host, "busy");
    cluster.set_task_fault(host, Some(TaskFault::Long(duration)));
    cluster.command(host, UserCommand::Busy(duration));
}

/// A user ends the run. A peer that is no member would decline.
fn end_run(cluster: &mut Cluster, host: HostId) {
    if matches!(cluster.hosts().node_state(host), Some(NodeState::Member(_))) {
        cluster.note(host, "ends the run");
        cluster.command(host, UserCommand::EndRun);
    }
}
