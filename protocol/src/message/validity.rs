//! The rules that the types of messages do not express: what their checks share, and tests of them all.

use crate::id::StepNumber;
use crate::limits::STEPS_MAX;

/// A message decoded as its type but breaking a rule: counted against its sender and otherwise ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A list or text is over its limit.
    #[error("a field is over its limit")]
    TooLong,
    /// A number is not finite or out of its range.
    #[error("a number is out of range")]
    OutOfRange,
    /// A view record breaks the rules of views.
    #[error("not a view: {0}")]
    View(#[from] crate::view::InvalidView),
}

pub(super) fn bounded(is_bounded: bool) -> Result<(), Invalid> {
    if is_bounded { Ok(()) } else { Err(Invalid::TooLong) }
}

pub(super) fn in_range(is_in_range: bool) -> Result<(), Invalid> {
    if is_in_range { Ok(()) } else { Err(Invalid::OutOfRange) }
}

pub(super) fn is_step(step: StepNumber) -> bool {
    step.0 <= STEPS_MAX
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use crate::agreement::Ballot;
    use crate::chunk_set::ChunkSet;
    use crate::id::{ContentDigest, Incarnation, PeerId, Rank};
    use crate::limits::{
        ATTEMPTS_MAX, BUSY_MAX, CAPACITY_MAX, CHUNK_BATCH_CHUNKS_MAX, CHUNKS_MAX, CONTACTS_MAX, MEMBERS_MAX,
        SAMPLES_MAX, SPECIFICATION_BYTES_MAX,
    };
    use crate::view::{Complaint, Member, MemberFault, ViewChange};

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let departure = Departure::new(&"ö".repeat(REASON_BYTES_MAX));
        assert_eq!(departure.reason.len(), REASON_BYTES_MAX);
        assert_eq!(Message::Leave(departure).validate(), Ok(()));
        assert_eq!(Departure::new("gone").reason, "gone");
    }

    const VIEW: ViewDigest = ViewDigest([1; 32]);

    fn ballot(attempt: u32) -> Ballot {
        Ballot { attempt, rank: Rank(0) }
    }

    fn promise(report: MemberReport) -> Message {
        Message::Agreement(AgreementMessage::Promise(Box::new(Promise {
            view: VIEW,
            ballot: ballot(1),
            accepted: None,
            report,
        })))
    }

    fn chunk_batch(steps: u64, entries: Vec<ChunkEntry>) -> Message {
        let (content, digest) = (ChunkContent::State, ContentDigest([0; 32]));
        TrainingMessage::ChunkBatch(ChunkBatch { steps: StepNumber(steps), content, entries, digest })
            .in_view(VIEW)
    }

    /// Whether messages are valid up to a limit, and out of range beyond it.
    #[track_caller]
    fn assert_limit(message: impl Fn(u64) -> Message, limit: u64) {
        assert_eq!(message(limit).validate(), Ok(()));
        assert_eq!(message(limit + 1).validate(), Err(Invalid::OutOfRange));
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a list of limits")]
    fn numbers_have_limits() {
        let ballots = u64::from(ATTEMPTS_MAX);
        let samples = u64::from(u32::MAX);
        let stats = |samples| SampleStats { samples, loss: f64::NAN };
        let heartbeat = |complete, view_number, busy_milliseconds: u64| {
            let (view_number, complete) = (ViewNumber(view_number), StepNumber(complete));
            let (computing, sent) = (Some(complete), SentFrames::default());
            Message::Heartbeat(Heartbeat {
                view: VIEW,
                view_number,
                complete,
                computing,
                sent,
                heard: sent,
                is_uplink_busy: false,
                window_bytes: 0,
                disk_fails: false,
                busy_milliseconds: busy_milliseconds as u32,
            })
        };
        assert_limit(|n| heartbeat(n, 1, 0), STEPS_MAX);
        assert_limit(|n| heartbeat(1, n, 0), STEPS_MAX);
        assert_limit(|n| heartbeat(1, 1, n), BUSY_MAX.as_millis() as u64);
        let prepare = |attempt: u64, before| {
            Message::Agreement(AgreementMessage::Prepare(Prepare {
                view: VIEW,
                ballot: ballot(attempt as u32),
                before,
            }))
        };
        assert_limit(|n| prepare(n, None), ballots);
        assert_limit(|n| prepare(1, Some(StepNumber(n))), STEPS_MAX);
        let nack = |attempt: u64, promised: Option<u64>, step| {
            let promised = promised.map(|attempt| ballot(attempt as u32));
            Message::Agreement(AgreementMessage::Nack(Nack {
                view: VIEW,
                ballot: ballot(attempt as u32),
                promised,
                step: StepNumber(step),
            }))
        };
        assert_limit(|n| nack(n, None, 0), ballots);
        assert_limit(|n| nack(0, Some(n), 0), ballots);
        assert_limit(|n| nack(0, None, n), STEPS_MAX);
        let accepted = |n: u64| {
            Message::Agreement(AgreementMessage::Accepted(Accepted { view: VIEW, ballot: ballot(n as u32) }))
        };
        assert_limit(accepted, ballots);
        let withdraw =
            |n: u64| Message::Agreement(AgreementMessage::Withdraw { view: VIEW, ballot: ballot(n as u32) });
        assert_limit(withdraw, ballots);
        assert_limit(
            |n| promise(MemberReport { complete: Some(StepNumber(n)), ..MemberReport::default() }),
            STEPS_MAX,
        );
        assert_limit(|n| promise(MemberReport { stats: Some(stats(n)), ..MemberReport::default() }), samples);
        let holdings = |n| PartialStep { stats: Some(stats(n)), ..PartialStep::default() };
        assert_limit(
            |n| promise(MemberReport { next: Some(holdings(n)), ..MemberReport::default() }),
            samples,
        );
        let complete = |steps, left_out| {
            TrainingMessage::Complete(Complete { steps: StepNumber(steps), left_out }).in_view(VIEW)
        };
        assert_limit(|n| complete(n, 0), STEPS_MAX);
        assert_limit(|n| complete(0, n), SAMPLES_MAX);
        assert_limit(|n| TrainingMessage::Closed(Closed { left_out: n }).in_view(VIEW), SAMPLES_MAX);
        let parameters = |steps, shard_count: usize| {
            let (steps, digest) = (StepNumber(steps), ContentDigest([0; 32]));
            let shards = vec![ShardDigest([0; 8]); shard_count];
            TrainingMessage::ParametersDigest(ParametersDigest { steps, digest, shards }).in_view(VIEW)
        };
        assert_limit(|n| parameters(n, 0), STEPS_MAX);
        assert_eq!(parameters(0, MEMBERS_MAX).validate(), Ok(()));
        assert_eq!(parameters(0, MEMBERS_MAX + 1).validate(), Err(Invalid::TooLong));
        let progress = |step, left_out| {
            let (step, has_contribution) = (StepNumber(step), true);
            TrainingMessage::StepProgress(StepProgress { step, has_contribution, left_out }).in_view(VIEW)
        };
        assert_limit(|n| progress(n, 0), STEPS_MAX);
        assert_limit(|n| progress(0, n), SAMPLES_MAX);
        let contributors = |step, late: &[u32], left_out| {
            let late = late.iter().copied().map(Rank).collect();
            TrainingMessage::StepContributors(StepContributors { step: StepNumber(step), late, left_out })
                .in_view(VIEW)
        };
        assert_limit(|n| contributors(n, &[0, 3], 0), STEPS_MAX);
        assert_limit(|n| contributors(0, &[], n), SAMPLES_MAX);
        assert_eq!(contributors(1, &[3, 3], 0).validate(), Err(Invalid::OutOfRange));
        let many: Vec<u32> = (0..=MEMBERS_MAX as u32).collect();
        assert_eq!(contributors(1, &many, 0).validate(), Err(Invalid::TooLong));
        assert_eq!(contributors(1, &many[1..], 0).validate(), Ok(()));
        let segment = |step, samples| {
            TrainingMessage::Segment(Segment {
                step: StepNumber(step),
                phase: Phase::Reduce,
                owner: 0,
                index: 0,
                stats: stats(samples),
            })
            .in_view(VIEW)
        };
        assert_limit(|n| segment(n, 0), STEPS_MAX);
        let norm = |step, squares| {
            TrainingMessage::ShardNorm(ShardNorm { step: StepNumber(step), squares }).in_view(VIEW)
        };
        assert_limit(|n| norm(n, 0.5), STEPS_MAX);
        for wrong in [f64::NAN, f64::INFINITY, -0.5] {
            assert_eq!(norm(1, wrong).validate(), Err(Invalid::OutOfRange));
        }
        assert_limit(|n| segment(0, n), samples);
    }

    #[test]
    fn chunks_have_limits() {
        let want = |steps, count: u64| {
            let chunks = ChunkSet::all(count as usize);
            TrainingMessage::WantChunks(WantChunks { steps: StepNumber(steps), chunks }).in_view(VIEW)
        };
        assert_limit(|n| want(n, 1), STEPS_MAX);
        assert_limit(|n| want(0, n), CHUNKS_MAX as u64);
        assert_limit(|n| chunk_batch(0, vec![ChunkEntry { chunk: n as u32, updates: 0 }]), 4095);
        assert_limit(|n| chunk_batch(n, vec![]), STEPS_MAX);
        // Each step is one update at most, so that counting goes on.
        assert_limit(|n| chunk_batch(7, vec![ChunkEntry { chunk: 0, updates: n as u32 }]), 7);
        let entries = |count| vec![ChunkEntry { chunk: 0, updates: 0 }; count];
        assert_eq!(chunk_batch(0, entries(CHUNK_BATCH_CHUNKS_MAX)).validate(), Ok(()));
        assert_eq!(chunk_batch(0, entries(CHUNK_BATCH_CHUNKS_MAX + 1)).validate(), Err(Invalid::TooLong));
    }

    #[test]
    fn lists_have_limits() {
        let contact =
            |addresses| Contact { peer: PeerId([1; 32]), addresses: vec![String::new(); addresses] };
        let member = |addresses, capacity| {
            let Contact { peer, addresses } = contact(addresses);
            Member { peer, incarnation: Incarnation(1), addresses, capacity }
        };
        let join = |addresses, capacity| {
            let Member { incarnation, addresses, .. } = member(addresses, 0);
            Message::Join(JoinMessage::Join(Join { run: None, incarnation, addresses, capacity }))
        };
        let welcome = |bytes, members, addresses| {
            let members = vec![contact(addresses); members];
            Message::Join(JoinMessage::Welcome(Welcome {
                specification: vec![0; bytes],
                nonce: [0; 32],
                members,
                non_owners: vec![],
            }))
        };
        let capacity = CAPACITY_MAX;
        for fitting in [
            join(8, capacity),
            Message::Join(JoinMessage::Redirect(contact(8))),
            Message::Join(JoinMessage::Candidate(member(8, capacity))),
            welcome(SPECIFICATION_BYTES_MAX, CONTACTS_MAX, 8),
        ] {
            assert_eq!(fitting.validate(), Ok(()));
        }
        for too_long in [
            join(9, 0),
            Message::Join(JoinMessage::Redirect(contact(9))),
            Message::Join(JoinMessage::Candidate(member(9, 0))),
            welcome(SPECIFICATION_BYTES_MAX + 1, 0, 0),
            welcome(0, CONTACTS_MAX + 1, 0),
            welcome(0, 1, 9),
        ] {
            assert_eq!(too_long.validate(), Err(Invalid::TooLong), "{too_long:?}");
        }
        for heavy in [join(0, capacity + 1), Message::Join(JoinMessage::Candidate(member(0, capacity + 1)))] {
            assert_eq!(heavy.validate(), Err(Invalid::OutOfRange));
        }
    }

    #[test]
    fn reports_and_changes_have_limits() {
        let all = || ChunkSet::all(CHUNKS_MAX);
        let holdings = |values, states| Some(PartialStep { values, states, stats: None });
        let full = MemberReport {
            states: all(),
            states_before: Some(all()),
            next: holdings(all(), all()),
            lost: vec![Rank(0); MEMBERS_MAX],
            ..MemberReport::default()
        };
        assert_eq!(promise(full.clone()).validate(), Ok(()));
        let over = || ChunkSet::all(CHUNKS_MAX + 1);
        let complaint = Complaint { about: Rank(0), fault: MemberFault::Frames };
        for report in [
            MemberReport { states: over(), ..full.clone() },
            MemberReport { states_before: Some(over()), ..full.clone() },
            MemberReport { next: holdings(over(), all()), ..full.clone() },
            MemberReport { next: holdings(all(), over()), ..full.clone() },
            MemberReport { lost: vec![Rank(0); MEMBERS_MAX + 1], ..full.clone() },
            MemberReport { complaints: vec![complaint; MEMBERS_MAX + 1], ..full.clone() },
        ] {
            assert_eq!(promise(report).validate(), Err(Invalid::TooLong));
        }
        let change = |removed| ViewChange {
            parent: VIEW,
            removed: vec![Rank(0); removed],
            added: vec![],
            capacities: vec![],
            speeds: vec![],
            lines: vec![],
            resume: crate::view::Resume::at(StepNumber(0)),
            cursor: crate::cursor::DataCursor::default(),
            moves: crate::view::Moves::default(),
            expelled: vec![],
            quarantined: vec![],
            ancestors: vec![],
        };
        let with = |attempt, change: ViewChange| {
            let promise = Promise {
                view: VIEW,
                ballot: ballot(1),
                accepted: Some((ballot(attempt), change)),
                report: MemberReport::default(),
            };
            Message::Agreement(AgreementMessage::Promise(Box::new(promise)))
        };
        let propose = |attempt, change: ViewChange| {
            Message::Agreement(AgreementMessage::Propose(Propose { ballot: ballot(attempt), change }))
        };
        for (attempt, removed, expected) in [
            (ATTEMPTS_MAX, MEMBERS_MAX, Ok(())),
            (ATTEMPTS_MAX + 1, 0, Err(Invalid::OutOfRange)),
            (0, MEMBERS_MAX + 1, Err(Invalid::TooLong)),
        ] {
            assert_eq!(with(attempt, change(removed)).validate(), expected);
            assert_eq!(propose(attempt, change(removed)).validate(), expected);
        }
        assert_eq!(
            Message::Agreement(AgreementMessage::Learn(change(MEMBERS_MAX + 1))).validate(),
            Err(Invalid::TooLong)
        );
    }
}
