//! The memory of this machine: how much of it a process may take before the system runs short or ends the process.
//!
//! Linux tells it in files: how much is free for programs, and the limits of the control groups that the process is in, as a container
//! sets them. Other systems have no such files; nothing is known there.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process may take, as far as the system tells; `None` if it does not.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // A group without a limit has a word in place of the number.
    let limit_at = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse().ok();
    machine.into_iter().chain(limit_files(&groups).into_iter().filter_map(limit_at)).min()
}

/// What `/proc/meminfo` says is available, in bytes.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

/// The files that may hold a limit of a group in `/proc/self/cgroup`, or of a group around it.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers.split(',').any(|controller| controller == "memory") {
            true => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false if controllers.is_empty() => ("/sys/fs/cgroup", "memory.max"),
            false => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_kibibytes() {
        let text = "MemTotal:       24689764 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n";
        assert_eq!(available_in(text), Some(2_000_000 << 10));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        assert_eq!(available_in("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn limits_are_looked_for_in_a_group_and_around_it() {
        let found =
            |text| limit_files(text).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let second =
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"];
        assert_eq!(found("0::/a/b\n"), second);
        let first =
            ["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        assert_eq!(found("3:cpu:/x\n4:hugetlb,memory:/a\nnonsense\n"), first);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory() {
        assert!(available_memory() > Some(0));
    }
}
