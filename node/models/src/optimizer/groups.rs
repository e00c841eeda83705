//! Parameter groups: the elements of the flat vector that are not updated like the rest.
//!
//! Real models want this. Biases and norms have no weight decay. A layer that was trained before learns more slowly. The running mean and
//! variance of a batch normalization are no weights at all: they follow the samples, and no gradient moves them.
//!
//! ```text
//! tensors    | layer.0.weight       | layer.0.bias | norm.variance | layer.1.weight          |
//! treatment  | that of the rest     | no decay     | a statistic   | that of the rest        |
//! chunks     |   0    |   1    |   2    |   3    |   4    |   5    |   6    |   7    |   8   |
//! ```
//! Chunks are cut without regard to tensors, so the update of a chunk is cut at the borders of groups. Within a piece, all elements are
//! updated alike, and the loop over them is that of a run without groups.
//!
//! # Statistics
//! A task writes into the gradient of a statistic the sum over its samples: the value for one sample, or the value for all of them times
//! their number. The owner divides by the samples of the step. So the new parameter is the mean by samples, whatever the learning rate.
//!
//! # Invariants
//! - A moment of a statistic stays 0.
//! - Without groups, a [`GroupedUpdate`] is the [`Update`] of its optimizer, and does the same work.

use std::ops::Range;
use std::sync::Arc;

use super::{Bounds, Optimizer, Update, clipping};

/// How the elements of a group are updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Treatment {
    /// By the optimizer of the run.
    Trained {
        /// The weight decay in place of the optimizer's; `None` for the same one.
        weight_decay: Option<f32>,
        /// This times the learning rate of the schedule is the learning rate.
        rate_factor: f64,
    },
    /// By the mean, over the samples of the step, of what members contribute. The optimizer has no part in it.
    Statistic,
}

/// The groups of a run: which elements are updated in which way. All other elements are updated as the optimizer says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterGroups {
    /// `None` if there are no groups.
    groups: Option<Arc<Groups>>,
}

#[derive(Debug, PartialEq)]
struct Groups {
    /// How each group is treated.
    treatments: Vec<Treatment>,
    /// The whole vector in pieces, in order. The last one has no end.
    pieces: Vec<Piece>,
}

/// Elements in a row that are updated alike.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// The element after the last one.
    end: usize,
    /// The index of the group; `None` for elements of no group.
    group: Option<usize>,
}

impl ParameterGroups {
    /// Groups of these treatments and ranges of elements; the ranges of a group are in any order.
    ///
    /// # Panics
    /// If an element is in two ranges.
    #[must_use]
    pub fn new(groups: impl IntoIterator<Item = (Treatment, Vec<Range<usize>>)>) -> Self {
        let (mut treatments, mut ranges) = (Vec::new(), Vec::new());
        for (index, (treatment, own)) in groups.into_iter().enumerate() {
            treatments.push(treatment);
            ranges.extend(own.into_iter().filter(|range| !range.is_empty()).map(|range| (range, index)));
        }
        if ranges.is_empty() {
            return Self::default();
        }
        ranges.sort_by_key(|(range, _)| range.start);
        let mut pieces: Vec<Piece> = Vec::new();
        let mut end = 0;
        for (range, group) in ranges {
            assert!(end <= range.start, "element {} is in two ranges", range.start);
            if end < range.start {
                pieces.push(Piece { end: range.start, group: None });
            }
            end = range.end;
            match pieces.last_mut() {
                Some(last) if last.group == Some(group) => last.end = end,
                _ => pieces.push(Piece { end, group: Some(group) }),
            }
        }
        pieces.push(Piece { end: usize::MAX, group: None });
        Self { groups: Some(Arc::new(Groups { treatments, pieces })) }
    }

    /// Whether there are no groups.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_none()
    }

    /// The ranges of elements that are statistics, in order.
    pub fn statistics(&self) -> impl Iterator<Item = Range<usize>> {
        self.groups.iter().flat_map(|groups| {
            groups.pieces(0..usize::MAX).filter_map(|(range, group)| {
                let is_statistic = groups.treatments[group?] == Treatment::Statistic;
                is_statistic.then_some(range)
            })
        })
    }

    /// The statistics alone. All other elements are in no group.
    #[must_use]
    pub fn statistics_only(&self) -> Self {
        Self::new([(Treatment::Statistic, self.statistics().collect())])
    }
}

impl Groups {
    /// Cuts the elements of `range` into pieces of one treatment each, with the index of the group.
    fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
        let first = self.pieces.partition_point(|piece| piece.end <= range.start);
        let mut start = range.start;
        self.pieces[first..].iter().map_while(move |piece| {
            let cut = start..piece.end.min(range.end);
            start = cut.end;
            (!cut.is_empty()).then_some((cut, piece.group))
        })
    }
}

/// An optimizer, the groups of the parameters that it updates, the greatest norm of their gradient, and the bounds of the parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedOptimizer {
    /// The optimizer of elements without a group, whose settings those of a group replace.
    pub rule: Optimizer,
    /// The groups.
    pub groups: ParameterGroups,
    /// The greatest norm of the mean gradient of all parameters but statistics; `None` for no limit. The [factor](Self::clip_factor) that
    /// keeps it needs the sums of all parameters.
    pub clip_norm: Option<f32>,
    /// Where all parameters but statistics stay; `None`: anywhere.
    pub bounds: Option<Bounds>,
}

impl From<Optimizer> for GroupedOptimizer {
    fn from(rule: Optimizer) -> Self {
        Self { rule, groups: ParameterGroups::default(), clip_norm: None, bounds: None }
    }
}

impl GroupedOptimizer {
    /// The part of some elements in the norm of the gradient: the sum of their squares, without statistics.
    ///
    /// - `sums`: (n), summed gradients, all finite; `first` is the index of the first element in the flat vector.
    #[must_use]
    pub fn squares(&self, first: usize, sums: &[f32]) -> f64 {
        let Some(groups) = &self.groups.groups else { return clipping::squares(sums) };
        let pieces = groups.pieces(first..first + sums.len());
        let is_trained =
            |group: Option<usize>| group.is_none_or(|group| groups.treatments[group] != Treatment::Statistic);
        let trained = pieces.filter(|(_, group)| is_trained(*group));
        trained.map(|(range, _)| clipping::squares(&sums[range.start - first..range.end - first])).sum()
    }

    /// The factor that makes the mean gradient as short as the limit says; 1 if it is not too long, or there is no limit.
    ///
    /// - `squares`: the [sum](Self::squares) of the squares of all parameters' sums over `samples`.
    #[must_use]
    pub fn clip_factor(&self, squares: f64, samples: u64) -> f32 {
        self.clip_norm.map_or(1.0, |limit| clipping::factor(limit, squares, samples))
    }

    /// As [`clip_factor`](Self::clip_factor), where the sums of all parameters are in one place.
    #[must_use]
    pub fn clip_factor_of(&self, sums: &[f32], samples: u64) -> f32 {
        if self.clip_norm.is_some() { self.clip_factor(self.squares(0, sums), samples) } else { 1.0 }
    }

    /// Moves initial values that are outside the bounds to the nearer end; statistics stay.
    ///
    /// - `parameters`: the whole flat vector.
    pub fn project(&self, parameters: &mut [f32]) {
        let Some(bounds) = self.bounds else { return };
        let (mut start, end) = (0, parameters.len());
        for statistic in self.groups.statistics().chain(std::iter::once(end..end)) {
            bounds.project(&mut parameters[start..statistic.start]);
            start = statistic.end;
        }
    }

    /// The update of one step.
    ///
    /// - `rate`: the learning rate of the schedule.
    /// - `step`: how many updates the elements have had, this one included: 1 for the first, when all moments are zero.
    /// - `samples`: the samples behind the sums, which are divided by it.
    /// - `clip_factor`: the mean gradient is multiplied by it; 1 without clipping.
    ///
    /// # Panics
    /// If `step` is 0.
    #[must_use]
    pub fn update(&self, rate: f64, step: u32, samples: u64, clip_factor: f32) -> GroupedUpdate {
        let scale = 1.0 / samples as f32 * clip_factor;
        let rest = self.rule.update(rate, step, scale).within(self.bounds);
        let update = |treatment: &Treatment| match *treatment {
            Treatment::Trained { weight_decay, rate_factor } => {
                let rule = weight_decay.map_or(self.rule, |decay| self.rule.with_weight_decay(decay));
                rule.update(rate * rate_factor, step, scale).within(self.bounds)
            }
            Treatment::Statistic => Update::mean(self.rule.moment_count(), samples),
        };
        let groups = self.groups.groups.as_ref().map(|groups| {
            let updates = groups.treatments.iter().map(update).collect();
            (Arc::clone(groups), updates)
        });
        GroupedUpdate { rest, groups }
    }
}

/// As an [`Update`], with the groups of the parameters.
pub struct GroupedUpdate {
    /// The update of elements without a group.
    rest: Update,
    /// The groups, and the update of each; `None` if there are none.
    groups: Option<(Arc<Groups>, Vec<Update>)>,
}

impl GroupedUpdate {
    /// Updates n elements in a row of the flat vector, for example a chunk, of which `first` is the index of the first.
    ///
    /// - `parameters`: (n), the values before.
    /// - `vector`: (n), the sums; afterwards the new values.
    /// - `old`, `new`: (moment count, n), one moment after the other: the state before; overwritten by the state after.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    pub fn apply(&self, first: usize, parameters: &[f32], vector: &mut [f32], old: &[f32], new: &mut [f32]) {
        let Some((groups, updates)) = &self.groups else {
            return self.rest.apply(parameters, vector, old, new);
        };
        for (range, group) in groups.pieces(first..first + vector.len()) {
            let update = group.map_or(&self.rest, |group| &updates[group]);
            update.apply_within(range.start - first..range.end - first, parameters, vector, old, new);
        }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::*;

    const NO_DECAY: Treatment = Treatment::Trained { weight_decay: Some(0.0), rate_factor: 1.0 };
    const SLOW: Treatment = Treatment::Trained { weight_decay: None, rate_factor: 0.1 };
    const RULES: [Optimizer; 9] = [
        Optimizer::Sgd { weight_decay: 0.25 },
        Optimizer::Momentum { momentum: 0.9, nesterov: false, weight_decay: 0.25 },
        Optimizer::Momentum { momentum: 0.9, nesterov: true, weight_decay: 0.25 },
        Optimizer::Adagrad { epsilon: 1e-10, weight_decay: 0.25 },
        Optimizer::Prox { l1: 0.01, l2: 0.02 },
        Optimizer::Ftrl { beta: 1.0, l1: 0.01, l2: 0.02 },
        Optimizer::ADAM,
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.25 },
        Optimizer::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.25 },
    ];

    /// Elements 3 and 4, and 20 to 22, have no decay; 5 to 8 learn slowly; 9 and 10 are statistics. Ranges are in no order.
    fn groups() -> ParameterGroups {
        ParameterGroups::new([
            (NO_DECAY, vec![20..23, 3..5]),
            (SLOW, vec![7..9, 5..7]),
            (Treatment::Statistic, vec![9..11, 30..30]),
        ])
    }

    /// The parameters, the sums and the moments of an update of 40 elements.
    fn inputs(rule: Optimizer) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let vector = |factor: f32| (0..40).map(|index| (index as f32 * factor).sin()).collect::<Vec<f32>>();
        let moments = (0..40 * rule.moment_count()).map(|index| (index as f32 * 0.3).cos().abs()).collect();
        (vector(0.7), vector(1.3), moments)
    }

    /// New values and new moments of the elements of `range`, as bits.
    fn updated(update: &GroupedUpdate, rule: Optimizer, range: Range<usize>) -> Vec<Vec<u32>> {
        let (parameters, sums, moments) = inputs(rule);
        let cut = |vector: &[f32]| vector[range.clone()].to_vec();
        let old: Vec<f32> = moments.chunks(40).flat_map(cut).collect();
        let (mut vector, mut new) = (cut(&sums), vec![f32::NAN; old.len()]);
        update.apply(range.start, &cut(&parameters), &mut vector, &old, &mut new);
        let bits = |vector: &[f32]| vector.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        let moments = new.chunks(range.len().max(1)).map(bits);
        [bits(&vector)].into_iter().chain(moments).collect()
    }

    #[test]
    fn each_element_is_updated_as_its_group_says() {
        for rule in RULES {
            let found = GroupedOptimizer { rule, groups: groups(), ..rule.into() }.update(0.05, 3, 7, 1.0);
            let found = updated(&found, rule, 0..40);
            let alone = |rule: Optimizer, rate| {
                updated(&GroupedOptimizer::from(rule).update(rate, 3, 7, 1.0), rule, 0..40)
            };
            let rest = alone(rule, 0.05);
            let (no_decay, slow) = (alone(rule.with_weight_decay(0.0), 0.05), alone(rule, 0.05 * 0.1));
            let (_, sums, moments) = inputs(rule);
            for element in 0..40 {
                for (row, found) in found.iter().enumerate() {
                    let expected = match element {
                        3 | 4 | 20..=22 => no_decay[row][element],
                        5..=8 => slow[row][element],
                        9 | 10 if row == 0 => (sums[element] / 7.0).to_bits(),
                        9 | 10 => moments[(row - 1) * 40 + element].to_bits(),
                        _ => rest[row][element],
                    };
                    assert_eq!(found[element], expected, "{rule:?}: row {row} of element {element}");
                }
            }
        }
    }

    #[test]
    fn cutting_into_chunks_changes_no_bit() {
        for rule in RULES {
            let update = GroupedOptimizer { rule, groups: groups(), ..rule.into() }.update(0.05, 3, 7, 1.0);
            let whole = updated(&update, rule, 0..40);
            for cut in 0..=40 {
                let (head, tail) = (updated(&update, rule, 0..cut), updated(&update, rule, cut..40));
                for (row, whole) in whole.iter().enumerate() {
                    let part = |part: &[Vec<u32>]| part.get(row).cloned().unwrap_or_default();
                    assert_eq!([part(&head), part(&tail)].concat(), *whole, "{rule:?}, cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn the_norm_is_that_of_trained_elements() {
        let sums: Vec<f32> = (0..40).map(|index| index as f32).collect();
        let squares = |range: Range<usize>| range.map(|index| (index * index) as f64).sum::<f64>();
        let all = GroupedOptimizer { clip_norm: Some(2.0), ..Optimizer::SGD.into() };
        assert_eq!(all.squares(0, &sums), squares(0..40));
        let grouped = GroupedOptimizer { groups: groups(), ..all.clone() };
        assert_eq!(grouped.squares(0, &sums), squares(0..9) + squares(11..40));
        assert_eq!(grouped.squares(10, &sums[10..12]), squares(11..12));
        // A mean gradient of norm 3 is shortened to 2, and its update is that of this shorter one.
        let factor = all.clip_factor(9.0 * 49.0, 7);
        assert!((factor - 2.0 / 3.0).abs() < 1e-6);
        assert_eq!(GroupedOptimizer::from(Optimizer::SGD).clip_factor(9.0 * 49.0, 7), 1.0);
        let clipped = grouped.update(1.0, 1, 1, 0.5);
        let (mut vector, before) = ([8.0; 40], [10.0; 40]);
        clipped.apply(0, &before, &mut vector, &[], &mut []);
        assert_eq!(
            [vector[0], vector[5], vector[9]],
            [6.0, 10.0 - 0.1 * 4.0, 8.0],
            "a statistic is not clipped"
        );
    }

    #[test]
    fn pieces_cover_the_vector() {
        let groups = groups();
        let pieces = |range| groups.groups.as_ref().unwrap().pieces(range).collect::<Vec<_>>();
        let all = [
            (0..3, None),
            (3..5, Some(0)),
            (5..9, Some(1)),
            (9..11, Some(2)),
            (11..20, None),
            (20..23, Some(0)),
            (23..40, None),
        ];
        assert_eq!(pieces(0..40), all);
        assert_eq!(pieces(4..6), [(4..5, Some(0)), (5..6, Some(1))]);
        assert_eq!(pieces(5..9), [(5..9, Some(1))]);
        assert_eq!(pieces(23..23), []);
    }

    #[test]
    fn statistics_are_known_by_their_ranges() {
        assert_eq!(groups().statistics().collect::<Vec<_>>(), [9..11]);
        let only = groups().statistics_only();
        assert_eq!(only, ParameterGroups::new([(Treatment::Statistic, vec![10..11, 9..10])]));
        let none = ParameterGroups::new([(SLOW, vec![2..5])]).statistics_only();
        assert!(none.is_empty() && ParameterGroups::default().statistics().next().is_none());
    }

    #[test]
    #[should_panic(expected = "element 4 is in two ranges")]
    fn an_element_is_in_one_group() {
        let _ = ParameterGroups::new([(NO_DECAY, vec![0..5]), (SLOW, vec![4..6])]);
    }
}
