//! The targets: every decoder of bytes that others wrote.
//!
//! | target | input | from |
//! |---|---|---|
//! | `frame` | a frame of the wire format | a peer |
//! | `word` | a table message, which travels inside a frame | a peer |
//! | `codec` | the encoded elements of a segment | a peer |
//! | `invite` | an invite, or its record | a user, a chat window |
//! | `durable` | a member's record of views and votes | the disk |
//! | `checkpoint` | a checkpoint's index and tensors | the disk |
//! | `model` | a model file | a user |
//! | `spec` | a run's specification | the founder |
//! | `runfile` | a run.toml | a user |
//! | `scenario` | a scenario of the simulator | a user |
//! | `csv`, `libsvm`, `idx` | a data file | a user |
//! | `prepared` | a prepared text | a user, the founder |
//! | `gz` | a gzipped data file | a user, the founder |
//! | `status` | a peer's answer to `peer status` | a peer |
//! | `events` | event logs | the disk |

use crate::target::Target;

mod data;
mod disk;
mod reports;
mod runs;
mod tensors;
mod wire;

/// All targets.
pub const TARGETS: [&dyn Target; 19] = [
    &wire::FrameTarget,
    &wire::WordTarget,
    &tensors::CodecTarget,
    &wire::InviteTarget,
    &disk::DurableTarget,
    &disk::CheckpointTarget,
    &disk::ModelTarget,
    &runs::SpecificationTarget,
    &runs::RunFileTarget,
    &runs::ScenarioTarget,
    &data::CsvTarget,
    &data::RatingsTarget,
    &data::DocumentsTarget,
    &data::LibsvmTarget,
    &data::IdxTarget,
    &data::PreparedTarget,
    &data::GzipTarget,
    &reports::StatusTarget,
    &reports::EventsTarget,
];

/// The target of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Target> {
    TARGETS.into_iter().find(|target| target.name() == name)
}

/// The text of a file in this repository.
fn repository_file(path: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The texts of the files in a folder of this repository whose names end like this, by name, each with its name.
fn repository_files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = std::fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("a folder of the tree can be listed").file_name().into_string().expect("a plain name")
    };
    let mut names: Vec<String> = entries.map(name).filter(|name| name.ends_with(ending)).collect();
    names.sort();
    let read = |name: String| {
        let text = repository_file(&format!("{folder}/{name}"));
        (name, text)
    };
    names.into_iter().map(read).collect()
}
