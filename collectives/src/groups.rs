//! Groups: the members that average with each other in a round, as a function of the round and a seed.
//!
//! People at a dance stand in a grid. First everybody talks to their row, then to their column: after two short talks, what one of them
//! knew has reached all. Then they mix, and begin again.
//!
//! ```text
//! round 0   0 1 2     rows        round 1   0|1|2    columns       rounds 2 and 3: another order of the
//!           -----                           3|4|5                  same members, if they are shuffled
//!           3 4 5
//! ```
//! # Invariants
//! - The groups of a round are a partition: each member is in exactly one, for any number of members. So averaging within each group
//!   changes no sum over all members.
//! - In a full grid, averaging rows and then columns gives the mean of all members.
//! - No group has one member, unless there is only one member.
//!
//! # Reading
//! Ryabinin et al., *Moshpit SGD: Communication-Efficient Decentralized Training on Heterogeneous Unreliable Devices*, 2021, section 3:
//! averaging along the axes of a grid. Wang et al., *DS-Sync: Addressing Network Bottlenecks with Divide-and-Shuffle Synchronization*,
//! 2020 and 2022: disjoint groups that change from round to round.

use peergrad_protocol::cursor::permutation;

/// The division of members into groups, round by round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// The number of members in a row, at least 2; up to twice as many if the number of members is no multiple of it. `None`: about the
    /// square root of the number of members, so that rows and columns are of about the same length.
    pub size: Option<usize>,
    /// The seed of the order of members in the grid.
    pub seed: u64,
    /// Whether groups change from round to round. If not, they are islands that never exchange anything.
    pub is_shuffled: bool,
}

impl Groups {
    /// The group of member `rank` of `count` in `round`: sorted ranks, including its own.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn of(&self, rank: usize, count: usize, round: u64) -> Vec<usize> {
        let mut all = self.partition(count, round);
        let own = all.iter().position(|group| group.contains(&rank)).expect("each member is in a group");
        all.swap_remove(own)
    }

    /// All groups of `count` members in `round`, each sorted.
    #[must_use]
    pub fn partition(&self, count: usize, round: u64) -> Vec<Vec<usize>> {
        let size = self.size.unwrap_or_else(|| count.isqrt()).max(2);
        let row_count = (count / size).max(1);
        let order = self.order(count, round / 2);
        let row = |row: usize| &order[row * count / row_count..(row + 1) * count / row_count];
        let rows = (0..row_count).map(row);
        let mut groups: Vec<Vec<usize>> = if round.is_multiple_of(2) || !self.is_shuffled || row_count == 1 {
            rows.map(<[usize]>::to_vec).collect()
        } else {
            let width = count.div_ceil(row_count);
            let column = |column| rows.clone().filter_map(|row| row.get(column).copied()).collect();
            (0..width).map(column).collect()
        };
        // The longest row may have one member more than the others, which would be alone in its column.
        if groups.len() > 1 && groups.last().is_some_and(|last| last.len() == 1) {
            let last = groups.pop().expect("just seen");
            groups.last_mut().expect("there was another").extend(last);
        }
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups
    }

    /// The order of members in the grid in a pair of rounds.
    fn order(&self, count: usize, pair: u64) -> Vec<usize> {
        if !self.is_shuffled {
            return (0..count).collect();
        }
        permutation(self.seed, pair, count as u32).into_iter().map(|rank| rank as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHUFFLED: Groups = Groups { size: Some(4), seed: 3, is_shuffled: true };

    fn averaged(values: &[f64], groups: &[Vec<usize>]) -> Vec<f64> {
        let mut after = vec![f64::NAN; values.len()];
        for group in groups {
            let mean = group.iter().map(|rank| values[*rank]).sum::<f64>() / group.len() as f64;
            group.iter().for_each(|rank| after[*rank] = mean);
        }
        after
    }

    #[test]
    fn every_round_partitions_members_into_groups_of_about_the_given_size() {
        for count in 1..70 {
            for size in 2..9 {
                let groups = Groups { size: Some(size), ..SHUFFLED };
                for round in 0..6 {
                    let partition = groups.partition(count, round);
                    let mut all = partition.concat();
                    all.sort_unstable();
                    assert_eq!(all, (0..count).collect::<Vec<_>>());
                    for group in &partition {
                        assert!(group.is_sorted() && (group.len() > 1 || count == 1), "{partition:?}");
                        assert_eq!(groups.of(group[0], count, round), *group);
                    }
                    if round % 2 == 0 {
                        let longest = partition.iter().map(Vec::len).max().unwrap();
                        assert!(longest < 2 * size, "{partition:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn averaging_rows_and_then_columns_of_a_full_grid_gives_the_mean() {
        let values: Vec<f64> = (0..16).map(|rank| f64::from(rank * rank)).collect();
        let mean = values.iter().sum::<f64>() / 16.0;
        for pair in 0..20 {
            let rows = averaged(&values, &SHUFFLED.partition(16, 2 * pair));
            assert!(rows.iter().any(|value| (value - mean).abs() > 1.0), "not yet");
            let both = averaged(&rows, &SHUFFLED.partition(16, 2 * pair + 1));
            assert!(both.iter().all(|value| (value - mean).abs() < 1e-9), "{both:?}");
        }
    }

    #[test]
    fn without_a_full_grid_values_approach_the_mean_and_keep_their_total() {
        for count in [7, 13, 15, 17, 23] {
            let values: Vec<f64> = (0..count).map(|rank| f64::from(rank * rank)).collect();
            let total: f64 = values.iter().sum();
            let mean = total / f64::from(count);
            let mut now = values.clone();
            for round in 0..12 {
                now = averaged(&now, &SHUFFLED.partition(count as usize, round));
                assert!((now.iter().sum::<f64>() - total).abs() < 1e-9 * total);
            }
            assert!(now.iter().all(|value| (value - mean).abs() < 1e-3 * mean), "{count}: {now:?}");
        }
    }

    #[test]
    fn without_a_size_the_grid_is_square() {
        let groups = Groups { size: None, ..SHUFFLED };
        for (count, lengths) in [(16, [4; 4].to_vec()), (9, vec![3; 3]), (3, vec![3]), (1, vec![1])] {
            let mut found: Vec<usize> = groups.partition(count, 0).iter().map(Vec::len).collect();
            found.sort_unstable();
            assert_eq!(found, lengths);
        }
    }

    #[test]
    fn groups_that_are_not_shuffled_never_change() {
        let islands = Groups { is_shuffled: false, ..SHUFFLED };
        assert_eq!(islands.partition(8, 0), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(islands.partition(8, 7), islands.partition(8, 0));
    }
}
