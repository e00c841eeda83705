//! The checkpoints of a data directory. Its own thread writes and reads them, since a disk may be slow.
//!
//! ```text
//! checkpoints/<run>/000000001200.safetensors     tensors
//!                   000000001200.toml            index: what they are, and their digest
//! best.safetensors                               the checkpoint with the lowest held-out loss
//! data-<digest>                                  a data file that came from the swarm
//! data-<digest>.part                             the first bytes of a large one that is on its way
//! ```
//! # How it works
//! - *Saving.* The tensors are written to a draft, forced to disk, read back for their digest, and renamed; then the index
//!   likewise.
//!   A crash at any moment leaves whole checkpoints, and perhaps a file without an index, which is overwritten or removed.
//! - *Searching.* Every checkpoint is read once when a peer starts. One whose index or digest is wrong is skipped and reported.
//! - *Keeping.* The newest few checkpoints of a run are kept, and the newest one of the run before.

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::SystemTime;

use peergrad_config::file_error::explained;
use peergrad_core::io::{DataReference, Input, Retention};
use peergrad_core::state::checkpoint::Checkpoint;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::{RunId, StepNumber};
use safetensors::SafeTensorError;
use tokio::sync::mpsc;

use super::directory::create_private;
use super::files::{create_draft, draft_of, sync_folder, write_private};
use format::Index;

mod format;

/// The checkpoint thread.
#[derive(Debug)]
pub struct Checkpoints {
    commands: std::sync::mpsc::Sender<CheckpointCommand>,
    results: mpsc::UnboundedReceiver<Input>,
    /// How many checkpoints are being written or wait for it.
    saving: Arc<AtomicUsize>,
    refused: mpsc::UnboundedSender<Input>,
}

/// A request to the thread.
enum CheckpointCommand {
    Save { checkpoint: Arc<Checkpoint>, retention: Retention },
    KeepBest { run: RunId, steps: StepNumber },
    Restore(SavedCheckpoint),
    KeepData { reference: DataReference, data: Arc<[u8]> },
    KeepPiece { reference: DataReference, offset: u64, piece: Box<[u8]> },
}

impl Checkpoints {
    /// Starts the thread. It writes and reads everything in `store`, and drops `lock` when it ends.
    ///
    /// # Errors
    /// The operating system cannot start another thread.
    pub fn start(store: CheckpointStore, lock: impl Send + 'static) -> io::Result<Self> {
        let (commands, queue) = std::sync::mpsc::channel::<CheckpointCommand>();
        let (done, results) = mpsc::unbounded_channel();
        let saving = Arc::new(AtomicUsize::new(0));
        let (refused, written) = (done.clone(), Arc::clone(&saving));
        thread::Builder::new().name("checkpoints".to_owned()).spawn(move || {
            let _lock = lock;
            for command in queue {
                let answer = match command {
                    CheckpointCommand::Save { checkpoint, retention } => {
                        let steps = checkpoint.saved.steps;
                        let result = store.save(&checkpoint, retention).map_err(|error| explained(&error));
                        written.fetch_sub(1, Ordering::Relaxed);
                        Some(Input::CheckpointSaved { steps, result })
                    }
                    CheckpointCommand::KeepBest { run, steps } => {
                        let result = store.keep_best(&run, steps).map_err(|error| explained(&error));
                        Some(Input::BestKept { steps, result })
                    }
                    CheckpointCommand::Restore(saved) => {
                        Some(Input::CheckpointLoaded(store.restore(&saved).map(Arc::new)))
                    }
                    CheckpointCommand::KeepData { reference, data } => {
                        // If it cannot be kept, it is requested again from the swarm.
                        let _ = write_private(&store.data_path(&reference), &data);
                        None
                    }
                    CheckpointCommand::KeepPiece { reference, offset, piece } => {
                        let stored = store.keep_piece(&reference, offset, &piece);
                        Some(Input::PieceStored(stored.map_err(|error| explained(&error))))
                    }
                };
                // Requests are still carried out when the receiver is gone.
                let _ = answer.map(|answer| done.send(answer));
            }
        })?;
        Ok(Self { commands, results, saving, refused })
    }

    /// Writes a checkpoint, and removes those of the run that are not kept. If the disk is slower than
    /// checkpoints come, this one is skipped: each is a model and more in memory.
    pub fn save(&self, checkpoint: Arc<Checkpoint>, retention: Retention) {
        if self.saving.fetch_add(1, Ordering::Relaxed) < SAVING_MAX {
            return self.send(CheckpointCommand::Save { checkpoint, retention });
        }
        self.saving.fetch_sub(1, Ordering::Relaxed);
        let (steps, reason) =
            (checkpoint.saved.steps, "the previous checkpoint is still being written".to_owned());
        // The receiver may be gone; the answer needs none.
        let _ = self.refused.send(Input::CheckpointSaved { steps, result: Err(reason) });
    }

    /// Keeps the checkpoint of a run after so many steps as [`BEST_FILE`].
    pub fn keep_best(&self, run: RunId, steps: StepNumber) {
        self.send(CheckpointCommand::KeepBest { run, steps });
    }

    /// Reads a checkpoint back, and removes newer ones of its run.
    pub fn restore(&self, saved: SavedCheckpoint) {
        self.send(CheckpointCommand::Restore(saved));
    }

    /// Keeps a data file.
    pub fn keep_data(&self, reference: DataReference, data: Arc<[u8]>) {
        self.send(CheckpointCommand::KeepData { reference, data });
    }

    /// Keeps a piece of a data file.
    pub fn keep_piece(&self, reference: DataReference, offset: u64, piece: Box<[u8]>) {
        self.send(CheckpointCommand::KeepPiece { reference, offset, piece });
    }

    fn send(&self, command: CheckpointCommand) {
        self.commands.send(command).expect("the thread runs as long as its owner");
    }

    /// The next answer. No answer is lost if this is dropped while it waits.
    pub async fn answer(&mut self) -> Input {
        self.results.recv().await.expect("the thread runs as long as its owner")
    }

    /// Waits until all requests are done, and returns the answers that were not taken.
    pub async fn finish(self) -> Vec<Input> {
        let Self { commands, mut results, refused, .. } = self;
        drop((commands, refused));
        let mut answers = Vec::new();
        while let Some(answer) = results.recv().await {
            answers.push(answer);
        }
        answers
    }
}

/// A checkpoint that is being written, and the one that a peer writes when it stops.
const SAVING_MAX: usize = 2;

/// The folder of the checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    directory: PathBuf,
}

/// The file in a data directory with the best checkpoint of the newest run that has evaluated its checkpoints.
pub const BEST_FILE: &str = "best.safetensors";

/// The ending of a data file that has not arrived to its end.
const PART: &str = "part";

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its index file.
    pub path: PathBuf,
    /// What is wrong with it, in words.
    pub reason: String,
}

impl CheckpointStore {
    /// The checkpoints in this data directory.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The checkpoints of a run that can be read, newest first, and those that cannot.
    #[must_use]
    pub fn scan(&self, run: &RunId) -> (Vec<SavedCheckpoint>, Vec<Damaged>) {
        self.tidy(run);
        let (mut saved, mut damaged) = (Vec::new(), Vec::new());
        for path in self.indices(run).into_iter().rev() {
            match read_index(&path) {
                Ok(index) if index.run().as_ref() == Ok(run) => saved.extend(index.saved()),
                Ok(_) => damaged.push(Damaged { path, reason: "it belongs to another run".to_owned() }),
                Err(reason) => damaged.push(Damaged { path, reason }),
            }
        }
        (saved, damaged)
    }

    /// The newest checkpoint of a run, as the bytes of its model file. Changes nothing, so the peer of the run may be writing and removing
    /// checkpoints meanwhile. `None` if no checkpoint can be read.
    #[must_use]
    pub fn newest(&self, run: &RunId) -> Option<Vec<u8>> {
        // The peer may remove the newest one that was found, after it has written a newer one.
        (0..NEWEST_TRIES_MAX)
            .find_map(|_| self.indices(run).into_iter().rev().find_map(|path| read_whole(&path, run)))
    }

    /// When the newest checkpoint of a run was written; `None` if the run has no checkpoint.
    #[must_use]
    pub fn written_at(&self, run: &RunId) -> Option<SystemTime> {
        let newest = self.indices(run).pop()?;
        fs::metadata(newest).and_then(|metadata| metadata.modified()).ok()
    }

    /// Where a data file lies that came from the swarm. It may never have been fetched, or be damaged.
    #[must_use]
    pub fn data_path(&self, reference: &DataReference) -> PathBuf {
        self.directory.join(format!("data-{}", &reference.digest.to_string()[..16]))
    }

    /// How many bytes of a data file are here, if it was not fetched to its end; 0 if none are. If only its name is missing, it gets it.
    #[must_use]
    pub fn data_part_bytes(&self, reference: &DataReference) -> u64 {
        let part = self.data_path(reference).with_extension(PART);
        let bytes = fs::metadata(&part).map_or(0, |metadata| metadata.len());
        let is_whole = bytes == reference.byte_count;
        if is_whole && fs::rename(&part, self.data_path(reference)).is_ok() { 0 } else { bytes }
    }

    /// Writes a piece of a data file behind the pieces before it. Returns where it ends.
    fn keep_piece(&self, reference: &DataReference, offset: u64, piece: &[u8]) -> io::Result<u64> {
        let whole = self.data_path(reference);
        let part = whole.with_extension(PART);
        if offset == 0 {
            create_draft(&part)?;
        }
        let mut file = fs::OpenOptions::new().write(true).open(&part)?;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(piece)?;
        let end = offset + piece.len() as u64;
        if end == reference.byte_count {
            file.sync_all()?;
            drop(file);
            fs::rename(&part, &whole)?;
            sync_folder(&whole)?;
        }
        Ok(end)
    }

    /// Removes the checkpoints of a run that is over.
    pub fn forget(&self, run: &RunId) {
        // A file that cannot be removed only takes room.
        let _ = fs::remove_dir_all(self.folder(run));
    }

    /// Reads the newest checkpoint of a run whose parameters and steps are these.
    fn restore(&self, saved: &SavedCheckpoint) -> Result<Checkpoint, String> {
        let folders = fs::read_dir(self.directory.join(FOLDER)).map_err(|error| error.to_string())?;
        let paths = folders.flatten().map(|folder| folder.path().join(name_of(saved.steps.0, "toml")));
        let indices = paths.filter_map(|path| Some((read_index(&path).ok()?, path)));
        let found = indices.into_iter().find(|(index, _)| index.saved().as_ref() == Ok(saved));
        let (index, path) = found.ok_or_else(|| "it is missing or damaged".to_owned())?;
        let bytes = fs::read(path.with_extension(TENSORS)).map_err(|error| error.to_string())?;
        let checkpoint = format::read(&index, &bytes)?;
        for later in self.indices(&checkpoint.run).into_iter().filter(|other| *other > path) {
            remove(&later);
        }
        Ok(checkpoint)
    }

    /// Gives the tensors of a checkpoint a second name, under which they stay.
    fn keep_best(&self, run: &RunId, steps: StepNumber) -> io::Result<()> {
        let best = self.directory.join(BEST_FILE);
        let draft = draft_of(&best)?;
        let tensors = self.folder(run).join(name_of(steps.0, TENSORS));
        // Some file systems have no links.
        fs::hard_link(&tensors, &draft).or_else(|_| fs::copy(&tensors, &draft).map(drop))?;
        fs::rename(&draft, &best)?;
        sync_folder(&best)
    }

    fn save(&self, checkpoint: &Checkpoint, retention: Retention) -> io::Result<()> {
        let folder = self.folder(&checkpoint.run);
        if !folder.exists() {
            create_private(&folder)?;
            self.drop_earlier_runs(&folder);
        }
        let path = folder.join(name_of(checkpoint.saved.steps.0, TENSORS));
        let draft = draft_of(&path)?;
        let written = write_tensors(checkpoint, &draft, &path);
        if written.is_err() {
            // A draft that is left only takes room.
            let _ = fs::remove_file(&draft);
        }
        let (bytes, digest) = written?;
        let index = Index::of(checkpoint, bytes, digest);
        write_private(&path.with_extension("toml"), index.to_text().as_bytes())?;
        let candidates: Vec<PathBuf> =
            retention.candidates.iter().map(|steps| folder.join(name_of(steps.0, "toml"))).collect();
        let mut indices = self.indices(&checkpoint.run);
        // Later ones are of a branch that was given up: this one is the newest state.
        indices.iter().filter(|index| **index > path.with_extension("toml")).for_each(|index| remove(index));
        indices.retain(|index| *index <= path.with_extension("toml"));
        let surplus = indices.len().saturating_sub(retention.keep);
        indices.truncate(surplus);
        indices.iter().filter(|index| !candidates.contains(*index)).for_each(|index| remove(index));
        Ok(())
    }

    /// Removes drafts that a crash has left.
    fn tidy(&self, run: &RunId) {
        let files = fs::read_dir(self.folder(run)).into_iter().flatten().flatten();
        for path in files.map(|file| file.path()) {
            let is_index = path.extension().is_some_and(|extension| extension == "toml");
            let is_of_one = path.extension().is_some_and(|extension| extension == TENSORS)
                && path.with_extension("toml").exists();
            if !is_index && !is_of_one {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Keeps of all earlier runs only the one in which a checkpoint was saved last.
    fn drop_earlier_runs(&self, but: &Path) {
        let folders = fs::read_dir(self.directory.join(FOLDER)).into_iter().flatten().flatten();
        let mut others: Vec<PathBuf> =
            folders.map(|folder| folder.path()).filter(|path| path != but).collect();
        others.sort_by_key(|path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok());
        others.pop();
        for path in others {
            let _ = fs::remove_dir_all(path);
        }
    }

    fn folder(&self, run: &RunId) -> PathBuf {
        self.directory.join(FOLDER).join(run.short())
    }

    /// By steps: the indices of a run.
    fn indices(&self, run: &RunId) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder(run)).into_iter().flatten().flatten();
        let is_index = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
        let mut indices: Vec<PathBuf> = files.map(|file| file.path()).filter(is_index).collect();
        indices.sort();
        indices
    }
}

/// The checkpoint with this index and these tensors: the contents of its two files.
///
/// # Errors
/// The problem with one of them, in words.
pub fn decode_checkpoint(index: &str, tensors: &[u8]) -> Result<Checkpoint, String> {
    format::read(&Index::parse(index)?, tensors)
}

/// Reads an index, and checks that its tensors' file has the named length and digest.
fn read_index(path: &Path) -> Result<Index, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let index = Index::parse(&text)?;
    let mut file = File::open(path.with_extension(TENSORS)).map_err(|error| error.to_string())?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    if length != index.bytes {
        return Err(format!("its tensor file has {length} bytes instead of {}", index.bytes));
    }
    let digest = digest_of(&mut file).map_err(|error| error.to_string())?;
    if digest.to_string() != index.file_digest {
        return Err("its tensor file was changed after it was written".to_owned());
    }
    Ok(index)
}

/// The tensors' file of the checkpoint with this index; `None` if it is not a checkpoint of the run.
fn read_whole(index_path: &Path, run: &RunId) -> Option<Vec<u8>> {
    let index = Index::parse(&fs::read_to_string(index_path).ok()?).ok()?;
    let bytes = fs::read(index_path.with_extension(TENSORS)).ok()?;
    let is_whole = bytes.len() as u64 == index.bytes
        && ContentDigest::of(&bytes).to_string() == index.file_digest
        && index.run().as_ref() == Ok(run);
    is_whole.then_some(bytes)
}

/// The length and digest of a file, read back from the disk.
fn write_tensors(checkpoint: &Checkpoint, draft: &Path, path: &Path) -> io::Result<(u64, ContentDigest)> {
    create_draft(draft)?;
    format::write(checkpoint, draft).map_err(|error| match error {
        SafeTensorError::IoError(error) => error,
        other => io::Error::other(other),
    })?;
    let mut file = File::open(draft)?;
    file.sync_all()?;
    let (bytes, digest) = (file.metadata()?.len(), digest_of(&mut file)?);
    fs::rename(draft, path)?;
    sync_folder(path)?;
    Ok((bytes, digest))
}

fn digest_of(file: &mut impl Read) -> io::Result<ContentDigest> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    Ok(ContentDigest(*hasher.finalize().as_bytes()))
}

/// Removes both files, the index first, so that there is never an index alone.
fn remove(index: &Path) {
    let _ = fs::remove_file(index);
    let _ = fs::remove_file(index.with_extension(TENSORS));
}

fn name_of(steps: u64, extension: &str) -> String {
    format!("{steps:012}.{extension}")
}

/// How often the newest checkpoint is looked for, if it is gone before it was read.
const NEWEST_TRIES_MAX: usize = 3;
const FOLDER: &str = "checkpoints";
const TENSORS: &str = "safetensors";

#[cfg(test)]
mod tests;
