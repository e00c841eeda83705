//! The words of the table: what workers say to owners, owners to workers, and both to those who keep copies.
//!
//! Each pair of members has a stream of words in either direction, of which a frame carries the next piece ([`Words`]). A word is a
//! length and a [`Word`]; the stream begins anew with each view, so a word that was under way then is never completed.
//!
//! Rows are named in runs: all rows of a dense table are one run, and a row by itself takes two numbers.
//!
//! [`Words`]: crate::message::Words

use crate::chunks::ChunkSet;
use crate::id::{Incarnation, PeerId};
use crate::ledger::{Ledger, Span, are_disjoint};
use crate::limits::{CHUNKS_MAX, DEALT_SPANS_MAX, HANDS_MAX, MEMBERS_MAX, PENDING_CLOCKS_MAX, STEPS_MAX};
use crate::wire::{Decode, Encode};
pub use names::Names;

mod names;

/// What a row is called: tables of a run have ranges of names, one after the other.
pub type Row = u64;

/// Numbers for rows of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Rows {
    /// Which.
    pub names: Names,
    /// (rows, numbers of each), one row after the other.
    pub values: Vec<f32>,
}

/// A worker, in one life of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Writer {
    /// Its key.
    pub peer: PeerId,
    /// Which of its lives.
    pub incarnation: Incarnation,
}

/// One word.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Word {
    /// Worker to owner.
    Asked(Asked),
    /// Owner to worker.
    Told(Told),
    /// To one who is to keep this.
    States(States),
    /// Keeper to owner: its states of this number are kept here.
    Kept(u64),
    /// Owner to every member: whoever is to keep these chunks does.
    Settled(ChunkSet),
}

/// What a worker says to an owner.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Asked {
    /// Rows of a chunk, once all workers have completed so many clocks.
    Get {
        /// The worker's own number for it.
        request: u64,
        /// Clocks that all workers are to have completed.
        at_least: u64,
        /// Where the rows are.
        chunk: u32,
        /// Which.
        rows: Names,
    },
    /// To be added to rows of a chunk.
    Add {
        /// One more than that of what the worker added before, to whatever chunk.
        sequence: u64,
        /// The worker's clock.
        clock: u64,
        /// Where the rows are.
        chunk: u32,
        /// What is added to them.
        rows: Rows,
    },
    /// To be done to columns of all rows of a chunk; numbered as what is added, and done once.
    Map {
        /// As that of an addition.
        sequence: u64,
        /// The chunk.
        chunk: u32,
        /// What is done.
        map: Map,
    },
    /// What columns of all rows of a chunk come to, once all workers have completed so many clocks.
    Reduce {
        /// The worker's own number for it.
        request: u64,
        /// Clocks that all workers are to have completed.
        at_least: u64,
        /// The chunk.
        chunk: u32,
        /// What they come to.
        reduce: Reduce,
    },
    /// The worker is new, and has no clock.
    Enter,
    /// So many clocks are complete.
    Tick {
        /// How many.
        clock: u64,
    },
    /// To the owner of the first chunk: samples to compute.
    Deal {
        /// The worker's number for them, from 1.
        hand: u64,
        /// How many it asks for.
        samples: u32,
        /// Whether nobody waits for the worker's clock meanwhile: then it is not told that there are none, unless it holds some itself, or
        /// all are done.
        may_wait: bool,
    },
    /// To the owner of the first chunk: what came of the samples up to this number would outlive the worker.
    Done {
        /// The number of the last of them.
        hands: u64,
    },
    /// To the owner of the first chunk: the worker has ended, and computes no samples from this number on.
    Back {
        /// The number of the first of them.
        hands: u64,
    },
}

/// Something that owners do to columns of a table: the j-th numbers of all its rows are its column j.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub enum Map {
    /// `to += by * from`
    Axpy {
        /// The factor.
        by: f32,
        /// The column that is added.
        from: u32,
        /// The column that it is added to.
        to: u32,
    },
    /// `column *= by`
    Scale {
        /// The factor.
        by: f32,
        /// The column.
        column: u32,
    },
}

/// What owners make of columns of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Reduce {
    /// The sum of the products of two columns; of a column with itself, the square of its norm.
    Dot(u32, u32),
    /// The sum of the absolute values of a column.
    Absolute(u32),
    /// How many numbers of a column are not zero.
    Nonzero(u32),
}

/// What an owner says to a worker.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Told {
    /// Rows as they are, how many clocks all workers had completed, and the last number of this worker that is in the chunk.
    Got {
        /// The worker's number for it.
        request: u64,
        /// Clocks that all workers have completed.
        clock: u64,
        /// The worker's last sequence number that is in.
        applied: u64,
        /// Rows that were asked for and are zero.
        zero: Names,
        /// (other rows, numbers of each), one row after the other.
        values: Vec<f32>,
    },
    /// What columns of a chunk come to.
    Reduced {
        /// The worker's number for it.
        request: u64,
        /// Clocks that all workers have completed.
        clock: u64,
        /// The worker's last sequence number that is in.
        applied: u64,
        /// The result.
        value: f64,
    },
    /// Everything up to this number that this owner was sent in this view outlives it.
    Added {
        /// The sequence number.
        up_to: u64,
    },
    /// Samples to compute; none: there are none at present.
    Dealt {
        /// The worker's number for them.
        hand: u64,
        /// Which.
        dealt: Hand,
        /// Every sample of every pass is done.
        is_over: bool,
    },
}

/// Samples that a worker was given to compute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Hand {
    /// The pass whose order the positions refer to.
    pub pass: u64,
    /// The positions.
    pub spans: Vec<Span>,
}

/// What a member gives to another one to keep.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct States {
    /// Those to one copy are numbered from 1; 0: a chunk for its new owner.
    pub number: u64,
    /// Chunks, or parts of them.
    pub states: Vec<State>,
}

/// Rows of a chunk with everything that belongs to them, for another member to keep.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct State {
    /// Which one.
    pub chunk: u32,
    /// Whether it is the whole chunk, and what was kept of it before is void.
    pub is_whole: bool,
    /// Rows with their values and moments.
    pub rows: Rows,
    /// By row: updates behind it.
    pub updates: Vec<u32>,
    /// By clock: what was added to these rows in it, where that is applied once all workers have completed it.
    pub pending: Vec<(u64, Rows)>,
    /// The last sequence numbers that are in it; not of all workers, if it is not the whole chunk.
    pub applied: Vec<(Writer, u64)>,
    /// Who computes which samples, if that is kept with this chunk and has changed; of those workers of whom it has, if it is not the
    /// whole chunk.
    pub dealing: Option<Dealing>,
}

/// Who computes which samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Dealing {
    /// What has been dealt for the first time.
    pub ledger: Ledger,
    /// What workers that are gone were not done with: dealt next.
    pub returned: Vec<Hand>,
    /// What each worker is not done with; by worker.
    pub held: Vec<Held>,
}

/// What a worker was dealt.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Held {
    /// Who.
    pub writer: Writer,
    /// The last number that it was given samples under.
    pub last: u64,
    /// What it is not done with, by its numbers.
    pub hands: Vec<(u64, Hand)>,
}

impl Rows {
    /// About as many bytes as they take in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.names.bytes() + size_of_val(&self.values[..])
    }
}

impl Word {
    /// Whether it breaks no rule that needs no context.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Asked(asked) => asked.is_valid(),
            Self::Told(Told::Got { request, clock, applied, zero, .. }) => {
                [request, clock, applied].into_iter().all(|number| *number <= STEPS_MAX) && zero.are_valid()
            }
            Self::Told(Told::Reduced { request, clock, applied, .. }) => {
                [request, clock, applied].into_iter().all(|number| *number <= STEPS_MAX)
            }
            Self::Told(Told::Added { up_to }) => *up_to <= STEPS_MAX,
            Self::Told(Told::Dealt { hand, dealt, .. }) => *hand <= STEPS_MAX && dealt.is_valid(),
            Self::States(states) => states.number <= STEPS_MAX && states.states.iter().all(State::is_valid),
            Self::Kept(number) => *number <= STEPS_MAX,
            Self::Settled(chunks) => chunks.is_valid(),
        }
    }
}

impl Asked {
    fn is_valid(&self) -> bool {
        match self {
            Self::Enter => true,
            Self::Get { request, at_least, rows, .. } => {
                *request <= STEPS_MAX && *at_least <= STEPS_MAX && rows.are_valid()
            }
            Self::Add { sequence, clock, rows, .. } => {
                (1..=STEPS_MAX).contains(sequence) && *clock <= STEPS_MAX && rows.names.are_valid()
            }
            Self::Map { sequence, .. } => (1..=STEPS_MAX).contains(sequence),
            Self::Reduce { request, at_least, .. } => *request <= STEPS_MAX && *at_least <= STEPS_MAX,
            Self::Tick { clock: number }
            | Self::Deal { hand: number, .. }
            | Self::Done { hands: number }
            | Self::Back { hands: number } => *number <= STEPS_MAX,
        }
    }

    /// If the worker changes something with it: the number, and the chunk.
    #[must_use]
    pub fn change(&self) -> Option<(u64, u32)> {
        match self {
            Self::Add { sequence, chunk, .. } | Self::Map { sequence, chunk, .. } => {
                Some((*sequence, *chunk))
            }
            _ => None,
        }
    }

    /// Clocks that all workers are to have completed before it is answered; `None`: it does not wait for any.
    #[must_use]
    pub fn at_least(&self) -> Option<u64> {
        match self {
            Self::Get { at_least, .. } | Self::Reduce { at_least, .. } => Some(*at_least),
            _ => None,
        }
    }

    /// About as many bytes as it takes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let rows = match self {
            Self::Get { rows, .. } => rows.bytes(),
            Self::Add { rows, .. } => rows.bytes(),
            _ => 0,
        };
        size_of::<Self>() + rows
    }
}

impl Hand {
    /// Samples in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.spans.iter().map(Span::len).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    fn is_valid(&self) -> bool {
        let is_span = |span: &Span| span.start < span.end && span.end <= u64::from(u32::MAX);
        self.pass <= STEPS_MAX
            && self.spans.len() <= DEALT_SPANS_MAX
            && self.spans.iter().all(is_span)
            && are_disjoint(&self.spans)
    }
}

impl State {
    fn is_valid(&self) -> bool {
        let are_valid = |rows: &Rows| rows.names.are_valid();
        (self.chunk as usize) < CHUNKS_MAX
            && are_valid(&self.rows)
            && self.pending.len() <= PENDING_CLOCKS_MAX
            && self.pending.iter().all(|(clock, rows)| *clock <= STEPS_MAX && are_valid(rows))
            && self.pending.is_sorted_by(|(one, _), (next, _)| one < next)
            && self.applied.len() <= MEMBERS_MAX
            && self.applied.iter().all(|(_, last)| *last <= STEPS_MAX)
            && self.dealing.as_ref().is_none_or(Dealing::is_valid)
    }
}

impl Dealing {
    fn is_valid(&self) -> bool {
        let are_valid = |held: &Held| {
            held.last <= STEPS_MAX
                && held.hands.len() <= HANDS_MAX
                && held.hands.iter().all(|(number, hand)| *number <= STEPS_MAX && hand.is_valid())
        };
        self.ledger.is_valid()
            && self.returned.len() <= MEMBERS_MAX * HANDS_MAX
            && self.returned.iter().all(Hand::is_valid)
            && self.held.len() <= MEMBERS_MAX
            && self.held.iter().all(are_valid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::names::Run;
    use super::*;
    use crate::limits::{TABLE_ROWS_MAX, WORD_ROWS_MAX};
    use crate::wire::{decode_word, encode_word};

    fn decoded(word: &Word) -> Option<Word> {
        let mut stream = Vec::new();
        encode_word(word, &mut stream);
        let (length, bytes) = stream.split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_le_bytes(*length) as usize, bytes.len());
        decode_word(bytes).ok()
    }

    #[test]
    fn neighbouring_rows_are_one_run() {
        let names: Names = [0, 1, 2, 7, 8, 20].into_iter().collect();
        assert_eq!(names.ranges().collect::<Vec<_>>(), [0..3, 7..9, 20..21]);
        assert_eq!((names.len(), names.ends()), (6, Some((0, 20))));
        assert_eq!(Names::range(4..9), (4..9).collect());
        assert_eq!((Names::range(4..4), Names::default().ends()), (Names::default(), None));
        assert_eq!([0..3, 3..4, 5..5, 6..9].into_iter().collect::<Names>().ranges().count(), 2);
    }

    /// What would take the receiver more memory than the word has, or is written in another way than the one there is.
    #[test]
    fn names_that_nobody_writes_are_refused() {
        let get = |runs: &[(u64, u32)]| {
            let runs = runs.iter().map(|(skip, count)| Run { skip: *skip, count: *count }).collect();
            Word::Asked(Asked::Get { request: 1, at_least: 0, chunk: 0, rows: Names { runs } })
        };
        let word = get(&[(3, 2), (1, 1)]);
        assert_eq!(decoded(&word), Some(word));
        let most = WORD_ROWS_MAX as u32;
        for runs in [
            &[(3, 2), (0, 1)][..],
            &[(3, 0)],
            &[(0, most + 1)],
            &[(0, most), (1, 1)],
            &[(TABLE_ROWS_MAX, 1)],
            &[(u64::MAX, 1), (u64::MAX, 1)],
        ] {
            assert_eq!(decoded(&get(runs)), None, "{runs:?}");
        }
        assert!(decoded(&get(&[(0, most)])).is_some() && decoded(&get(&[(TABLE_ROWS_MAX - 1, 1)])).is_some());
    }

    proptest! {
        #[test]
        fn names_are_what_they_were_made_of(rows in proptest::collection::btree_set(0_u64..300, 0..80)) {
            let names: Names = rows.iter().copied().collect();
            prop_assert_eq!(names.iter().collect::<Vec<_>>(), rows.into_iter().collect::<Vec<_>>());
            let word = Word::Asked(Asked::Get { request: 1, at_least: 2, chunk: 3, rows: names });
            prop_assert_eq!(decoded(&word), Some(word));
        }

        #[test]
        fn names_without_others_are_the_rest(
            rows in proptest::collection::btree_set(0_u64..40, 0..40),
            others in proptest::collection::btree_set(0_u64..40, 0..10),
        ) {
            let [all, some]: [Names; 2] = [&rows, &others].map(|rows| rows.iter().copied().collect());
            let rest = others.is_subset(&rows).then(|| rows.difference(&others).copied().collect());
            prop_assert_eq!(all.without(&some), rest);
        }

        #[test]
        fn any_bytes_are_a_word_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_word(&bytes);
        }
    }
}
