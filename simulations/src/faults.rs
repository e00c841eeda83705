//! The director: makes a scenario's faults happen in a cluster at their times, and undoes them when theirs is over.
//!
//! What a fault leaves open (which peer, when exactly) the seed decides.

use std::sync::Arc;
use std::time::Duration;

use peergrad::node::Standing;
use peergrad_protocol::message::Message;
use peergrad_protocol::view::View;
use peergrad_protocol::{Epoch, Frame, Instant, StepNumber};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::cluster::Cluster;
use crate::disk::Disk;
use crate::history::Band;
use crate::host::{Entry, HostId, HostSetup, Trouble};
use crate::pace::{Bursts, Pace};
use crate::queue::Queue;
use crate::scenario::{Fault, Groups, Planned, Scenario, When, Whom};

/// What is still to go wrong.
pub(crate) struct Director {
    generator: ChaCha8Rng,
    agenda: Queue<Deed>,
    /// Faults that wait for the start of training.
    on_training: Vec<(Duration, Fault)>,
    /// Faults that wait for a step.
    on_step: Vec<(u64, Duration, Fault)>,
    /// Faults that wait for a view that merges.
    on_merge: Vec<(Duration, Fault)>,
    template: HostSetup,
    /// Hosts whose peers were crashed, restarted or told to leave, and those that came later.
    touched: Vec<HostId>,
    newcomers: Vec<HostId>,
}

enum Deed {
    Fault(Fault),
    Heal { edges: Vec<(HostId, HostId)>, band: usize },
    Start { host: HostId },
    Wake { host: HostId },
    Steady { host: HostId },
    Unthrottle { host: HostId },
    Reach { host: HostId },
    Churn { times: u32, every: Duration },
}

impl Director {
    /// The faults of a scenario.
    pub(crate) fn new(scenario: &Scenario, template: HostSetup, seed: u64) -> Self {
        let generator = ChaCha8Rng::seed_from_u64(seed ^ 0x0064_6972_6563_746f);
        let mut director = Self {
            generator,
            agenda: Queue::default(),
            on_training: Vec::new(),
            on_step: Vec::new(),
            on_merge: Vec::new(),
            template,
            touched: Vec::new(),
            newcomers: Vec::new(),
        };
        for Planned { when, within, fault } in &scenario.faults {
            let luck = director.luck(*within);
            match *when {
                When::Start(time) => {
                    director.plan(Instant::default().after(time + luck), Deed::Fault(fault.clone()))
                }
                When::Training(time) => director.on_training.push((time + luck, fault.clone())),
                When::Step(step) => director.on_step.push((step, luck, fault.clone())),
                When::Merge(time) => director.on_merge.push((time + luck, fault.clone())),
            }
        }
        director
    }

    fn luck(&mut self, within: Duration) -> Duration {
        Duration::from_nanos(self.generator.next_u64() % (within.as_nanos() as u64 + 1))
    }

    fn plan(&mut self, at: Instant, deed: Deed) {
        self.agenda.push(at, deed);
    }

    /// When something is to be done next.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.agenda.next_at()
    }

    /// Whether nothing more will go wrong or be undone.
    pub(crate) fn is_idle(&self) -> bool {
        self.agenda.next_at().is_none()
    }

    /// Peers that were crashed, restarted or told to leave.
    pub(crate) fn touched(&self) -> &[HostId] {
        &self.touched
    }

    /// Peers that came after the start.
    pub(crate) fn newcomers(&self) -> &[HostId] {
        &self.newcomers
    }

    /// Puts on the agenda what waited for training to begin, for a step, or for a view.
    pub(crate) fn notice(&mut self, cluster: &Cluster) {
        let now = cluster.now();
        if cluster.history().began.is_some() {
            for (time, fault) in std::mem::take(&mut self.on_training) {
                self.plan(now.after(time), Deed::Fault(fault));
            }
        }
        let is_merging = || cluster.history().views.iter().any(|note| note.view.merge().is_some());
        if !self.on_merge.is_empty() && is_merging() {
            for (time, fault) in std::mem::take(&mut self.on_merge) {
                self.plan(now.after(time), Deed::Fault(fault));
            }
        }
        let Some(newest) = cluster.history().commits.last() else { return };
        let StepNumber(step) = newest.committed.step;
        while let Some(index) = self.on_step.iter().position(|(due, ..)| *due <= step) {
            let (_, luck, fault) = self.on_step.remove(index);
            self.plan(now.after(luck), Deed::Fault(fault));
        }
    }

    /// Does what is due.
    pub(crate) fn act(&mut self, cluster: &mut Cluster) {
        let Some((_, deed)) = self.agenda.pop() else { return };
        match deed {
            Deed::Fault(fault) => self.fault(cluster, fault),
            Deed::Heal { edges, band } => {
                for (from, to) in edges {
                    cluster.heal(from, to);
                }
                let now = cluster.now();
                cluster.history_mut().bands[band].until = now;
                remark(cluster, "healed");
            }
            // Two restarts overlapped, and the shorter one is over.
            Deed::Start { host } if cluster.standing(host).is_some() => {}
            Deed::Start { host } => {
                let bootstraps = self.bootstraps(cluster, host);
                let run = cluster.run_id();
                remark(cluster, &format!("{host} is started again"));
                cluster.start(host, Entry::Join { run, bootstraps });
            }
            Deed::Wake { host } => {
                remark(cluster, &format!("{host} wakes up"));
                cluster.wake(host);
            }
            Deed::Steady { host } => {
                cluster.setup_mut(host).pace.slowness_percent = self.template.pace.slowness_percent;
            }
            Deed::Unthrottle { host } => {
                let links = cluster.links().clone();
                cluster.throttle(host, links.up, links.down);
            }
            Deed::Reach { host } => {
                remark(cluster, &format!("{host} can be dialed again"));
                cluster.place(host, true);
            }
            Deed::Churn { times, every } => self.churn(cluster, times, every),
        }
    }

    fn fault(&mut self, cluster: &mut Cluster, fault: Fault) {
        remark(cluster, &format!("{fault:?}"));
        match fault {
            Fault::Partition { groups, lasting } => self.part(cluster, &groups, lasting),
            Fault::Cut { between, one_way, lasting } => self.cut_between(cluster, between, one_way, lasting),
            Fault::Flap { fault, times, every } => {
                for turn in 0..times {
                    self.plan(cluster.now().after(every * turn), Deed::Fault(Fault::clone(&fault)));
                }
            }
            Fault::Crash { whom, has_reset } => self.each(cluster, &whom, |director, cluster, host| {
                director.crash(cluster, host, has_reset);
            }),
            Fault::Restart { whom, lasting, keeps_disk } => {
                self.each(cluster, &whom, |director, cluster, host| {
                    director.crash(cluster, host, true);
                    let host = if keeps_disk { host } else { director.add(cluster) };
                    director.plan(cluster.now().after(lasting), Deed::Start { host });
                })
            }
            Fault::Blackout { lasting, every, count, damaged } => {
                self.black_out(cluster, lasting, every, count, damaged)
            }
            Fault::Leave { whom } => self.each(cluster, &whom, |director, cluster, host| {
                director.touch(host);
                cluster.note(host, "asked to leave");
                cluster.leave(host);
            }),
            Fault::Remove { whom } => self.each(cluster, &whom, |director, cluster, host| {
                let Some(&asked) = director.bootstraps(cluster, host).first() else { return };
                director.touch(host);
                cluster.note(host, &format!("removed by a user at {asked}"));
                cluster.expel(asked, host);
            }),
            Fault::Unreachable { whom, lasting } => self.each(cluster, &whom, |director, cluster, host| {
                cluster.note(host, "cannot be dialed");
                cluster.place(host, false);
                if let Some(lasting) = lasting {
                    director.plan(cluster.now().after(lasting), Deed::Reach { host });
                }
            }),
            Fault::Slow { whom, percent, lasting } => self.slow(cluster, &whom, lasting, |pace| {
                pace.slowness_percent = percent;
            }),
            Fault::Bursts { whom, per_mille, percent } => self.slow(cluster, &whom, None, |pace| {
                pace.bursts = Some(Bursts { per_mille, slowness_percent: percent });
            }),
            Fault::Noise { whom, percent } => self.slow(cluster, &whom, None, |pace| {
                pace.noise_percent = percent;
            }),
            Fault::Pause { whom, lasting } => self.each(cluster, &whom, |director, cluster, host| {
                cluster.sleep(host);
                director.plan(cluster.now().after(lasting), Deed::Wake { host });
            }),
            Fault::Panic { whom } => self.trouble(cluster, &whom, Trouble::Panic),
            Fault::Hang { whom } => self.trouble(cluster, &whom, Trouble::Hang),
            Fault::Clone { whom } => self.each(cluster, &whom, |director, cluster, host| {
                let copy = cluster.add_copy(host);
                director.newcomers.push(copy);
                // Of two with one identity the one that started last goes on.
                director.touch(host);
                director.plan(cluster.now(), Deed::Start { host: copy });
            }),
            Fault::Garbage { whom, count } => self.each(cluster, &whom, |director, cluster, host| {
                director.send_garbage(cluster, host, count);
            }),
            Fault::StaleViews { whom } => {
                self.each(cluster, &whom, |_, cluster, host| send_stale_views(cluster, host))
            }
            Fault::Disk { whom, mode } => self.each(cluster, &whom, |director, cluster, host| {
                // A peer whose disk is full says so and ends.
                director.touch(host);
                cluster.setup_mut(host).disk.mode = mode;
            }),
            Fault::Throttle { whom, up, down, lasting } => {
                self.each(cluster, &whom, |director, cluster, host| {
                    cluster.throttle(host, Some(up), Some(down));
                    cluster.note(host, &format!("line now {up} up, {down} down bit/s"));
                    if let Some(lasting) = lasting {
                        director.plan(cluster.now().after(lasting), Deed::Unthrottle { host });
                    }
                })
            }
            Fault::Join { count } => {
                for _ in 0..count {
                    let host = self.add(cluster);
                    self.plan(cluster.now(), Deed::Start { host });
                }
            }
            Fault::Churn { times, every } => self.churn(cluster, times, every),
        }
    }

    // Cuts.

    fn cut_between(
        &mut self,
        cluster: &mut Cluster,
        between: [usize; 2],
        one_way: bool,
        lasting: Option<Duration>,
    ) {
        let [a, b] = between.map(|index| HostId(index as u32));
        let (edges, sign) = if one_way { (vec![(a, b)], "->") } else { (vec![(a, b), (b, a)], "|") };
        self.cut(cluster, edges, format!("cut {a} {sign} {b}"), lasting);
    }

    /// No frames between groups.
    fn part(&mut self, cluster: &mut Cluster, groups: &Groups, lasting: Option<Duration>) {
        let groups = groups_of(cluster, groups);
        let label = groups.iter().map(|group| names(group)).collect::<Vec<_>>().join(" | ");
        let mut edges = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            for other in groups.iter().enumerate().filter(|(other, _)| *other != index).flat_map(|o| o.1) {
                edges.extend(group.iter().map(|&host| (host, *other)));
            }
        }
        self.cut(cluster, edges, format!("cut {label}"), lasting);
    }

    fn cut(
        &mut self,
        cluster: &mut Cluster,
        edges: Vec<(HostId, HostId)>,
        label: String,
        lasting: Option<Duration>,
    ) {
        let count = cluster.hosts().count();
        let is_real =
            |(from, to): &(HostId, HostId)| from != to && from.index() < count && to.index() < count;
        let edges: Vec<_> = edges.into_iter().filter(is_real).collect();
        for &(from, to) in &edges {
            cluster.cut(from, to);
        }
        let from = cluster.now();
        let bands = &mut cluster.history_mut().bands;
        bands.push(Band { from, until: Instant(u64::MAX), label });
        let band = bands.len() - 1;
        if let Some(lasting) = lasting {
            self.plan(from.after(lasting), Deed::Heal { edges, band });
        }
    }

    // Processes.

    fn crash(&mut self, cluster: &mut Cluster, host: HostId, has_reset: bool) {
        self.touch(host);
        cluster.note(host, if has_reset { "killed" } else { "lost power" });
        cluster.crash(host, has_reset);
    }

    /// The power goes everywhere, and comes back at one after the other.
    fn black_out(
        &mut self,
        cluster: &mut Cluster,
        lasting: Duration,
        every: Duration,
        count: Option<usize>,
        damaged: usize,
    ) {
        let all = running(cluster);
        let back = self.choose(all.clone(), count.unwrap_or(all.len()));
        all.into_iter().for_each(|host| self.crash(cluster, host, false));
        for (index, &host) in back.iter().enumerate() {
            if index < damaged {
                cluster.setup_mut(host).disk.spoil();
            }
            let at = cluster.now().after(lasting + every * index as u32);
            self.plan(at, Deed::Start { host });
        }
        // They are to finish what they have begun.
        self.touched.retain(|host| !back.contains(host));
    }

    fn touch(&mut self, host: HostId) {
        self.touched.push(host);
    }

    fn add(&mut self, cluster: &mut Cluster) -> HostId {
        let host = cluster.add(self.template.clone());
        self.newcomers.push(host);
        host
    }

    /// Members that are awake, as invites would name them; where there is none, anybody.
    fn bootstraps(&mut self, cluster: &Cluster, newcomer: HostId) -> Vec<HostId> {
        let others: Vec<HostId> = running(cluster).into_iter().filter(|&host| host != newcomer).collect();
        let is_in =
            |host: &HostId| matches!(cluster.standing(*host), Some(Standing::Founding | Standing::Member(_)));
        let is_awake = |host: &HostId| !cluster.is_asleep(*host);
        let members: Vec<HostId> = others.iter().copied().filter(is_in).filter(is_awake).collect();
        self.choose(if members.is_empty() { others } else { members }, BOOTSTRAPS)
    }

    /// Crashes somebody or lets somebody new come, and plans the next. Of few members nobody is crashed, and nobody without
    /// whom the others were too few to agree: that is for scenarios in which too few are left.
    fn churn(&mut self, cluster: &mut Cluster, times: u32, every: Duration) {
        if times == 0 {
            return;
        }
        let view_of = |host: HostId| match cluster.standing(host) {
            Some(Standing::Member(standing)) => Some(standing.view),
            _ => None,
        };
        let views: Vec<Arc<View>> = running(cluster).into_iter().filter_map(view_of).collect();
        let newest = views.iter().max_by_key(|view| view.epoch);
        let quorum = newest.map_or(0, |view| view.members.len() / 2 + 1);
        // Whoever is in the newest view can vote in it.
        let voters =
            views.iter().filter(|view| Some(view.epoch) == newest.map(|newest| newest.epoch)).count();
        let fault = match self.generator.next_u32() % 2 {
            0 if voters > CHURNING_MIN.max(quorum) => Fault::Crash { whom: Whom::Any(1), has_reset: true },
            _ => Fault::Join { count: 1 },
        };
        self.fault(cluster, fault);
        self.plan(cluster.now().after(every), Deed::Churn { times: times - 1, every });
    }

    // Tasks and machines.

    fn slow(
        &mut self,
        cluster: &mut Cluster,
        whom: &Whom,
        lasting: Option<Duration>,
        change: impl Fn(&mut Pace),
    ) {
        self.each(cluster, whom, |director, cluster, host| {
            change(&mut cluster.setup_mut(host).pace);
            cluster.note(host, "slow");
            if let Some(lasting) = lasting {
                director.plan(cluster.now().after(lasting), Deed::Steady { host });
            }
        });
    }

    fn trouble(&mut self, cluster: &mut Cluster, whom: &Whom, trouble: Trouble) {
        self.each(cluster, whom, |director, cluster, host| {
            // What it does then is its own fault, not the others'.
            director.touch(host);
            cluster.note(host, &format!("{trouble:?} in its task"));
            cluster.set_trouble(host, Some(trouble));
        });
    }

    fn send_garbage(&mut self, cluster: &mut Cluster, from: HostId, count: usize) {
        for to in cluster.hosts().filter(|&to| to != from) {
            for _ in 0..count {
                let mut head = vec![0; (self.generator.next_u32() % 64) as usize];
                self.generator.fill_bytes(&mut head);
                // Half of it looks like the start of a frame.
                if let (Some(version), 0) = (head.first_mut(), self.generator.next_u32() % 2) {
                    *version = peergrad_protocol::wire::VERSION;
                }
                cluster.forge(from, to, Frame { head, payload: None });
            }
        }
    }

    /// Does something to each of them, at the time of asking.
    fn each(
        &mut self,
        cluster: &mut Cluster,
        whom: &Whom,
        mut deed: impl FnMut(&mut Self, &mut Cluster, HostId),
    ) {
        let count = cluster.hosts().count();
        let hosts = match whom {
            Whom::Peers(peers) => {
                peers.iter().map(|&peer| HostId(peer as u32)).filter(|h| h.index() < count).collect()
            }
            Whom::Any(wanted) => self.choose(running(cluster), *wanted),
        };
        for host in hosts {
            deed(self, cluster, host);
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

/// A host as a scenario makes it.
pub(crate) fn host_of(scenario: &Scenario) -> HostSetup {
    HostSetup {
        loader: scenario.workload.loader(),
        data: scenario.workload.data.clone(),
        pace: Pace::steady(scenario.sample_time),
        disk: Disk::honest(scenario.write_time),
        reading_time: Duration::from_millis(5),
        weight: 1,
    }
}

fn running(cluster: &Cluster) -> Vec<HostId> {
    cluster.hosts().filter(|&host| cluster.standing(host).is_some()).collect()
}

fn groups_of(cluster: &Cluster, groups: &Groups) -> Vec<Vec<HostId>> {
    let all: Vec<HostId> = cluster.hosts().collect();
    match groups {
        Groups::Peers(groups) => {
            groups.iter().map(|group| group.iter().map(|&peer| HostId(peer as u32)).collect()).collect()
        }
        Groups::Split(parts) => {
            let mut rest = all.as_slice();
            let part_of = |size| {
                let (part, others) = rest.split_at(size);
                rest = others;
                part.to_vec()
            };
            Groups::sizes(parts, all.len()).into_iter().map(part_of).collect()
        }
    }
}

/// The view that is installed there once more, and one that has the number of an earlier one.
fn send_stale_views(cluster: &mut Cluster, from: HostId) {
    let Some(Standing::Member(standing)) = cluster.standing(from) else { return };
    let view = View::clone(&standing.view);
    let before = View { epoch: Epoch(view.epoch.0.saturating_sub(1)), parents: vec![], ..view.clone() };
    for to in cluster.hosts().filter(|&to| to != from) {
        for view in [&view, &before] {
            cluster.forge(from, to, Frame::encode(&Message::Install(view.clone()), None));
        }
    }
}

fn names(hosts: &[HostId]) -> String {
    match hosts {
        [] => "nobody".to_owned(),
        [one] => one.to_string(),
        [first, .., last] if hosts.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0) => {
            format!("{first}-{last}")
        }
        hosts => hosts.iter().map(HostId::to_string).collect::<Vec<_>>().join(" "),
    }
}

fn remark(cluster: &mut Cluster, words: &str) {
    let now = cluster.now();
    cluster.trace_mut().remark(now, words.to_owned());
}

/// So many addresses a newcomer is given.
const BOOTSTRAPS: usize = 2;
/// Members that churn leaves alone.
const CHURNING_MIN: usize = 3;
