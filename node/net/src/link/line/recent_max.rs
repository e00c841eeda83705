//! The largest of the recent values.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::RECENT;

/// The largest value of those that were inserted within [`RECENT`] before the last one.
#[derive(Debug)]
pub(super) struct RecentMax<T> {
    /// With their times: each larger than all later ones.
    values: VecDeque<(Instant, T)>,
}

impl<T> Default for RecentMax<T> {
    fn default() -> Self {
        Self { values: VecDeque::new() }
    }
}

impl<T: Ord + Copy> RecentMax<T> {
    pub(super) fn insert(&mut self, now: Instant, value: T) {
        while self.values.back().is_some_and(|(_, earlier)| *earlier <= value) {
            self.values.pop_back();
        }
        self.values.push_back((now, value));
        while self.values.front().is_some_and(|(at, _)| now - *at > RECENT) {
            self.values.pop_front();
        }
    }

    /// A pause does not count: all values become younger by so much.
    pub(super) fn skip(&mut self, pause: Duration) {
        self.values.iter_mut().for_each(|(at, _)| *at += pause);
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
    }

    /// The largest of the inserted values; `None` before the first one.
    pub(super) fn largest(&self) -> Option<T> {
        self.values.front().map(|(_, value)| *value)
    }

    /// Whether there are values, and all are older than [`RECENT`].
    pub(super) fn is_old(&self, now: Instant) -> bool {
        self.values.back().is_some_and(|(at, _)| now - *at > RECENT)
    }
}
