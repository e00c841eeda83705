//! A checkpoint's two files: tensors as safetensors, and a small index that says what they are.
//!
//! The safetensors file is a model file ([`ModelFile`](peergrad_config::model_file::ModelFile)) with a few more tensors, so
//! any program that reads a model reads a checkpoint: `peergrad.updates` (U32, one for each chunk with state in it) and, for each
//! such chunk, `peergrad.state.0017` (F32, as [`OptimizerState::moments`](peergrad_core::state::checkpoint::OptimizerState) has it).
//!
//! # Invariants
//! - The index is written last and names the length and digest of the other file: without an index, or with another digest, a
//!   file is not a checkpoint.
//! - Any bytes read as a checkpoint or as an error text. Reading allocates no more than the length of the file.

use std::path::Path;
use std::sync::Arc;

use peergrad_config::model_file::{ModelFile, OWN_TENSORS, Origin, metadata_of};
use peergrad_core::state::checkpoint::{Checkpoint, EvaluationHistory, OptimizerState};
use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::CHUNKS_MAX;
use peergrad_protocol::message::{BestEvaluation, SavedCheckpoint};
use peergrad_protocol::view::Branch;
use peergrad_protocol::{Buffer, RunId, StepNumber, ViewNumber};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};

/// The index file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    version: u32,
    run: String,
    steps: u64,
    /// The branch of the run: the number of the view with which it begins, and its first step.
    branch: [u64; 2],
    /// Which of several such views; absent where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fork: Option<u32>,
    /// The data cursor: the epoch, the position in it, and the ranges that were returned and deferred.
    epoch: u64,
    position: u64,
    returned: Vec<[u64; 2]>,
    deferred: Vec<[u64; 2]>,
    /// How many batches are left of a run that its user has ended; absent in others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_batches: Option<u32>,
    /// Digest of the parameters.
    digest: String,
    /// Ranges of chunks whose optimizer state is included.
    states: Vec<[u32; 2]>,
    left_out: u64,
    own_samples: u64,
    /// The best evaluation before it: the steps behind it, and its loss; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best: Option<(u64, f64)>,
    /// How many evaluations came since.
    #[serde(default)]
    since_best: u32,
    /// Length of the tensors' file in bytes.
    pub(super) bytes: u64,
    /// Digest of the tensors' file.
    pub(super) file_digest: String,
}

impl Index {
    /// The index of a checkpoint whose tensors' file has this length and digest.
    pub(super) fn of(checkpoint: &Checkpoint, bytes: u64, file_digest: ContentDigest) -> Self {
        let Checkpoint { run, saved, left_out, own_samples, evaluations, .. } = checkpoint;
        let SavedCheckpoint { steps, branch, cursor, digest, states } = saved;
        let mut ranges: Vec<[u32; 2]> = Vec::new();
        for chunk in states.iter().map(|chunk| chunk as u32) {
            match ranges.last_mut() {
                Some([_, end]) if *end == chunk => *end += 1,
                _ => ranges.push([chunk, chunk + 1]),
            }
        }
        Self {
            version: VERSION,
            run: run.to_string(),
            steps: steps.0,
            branch: [branch.view_number.0, branch.step.0],
            fork: branch.fork,
            epoch: cursor.epoch,
            position: cursor.position,
            returned: ranges_of(&cursor.returned),
            deferred: ranges_of(&cursor.deferred),
            last_batches: match cursor.ending {
                Ending::None => None,
                Ending::NextBatch => Some(1),
                Ending::Over => Some(0),
            },
            digest: digest.to_string(),
            states: ranges,
            left_out: *left_out,
            own_samples: *own_samples,
            best: evaluations.best.map(|best| (best.steps.0, best.loss)),
            since_best: evaluations.since_best,
            bytes,
            file_digest: file_digest.to_string(),
        }
    }

    pub(super) fn to_text(&self) -> String {
        toml::to_string(self).expect("texts and numbers have a text form")
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let index: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if index.version != VERSION {
            return Err(format!(
                "it has format version {}, but this program reads version {VERSION}",
                index.version
            ));
        }
        index.run()?;
        index.saved().map(|_| index.clone())
    }

    pub(super) fn run(&self) -> Result<RunId, String> {
        let hash = blake3::Hash::from_hex(&self.run).map_err(|_| "its run id is not valid".to_owned())?;
        Ok(RunId(*hash.as_bytes()))
    }

    /// The description of the checkpoint that other members get.
    pub(super) fn saved(&self) -> Result<SavedCheckpoint, String> {
        let digest =
            blake3::Hash::from_hex(&self.digest).map_err(|_| "its digest is not valid".to_owned())?;
        let span = |[start, end]: &[u64; 2]| Span { start: *start, end: *end };
        let cursor = DataCursor {
            epoch: self.epoch,
            position: self.position,
            returned: self.returned.iter().map(span).collect(),
            deferred: self.deferred.iter().map(span).collect(),
            ending: match self.last_batches {
                None => Ending::None,
                Some(0) => Ending::Over,
                Some(_) => Ending::NextBatch,
            },
        };
        let is_range = |[first, end]: &[u32; 2]| first < end && *end as usize <= CHUNKS_MAX;
        if !cursor.is_valid() || !self.states.iter().all(is_range) {
            return Err("its position in the data or its list of chunks is invalid".to_owned());
        }
        let [view_number, step] = self.branch;
        Ok(SavedCheckpoint {
            steps: StepNumber(self.steps),
            branch: Branch { view_number: ViewNumber(view_number), step: StepNumber(step), fork: self.fork },
            cursor,
            digest: ContentDigest(*digest.as_bytes()),
            states: self.states.iter().flat_map(|[first, end]| *first as usize..*end as usize).collect(),
        })
    }
}

/// Writes the tensors.
///
/// # Errors
/// The system's error.
pub(super) fn write(checkpoint: &Checkpoint, path: &Path) -> Result<(), SafeTensorError> {
    let Checkpoint { run, specification, manifest, saved, parameters, states, .. } = checkpoint;
    let origin = Origin {
        run: *run,
        steps: saved.steps.0,
        specification: String::from_utf8(specification.to_vec()).unwrap_or_default(),
    };
    let metadata = std::iter::once(metadata_of(manifest, saved.digest, &origin)).collect();
    let view = |dtype, shape: Vec<usize>, bytes| {
        TensorView::new(dtype, shape, bytes).expect("a tensor has as many elements as its shape")
    };
    let tensors = manifest.tensors().map(|(tensor, range)| {
        let shape = tensor.shape.iter().map(|&extent| extent as usize).collect();
        (tensor.name.clone(), view(Dtype::F32, shape, bytemuck::cast_slice(&parameters[range])))
    });
    let updates: Vec<u32> = states.iter().map(|state| state.updates).collect();
    let updates = view(Dtype::U32, vec![updates.len()], bytemuck::cast_slice(&updates));
    let moments = saved.states.iter().zip(states).map(|(chunk, state)| {
        let bytes = bytemuck::cast_slice(&state.moments);
        (state_name(chunk), view(Dtype::F32, vec![state.moments.len()], bytes))
    });
    let all = tensors.chain(moments).chain(std::iter::once((UPDATES.to_owned(), updates)));
    safetensors::serialize_to_file(all, Some(metadata), path)
}

/// Reads a checkpoint back. Its tensors' file must have the length and digest that the index names.
///
/// # Errors
/// The problem with the file, in words.
pub(super) fn read(index: &Index, bytes: &[u8]) -> Result<Checkpoint, String> {
    let is_it =
        bytes.len() as u64 == index.bytes && ContentDigest::of(bytes).to_string() == index.file_digest;
    if !is_it {
        return Err("its contents differ from what was written".to_owned());
    }
    let ModelFile { manifest, parameters, origin } =
        ModelFile::decode_any(bytes).map_err(|error| error.to_string())?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let saved = index.saved()?;
    let updates = file.tensor(UPDATES).map_err(|error| error.to_string())?;
    let updates: Vec<u32> = words(updates.data()).map(u32::from_le_bytes).collect();
    let state = |(chunk, updates): (usize, u32)| {
        let tensor = file.tensor(&state_name(chunk)).map_err(|error| error.to_string())?;
        Ok(OptimizerState { moments: words(tensor.data()).map(f32::from_le_bytes).collect(), updates })
    };
    if updates.len() != saved.states.len() {
        return Err("the chunks that its index lists are missing".to_owned());
    }
    let states = saved.states.iter().zip(updates).map(state).collect::<Result<_, String>>()?;
    Ok(Checkpoint {
        run: index.run()?,
        specification: Arc::from(origin.specification.into_bytes()),
        manifest,
        saved,
        parameters: Arc::new(Buffer::from_values(&parameters)),
        states,
        left_out: index.left_out,
        own_samples: index.own_samples,
        evaluations: EvaluationHistory {
            best: index.best.map(|(steps, loss)| BestEvaluation { steps: StepNumber(steps), loss }),
            since_best: index.since_best,
        },
    })
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    bytes.chunks_exact(4).map(|word| word.try_into().expect("four bytes"))
}

fn state_name(chunk: usize) -> String {
    format!("{OWN_TENSORS}state.{chunk:04}")
}

const UPDATES: &str = "peergrad.updates";
/// The version of the index's format.
const VERSION: u32 = 1;

fn ranges_of(spans: &[Span]) -> Vec<[u64; 2]> {
    spans.iter().map(|span| [span.start, span.end]).collect()
}
