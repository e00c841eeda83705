//! The setting `threads` of a peer: how many threads compute its gradients.

use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::Deserialize;

/// The most threads of a peer.
const THREADS_MAX: usize = 1024;

/// How many threads compute at a peer, 1 to 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct ThreadCount(NonZeroUsize);

/// The number is out of bounds, or no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "give 1 to {THREADS_MAX} threads, or leave the setting out: a peer then uses the cores that it may use"
)]
pub struct NotAThreadCount;

impl ThreadCount {
    /// An equal share of `cores` for each of `peers`, at least one thread.
    ///
    /// # Panics
    /// If there are no peers.
    #[must_use]
    pub fn share(cores: NonZeroUsize, peers: usize) -> Self {
        Self(NonZeroUsize::new((cores.get() / peers).min(THREADS_MAX)).unwrap_or(NonZeroUsize::MIN))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> NonZeroUsize {
        self.0
    }
}

impl TryFrom<i64> for ThreadCount {
    type Error = NotAThreadCount;

    fn try_from(count: i64) -> Result<Self, NotAThreadCount> {
        let count = usize::try_from(count).ok().filter(|&count| count <= THREADS_MAX);
        count.and_then(NonZeroUsize::new).map(Self).ok_or(NotAThreadCount)
    }
}

impl FromStr for ThreadCount {
    type Err = NotAThreadCount;

    fn from_str(text: &str) -> Result<Self, NotAThreadCount> {
        text.parse::<i64>().map_err(|_| NotAThreadCount)?.try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::RunFile;

    #[test]
    fn counts_are_read_alike_from_the_command_line_and_from_files() {
        let in_file = |text: &str| {
            RunFile::parse(&format!("[compute]\nthreads = {text}")).map(|run| run.compute.threads)
        };
        for text in ["1", "8", "1024"] {
            let count: ThreadCount = text.parse().unwrap();
            assert_eq!(count.get().to_string(), text);
            assert_eq!(in_file(text).unwrap(), Some(count));
        }
        for text in ["0", "-1", "1025", "9223372036854775807"] {
            assert_eq!(text.parse::<ThreadCount>(), Err(NotAThreadCount));
            let error = in_file(text).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains("give 1 to 1024 threads"), "{error}");
        }
        assert_eq!("many".parse::<ThreadCount>(), Err(NotAThreadCount));
        assert_eq!(RunFile::parse("").unwrap().compute.threads, None);
    }

    #[test]
    fn peers_share_the_cores_and_each_has_a_thread() {
        let share = |cores, peers| ThreadCount::share(NonZeroUsize::new(cores).unwrap(), peers).get().get();
        assert_eq!([share(8, 1), share(8, 3), share(2, 4), share(5000, 1)], [8, 2, 1, 1024]);
    }
}
