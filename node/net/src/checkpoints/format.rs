//! A checkpoint's two files: tensors as safetensors, and a small index that says what they are.
//!
//! The safetensors file is a model file ([`ModelFile`](peergrad_config::model_file::ModelFile)) with a few more tensors, so
//! any program that reads a model reads a checkpoint: `peergrad.updates` (U32, one for each chunk with state in it) and, for each
//! such chunk, `peergrad.state.0017` (F32, as [`OptimizerState::moments`](peergrad_core::state::checkpoint::OptimizerState) has it).
//!
//! With tables `peergrad.updates` is empty, and there are, for each chunk of theirs: `peergrad.rows.0017` (U64, shape (ranges, 2): the rows that exist, as ranges of
//! their indices), `peergrad.values.0017` (F32, shape (rows, stride): the values of each row, then its moments), and `peergrad.updates.0017`
//! (U32, by row). The samples that are not done yet are in the index, beside the first chunk.
//!
//! # Invariants
//! - The index is written last and names the length and digest of the other file: without an index, or with another digest, a
//!   file is not a checkpoint.
//! - Any bytes read as a checkpoint or as an error text. Reading allocates no more than the length of the file.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use peergrad_config::model_file::{ModelFile, OWN_TENSORS, Origin, metadata_of};
use peergrad_core::state::checkpoint::{Checkpoint, EvaluationHistory, OptimizerState, SavedTables};
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::CHUNKS_MAX;
use peergrad_protocol::message::{BestEvaluation, SavedCheckpoint};
use peergrad_protocol::table::{LeaseTable, RowSet, Rows, SampleLease, TableChunk, UsedKeys};
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
    /// Digest of the parameters; with tables, the name of the cut.
    digest: String,
    /// Ranges of chunks whose optimizer state is included; with tables, of the chunks that are included.
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
    /// The data cursor.
    cursor: IndexCursor,
    /// What belongs to tables; absent in a run of steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tables: Option<IndexTables>,
}

/// A data cursor: the epoch, the position in it, and the ranges that were returned and deferred.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexCursor {
    epoch: u64,
    position: u64,
    returned: Vec<[u64; 2]>,
    deferred: Vec<[u64; 2]>,
    /// How many batches are left of a run that its user has ended; absent in others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_batches: Option<u32>,
}

/// What an index says of tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexTables {
    /// How many clocks of this peer's worker are in them; absent for a worker without a clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clock: Option<u64>,
    /// Beside the first chunk: which samples are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leases: Option<IndexLeases>,
}

/// Which samples are done, in a run with tables: those that were leased once, except those to be leased again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexLeases {
    /// Epochs, each with ranges of positions that are leased again.
    returned: Vec<(u64, Vec<[u64; 2]>)>,
    /// The first sample that was never leased.
    cursor: IndexCursor,
}

impl IndexCursor {
    fn of(cursor: &DataCursor) -> Self {
        Self {
            epoch: cursor.epoch,
            position: cursor.position,
            returned: ranges_of(&cursor.returned),
            deferred: ranges_of(&cursor.deferred),
            last_batches: match cursor.ending {
                Ending::None => None,
                Ending::NextBatch => Some(1),
                Ending::Over => Some(0),
            },
        }
    }

    fn cursor(&self) -> DataCursor {
        DataCursor {
            epoch: self.epoch,
            position: self.position,
            returned: spans_of(&self.returned),
            deferred: spans_of(&self.deferred),
            ending: match self.last_batches {
                None => Ending::None,
                Some(0) => Ending::Over,
                Some(_) => Ending::NextBatch,
            },
        }
    }
}

impl IndexTables {
    fn of(tables: &SavedTables) -> Self {
        let leases = tables.chunks.iter().find_map(|chunk| chunk.lease_table.as_ref());
        Self { clock: tables.clock, leases: leases.map(IndexLeases::of) }
    }
}

impl IndexLeases {
    fn of(leases: &LeaseTable) -> Self {
        Self {
            cursor: IndexCursor::of(&leases.cursor),
            returned: leases.returned.iter().map(|lease| (lease.epoch, ranges_of(&lease.spans))).collect(),
        }
    }

    fn table(&self) -> LeaseTable {
        let lease =
            |(epoch, ranges): &(u64, Vec<[u64; 2]>)| SampleLease { epoch: *epoch, spans: spans_of(ranges) };
        LeaseTable {
            cursor: self.cursor.cursor(),
            returned: self.returned.iter().map(lease).collect(),
            outstanding: Vec::new(),
        }
    }
}

impl Index {
    /// The index of a checkpoint whose tensors' file has this length and digest.
    pub(super) fn of(checkpoint: &Checkpoint, bytes: u64, file_digest: ContentDigest) -> Self {
        let Checkpoint { run, saved, tables, left_out, own_samples, evaluations, .. } = checkpoint;
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
            cursor: IndexCursor::of(cursor),
            digest: digest.to_string(),
            states: ranges,
            tables: tables.as_ref().map(IndexTables::of),
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
        let cursor = self.cursor.cursor();
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
    let Checkpoint { run, specification, manifest, saved, parameters, states, tables, .. } = checkpoint;
    let origin = Origin {
        run: *run,
        steps: tables.as_ref().map_or(saved.steps.0, |tables| tables.clock.unwrap_or(0)),
        specification: String::from_utf8(specification.to_vec()).unwrap_or_default(),
    };
    let digest = ContentDigest::of(parameters.bytes());
    let metadata = std::iter::once(metadata_of(manifest, digest, &origin)).collect();
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
        (chunk_tensor(STATE, chunk), view(Dtype::F32, vec![state.moments.len()], bytes))
    });
    let chunks = tables.as_ref().map_or(&[][..], |tables| &tables.chunks);
    let ranges: Vec<Vec<u64>> = chunks.iter().map(|chunk| range_ends(&chunk.rows.indices)).collect();
    let keys: Vec<Vec<u64>> = chunks.iter().map(|chunk| key_numbers(chunk.used_keys.as_ref())).collect();
    let chunks = chunks.iter().zip(&ranges).zip(&keys).flat_map(|((chunk, ranges), keys)| {
        let (rows, values) = (chunk.updates.len(), &chunk.rows.values);
        let stride = values.len().checked_div(rows).unwrap_or(0);
        [
            (ROWS, view(Dtype::U64, vec![ranges.len() / 2, 2], bytemuck::cast_slice(ranges))),
            (VALUES, view(Dtype::F32, vec![rows, stride], bytemuck::cast_slice(values))),
            (ROW_UPDATES, view(Dtype::U32, vec![rows], bytemuck::cast_slice(&chunk.updates))),
            (KEYS, view(Dtype::U64, vec![keys.len()], bytemuck::cast_slice(keys))),
        ]
        .map(|(name, tensor)| (chunk_tensor(name, chunk.chunk as usize), tensor))
    });
    let all = tensors.chain(moments).chain(std::iter::once((UPDATES.to_owned(), updates))).chain(chunks);
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
        let tensor = file.tensor(&chunk_tensor(STATE, chunk)).map_err(|error| error.to_string())?;
        Ok(OptimizerState { moments: words(tensor.data()).map(f32::from_le_bytes).collect(), updates })
    };
    let with_state = if index.tables.is_some() { 0 } else { saved.states.len() };
    if updates.len() != with_state {
        return Err("the chunks that its index lists are missing".to_owned());
    }
    let states = saved.states.iter().zip(updates).map(state).collect::<Result<_, String>>()?;
    let tables = index.tables.as_ref().map(|tables| read_tables(&file, tables, &saved.states)).transpose()?;
    Ok(Checkpoint {
        run: index.run()?,
        specification: Arc::from(origin.specification.into_bytes()),
        manifest,
        saved,
        parameters: Arc::new(Buffer::from_values(&parameters)),
        states,
        tables,
        left_out: index.left_out,
        own_samples: index.own_samples,
        evaluations: EvaluationHistory {
            best: index.best.map(|(steps, loss)| BestEvaluation { steps: StepNumber(steps), loss }),
            since_best: index.since_best,
        },
    })
}

/// Reads these chunks of tables.
///
/// # Errors
/// The problem with the file, in words.
fn read_tables(
    file: &SafeTensors<'_>,
    tables: &IndexTables,
    chunks: &ChunkSet,
) -> Result<SavedTables, String> {
    let chunks = chunks.iter().map(|chunk| read_chunk(file, tables, chunk)).collect::<Result<_, String>>()?;
    Ok(SavedTables { chunks, clock: tables.clock })
}

fn read_chunk(file: &SafeTensors<'_>, tables: &IndexTables, chunk: usize) -> Result<TableChunk, String> {
    let tensor = |name| file.tensor(&chunk_tensor(name, chunk)).map_err(|error| error.to_string());
    let invalid = || format!("chunk {chunk} of its tables is not valid");
    let ends: Vec<u64> = numbers(tensor(ROWS)?.data()).map(u64::from_le_bytes).collect();
    let ranges = || ends.chunks_exact(2).map(|ends| ends[0]..ends[1]);
    let is_range =
        |range: Range<u64>| range.start < range.end && range.end - range.start < u64::from(u32::MAX);
    if !ends.is_sorted() || !ranges().all(is_range) {
        return Err(invalid());
    }
    let state = TableChunk {
        chunk: chunk as u32,
        is_whole: true,
        rows: Rows {
            indices: ranges().collect(),
            values: words(tensor(VALUES)?.data()).map(f32::from_le_bytes).collect(),
        },
        updates: words(tensor(ROW_UPDATES)?.data()).map(u32::from_le_bytes).collect(),
        pending: Vec::new(),
        applied: Vec::new(),
        used_keys: used_keys(numbers(tensor(KEYS)?.data()).map(u64::from_le_bytes)),
        lease_table: tables.leases.as_ref().filter(|_| chunk == 0).map(IndexLeases::table),
    };
    if state.is_valid() { Ok(state) } else { Err(invalid()) }
}

/// The first row of each range, and the one after its last.
fn range_ends(rows: &RowSet) -> Vec<u64> {
    rows.ranges().flat_map(|range| [range.start, range.end]).collect()
}

/// The round of these keys, followed by their numbers.
fn key_numbers(keys: Option<&UsedKeys>) -> Vec<u64> {
    let round = keys.map(|keys| keys.round);
    let numbers = keys.into_iter().flat_map(|keys| &keys.numbers);
    round.into_iter().chain(numbers.map(|number| u64::from(*number))).collect()
}

fn used_keys(mut numbers: impl Iterator<Item = u64>) -> Option<UsedKeys> {
    let round = numbers.next()?;
    // A number that is too large is refused together with the chunk.
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Some(UsedKeys { round, numbers: numbers.map(narrow).collect() })
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = [u8; 8]> + '_ {
    bytes.chunks_exact(8).map(|number| number.try_into().expect("eight bytes"))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    bytes.chunks_exact(4).map(|word| word.try_into().expect("four bytes"))
}

/// The name of a tensor that each chunk has one of.
fn chunk_tensor(name: &str, chunk: usize) -> String {
    format!("{OWN_TENSORS}{name}.{chunk:04}")
}

const STATE: &str = "state";
const ROWS: &str = "rows";
const VALUES: &str = "values";
const ROW_UPDATES: &str = "updates";
const KEYS: &str = "keys";
const UPDATES: &str = "peergrad.updates";
/// The version of the index's format.
const VERSION: u32 = 2;

fn ranges_of(spans: &[Span]) -> Vec<[u64; 2]> {
    spans.iter().map(|span| [span.start, span.end]).collect()
}

fn spans_of(ranges: &[[u64; 2]]) -> Vec<Span> {
    ranges.iter().map(|[start, end]| Span { start: *start, end: *end }).collect()
}
