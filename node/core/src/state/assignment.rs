//! Batch assignment: which samples each member computes in a step.
//!
//! A batch is divided among those members of the view in which its step begins that have parameters: in proportion to their speeds, as the
//! view has them, and evenly before these are known. If the view changes during the step, each member keeps its part, and the parts of
//! members that left are returned to the epoch. So a part belongs to a member by its id, not by its rank.

use std::ops::Range;

use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::view::{BatchParts, Member, Recovery, Resume, View};
use peergrad_protocol::{Incarnation, PeerId, Rank, StepNumber};

use super::round_size::RoundSize;

/// The parts of one step's batch, and the data cursor after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchAssignment {
    /// The epoch of the batch, from 0.
    pub(crate) epoch: u64,
    /// The samples that each member computes, sorted by peer.
    pub(crate) parts: Vec<AssignedPart>,
    /// The data cursor after the batch.
    pub(crate) after: DataCursor,
    /// Whether the members have ended the run before this batch, which is empty.
    is_past_end: bool,
}

/// The samples that one member computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AssignedPart {
    pub(crate) peer: PeerId,
    /// The incarnation of the member: another one computes nothing of this part.
    pub(crate) incarnation: Incarnation,
    /// The samples, as positions in the epoch's permutation.
    pub(crate) spans: Vec<Span>,
}

impl BatchAssignment {
    /// Assigns the next batch after `cursor` to the members of `view` that have parameters in `step`.
    pub(crate) fn next(
        cursor: &DataCursor,
        round_size: RoundSize,
        sample_count: u64,
        view: &View,
        step: StepNumber,
    ) -> Self {
        let newcomers = if step == view.first_step() { view.newcomers() } else { &[] };
        let computes = |rank: Rank| !newcomers.contains(&rank);
        let (batch, after) = cursor.next_batch(round_size.samples(view, computes), sample_count);
        let weights = view.batch_weights(computes);
        let part = |index: usize| batch.part(index, &weights, round_size.block);
        let is_past_end = cursor.ending == Ending::Over;
        Self { epoch: batch.epoch, parts: named(view, part), after, is_past_end }
    }

    /// A batch as a view's record assigns it; `after` is the record's cursor.
    pub(crate) fn from_record(batch: &BatchParts, view: &View, after: DataCursor) -> Self {
        let parts = named(view, |index| batch.parts[index].clone());
        Self { epoch: batch.epoch, parts, after, is_past_end: false }
    }

    /// Whether the run, of so many epochs, is over before this batch. It is empty then.
    pub(crate) fn is_over(&self, epochs: u64) -> bool {
        self.is_past_end || self.epoch >= epochs
    }

    /// The number of samples.
    pub(crate) fn len(&self) -> u64 {
        self.parts.iter().flat_map(|part| &part.spans).map(Span::len).sum()
    }

    /// The spans of samples that a member computes; empty if it has none.
    pub(crate) fn part(&self, peer: &PeerId, incarnation: Incarnation) -> &[Span] {
        let found = self.parts.binary_search_by(|part| part.peer.cmp(peer)).map(|index| &self.parts[index]);
        found.ok().filter(|part| part.incarnation == incarnation).map_or(&[], |part| &part.spans)
    }

    /// How many samples a member computes.
    pub(crate) fn part_len(&self, peer: &PeerId, incarnation: Incarnation) -> u64 {
        self.part(peer, incarnation).iter().map(Span::len).sum()
    }

    /// The numbers, in the whole run, of the local steps in which members compute this batch of `step`.
    ///
    /// Where rounds are as long as members are fast, so many local steps were taken before as there were batches in the samples that were
    /// taken: members that agree on the data cursor agree on the learning rate.
    pub(crate) fn local_steps(
        &self,
        round_size: RoundSize,
        sample_count: u64,
        step: StepNumber,
    ) -> Range<u64> {
        let RoundSize { batch_size, local_steps, duration, .. } = round_size;
        if duration.is_none() {
            let first = step.0.saturating_mul(local_steps);
            return first..first.saturating_add(local_steps);
        }
        let of_an_epoch = sample_count.div_ceil(batch_size);
        let before = self.after.taken(sample_count).saturating_sub(self.len());
        let in_this = before.saturating_sub(self.epoch.saturating_mul(sample_count));
        let first = self.epoch.saturating_mul(of_an_epoch).saturating_add(in_this / batch_size);
        first..first.saturating_add(self.len().div_ceil(batch_size).max(1))
    }

    /// The batch of `step` in `view`, where `before` is that of the step before. The batch of the view's first step is in its record; later
    /// ones follow from the cursor.
    pub(crate) fn following(
        before: &Self,
        round_size: RoundSize,
        sample_count: u64,
        view: &View,
        step: StepNumber,
    ) -> Self {
        if step != view.first_step() {
            return Self::next(&before.after, round_size, sample_count, view, step);
        }
        match &view.recovery {
            // The step merges another branch: after it, the samples that either branch has trained count as taken.
            Recovery::Resume(Resume { merge: Some(merge), .. }) => {
                let after = view.cursor.union(&merge.cursor, sample_count);
                Self { epoch: view.cursor.epoch, parts: named(view, |_| vec![]), after, is_past_end: false }
            }
            Recovery::Resume(Resume { batch: Some(batch), .. }) => {
                Self::from_record(batch, view, view.cursor.clone())
            }
            Recovery::Resume(_) | Recovery::Initialize => {
                Self::next(&view.cursor, round_size, sample_count, view, step)
            }
        }
    }

    /// The batch without the parts of peers that are not among `members`, or that have no parameters because they are `newcomers` there.
    /// Those parts are returned to the epoch. The result is what a view's record holds.
    pub(crate) fn among(&self, members: &[Member], newcomers: &[Rank]) -> (BatchParts, DataCursor) {
        let computing = |index: &usize| !newcomers.contains(&Rank::from_index(*index));
        let part = |(index, member): (usize, &Member)| match computing(&index) {
            true => self.part(&member.peer, member.incarnation).to_vec(),
            false => vec![],
        };
        let parts = members.iter().enumerate().map(part).collect();
        let stays = |part: &&AssignedPart| {
            let index = members.binary_search_by(|member| member.peer.cmp(&part.peer));
            index.is_ok_and(|index| members[index].incarnation == part.incarnation && computing(&index))
        };
        let gone = self.parts.iter().filter(|part| !stays(part)).flat_map(|part| part.spans.iter().copied());
        (BatchParts { epoch: self.epoch, parts }, self.after.return_spans(gone))
    }
}

fn named(view: &View, part: impl Fn(usize) -> Vec<Span>) -> Vec<AssignedPart> {
    let of = |index: usize| {
        let member = &view.members[index];
        AssignedPart { peer: member.peer, incarnation: member.incarnation, spans: part(index) }
    };
    (0..view.members.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use peergrad_protocol::view::{Member, Recovery, Resume};
    use peergrad_protocol::{Incarnation, ViewDigest, ViewNumber};

    use super::*;
    use crate::fixtures::{self, member};

    const TWELVE: RoundSize = fixtures::round_size(12);

    /// A view that begins at step 5, in which the second of three members is new.
    fn view() -> View {
        let resume = Resume { newcomers: vec![Rank(1)], ..Resume::at(StepNumber(5)) };
        let parents = vec![ViewDigest([1; 32])];
        View {
            number: ViewNumber(2),
            parents,
            recovery: Recovery::Resume(resume),
            ..fixtures::view(&[1, 2, 3])
        }
    }

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    fn parts(assignment: &BatchAssignment) -> Vec<&[Span]> {
        assignment.parts.iter().map(|part| &part.spans[..]).collect()
    }

    #[test]
    fn a_newcomer_has_no_part_in_its_first_step() {
        let first = BatchAssignment::next(&DataCursor::default(), TWELVE, 100, &view(), StepNumber(5));
        assert_eq!(parts(&first), [&[span(0, 6)][..], &[], &[span(6, 12)]]);
        let second = BatchAssignment::next(&first.after, TWELVE, 100, &view(), StepNumber(6));
        assert_eq!(parts(&second), [[span(12, 16)], [span(16, 20)], [span(20, 24)]]);
        assert_eq!((second.len(), second.after.position), (12, 24));
    }

    #[test]
    fn returned_samples_are_assigned_first() {
        let cursor = DataCursor {
            epoch: 0,
            position: 50,
            returned: vec![span(10, 13), span(30, 33)],
            ..DataCursor::default()
        };
        let assignment = BatchAssignment::next(&cursor, TWELVE, 100, &view(), StepNumber(6));
        assert_eq!(
            parts(&assignment),
            [&[span(10, 13), span(30, 31)][..], &[span(31, 33), span(50, 52)], &[span(52, 56)]]
        );
        assert_eq!(assignment.after, DataCursor { position: 56, ..DataCursor::default() });
    }

    /// Ranks change from view to view, and a peer that rejoins has computed nothing of its earlier part.
    #[test]
    fn a_part_belongs_to_a_member_in_one_incarnation() {
        let assignment = BatchAssignment::next(&DataCursor::default(), TWELVE, 100, &view(), StepNumber(6));
        let others = [member(0), member(1), Member { incarnation: Incarnation(2), ..member(2) }, member(3)];
        let (batch, cursor) = assignment.among(&others, &[]);
        assert_eq!(batch.parts, [vec![], vec![span(0, 4)], vec![], vec![span(8, 12)]]);
        assert_eq!(cursor, DataCursor { position: 12, returned: vec![span(4, 8)], ..DataCursor::default() });
        assert_eq!(assignment.part(&PeerId([2; 32]), Incarnation(2)), []);
    }

    /// The first step of a newcomer was undone, so it has no parameters to compute with.
    #[test]
    fn the_part_of_a_member_that_cannot_compute_is_returned() {
        let assignment = BatchAssignment::next(&DataCursor::default(), TWELVE, 100, &view(), StepNumber(6));
        let (batch, cursor) = assignment.among(&view().members, &[Rank(2)]);
        assert_eq!(batch.parts, [vec![span(0, 4)], vec![span(4, 8)], vec![]]);
        assert_eq!(cursor.returned, [span(8, 12)]);
    }

    #[test]
    fn a_view_starts_from_its_record_and_continues_from_the_data_cursor() {
        let mut view = view();
        let before = BatchAssignment::next(&DataCursor::default(), TWELVE, 100, &view, StepNumber(4));
        let following =
            |view: &View, step| BatchAssignment::following(&before, TWELVE, 100, view, StepNumber(step));
        view.cursor.position = 30;
        assert_eq!(
            following(&view, 5),
            BatchAssignment::next(&view.cursor, TWELVE, 100, &view, StepNumber(5))
        );
        assert_eq!(
            following(&view, 6),
            BatchAssignment::next(&before.after, TWELVE, 100, &view, StepNumber(6))
        );
        let batch = BatchParts { epoch: 0, parts: vec![vec![span(3, 5)], vec![], vec![span(9, 10)]] };
        let resume = Resume { batch: Some(batch.clone()), ..Resume::at(StepNumber(5)) };
        view.recovery = Recovery::Resume(resume);
        assert_eq!(following(&view, 5), BatchAssignment::from_record(&batch, &view, view.cursor.clone()));
        assert_eq!(
            following(&view, 6),
            BatchAssignment::next(&before.after, TWELVE, 100, &view, StepNumber(6))
        );
    }

    #[test]
    fn all_samples_are_returned_if_no_member_stays() {
        let cursor =
            DataCursor { epoch: 3, position: 20, returned: vec![span(2, 4)], ..DataCursor::default() };
        let assignment =
            BatchAssignment::next(&cursor, fixtures::round_size(10), 100, &view(), StepNumber(6));
        let (batch, after) = assignment.among(&[], &[]);
        assert_eq!((batch.parts.len(), after.taken(100)), (0, cursor.taken(100)));
    }

    #[test]
    fn a_batch_survives_several_losses_in_turn() {
        let mut view = view();
        let mut assignment = BatchAssignment::next(&DataCursor::default(), TWELVE, 100, &view, StepNumber(6));
        for gone in [1, 0] {
            view.members.remove(gone);
            let (batch, cursor) = assignment.among(&view.members, &[]);
            assignment = BatchAssignment::from_record(&batch, &view, cursor);
        }
        assert_eq!(parts(&assignment), [[span(8, 12)]]);
        assert_eq!(assignment.after.returned, [span(0, 8)]);
    }
    #[test]
    fn a_round_with_a_duration_takes_as_many_samples_as_the_speeds_of_the_view_allow() {
        let round_size = RoundSize { duration: Some(Duration::from_secs(30)), ..TWELVE };
        let view = View { speeds: vec![48, 24, 0], ..fixtures::view(&[1, 2, 3]) };
        let first = BatchAssignment::next(&DataCursor::default(), round_size, 100, &view, StepNumber(0));
        assert_eq!((first.len(), first.local_steps(round_size, 100, StepNumber(0))), (60, 0..5));
        let cut = BatchAssignment::next(&first.after, round_size, 100, &view, StepNumber(1));
        assert_eq!((cut.len(), cut.local_steps(round_size, 100, StepNumber(1))), (40, 5..9));
        let next = BatchAssignment::next(&cut.after, round_size, 100, &view, StepNumber(2));
        assert_eq!((next.epoch, next.local_steps(round_size, 100, StepNumber(2))), (1, 9..14));
        // A member of the round has left: the others have the same learning rates.
        let (batch, cursor) = next.among(&view.members[..2], &[]);
        let rest = BatchAssignment::from_record(&batch, &fixtures::view(&[1, 2]), cursor);
        assert_eq!(rest.local_steps(round_size, 100, StepNumber(2)).start, 9);
        assert_eq!(first.local_steps(TWELVE, 100, StepNumber(7)), 7..8, "only the step's number counts");
    }
}
