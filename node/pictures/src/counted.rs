//! A count of things, and the first of them for messages.

/// Counts all things it is given and keeps the first `max` of them.
#[derive(Clone, Debug)]
pub(crate) struct Counted<T> {
    /// How many there were.
    pub(crate) count: usize,
    /// The first of them.
    pub(crate) first: Vec<T>,
    max: usize,
}

impl<T> Counted<T> {
    /// Nothing yet; at most `max` things are kept.
    pub(crate) fn new(max: usize) -> Self {
        Self { count: 0, first: vec![], max }
    }

    /// Counts one more.
    pub(crate) fn push(&mut self, thing: T) {
        self.count += 1;
        if self.first.len() < self.max {
            self.first.push(thing);
        }
    }

    /// Counts those that `other` counted, too.
    pub(crate) fn append(&mut self, other: Self) {
        self.count += other.count;
        self.first.extend(other.first);
        self.first.truncate(self.max);
    }
}
