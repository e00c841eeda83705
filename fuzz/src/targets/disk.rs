//! Files on disk: a member's record, checkpoints and models.

use std::sync::Arc;

use peergrad_config::model_file::{ModelFile, Origin};
use peergrad_config::specification::{RunFile, resolve_with_notices};
use peergrad_core::io::Retention;
use peergrad_core::state::checkpoint::{Checkpoint, EvaluationHistory, OptimizerState, SavedTables};
use peergrad_net::{CheckpointStore, Checkpoints, decode_checkpoint};
use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::durable::DurableRecord;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::DURABLE_BYTES_MAX;
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::{BestEvaluation, SavedCheckpoint};
use peergrad_protocol::table::{LeaseTable, Rows, SampleLease, TableChunk};
use peergrad_protocol::view::Branch;
use peergrad_protocol::{Buffer, RunId, StepNumber, ViewNumber};
use safetensors::SafeTensors;

use super::repository_file;
use super::wire::{GOLDEN, golden_bytes};
use crate::target::{Bound, Form, Target, Verdict};

/// A member's record.
pub(super) struct DurableTarget;

/// The length of the record's checksum.
const CHECKSUM_BYTES: usize = 16;

impl Target for DurableTarget {
    fn name(&self) -> &'static str {
        "durable"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        vec![golden_bytes(&repository_file(&format!("{GOLDEN}/durable.hex")))]
    }

    fn mend(&self, input: &mut Vec<u8>) {
        input.truncate(input.len().saturating_sub(CHECKSUM_BYTES));
        let checksum = blake3::hash(input);
        input.extend_from_slice(&checksum.as_bytes()[..CHECKSUM_BYTES]);
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let Some(record) = DurableRecord::from_bytes(input) else { return Verdict::Refused };
        // Bytes are compared, since a loss in it may be no number, which is equal to nothing.
        let bytes = record.to_bytes();
        let again = DurableRecord::from_bytes(&bytes).expect("a record reads back");
        assert_eq!(again.to_bytes(), bytes, "a record has one encoding");
        Verdict::Accepted
    }

    fn bound(&self, _input_bytes: usize) -> Bound {
        Bound { largest_bytes: 4 * DURABLE_BYTES_MAX, total_bytes: 12 * DURABLE_BYTES_MAX }
    }
}

const DATA: &[u8] = b"u,v,kind\n0,0,a\n1,0,b\n0.1,1,a\n0.9,1,b\n0,2,a\n1,2,b\n0.2,3,a\n1.1,3,b\n";

/// A model with its specification.
fn model() -> ModelFile {
    let run_file = RunFile::parse("epochs = 2\nbatch = 4\n[data]\nfile = \"f.csv\"\n[model]\nhidden = [3]\n");
    let run_file = run_file.expect("these settings are valid");
    let (specification, _) = resolve_with_notices(&run_file, "f.csv", DATA).expect("the data is valid");
    let manifest = specification.manifest();
    let parameters = (0..manifest.parameter_count()).map(|index| index as f32 / 8.0 - 1.0).collect();
    let specification = String::from_utf8(specification.to_bytes().expect("it is short")).expect("a text");
    ModelFile { manifest, parameters, origin: Origin { run: RunId([7; 32]), steps: 4, specification } }
}

/// Corrects the length of a safetensors header, and the digest of the parameters in it.
fn mend_model(input: &mut [u8]) {
    // The header ends where the last closing brace is that is followed by spaces or by data.
    let header_end = |input: &[u8]| {
        let is_it = |at: &usize| serde_json::from_slice::<serde_json::Value>(&input[8..*at]).is_ok();
        input
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'}')
            .map(|(at, _)| at + 1)
            .filter(|at| *at > 8)
            .find(is_it)
    };
    if SafeTensors::read_metadata(input).is_err()
        && let Some(mut end) = header_end(input)
    {
        end += input[end..].iter().take_while(|byte| **byte == b' ').count();
        input[..8].copy_from_slice(&(end as u64 - 8).to_le_bytes());
    }
    let Some((old, new)) = digests(input) else { return };
    if let Some(at) = input.windows(old.len()).position(|window| window == old.as_bytes()) {
        input[at..at + old.len()].copy_from_slice(new.as_bytes());
    }
}

/// The digest in a model file, and the one of its parameters. `None` if either is missing or damaged.
fn digests(input: &[u8]) -> Option<(String, String)> {
    let (_, header) = SafeTensors::read_metadata(input).ok()?;
    let metadata: toml::Table = header.metadata().as_ref()?.get("peergrad")?.parse().ok()?;
    let old = metadata.get("digest")?.as_str()?.to_owned();
    let file = SafeTensors::deserialize(input).ok()?;
    let mut parameters = Vec::new();
    for name in metadata.get("tensors")?.as_array()? {
        parameters.extend_from_slice(file.tensor(name.as_str()?).ok()?.data());
    }
    let new = ContentDigest::of(&parameters).to_string();
    (old.len() == new.len()).then_some((old, new))
}

/// Model files.
pub(super) struct ModelTarget;

impl Target for ModelTarget {
    fn name(&self) -> &'static str {
        "model"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        vec![model().encode()]
    }

    fn mend(&self, input: &mut Vec<u8>) {
        if input.len() > 8 {
            mend_model(input);
        }
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let Ok(model) = ModelFile::decode(input) else {
            let _ = ModelFile::decode_any(input);
            return Verdict::Refused;
        };
        assert_eq!(ModelFile::decode(&model.encode()).as_ref(), Ok(&model), "a model reads back");
        let _ = model.evaluate("f.csv", DATA, &None);
        let _ = model.evaluate("g.csv", b"v;u;kind\n0;1;a\n1;1;b\n", &None);
        Verdict::Accepted
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        Bound { largest_bytes: (4 << 20) + 64 * input_bytes, total_bytes: (32 << 20) + 512 * input_bytes }
    }
}

/// Checkpoints: the index, a zero byte, and the tensors.
pub(super) struct CheckpointTarget;

fn checkpoint() -> Checkpoint {
    let manifest = Manifest::new([("layer.0.weight", &[8_u32, 4][..]), ("layer.0.bias", &[8][..])]);
    let values: Vec<f32> = (0..40_u8).map(|index| f32::from(index) / 8.0).collect();
    let parameters = Buffer::from_values(&values);
    let state = |chunk: u32| OptimizerState { moments: vec![chunk as f32 + 0.25; 8], updates: chunk + 9 };
    Checkpoint {
        run: RunId([7; 32]),
        specification: Arc::from(&b"[model]\n"[..]),
        manifest,
        saved: SavedCheckpoint {
            steps: StepNumber(20),
            branch: Branch { view_number: ViewNumber(2), step: StepNumber(1), fork: Some(3) },
            cursor: DataCursor {
                epoch: 3,
                position: 64,
                returned: vec![Span { start: 3, end: 5 }],
                deferred: vec![Span { start: 9, end: 12 }],
                ending: Ending::NextBatch,
            },
            digest: ContentDigest::of(parameters.bytes()),
            states: [0, 1, 7].into_iter().collect(),
        },
        parameters: Arc::new(parameters),
        states: [0, 1, 7].map(state).to_vec(),
        tables: None,
        left_out: 2,
        own_samples: 77,
        evaluations: EvaluationHistory {
            best: Some(BestEvaluation { steps: StepNumber(10), loss: 0.25 }),
            since_best: 2,
        },
    }
}

/// A checkpoint of two chunks of tables.
fn checkpoint_of_tables() -> Checkpoint {
    let lease = SampleLease { epoch: 1, spans: vec![Span { start: 9, end: 12 }] };
    let chunk = |chunk: u32| TableChunk {
        chunk,
        is_whole: true,
        rows: Rows { indices: [3_u64, 4, 9].into_iter().collect(), values: vec![0.25; 6] },
        updates: vec![1, 2, 3],
        lease_table: (chunk == 0)
            .then(|| LeaseTable { returned: vec![lease.clone()], ..LeaseTable::default() }),
        ..TableChunk::default()
    };
    let whole = checkpoint();
    let saved = SavedCheckpoint { states: [0, 7].into_iter().collect(), ..whole.saved };
    let tables = Some(SavedTables { chunks: [0, 7].map(chunk).to_vec(), clock: Some(12) });
    Checkpoint { saved, states: Vec::new(), tables, ..whole }
}

/// The contents of a checkpoint's two files, as the checkpoint thread writes them.
fn written(checkpoint: Checkpoint) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let thread = Checkpoints::start(CheckpointStore::in_directory(folder.path()), ()).expect("a thread");
    let place = folder.path().join("checkpoints").join(checkpoint.run.short());
    let steps = checkpoint.saved.steps.0;
    thread.save(Arc::new(checkpoint), Retention { keep: 1, candidates: vec![] });
    drop(futures::executor::block_on(thread.finish()));
    let file = |extension: &str| {
        let path = place.join(format!("{steps:012}.{extension}"));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    [&file("toml")[..], &[0], &file("safetensors")].concat()
}

/// The value of a key in a text of lines like `key = value`, as a range.
fn value_of(text: &str, key: &str) -> Option<std::ops::Range<usize>> {
    let beginning = format!("\n{key} = ");
    let start = text.find(&beginning)? + beginning.len();
    let end = text[start..].find('\n').map_or(text.len(), |length| start + length);
    Some(start..end)
}

impl Target for CheckpointTarget {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let whole = checkpoint();
        let mut empty = whole.clone();
        (empty.states, empty.saved.states) = (Vec::new(), std::iter::empty().collect());
        vec![written(whole), written(empty), written(checkpoint_of_tables())]
    }

    /// Corrects the digests, and the length of the tensors in the index.
    fn mend(&self, input: &mut Vec<u8>) {
        let Some(at) = input.iter().position(|byte| *byte == 0) else { return };
        let tensors = &mut input[at + 1..];
        if tensors.len() <= 8 {
            return;
        }
        mend_model(tensors);
        let digest = ContentDigest::of(tensors).to_string();
        let length = tensors.len();
        let Ok(mut index) = String::from_utf8(input[..at].to_vec()) else { return };
        for (key, value) in [("bytes", length.to_string()), ("file_digest", format!("\"{digest}\""))] {
            if let Some(range) = value_of(&index, key) {
                index.replace_range(range, &value);
            }
        }
        input.splice(..at, index.into_bytes());
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let mut parts = input.splitn(2, |byte| *byte == 0);
        let index = String::from_utf8_lossy(parts.next().unwrap_or_default());
        let Ok(checkpoint) = decode_checkpoint(&index, parts.next().unwrap_or_default()) else {
            return Verdict::Refused;
        };
        // It has optimizer state of its chunks, or tables.
        let chunk_count = checkpoint.tables.map_or(checkpoint.states.len(), |tables| tables.chunks.len());
        assert_eq!(chunk_count, checkpoint.saved.states.iter().count());
        assert_eq!(checkpoint.parameters.len(), checkpoint.manifest.parameter_count());
        Verdict::Accepted
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        Bound { largest_bytes: (4 << 20) + 64 * input_bytes, total_bytes: (32 << 20) + 512 * input_bytes }
    }
}
