//! Integers in rows: a pair of numbers that together hold an integer exactly, beyond the 2^24 where one 32-bit number ends.

/// An integer from −2^43 to 2^43 − 1, as the two numbers that hold it in a row of a table of [integers](super::TableRule::Integer).
///
/// The first number counts multiples of 2^20, rounded down, and the second is the rest. So there is one pair for each integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Integer(i64);

impl Integer {
    /// The integer; `None` if a row cannot hold it.
    #[must_use]
    pub fn new(integer: i64) -> Option<Self> {
        (-LIMIT..LIMIT).contains(&integer).then_some(Self(integer))
    }

    /// Its value.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0
    }

    /// The two numbers that hold it.
    #[must_use]
    pub fn to_pair(self) -> [f32; 2] {
        [self.0.div_euclid(BASE) as f32, self.0.rem_euclid(BASE) as f32]
    }

    /// The integer that two numbers hold, in whatever form; `None` if they hold none that fits into a row.
    #[must_use]
    pub fn from_pair([high, low]: [f32; 2]) -> Option<Self> {
        let whole = |number: f32| {
            (number.trunc() == number && number.abs() < 2.0 * HIGH_LIMIT).then_some(number as i64)
        };
        Self::new(whole(high)? * BASE + whole(low)?)
    }
}

/// Adds integers to those of a row, pair by pair: all of them, or none if one sum would not fit or a pair holds no integer. Returns whether it
/// has added.
pub(super) fn add(sums: &mut [f32], added: &[f32]) -> bool {
    let sum = |(sum, added): (&[f32], &[f32])| {
        let of = |pair: &[f32]| Integer::from_pair([pair[0], pair[1]]);
        Integer::new(of(sum)?.get() + of(added)?.get())
    };
    let new: Option<Vec<Integer>> = sums.chunks_exact(2).zip(added.chunks_exact(2)).map(sum).collect();
    let Some(new) = new else { return false };
    for (sum, new) in sums.chunks_exact_mut(2).zip(new) {
        sum.copy_from_slice(&new.to_pair());
    }
    true
}

const BASE: i64 = 1 << 20;
const LIMIT: i64 = 1 << 43;
/// The multiples of the base up to which a number is exact.
const HIGH_LIMIT: f32 = (1 << 23) as f32;

#[cfg(test)]
mod tests {
    use super::super::{Init, RowSet, Rows, Table, TableError, TableLayout, TableRule};
    use super::*;

    #[test]
    fn each_integer_has_one_pair() {
        for integer in [0, 1, -1, BASE, BASE - 1, -BASE, (1 << 24) + 1, LIMIT - 1, -LIMIT, 123_456_789_012] {
            let pair = Integer::new(integer).unwrap().to_pair();
            assert!((0.0..BASE as f32).contains(&pair[1]), "{pair:?}");
            assert_eq!(Integer::from_pair(pair).map(Integer::get), Some(integer));
        }
        assert_eq!((Integer::new(LIMIT), Integer::new(-LIMIT - 1)), (None, None));
        assert_eq!(Integer::from_pair([0.0, -5.0]).map(Integer::get), Some(-5), "another form of it");
        for pair in [[0.5, 0.0], [0.0, 0.5], [f32::MAX, 0.0], [0.0, f32::MIN]] {
            assert_eq!(Integer::from_pair(pair), None);
        }
    }

    #[test]
    fn what_is_no_integer_is_refused_before_it_is_added() {
        let table = |init| Table { rule: TableRule::Integer, init, ..Table::additive("integers", 2, 2) };
        assert!(TableLayout::try_new(vec![table(Init::Parameters)]).is_err());
        let layout = TableLayout::new(vec![table(Init::Zeros)]);
        let check = |pair: [f32; 2]| {
            layout.check_rows(&Rows { indices: RowSet::range(0..2), values: [[0.0, 7.0], pair].concat() })
        };
        assert_eq!(check([1.0, -3.0]), Ok(()));
        assert_eq!(check([0.5, 0.0]), Err(TableError::NotInteger(1)));
    }

    #[test]
    fn sums_are_exact_in_any_order_or_refused() {
        let mut numbers: Vec<i64> =
            (0..2000).map(|at| (at * at * 7919 - 1_000_000_007) * (at % 3 - 1)).collect();
        let total: i64 = numbers.iter().sum();
        let sum = |numbers: &[i64]| {
            let mut row = [0.0; 4];
            for number in numbers {
                let pair = Integer::new(*number).unwrap().to_pair();
                let opposite = Integer::new(-*number).unwrap().to_pair();
                assert!(add(&mut row, &[pair, opposite].concat()));
            }
            row
        };
        let row = sum(&numbers);
        assert_eq!(Integer::from_pair([row[0], row[1]]).map(Integer::get), Some(total));
        assert_eq!(Integer::from_pair([row[2], row[3]]).map(Integer::get), Some(-total));
        numbers.reverse();
        assert_eq!(sum(&numbers), row);
        let [mut full, one] = [LIMIT - 1, 1].map(|integer| Integer::new(integer).unwrap().to_pair());
        let before = full;
        assert!(!add(&mut full, &one) && full == before, "it would not fit");
        assert!(!add(&mut full, &[0.0, 0.25]) && full == before, "no integer");
    }
}
