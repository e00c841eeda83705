//! The report: well-formed, bounded and complete, for any run.

use std::collections::BTreeMap;
use std::sync::Arc;

use peergrad_core::io::{Committed, MergeEvaluation};
use peergrad_models::task::Evaluation;
use peergrad_protocol::cursor::DataCursor;
use peergrad_protocol::view::{Branch, Member, Moves, Recovery, Resume, View, ViewHistory};
use peergrad_protocol::{Incarnation, Instant, PeerId, RunId, StepNumber, ViewDigest, ViewNumber};
use peergrad_simulations::history::{
    CommitNote, CutInterval, ExitStatus, History, MergeSummary, PeerHistory, PeerState, StateSpan,
};
use peergrad_simulations::host::HostId;
use peergrad_simulations::report::{CheckResult, Report, render};

/// A generated run, built in the order in which it happens.
struct RunBuilder {
    history: History,
    /// Steps committed by each branch.
    steps: BTreeMap<usize, u64>,
    noise: u64,
}

const FINISHED: PeerState = PeerState::Ended(ExitStatus::Finished);
const LEFT: PeerState = PeerState::Ended(ExitStatus::Left);
const BROKEN_OFF: PeerState = PeerState::Ended(ExitStatus::Failed);
const PARAMETERS: usize = 60_000;

impl RunBuilder {
    fn of(peers: u32) -> Self {
        let lane = |index: u32| {
            let peer = PeerId(*blake3::hash(&index.to_le_bytes()).as_bytes());
            PeerHistory { peer, spans: Vec::new(), notes: Vec::new() }
        };
        let history = History { peers: (0..peers).map(lane).collect(), ..History::default() };
        Self { history, steps: BTreeMap::new(), noise: 1 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.noise =
            self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.noise >> 33) % below
    }

    fn is(&mut self, host: u32, millis: u64, state: PeerState) {
        self.history.set_state(HostId(host), at(millis), state);
    }

    fn note(&mut self, host: u32, millis: u64, words: &str) {
        self.history.note(HostId(host), at(millis), words.to_owned());
    }

    /// The members of a view install it, one shortly after the other.
    fn view(&mut self, millis: u64, view_number: u64, parents: &[usize], hosts: &[u32]) -> usize {
        let member = |host: &u32| Member {
            peer: self.history.peers[*host as usize].peer,
            incarnation: Incarnation(1),
            addresses: Vec::new(),
            capacity: 1,
        };
        let mut members: Vec<Member> = hosts.iter().map(member).collect();
        members.sort_by_key(|member| member.peer);
        // It continues the branch of its first parent.
        let parent = parents.first().map(|view| self.history.views[*view].branch_index);
        let step = parent.map_or(0, |branch_index| self.steps[&branch_index]);
        let parents: Vec<ViewDigest> = parents.iter().map(|view| self.history.views[*view].digest).collect();
        let (run, recovery) = (RunId([7; 32]), Recovery::Resume(Resume::at(StepNumber(step))));
        let view = Arc::new(View {
            run,
            number: ViewNumber(view_number),
            parents,
            members,
            lines: vec![],
            speeds: vec![],
            history: ViewHistory::starting_with(Branch {
                view_number: ViewNumber(1),
                step: StepNumber(0),
                fork: None,
            }),
            recovery,
            cursor: DataCursor::default(),
            expelled: vec![],
            quarantined: vec![],
            moves: Moves::default(),
        });
        let mut left = PARAMETERS;
        let mut index = 0;
        for (position, host) in hosts.iter().enumerate() {
            let fair = left / (hosts.len() - position);
            let spread = if position + 1 == hosts.len() { 0 } else { fair as u64 / 4 };
            let shard = (fair as u64 - spread / 2 + self.draw(spread.max(1))).min(left as u64) as usize;
            left -= shard;
            let millis = millis + self.draw(40);
            index = self.history.installed(HostId(*host), at(millis), &view, view.digest(), shard);
        }
        self.steps.entry(self.history.views[index].branch_index).or_insert(step);
        index
    }

    /// Steps are committed at even intervals, and each peer sends to the next one and sometimes to another.
    fn train(&mut self, from: u64, until: u64, view: usize, hosts: &[u32], count: u64) {
        let branch_index = self.history.views[view].branch_index;
        for index in 0..count {
            let millis = from + (until - from) * index / count;
            let noise = self.draw(1000) as f64 / 1000.0 - 0.5;
            let step = self.steps.get_mut(&branch_index).expect("it has a view");
            let part = *step as f64;
            let loss = (0.12 + 2.2 / (1.0 + part / 22.0)) * (1.0 + 0.16 * noise);
            let committed = Committed {
                step: StepNumber(*step),
                epoch: 0,
                steps_expected: 0,
                loss,
                samples: 32,
                left_out: 0,
                may_be_late: false,
                is_own: false,
                rate: 0.1,
                digest: None,
            };
            *step += 1;
            for (position, host) in hosts.iter().enumerate() {
                let next = hosts[(position + 1) % hosts.len()];
                let other = hosts[self.draw(hosts.len() as u64) as usize];
                let size = 60_000 + self.draw(20_000);
                self.history.traffic.add(at(millis), HostId(*host), HostId(next), size);
                self.history.traffic.add(at(millis), HostId(*host), HostId(other), 900);
            }
            let bytes = self.history.traffic.total;
            self.history.commits.push(CommitNote { at: at(millis), view, committed, bytes, count: 1 });
        }
    }

    fn band(&mut self, from: u64, until: u64, label: &str) {
        self.history.cuts.push(CutInterval { from: at(from), until: at(until), label: label.to_owned() });
    }

    fn end(mut self, millis: u64) -> History {
        self.history.close(at(millis));
        self.history.commits.sort_by_key(|note| note.at);
        self.history
    }
}

fn at(millis: u64) -> Instant {
    Instant(millis * 1_000_000)
}

/// Eight peers: late joiners, a fork and a merge, a crash and a rejoin, pauses, and one that fails.
fn eventful() -> History {
    let mut builder = RunBuilder::of(8);
    for host in 0..8 {
        builder.is(host, [0, 90, 160, 170, 240, 400, 1400, 2500][host as usize], PeerState::Joining);
    }
    let first = builder.view(1000, 1, &[], &[0, 1, 2, 3, 4, 5]);
    builder.history.began = Some(at(1080));
    builder.train(1100, 2000, first, &[0, 1, 2, 3, 4, 5], 34);
    let second = builder.view(2000, 2, &[first], &[0, 1, 2, 3, 4, 5, 6]);
    builder.train(2060, 3100, second, &[0, 1, 2, 3, 4, 5, 6], 40);
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let third = builder.view(3100, 3, &[second], &all);
    builder.train(3160, 4000, third, &all, 34);

    builder.band(4000, 7200, "cut 0-4 | 5-7");
    builder.note(0, 4210, "said that p5 is gone");
    builder.note(6, 4330, "said that p2 is gone");
    builder.history.redone.extend([(at(4450), 108), (at(4660), 108), (at(5390), 141)]);
    let a = builder.view(4400, 4, &[third], &[0, 1, 2, 3, 4]);
    let b = builder.view(4600, 4, &[third], &[5, 6, 7]);
    builder.train(4480, 5000, a, &[0, 1, 2, 3, 4], 24);
    builder.is(3, 5000, PeerState::Down);
    builder.note(3, 5000, "crashed");
    builder.train(4700, 5200, b, &[5, 6, 7], 14);
    builder.is(6, 5200, PeerState::Paused);
    let a = builder.view(5300, 5, &[a], &[0, 1, 2, 4]);
    builder.train(5400, 6500, a, &[0, 1, 2, 4], 44);
    builder.is(6, 5800, PeerState::Member(b));
    builder.train(5850, 7150, b, &[5, 6, 7], 40);
    builder.is(3, 6000, PeerState::Joining);
    builder.note(3, 6000, "started again");
    let a = builder.view(6500, 6, &[a], &[0, 1, 2, 3, 4]);
    builder.train(6560, 7500, a, &[0, 1, 2, 3, 4], 38);

    let merged = builder.view(7600, 7, &[a, b], &all);
    let (view, steps) = (builder.history.views[b].digest, StepNumber(158));
    let comparison = MergeEvaluation {
        ours: Evaluation { samples: 100, loss: 0.25, accuracy: Some(0.9) },
        theirs: Evaluation { samples: 100, loss: 0.5, accuracy: Some(0.75) },
        merged: Evaluation { samples: 100, loss: 0.125, accuracy: Some(0.95) },
        distance: 3.0,
        norm: 12.0,
    };
    for host in all {
        let merged = MergeSummary { steps, ours: 5000, theirs: 3200, comparison: None };
        builder.history.merged(HostId(host), at(7600), view, merged);
    }
    builder.history.record_comparison(HostId(4), comparison);
    builder.train(7700, 8400, merged, &all, 26);
    builder.is(1, 8400, PeerState::Paused);
    builder.is(1, 8900, PeerState::Member(merged));
    builder.train(8900, 9200, merged, &all, 10);
    builder.is(2, 9200, PeerState::Down);
    builder.note(2, 9200, "crashed");
    let rest = [0, 1, 3, 4, 5, 6, 7];
    let eighth = builder.view(9600, 8, &[merged], &rest);
    builder.band(9800, 10_100, "slow p4");
    builder.band(9950, 10_400, "lossy 1 | 4");
    builder.train(9700, 10_500, eighth, &rest, 28);
    builder.is(7, 10_500, BROKEN_OFF);
    builder.note(5, 10_550, "said that p7 is gone");
    builder.note(6, 10_560, "said that p7 is gone");
    builder.note(7, 10_500, "left: <disk & \"full\">");
    let ninth = builder.view(10_600, 9, &[eighth], &rest[..6]);
    builder.train(10_700, 12_250, ninth, &rest[..6], 62);
    for host in &rest[..6] {
        builder.is(*host, 12_280 + u64::from(*host) * 4, FINISHED);
    }
    builder.end(12_400)
}

/// Many peers that flap: at every turn a different part of them is down or paused, and the others agree on a new view.
fn crowd(peers: u32, turns: u64) -> History {
    let mut builder = RunBuilder::of(peers);
    for host in 0..peers {
        let millis = builder.draw(900);
        builder.is(host, millis, PeerState::Joining);
    }
    let mut parents = Vec::new();
    for turn in 0..turns {
        let start = 1000 + turn * 1000;
        for host in 0..peers {
            if turn > 0 && builder.draw(12) == 0 {
                let (millis, kind) = (start - 400 + builder.draw(300), builder.draw(3));
                builder.is(host, millis, if kind == 0 { PeerState::Paused } else { PeerState::Down });
                builder.note(host, millis, if kind == 0 { "sleeps" } else { "crashed" });
            }
        }
        let is_absent = |state: Option<PeerState>| matches!(state, Some(PeerState::Down | PeerState::Paused));
        let here = |host: &u32| {
            !is_absent(builder.history.state(HostId(*host))) || (host + turn as u32).is_multiple_of(3)
        };
        let hosts: Vec<u32> = (0..peers).filter(here).collect();
        let view = builder.view(start, turn + 1, &parents, &hosts);
        parents = vec![view];
        builder.train(start + 50, start + 950, view, &hosts, 6);
        if turn % 5 == 4 {
            builder.band(start + 100, start + 700, &format!("cut 0-{} | rest", peers / 2));
        }
    }
    for host in 0..peers {
        let state = if host % 50 == 49 { BROKEN_OFF } else { FINISHED };
        if builder.history.state(HostId(host)) != Some(PeerState::Down) {
            builder.is(host, 1000 + turns * 1000, state);
        }
    }
    builder.end(1100 + turns * 1000)
}

fn alone() -> History {
    let mut builder = RunBuilder::of(1);
    builder.is(0, 0, PeerState::Joining);
    let view = builder.view(3, 1, &[], &[0]);
    builder.history.began = Some(at(50));
    builder.train(60, 800, view, &[0], 30);
    builder.is(0, 810, FINISHED);
    builder.end(812)
}

fn page(title: &str, history: &History) -> String {
    let facts = [
        ("virtual time", "12.4 s"),
        ("wall time", "0.31 s"),
        ("peers", "8"),
        ("committed steps", "300"),
        ("redone steps", "3"),
        ("views", "10"),
        ("bytes sent", "112 MB"),
        ("final loss", "0.2731"),
        ("seed", "7"),
        ("samples", "9,600"),
        ("trace hash", "8d1f5c0b77a24e3396b1c2f04be9d650"),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let verdict = |name: &str, source: &str, outcome: Result<(), &str>| CheckResult {
        name: name.to_owned(),
        source: source.to_owned(),
        outcome: outcome.map_err(str::to_owned),
    };
    let mut check_results = vec![
        verdict("views form one chain", "invariant 1", Ok(())),
        verdict("each chunk has one owner", "invariant 2", Ok(())),
        verdict("each contribution counts once", "invariant 3", Ok(())),
        verdict("members hold the same bits", "invariant 4", Ok(())),
        verdict("a committed step stays", "invariant 5", Ok(())),
        verdict("every sample once an epoch", "invariant 6", Ok(())),
        verdict("nothing waits on the departed", "invariant 7", Ok(())),
        verdict("queues stay bounded", "invariant 9", Ok(())),
        verdict("the loss follows the plain reference", "oracle", Ok(())),
        verdict("two branches while cut", "expected", Ok(())),
    ];
    if title.contains("broken") {
        let words = "at 8.31 s, p4 (qX2mTz): all peers in one view within 5 s of the last fault,\nbut p2 was still down <since 9.2 s>";
        check_results.push(verdict("faults off, progress", "invariant 8", Err(words)));
    }
    render(&Report {
        title,
        about: "A network of eight is cut in two, both halves train on, and find together again.",
        command: "simulate run partition --seed 7",
        words: &["Eight peers trained 300 steps in 12.4 s. The cut at 4.0 s made two branches, \
                  which merged at 7.6 s; 122 samples were trained by both."
            .to_owned()],
        facts: &facts,
        check_results: &check_results,
        history,
    })
}

/// Spans without an end or a reason, and a change every few milliseconds.
fn noise(peers: u32, changes: u64) -> History {
    let mut builder = RunBuilder::of(peers);
    let views =
        [builder.view(1, 1, &[], &[0, 1]), builder.view(2, 2, &[0], &[0]), builder.view(2, 2, &[0], &[1])];
    for change in 0..changes {
        for host in 0..peers {
            let millis = 50 + change * 7 + builder.draw(7);
            let state = match builder.draw(6) {
                0 => PeerState::Joining,
                1 => PeerState::Paused,
                2 => PeerState::Down,
                other => PeerState::Member(views[other as usize - 3]),
            };
            builder.is(host, millis, state);
            if builder.draw(3) == 0 {
                builder.note(host, millis, "again");
            }
        }
        let (from, length) = (builder.draw(2000), 1 + builder.draw(900));
        builder.band(from, from + length, "cut one | the others, and once more");
        builder.history.redone.push((at(from), change));
    }
    for from in 0..peers {
        for to in 0..peers.min(120) {
            let bytes = 1 + builder.draw(100_000);
            builder.history.traffic.add(at(u64::from(from)), HostId(from), HostId(to), bytes);
        }
    }
    builder.end(60 + changes * 7)
}

/// Checks that each opened element is closed in its turn; returns the number of elements.
fn well_formed(page: &str) -> usize {
    let mut open: Vec<&str> = Vec::new();
    let mut count = 0;
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let end = rest.find('>').expect("a tag ends");
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().expect("a tag has a name");
        rest = after;
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "before {:?}", &after.chars().take(80).collect::<String>());
        } else if !tag.ends_with('/') && !tag.starts_with('!') && name != "meta" {
            count += 1;
            open.push(name);
            if name == "style" || name == "script" {
                rest = &rest[rest.find("</").expect("it ends")..];
            }
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    count
}

/// Checks what must hold for every page.
fn check(page: &str) {
    well_formed(page);
    let place = |tag: &str| page.find(tag).expect("a page has a style and a script");
    let drawn = &page[place("</style>")..place("<script>")];
    for word in ["NaN", "inf", "http", "<img", "<link"] {
        assert!(!drawn.contains(word), "{word}");
    }
    assert!(!drawn.contains("=\"-"), "nothing lies left of or above the page, or has a negative size");
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
}

#[test]
fn a_page_shows_all_events_of_an_eventful_run() {
    let history = eventful();
    let page = page("broken", &history);
    check(&page);
    for (index, lane) in history.peers.iter().enumerate() {
        assert!(page.contains(&format!(">p{index}<title>{}</title>", lane.peer)), "p{index} is named");
    }
    for view in ["view A1", "in view A6", "in view B4", "A6 + B4 → A7"] {
        assert!(page.contains(view), "{view}");
    }
    for words in [
        "At 7.60 s part B was merged into part A: 50 of its 54 steps since the partition (3,200 samples, beside 5,000 that part A \
         trained alone); the 4 steps that it made during the agreement were discarded, and their samples are trained again. On \
         held-out samples: loss 0.2500 (accuracy 0.9000) of A before, loss 0.5000 (accuracy 0.7500) of B, loss 0.1250 (accuracy \
         0.9500) of both together; their parameters differed by 25.0 %.",
        "<time>10.6 s</time> p5, p6: said that p7 is gone",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert_eq!(page.matches("was merged into").count(), 1, "listed once, however many peers report it");
    for words in ["cut 0-4 | 5-7", "lossy 1 | 4", "step 108 restarted at 4.45 s", "p3, 5.00 s: crashed"] {
        assert!(page.contains(words), "{words}");
    }
    assert!(page.contains("✗ 1 of 11 checks failed."));
    assert!(page.contains("simulate run partition --seed 7"));
}

#[test]
fn a_part_that_yields_is_listed_with_its_discarded_steps() {
    let mut builder = RunBuilder::of(3);
    let first = builder.view(100, 1, &[], &[0, 1, 2]);
    builder.train(120, 900, first, &[0, 1, 2], 10);
    let a = builder.view(1000, 2, &[first], &[0, 1]);
    let b = builder.view(1000, 2, &[first], &[2]);
    builder.train(1100, 2000, a, &[0, 1], 20);
    builder.train(1100, 2000, b, &[2], 12);
    builder.history.branch_abandoned(HostId(2), at(2000));
    builder.is(2, 2000, PeerState::Joining);
    let all = builder.view(2400, 3, &[a], &[0, 1, 2]);
    builder.train(2500, 3000, all, &[0, 1, 2], 5);
    builder.is(2, 3000, LEFT);
    let history = builder.end(3100);
    let words = history.branch_end_sentences();
    assert_eq!(words.len(), 1);
    let sentence = "At 2.00 s part B yielded to part A: the 12 steps (";
    assert!(
        words[0].starts_with(sentence) && words[0].ends_with("and their samples are trained again."),
        "{words:?}"
    );
    let page = page("winner", &history);
    check(&page);
    assert!(
        page.contains(sentence) && page.contains("p2: left at 3.00 s") && page.contains("</svg>left</li>")
    );
}

#[test]
fn traffic_is_recorded_to_the_end_of_a_run_of_any_length() {
    let mut history = alone();
    for hour in 0..170 {
        history.traffic.add(Instant(hour * 3_600_000_000_000), HostId(0), HostId(0), 1000);
    }
    let traffic = &history.traffic;
    assert_eq!(traffic.over_time.iter().sum::<u64>(), traffic.total);
    let end = traffic.step.as_secs_f64() * traffic.over_time.len() as f64;
    assert!(end > 169.0 * 3600.0 && traffic.over_time.len() <= 90_000, "{end} s");
}

#[test]
fn texts_of_the_run_are_escaped_in_the_page() {
    let history = eventful();
    let page = page("<broken & \"open>", &history);
    check(&page);
    assert!(page.contains("left: &lt;disk &amp; &quot;full&quot;&gt;"));
    assert!(page.contains("still down &lt;since 9.2 s&gt;"));
    assert!(page.contains("<h1>&lt;broken &amp; &quot;open&gt;</h1>"));
}

#[test]
fn a_run_in_which_little_happened_can_be_drawn() {
    check(&page("nothing", &History::default()));
    check(&page("alone", &alone()));

    let mut waiting = RunBuilder::of(3);
    (0..3).for_each(|host| waiting.is(host, 10, PeerState::Joining));
    let page_of_waiting = page("nobody trained", &waiting.history);
    check(&page_of_waiting);
    assert!(page_of_waiting.contains("No step was committed"));
    check(&page("nobody trained", &waiting.end(30_000)));

    let mut diverged = alone();
    let losses = [f64::NAN, f64::INFINITY, 1e308, -1e308, 0.0];
    for (note, loss) in diverged.commits.iter_mut().zip(losses.into_iter().cycle()) {
        note.committed.loss = loss;
    }
    check(&page("diverged", &diverged));
    diverged.commits.iter_mut().for_each(|note| note.committed.loss = f64::NAN);
    check(&page("diverged", &diverged));

    // A commit in an unknown view, and a history that was not closed.
    let mut odd = alone();
    odd.commits[0].view = 7;
    odd.end = Instant(0);
    odd.peers[0].spans.push(StateSpan { from: at(900), until: at(900), state: PeerState::Member(9) });
    odd.views[0].shards.clear();
    check(&page("odd", &odd));
}

#[test]
fn a_page_stays_bounded() {
    let crowd = crowd(1000, 5);
    let page_of_crowd = page("crowd", &crowd);
    check(&page_of_crowd);
    for (index, lane) in crowd.peers.iter().enumerate() {
        assert!(page_of_crowd.contains(&format!("p{index} ({})", lane.peer.short())), "p{index} is named");
    }
    check(&page("noise", &noise(1000, 300)));
    check(&page("noise", &noise(8, 3000)));
}
