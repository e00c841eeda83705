//! Rules: what owners do with what workers add to a row.

use peergrad_models::optimizer::{Bounds, Optimizer, Schedule};

use super::integer;

/// What owners do with additions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TableRule {
    /// They add it to the row.
    Sum,
    /// They add integers, each of which is a [pair](super::Integer) of neighbouring numbers of the row. A sum that would not fit leaves the row as it
    /// is, and so does a pair that holds no integer.
    Integer,
    /// They keep the larger one of each number of the row and of the addition. A row begins at zero, unless the table starts with parameters:
    /// so numbers below zero have no effect on it.
    Max,
    /// The addition is a gradient, which owners apply by an optimizer.
    Optimizer {
        /// The optimizer.
        rule: Optimizer,
        /// The learning rates, by the clock of the worker that adds.
        schedule: Schedule,
        /// Where the numbers of a row stay after its first update; `None`: anywhere.
        bounds: Option<Bounds>,
    },
    /// They apply a rule of the program.
    Custom(RowRule),
}

/// A rule of the program. Its functions depend on their arguments alone, so that an addition has the same effect whichever owner applies it.
/// They must not panic for any finite numbers: the owner would stop, and then the next one. Owner and replicas hold the same bits without
/// computing twice, since replicas get the changed row.
///
/// Peers do not compare rules. If you change one, change the program's name, so that peers with the other rule are refused.
#[derive(Clone, Copy, Debug)]
pub struct RowRule {
    /// The rule's name, by which two rules are told apart.
    pub name: &'static str,
    /// The moments that are stored beside each number of a row. They begin at zero, and workers do not read them.
    pub moments: usize,
    /// Changes a row by an addition. If a number of the result is not finite, the row stays as it was.
    pub apply: fn(RowChange<'_>),
    /// Joins a further addition to the same row, `more`, with an `earlier` one that was not applied yet: of the same worker, before it has
    /// sent both; or of any worker, in a table that is [applied by clock](super::ApplyMode::PerClock). In such a table, the order must not
    /// matter. If a number of the result is not finite, `more` is dropped.
    pub combine: fn(earlier: &mut [f32], more: &[f32]),
}

/// A row, and what is added to it.
#[derive(Debug)]
pub struct RowChange<'a> {
    /// The values of the row, shape (width).
    pub values: &'a mut [f32],
    /// The moments of the row, shape (moments, width).
    pub moments: &'a mut [f32],
    /// What is added, shape (width).
    pub added: &'a [f32],
    /// The clock of the worker that adds.
    pub clock: u64,
    /// The number of changes of the row before this one, without those whose result was not finite.
    pub changes: u32,
}

impl PartialEq for RowRule {
    fn eq(&self, other: &Self) -> bool {
        (self.name, self.moments) == (other.name, other.moments)
    }
}

impl TableRule {
    /// The moments that are stored for each number of a row.
    pub(super) fn moments(&self) -> usize {
        match self {
            Self::Sum | Self::Integer | Self::Max => 0,
            Self::Optimizer { rule, .. } => rule.moment_count(),
            Self::Custom(rule) => rule.moments,
        }
    }

    /// Joins an addition with an earlier one to the same row, unless a number would overflow.
    pub(super) fn combine(&self, earlier: &mut [f32], more: &[f32]) {
        match self {
            Self::Sum | Self::Optimizer { .. } => _ = add_if_finite(earlier, more),
            Self::Integer => _ = integer::add(earlier, more),
            Self::Max => keep_larger(earlier, more),
            Self::Custom(rule) => {
                let before = earlier.to_vec();
                (rule.combine)(earlier, more);
                if earlier.iter().any(|number| !number.is_finite()) {
                    earlier.copy_from_slice(&before);
                }
            }
        }
    }

    /// Changes a row by an addition, unless a number would overflow and ruin the shared values. Returns whether the row has changed. `room`
    /// is memory for a row. `numbers` are the values of the row and its moments.
    pub(super) fn apply(
        &self,
        numbers: &mut [f32],
        (added, clock, changes): (&[f32], u64, u32),
        room: &mut Vec<f32>,
    ) -> bool {
        let width = added.len();
        match self {
            Self::Sum => return add_if_finite(&mut numbers[..width], added),
            Self::Integer => return integer::add(&mut numbers[..width], added),
            Self::Max => {
                keep_larger(&mut numbers[..width], added);
                return true;
            }
            Self::Optimizer { rule, schedule, bounds } => {
                let update =
                    rule.update(schedule.rate(clock), changes.saturating_add(1), 1.0).within(*bounds);
                let (values, moments) = numbers.split_at(width);
                room.clear();
                room.extend_from_slice(added);
                room.resize(numbers.len(), 0.0);
                let (new, after) = room.split_at_mut(width);
                update.apply(values, new, moments, after);
            }
            Self::Custom(rule) => {
                room.clear();
                room.extend_from_slice(numbers);
                let (values, moments) = room.split_at_mut(width);
                (rule.apply)(RowChange { values, moments, added, clock, changes });
            }
        }
        let is_finite = room.iter().all(|number| number.is_finite());
        if is_finite {
            numbers.copy_from_slice(room);
        }
        is_finite
    }
}

/// Adds `added` to `sums`, or nothing if one of the sums would overflow. Returns whether it has added.
fn add_if_finite(sums: &mut [f32], added: &[f32]) -> bool {
    let fits = sums.iter().zip(added).all(|(sum, added)| (sum + added).is_finite());
    if fits {
        sums.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
    }
    fits
}

fn keep_larger(numbers: &mut [f32], others: &[f32]) {
    numbers.iter_mut().zip(others).for_each(|(number, other)| *number = number.max(*other));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row after these additions, one after the other, and how many of them have changed it.
    fn after(rule: TableRule, width: usize, additions: &[&[f32]]) -> (Vec<f32>, u32) {
        let mut numbers = vec![0.0; width * (1 + rule.moments())];
        let mut changes = 0;
        for added in additions {
            changes += u32::from(rule.apply(&mut numbers, (added, 3, changes), &mut Vec::new()));
        }
        (numbers, changes)
    }

    #[test]
    fn owners_keep_the_larger_numbers() {
        assert_eq!(after(TableRule::Max, 2, &[&[1.0, -1.0], &[0.5, 3.0]]), (vec![1.0, 3.0], 2));
        let mut earlier = vec![2.0, 1.0];
        TableRule::Max.combine(&mut earlier, &[1.0, 4.0]);
        assert_eq!(earlier, [2.0, 4.0]);
    }

    #[test]
    fn an_optimizer_keeps_rows_within_the_bounds() {
        let schedule = Schedule::constant(1.0);
        let rule = TableRule::Optimizer { rule: Optimizer::SGD, schedule, bounds: Some(Bounds::NONNEGATIVE) };
        assert_eq!(after(rule, 2, &[&[-1.0, 3.0]]), (vec![1.0, 0.0], 1));
        assert_eq!(after(rule, 2, &[&[-1.0, 3.0], &[4.0, -0.5]]), (vec![0.0, 0.5], 2));
    }

    #[test]
    fn a_rule_of_the_program_changes_values_and_moments_unless_the_result_is_not_finite() {
        /// Divides by what is added, and counts in the moment.
        fn divide(RowChange { values, moments, added, clock, changes }: RowChange<'_>) {
            values[0] = (values[0] + 12.0) / added[0];
            moments[0] += clock as f32 + changes as f32;
        }
        let combine = |earlier: &mut [f32], more: &[f32]| earlier.copy_from_slice(more);
        let rule = RowRule { name: "divide", moments: 1, apply: divide, combine };
        let rule = TableRule::Custom(rule);
        assert_eq!(after(rule, 1, &[&[2.0], &[0.0], &[3.0]]), (vec![6.0, 7.0], 2));
        let mut earlier = vec![2.0];
        rule.combine(&mut earlier, &[f32::INFINITY]);
        assert_eq!(earlier, [2.0]);
        rule.combine(&mut earlier, &[5.0]);
        assert_eq!(earlier, [5.0]);
        let renamed = |rule: RowRule, name| TableRule::Custom(RowRule { name, ..rule });
        let TableRule::Custom(known) = rule else { unreachable!() };
        assert!(rule == renamed(known, "divide") && rule != renamed(known, "multiply"));
    }
}
