//! The rules that the types of messages do not express.

use super::{
    ChunkBatch, ChunkEntry, MemberReport, Message, Promise, Propose, RejoinCandidate, SampleStats,
    SavedCheckpoint,
};
use crate::agreement::Ballot;
use crate::chunk_set::ChunkSet;
use crate::id::StepNumber;
use crate::limits::{
    ATTEMPTS_MAX, CAPACITY_MAX, CHECKPOINTS_MAX, CHUNK_BATCH_CHUNKS_MAX, CHUNKS_MAX, CONTACTS_MAX,
    MEMBERS_MAX, REASON_BYTES_MAX, SAMPLES_MAX, SPECIFICATION_BYTES_MAX, STEPS_MAX,
};
use crate::view::are_bounded;

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

impl Message {
    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// Says which kind of rule is broken.
    pub fn validate(&self) -> Result<(), Invalid> {
        let bounded = |is_bounded: bool| {
            if is_bounded { Ok(()) } else { Err(Invalid::TooLong) }
        };
        let in_range = |is_in_range: bool| {
            if is_in_range { Ok(()) } else { Err(Invalid::OutOfRange) }
        };
        let is_step = |step: StepNumber| step.0 <= STEPS_MAX;
        let is_ballot = |ballot: &Ballot| ballot.attempt <= ATTEMPTS_MAX;
        match self {
            Self::Join(join) if join.capacity > CAPACITY_MAX => Err(Invalid::OutOfRange),
            Self::Join(join) => bounded(are_bounded(&join.addresses)),
            Self::Welcome(welcome) => bounded(
                welcome.specification.len() <= SPECIFICATION_BYTES_MAX
                    && welcome.members.len() <= CONTACTS_MAX
                    && welcome.non_owners.len() <= welcome.members.len()
                    && welcome.members.iter().all(|contact| are_bounded(&contact.addresses)),
            ),
            Self::Redirect(contact) => bounded(are_bounded(&contact.addresses)),
            Self::Candidate(member) if member.capacity > CAPACITY_MAX => Err(Invalid::OutOfRange),
            Self::Candidate(member) => bounded(are_bounded(&member.addresses)),
            Self::Install(view) => Ok(view.validate()?),
            Self::Heartbeat(heartbeat) => {
                let mut steps = heartbeat.computing.into_iter().chain([heartbeat.complete]);
                in_range(steps.all(is_step) && heartbeat.view_number.0 <= STEPS_MAX)
            }
            Self::Prepare(prepare) => {
                in_range(is_ballot(&prepare.ballot) && prepare.before.is_none_or(is_step))
            }
            Self::Promise(promise) => promise.validate(),
            Self::Nack(nack) => in_range(
                is_ballot(&nack.ballot) && nack.promised.as_ref().is_none_or(is_ballot) && is_step(nack.step),
            ),
            Self::Propose(propose) if !is_ballot(&propose.ballot) => Err(Invalid::OutOfRange),
            Self::Propose(Propose { change, .. }) | Self::Learn(change) => bounded(change.is_bounded()),
            Self::Accepted(accepted) => in_range(is_ballot(&accepted.ballot)),
            // A loss may be infinite or not a number (that is how divergence shows); the samples must add up.
            Self::Segment(segment) => in_range(segment.stats.is_bounded() && is_step(segment.step)),
            Self::WantChunks(want) => in_range(want.chunks.is_valid() && is_step(want.steps)),
            Self::ChunkBatch(chunk_batch) | Self::SnapshotChunks(chunk_batch)
                if chunk_batch.entries.len() > CHUNK_BATCH_CHUNKS_MAX =>
            {
                Err(Invalid::TooLong)
            }
            Self::ChunkBatch(chunk_batch) | Self::SnapshotChunks(chunk_batch) => {
                in_range(chunk_batch.is_possible() && is_step(chunk_batch.steps))
            }
            Self::Complete(complete) => in_range(is_step(complete.steps) && complete.left_out <= SAMPLES_MAX),
            Self::StepProgress(progress) => {
                in_range(is_step(progress.step) && progress.left_out <= SAMPLES_MAX)
            }
            Self::StepContributors(contributors) if contributors.late.len() > MEMBERS_MAX => {
                Err(Invalid::TooLong)
            }
            Self::StepContributors(contributors) => in_range(
                is_step(contributors.step)
                    && contributors.late.is_sorted_by(|one, next| one < next)
                    && contributors.left_out <= SAMPLES_MAX,
            ),
            Self::SaveCheckpoint(save) | Self::TakeSnapshot(save) => in_range(is_step(save.steps)),
            Self::MergeProbe(probe) if !probe.is_bounded() => Err(Invalid::TooLong),
            Self::MergeProbe(probe) => in_range(probe.is_possible()),
            Self::MergeOffer(offer) if !offer.is_bounded() => Err(Invalid::TooLong),
            Self::MergeOffer(offer) => in_range(offer.is_possible()),
            Self::WantSnapshot(want) => in_range(want.chunks.is_valid() && is_step(want.steps)),
            Self::MergeReady(ready) => in_range(is_step(ready.steps)),
            Self::MergeAccept(words) => bounded(words.is_bounded()),
            Self::Rekey(rekey) => in_range(rekey.is_possible()),
            Self::Rekeyed(at) => in_range(*at <= super::rekey::AT_MAX),
            Self::Closed(closed) => in_range(closed.left_out <= SAMPLES_MAX),
            Self::Leave(departure) => bounded(departure.reason.len() <= REASON_BYTES_MAX),
            Self::Refuse(_)
            | Self::WantData(_)
            | Self::Data(_)
            | Self::TableFrame(_)
            | Self::Ready
            | Self::Retire
            | Self::Expel(_) => Ok(()),
        }
    }
}

impl Promise {
    fn validate(&self) -> Result<(), Invalid> {
        let ballots = std::iter::once(&self.ballot).chain(self.accepted.as_ref().map(|(ballot, _)| ballot));
        if !self.report.is_possible() || ballots.into_iter().any(|ballot| ballot.attempt > ATTEMPTS_MAX) {
            return Err(Invalid::OutOfRange);
        }
        let is_bounded = self.accepted.as_ref().is_none_or(|(_, change)| change.is_bounded());
        if is_bounded && self.report.is_bounded() { Ok(()) } else { Err(Invalid::TooLong) }
    }
}

impl SampleStats {
    /// Whether as many samples as a batch can have stand behind it, so that adding some up does not overflow.
    fn is_bounded(&self) -> bool {
        self.samples <= u64::from(u32::MAX)
    }
}

impl ChunkBatch {
    fn is_possible(&self) -> bool {
        // Each step is one update at most.
        let is_piece = |piece: &ChunkEntry| {
            (piece.chunk as usize) < CHUNKS_MAX && u64::from(piece.updates) <= self.steps.0
        };
        self.entries.iter().all(is_piece)
    }
}

impl MemberReport {
    fn is_bounded(&self) -> bool {
        let next = self.next.iter().flat_map(|next| [&next.values, &next.states]);
        let mut sets = next.chain(&self.states_before).chain([&self.states]);
        let is_bounded = |rejoin: &RejoinCandidate| {
            rejoin.saved.len() <= CHECKPOINTS_MAX
                && rejoin.saved.iter().all(|saved| saved.states.is_valid())
                && are_bounded(&rejoin.member.addresses)
        };
        sets.all(ChunkSet::is_valid)
            && self.lost.len() <= MEMBERS_MAX
            && self.rejoin.as_deref().is_none_or(is_bounded)
    }

    fn is_possible(&self) -> bool {
        let next = self.next.as_ref().and_then(|next| next.stats);
        let is_saved = |saved: &SavedCheckpoint| saved.steps.0 <= STEPS_MAX && saved.cursor.is_valid();
        let is_again = |rejoin: &RejoinCandidate| {
            rejoin.member.capacity <= CAPACITY_MAX && rejoin.saved.iter().all(is_saved)
        };
        self.complete.is_none_or(|steps| steps.0 <= STEPS_MAX)
            && self.rejoin.as_deref().is_none_or(is_again)
            && self.stats.iter().chain(&next).all(SampleStats::is_bounded)
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

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
        Message::Promise(Box::new(Promise { view: VIEW, ballot: ballot(1), accepted: None, report }))
    }

    fn chunk_batch(steps: u64, entries: Vec<ChunkEntry>) -> Message {
        let (content, digest) = (ChunkContent::State, ContentDigest([0; 32]));
        Message::ChunkBatch(ChunkBatch { view: VIEW, steps: StepNumber(steps), content, entries, digest })
    }

    /// Whether messages are valid up to a limit, and out of range beyond it.
    #[track_caller]
    fn assert_limit(message: impl Fn(u64) -> Message, limit: u64) {
        assert_eq!(message(limit).validate(), Ok(()));
        assert_eq!(message(limit + 1).validate(), Err(Invalid::OutOfRange));
    }

    #[test]
    fn numbers_have_limits() {
        let ballots = u64::from(ATTEMPTS_MAX);
        let samples = u64::from(u32::MAX);
        let stats = |samples| SampleStats { samples, loss: f64::NAN };
        let heartbeat = |complete, view_number| {
            let (view_number, complete) = (ViewNumber(view_number), StepNumber(complete));
            Message::Heartbeat(Heartbeat { view: VIEW, view_number, complete, computing: Some(complete) })
        };
        assert_limit(|n| heartbeat(n, 1), STEPS_MAX);
        assert_limit(|n| heartbeat(1, n), STEPS_MAX);
        let prepare = |attempt: u64, before| {
            Message::Prepare(Prepare { view: VIEW, ballot: ballot(attempt as u32), before })
        };
        assert_limit(|n| prepare(n, None), ballots);
        assert_limit(|n| prepare(1, Some(StepNumber(n))), STEPS_MAX);
        let nack = |attempt: u64, promised: Option<u64>, step| {
            let promised = promised.map(|attempt| ballot(attempt as u32));
            Message::Nack(Nack {
                view: VIEW,
                ballot: ballot(attempt as u32),
                promised,
                step: StepNumber(step),
            })
        };
        assert_limit(|n| nack(n, None, 0), ballots);
        assert_limit(|n| nack(0, Some(n), 0), ballots);
        assert_limit(|n| nack(0, None, n), STEPS_MAX);
        let accepted = |n: u64| Message::Accepted(Accepted { view: VIEW, ballot: ballot(n as u32) });
        assert_limit(accepted, ballots);
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
        let complete =
            |steps, left_out| Message::Complete(Complete { view: VIEW, steps: StepNumber(steps), left_out });
        assert_limit(|n| complete(n, 0), STEPS_MAX);
        assert_limit(|n| complete(0, n), SAMPLES_MAX);
        assert_limit(|n| Message::Closed(Closed { view: VIEW, left_out: n }), SAMPLES_MAX);
        let progress = |step, left_out| {
            let (step, has_contribution) = (StepNumber(step), true);
            Message::StepProgress(StepProgress { view: VIEW, step, has_contribution, left_out })
        };
        assert_limit(|n| progress(n, 0), STEPS_MAX);
        assert_limit(|n| progress(0, n), SAMPLES_MAX);
        let contributors = |step, late: &[u32], left_out| {
            let late = late.iter().copied().map(Rank).collect();
            Message::StepContributors(StepContributors { view: VIEW, step: StepNumber(step), late, left_out })
        };
        assert_limit(|n| contributors(n, &[0, 3], 0), STEPS_MAX);
        assert_limit(|n| contributors(0, &[], n), SAMPLES_MAX);
        assert_eq!(contributors(1, &[3, 3], 0).validate(), Err(Invalid::OutOfRange));
        let many: Vec<u32> = (0..=MEMBERS_MAX as u32).collect();
        assert_eq!(contributors(1, &many, 0).validate(), Err(Invalid::TooLong));
        assert_eq!(contributors(1, &many[1..], 0).validate(), Ok(()));
        let segment = |step, samples| {
            Message::Segment(Segment {
                view: VIEW,
                step: StepNumber(step),
                phase: Phase::Reduce,
                owner: 0,
                index: 0,
                stats: stats(samples),
            })
        };
        assert_limit(|n| segment(n, 0), STEPS_MAX);
        assert_limit(|n| segment(0, n), samples);
    }

    #[test]
    fn chunks_have_limits() {
        let want = |steps, count: u64| {
            let chunks = ChunkSet::all(count as usize);
            Message::WantChunks(WantChunks { view: VIEW, steps: StepNumber(steps), chunks })
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
            Message::Join(Join { run: None, incarnation, addresses, capacity })
        };
        let welcome = |bytes, members, addresses| {
            let members = vec![contact(addresses); members];
            Message::Welcome(Welcome {
                specification: vec![0; bytes],
                nonce: [0; 32],
                members,
                non_owners: vec![],
            })
        };
        let capacity = CAPACITY_MAX;
        for fitting in [
            join(8, capacity),
            Message::Redirect(contact(8)),
            Message::Candidate(member(8, capacity)),
            welcome(SPECIFICATION_BYTES_MAX, CONTACTS_MAX, 8),
        ] {
            assert_eq!(fitting.validate(), Ok(()));
        }
        for too_long in [
            join(9, 0),
            Message::Redirect(contact(9)),
            Message::Candidate(member(9, 0)),
            welcome(SPECIFICATION_BYTES_MAX + 1, 0, 0),
            welcome(0, CONTACTS_MAX + 1, 0),
            welcome(0, 1, 9),
        ] {
            assert_eq!(too_long.validate(), Err(Invalid::TooLong), "{too_long:?}");
        }
        for heavy in [join(0, capacity + 1), Message::Candidate(member(0, capacity + 1))] {
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
        for report in [
            MemberReport { states: over(), ..full.clone() },
            MemberReport { states_before: Some(over()), ..full.clone() },
            MemberReport { next: holdings(over(), all()), ..full.clone() },
            MemberReport { next: holdings(all(), over()), ..full.clone() },
            MemberReport { lost: vec![Rank(0); MEMBERS_MAX + 1], ..full.clone() },
        ] {
            assert_eq!(promise(report).validate(), Err(Invalid::TooLong));
        }
        let change = |removed| ViewChange {
            parent: VIEW,
            removed: vec![Rank(0); removed],
            added: vec![],
            capacities: vec![],
            resume: crate::view::Resume::at(StepNumber(0)),
            cursor: crate::cursor::DataCursor::default(),
            moves: crate::view::Moves::default(),
            expelled: vec![],
            ancestors: vec![],
        };
        let with = |attempt, change: ViewChange| {
            let promise = Promise {
                view: VIEW,
                ballot: ballot(1),
                accepted: Some((ballot(attempt), change)),
                report: MemberReport::default(),
            };
            Message::Promise(Box::new(promise))
        };
        let propose =
            |attempt, change: ViewChange| Message::Propose(Propose { ballot: ballot(attempt), change });
        for (attempt, removed, expected) in [
            (ATTEMPTS_MAX, MEMBERS_MAX, Ok(())),
            (ATTEMPTS_MAX + 1, 0, Err(Invalid::OutOfRange)),
            (0, MEMBERS_MAX + 1, Err(Invalid::TooLong)),
        ] {
            assert_eq!(with(attempt, change(removed)).validate(), expected);
            assert_eq!(propose(attempt, change(removed)).validate(), expected);
        }
        assert_eq!(Message::Learn(change(MEMBERS_MAX + 1)).validate(), Err(Invalid::TooLong));
    }
}
