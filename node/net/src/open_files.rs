//! Open files: how many the system allows this process, and how many of them unproven and added connections may use.
//!
//! Each connection is an open file. Without bounds that follow from the limit, strangers could use up all of them, and a member could not
//! even write its vote to disk.

use super::link::STRIPES_MAX;

/// The files that this process may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimit(u64);

impl FileLimit {
    /// Raises the limit of this process as far as the system allows without special rights, and returns it.
    #[must_use]
    pub fn raise() -> Self {
        Self(raised().unwrap_or(USUAL_LIMIT))
    }

    /// Incoming connections over libp2p whose other end has not proved anything yet.
    pub(super) fn pending_max(self) -> u32 {
        (self.0 / 4).clamp(PENDING_MIN, PENDING_MAX) as u32
    }

    /// The same of the port for direct lanes: in all, and from one machine.
    pub(super) fn handshakes_max(self) -> (usize, usize) {
        let all = (self.0 / 8).clamp(PENDING_MIN, PENDING_MAX) as usize;
        (all, all / 4)
    }

    /// Connections that may be added to outgoing direct lanes in all, and as many to incoming ones.
    pub(super) fn stripes_max(self) -> usize {
        (self.0 / 8).min(ADDED_MAX) as usize
    }

    /// How many files a member of a view of so many members may need, if that is more than the limit.
    #[must_use]
    pub fn shortage(self, members: usize) -> Option<FileShortage> {
        let needed = FILES_OF_A_PEER + FILES_PER_MEMBER * members as u64;
        // Added connections, in both directions: with a third more files than all others need, they are at most a quarter of all.
        let per_member = 2 * (STRIPES_MAX as u64 - 1);
        let others = (members as u64).saturating_sub(1);
        let needed = needed + needed.div_ceil(3).min(2 * ADDED_MAX).min(per_member * others);
        (needed > self.0).then_some(FileShortage { limit: self.0, needed })
    }
}

/// Too few files may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShortage {
    /// How many the system allows.
    pub limit: u64,
    /// How many this peer may need.
    pub needed: u64,
}

#[cfg(unix)]
fn raised() -> Option<u64> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let wanted = hard.min(WANTED);
    if soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok() {
        return Some(wanted);
    }
    Some(soft)
}

#[cfg(not(unix))]
fn raised() -> Option<u64> {
    None
}

/// The limit where the system does not say.
const USUAL_LIMIT: u64 = 1024;
/// As many as a member of the largest view needs; macOS refuses more than 10,240.
const WANTED: u64 = 10_240;
/// Files of a peer without links: its data directory, ports, and what the runtime keeps.
const FILES_OF_A_PEER: u64 = 64;
/// Connections and lanes to one member.
const FILES_PER_MEMBER: u64 = 5;
/// Bounds of unproven connections.
const PENDING_MIN: u64 = 16;
const PENDING_MAX: u64 = 256;
/// The largest bound of added connections.
const ADDED_MAX: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_never_use_most_of_the_files() {
        for limit in [128, 256, 1024, 10_240] {
            let limit = FileLimit(limit);
            let (handshakes, of_one) = limit.handshakes_max();
            let strangers = u64::from(limit.pending_max()) + handshakes as u64;
            assert!(2 * strangers <= limit.0 && of_one < handshakes, "{limit:?}: {strangers}");
        }
        assert_eq!(FileLimit(10_240).pending_max(), 256);
    }

    #[test]
    fn a_view_that_needs_more_files_is_noticed() {
        assert_eq!(FileLimit(256).shortage(12), None);
        assert_eq!(FileLimit(256).shortage(50), Some(FileShortage { limit: 256, needed: 419 }));
        for members in [1, 2, 3, 50, 1024] {
            let needed = FileLimit(0).shortage(members).unwrap().needed;
            assert_eq!(FileLimit(needed).shortage(members), None);
            let added = 2 * FileLimit(needed).stripes_max().min(15 * (members - 1)) as u64;
            let rest = FILES_OF_A_PEER + FILES_PER_MEMBER * members as u64;
            assert!(rest + added <= needed && needed <= WANTED, "{members}: {needed}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_limit_is_raised() {
        let (soft, hard) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(FileLimit::raise(), FileLimit(soft.max(hard.min(WANTED))), "it is never lowered");
    }
}
