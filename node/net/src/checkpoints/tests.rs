//! Checkpoints on a real disk: what comes back, what is passed over, what is kept.

use peergrad_config::model_file::ModelFile;
use peergrad_core::state::checkpoint::{EvaluationHistory, OptimizerState, SavedTables};
use peergrad_protocol::cursor::{DataCursor, Ending, Span};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::message::BestEvaluation;
use peergrad_protocol::table::{LeaseTable, Rows, SampleLease, TableChunk, UsedKeys};
use peergrad_protocol::view::Branch;
use peergrad_protocol::{Buffer, StepNumber, ViewNumber};

use super::*;

const RUN: RunId = RunId([7; 32]);
const KEEP: Retention = Retention { keep: 3, candidates: Vec::new() };

fn checkpoint(steps: u64) -> Checkpoint {
    let manifest = Manifest::new([("layer.0.weight", &[8_u32, 4][..]), ("layer.0.bias", &[8][..])]);
    let values: Vec<f32> = (0..40).map(|index| index as f32 / 8.0 - steps as f32).collect();
    let parameters = Buffer::from_values(&values);
    let state = |chunk: u32| OptimizerState { moments: vec![chunk as f32 + 0.25; 32], updates: chunk + 9 };
    let returned = vec![Span { start: 3, end: 5 }, Span { start: 8, end: 9 }];
    Checkpoint {
        run: RUN,
        specification: Arc::from(&b"[model]\n"[..]),
        manifest,
        saved: SavedCheckpoint {
            steps: StepNumber(steps),
            branch: Branch { view_number: ViewNumber(2), step: StepNumber(1), fork: None },
            cursor: DataCursor {
                epoch: 3,
                position: 64,
                returned,
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

fn store() -> (tempfile::TempDir, CheckpointStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::in_directory(folder.path());
    (folder, store)
}

fn steps(store: &CheckpointStore) -> Vec<u64> {
    store.scan(&RUN).0.iter().map(|saved| saved.steps.0).collect()
}

#[track_caller]
fn assert_same(read: &Checkpoint, written: &Checkpoint) {
    assert_eq!((read.run, &read.saved, &read.states), (written.run, &written.saved, &written.states));
    assert_eq!(read.tables, written.tables);
    assert_eq!((&read.manifest, &read.specification), (&written.manifest, &written.specification));
    assert_eq!(read.parameters.bytes(), written.parameters.bytes());
    assert_eq!((read.left_out, read.own_samples), (written.left_out, written.own_samples));
    assert_eq!(read.evaluations, written.evaluations);
}

/// A checkpoint of two chunks of tables, the first of which has the lease table.
fn checkpoint_of_tables(steps: u64) -> Checkpoint {
    let leases = LeaseTable {
        cursor: DataCursor { epoch: 2, position: 40, ending: Ending::Over, ..DataCursor::default() },
        returned: vec![SampleLease { epoch: 1, spans: vec![Span { start: 9, end: 12 }] }],
        outstanding: Vec::new(),
    };
    let chunk = |chunk: u32, rows: &[u64], values: &[f32]| TableChunk {
        chunk,
        is_whole: true,
        rows: Rows { indices: rows.iter().copied().collect(), values: values.to_vec() },
        updates: vec![5; rows.len()],
        lease_table: (chunk == 0).then(|| leases.clone()),
        used_keys: (chunk == 0).then(|| UsedKeys { round: 1 << 40, numbers: vec![0, 7, 65_535] }),
        ..TableChunk::default()
    };
    let whole = checkpoint(steps);
    let digest = ContentDigest::of(b"the name of a cut");
    let saved = SavedCheckpoint { states: [0, 7].into_iter().collect(), digest, ..whole.saved };
    let tables = vec![chunk(0, &[1, 2, 9], &[0.5, 1.0, -2.5, 0.0, 3.0, f32::MAX]), chunk(7, &[], &[])];
    let tables = Some(SavedTables { chunks: tables, clock: Some(12) });
    Checkpoint { saved, states: Vec::new(), tables, ..whole }
}

#[test]
fn tables_are_restored_with_their_leases_and_keys() {
    let (folder, store) = store();
    let written = checkpoint_of_tables(30);
    store.save(&written, KEEP).unwrap();
    let (saved, damaged) = store.scan(&RUN);
    assert_eq!((&saved[..], &damaged[..]), (&[written.saved.clone()][..], &[][..]));
    assert_same(&store.restore(&saved[0]).unwrap(), &written);
    let model = ModelFile::decode_any(&store.newest(&RUN).unwrap()).unwrap();
    assert_eq!(Buffer::from_values(&model.parameters).bytes(), written.parameters.bytes(), "it is a model");
    drop(folder);
}

#[test]
fn a_new_checkpoint_removes_later_ones_of_a_branch_that_was_given_up() {
    let (_folder, store) = store();
    for step in [1000, 1030, 1060] {
        store.save(&checkpoint(step), KEEP).unwrap();
    }
    store.save(&checkpoint(7), KEEP).unwrap();
    assert_eq!(steps(&store), [7], "the run began again");
}

#[test]
fn rows_that_no_table_can_have_are_an_error() {
    let (folder, store) = store();
    let written = checkpoint_of_tables(30);
    store.save(&written, KEEP).unwrap();
    let path = folder.path().join(FOLDER).join(RUN.short()).join(name_of(30, TENSORS));
    let mut bytes = fs::read(&path).unwrap();
    // The rows 1 to 2 and 9, as ranges. The second range is made to begin before the first one ends.
    let ranges: Vec<u8> = [1_u64, 3, 9, 10].iter().flat_map(|end| end.to_le_bytes()).collect();
    let at = bytes.windows(ranges.len()).position(|window| window == ranges).unwrap();
    bytes[at + 16..at + 24].copy_from_slice(&2_u64.to_le_bytes());
    let text = fs::read_to_string(path.with_extension("toml")).unwrap();
    let altered = text.replace(
        &ContentDigest::of(&fs::read(&path).unwrap()).to_string(),
        &ContentDigest::of(&bytes).to_string(),
    );
    fs::write(&path, &bytes).unwrap();
    fs::write(path.with_extension("toml"), altered).unwrap();
    let error = store.restore(&written.saved).unwrap_err();
    assert!(error.contains("chunk 0"), "{error}");
}

#[test]
fn saved_checkpoints_are_restored_and_only_the_newest_are_kept() {
    let (_folder, store) = store();
    for step in [10, 20, 30, 40] {
        store.save(&checkpoint(step), KEEP).unwrap();
    }
    let (saved, damaged) = store.scan(&RUN);
    assert_eq!((steps(&store), damaged), (vec![40, 30, 20], vec![]));
    assert_same(&store.restore(&saved[1]).unwrap(), &checkpoint(30));
    assert_eq!(steps(&store), [30, 20], "what is later belongs to a branch that is given up");
    assert!(store.restore(&saved[0]).is_err());
    store.forget(&RUN);
    assert_eq!(steps(&store), [0_u64; 0]);
}

#[test]
fn the_best_checkpoint_stays_whatever_becomes_of_the_others() {
    let (folder, store) = store();
    store.save(&checkpoint(10), KEEP).unwrap();
    let evaluating = Retention { keep: 1, candidates: vec![StepNumber(10)] };
    for step in [20, 30] {
        store.save(&checkpoint(step), evaluating.clone()).unwrap();
    }
    assert_eq!(steps(&store), [30, 10], "its result is not known yet");
    store.keep_best(&RUN, StepNumber(10)).unwrap();
    store.keep_best(&RUN, StepNumber(30)).unwrap();
    assert!(store.keep_best(&RUN, StepNumber(20)).is_err(), "that one is gone");
    store.forget(&RUN);
    let best = ModelFile::decode(&fs::read(folder.path().join(BEST_FILE)).unwrap()).unwrap();
    assert_eq!((best.origin.steps, best.parameters[0]), (30, -30.0));
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().filter(|file| file.as_ref().unwrap().path().is_file()).count(),
        1
    );
}

/// Something done to a file.
type Damage = fn(&Path);

/// Whatever a crash or a disk leaves of the newest checkpoint, the one before is gone on from.
#[test]
fn damaged_checkpoints_are_skipped_and_reported() {
    let spoil: [(&str, Damage); 6] = [
        ("cut short", |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("one bit", |path| {
            let mut bytes = fs::read(path).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("longer", |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes.push(0);
            fs::write(path, bytes).unwrap();
        }),
        ("empty", |path| fs::write(path, []).unwrap()),
        ("gone", |path| fs::remove_file(path).unwrap()),
        ("the one before", |path| {
            fs::copy(path.with_file_name(name_of(10, TENSORS)), path).unwrap();
        }),
    ];
    for (kind, spoil) in spoil {
        let (_folder, store) = store();
        store.save(&checkpoint(10), KEEP).unwrap();
        store.save(&checkpoint(20), KEEP).unwrap();
        spoil(&store.folder(&RUN).join(name_of(20, TENSORS)));
        let (saved, damaged) = store.scan(&RUN);
        assert_eq!((saved.len(), damaged.len()), (1, 1), "{kind}");
        assert_same(&store.restore(&saved[0]).unwrap(), &checkpoint(10));
    }
}

#[test]
fn an_invalid_index_is_skipped_and_reported() {
    let (_folder, store) = store();
    store.save(&checkpoint(10), KEEP).unwrap();
    let index = store.folder(&RUN).join(name_of(10, "toml"));
    let text = fs::read_to_string(&index).unwrap();
    for broken in [
        String::new(),
        text[..text.len() / 2].to_owned(),
        text.replace("version = 2", "version = 3"),
        text.replace("position = 64", "position = 1"),
        text.replace("digest = \"", "digest = \"x"),
        text.replace("states = [[0, 2]", "states = [[2, 0]"),
        text.replace(&RUN.to_string(), &RunId([8; 32]).to_string()),
        format!("{text}\nodd = 1\n"),
    ] {
        assert_ne!(broken, text, "this case breaks nothing");
        fs::write(&index, &broken).unwrap();
        let (saved, damaged) = store.scan(&RUN);
        assert_eq!((saved.len(), damaged.len()), (0, 1), "{broken}");
    }
    fs::write(&index, text).unwrap();
    assert_eq!(steps(&store), [10]);
}

#[test]
fn half_written_files_of_a_crash_are_removed() {
    let (_folder, store) = store();
    store.save(&checkpoint(10), KEEP).unwrap();
    let folder = store.folder(&RUN);
    // In the middle of the tensors, and between them and the index.
    fs::write(folder.join(".000000000020.safetensors.99.draft"), b"half").unwrap();
    fs::copy(folder.join(name_of(10, TENSORS)), folder.join(name_of(20, TENSORS))).unwrap();
    assert_eq!(steps(&store), [10]);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
}

#[test]
fn of_earlier_runs_only_the_last_one_is_kept() {
    let (folder, store) = store();
    for run in 1..5 {
        store.save(&Checkpoint { run: RunId([run; 32]), ..checkpoint(10) }, KEEP).unwrap();
    }
    let left = fs::read_dir(folder.path().join(FOLDER)).unwrap().count();
    assert_eq!(left, 2);
    assert_eq!(store.scan(&RunId([4; 32])).0.len(), 1);
}

#[test]
fn a_model_can_be_read_from_a_checkpoint() {
    let (_folder, store) = store();
    store.save(&checkpoint(10), KEEP).unwrap();
    let bytes = fs::read(store.folder(&RUN).join(name_of(10, TENSORS))).unwrap();
    let model = peergrad_config::model_file::ModelFile::decode(&bytes).unwrap();
    assert_eq!((model.origin.steps, &model.manifest), (10, &checkpoint(10).manifest));
    assert_eq!(model.parameters, checkpoint(10).parameters.to_vec());
}

#[test]
fn a_failed_write_is_reported_and_leaves_earlier_checkpoints() {
    let (folder, store) = store();
    store.save(&checkpoint(10), KEEP).unwrap();
    // A folder cannot be replaced by a file.
    let occupied = store.folder(&RUN).join(name_of(20, TENSORS));
    fs::create_dir_all(occupied.join("full")).unwrap();
    assert!(store.save(&checkpoint(20), KEEP).is_err());
    fs::remove_dir_all(occupied).unwrap();
    assert_eq!(steps(&store), [10]);
    assert_eq!(fs::read_dir(store.folder(&RUN)).unwrap().count(), 2, "no draft is left");
    drop(folder);
}

#[tokio::test]
async fn the_disk_thread_answers_in_order_and_finishes_pending_requests() {
    let (_folder, store) = store();
    let mut checkpoints = Checkpoints::start(store.clone(), ()).unwrap();
    checkpoints.save(Arc::new(checkpoint(10)), KEEP);
    let Input::CheckpointSaved { steps: saved, result } = checkpoints.answer().await else {
        panic!("another input")
    };
    assert_eq!((saved, result), (StepNumber(10), Ok(())));
    checkpoints.restore(checkpoint(10).saved);
    let Input::CheckpointLoaded(Ok(read)) = checkpoints.answer().await else { panic!("another input") };
    assert_same(&read, &checkpoint(10));
    checkpoints.restore(checkpoint(99).saved);
    assert!(matches!(checkpoints.answer().await, Input::CheckpointLoaded(Err(_))));
    let data: Arc<[u8]> = Arc::from(&b"1,2,a\n"[..]);
    let reference = DataReference {
        name: "d.csv".to_owned(),
        digest: ContentDigest::of(&data),
        byte_count: data.len() as u64,
    };
    checkpoints.keep_data(reference.clone(), Arc::clone(&data));
    checkpoints.save(Arc::new(checkpoint(20)), KEEP);
    assert_eq!(checkpoints.finish().await.len(), 1);
    assert_eq!(steps(&store), [20, 10]);
    assert_eq!(fs::read(store.data_path(&reference)).unwrap(), *data);
    assert!(!store.data_path(&DataReference { digest: ContentDigest([0; 32]), ..reference }).exists());
}

#[tokio::test]
async fn a_data_file_is_kept_piece_by_piece() {
    let (folder, store) = store();
    let mut checkpoints = Checkpoints::start(store.clone(), ()).unwrap();
    let digest = ContentDigest::of(b"0123456789");
    let reference = DataReference { name: "d.csv".to_owned(), digest, byte_count: 10 };
    let left = || store.data_part_bytes(&reference);
    assert_eq!(left(), 0);
    for (offset, piece, expected) in [(0, "xxxxxx", 6), (0, "0123", 4), (4, "4567", 8)] {
        checkpoints.keep_piece(reference.clone(), offset, piece.as_bytes().into());
        let Input::PieceStored(Ok(stored)) = checkpoints.answer().await else { panic!("another input") };
        assert_eq!((stored, left()), (expected, expected), "a piece at 0 begins again");
    }
    assert!(!store.data_path(&reference).exists());
    checkpoints.keep_piece(reference.clone(), 8, b"89".as_slice().into());
    assert!(matches!(checkpoints.answer().await, Input::PieceStored(Ok(10))));
    assert_eq!((fs::read(store.data_path(&reference)).unwrap(), left()), (b"0123456789".to_vec(), 0));
    drop(folder);
    let other = DataReference { digest: ContentDigest([0; 32]), ..reference };
    checkpoints.keep_piece(other, 0, b"01".as_slice().into());
    assert!(matches!(checkpoints.answer().await, Input::PieceStored(Err(_))), "the folder is gone");
}

#[tokio::test]
async fn a_checkpoint_is_refused_while_a_slow_disk_is_busy() {
    let (_folder, store) = store();
    let checkpoints = Checkpoints::start(store.clone(), ()).unwrap();
    // As if these were being written.
    checkpoints.saving.store(SAVING_MAX, Ordering::Relaxed);
    checkpoints.save(Arc::new(checkpoint(10)), KEEP);
    checkpoints.saving.store(SAVING_MAX - 1, Ordering::Relaxed);
    checkpoints.save(Arc::new(checkpoint(20)), KEEP);
    let answers = checkpoints.finish().await;
    let pinned = answers.iter().filter_map(|answer| match answer {
        Input::CheckpointSaved { steps, result } => Some((steps.0, result.is_ok())),
        _ => None,
    });
    let pinned: std::collections::BTreeMap<u64, bool> = pinned.collect();
    assert_eq!(pinned, [(10, false), (20, true)].into());
    assert_eq!(steps(&store), [20]);
}

#[test]
fn the_newest_whole_checkpoint_is_read_and_a_draft_is_left_alone() {
    let (folder, store) = store();
    assert_eq!((store.newest(&RUN), store.written_at(&RUN)), (None, None));
    for steps in [10, 20] {
        store.save(&checkpoint(steps), KEEP).unwrap();
    }
    let steps_of = |bytes: Vec<u8>| ModelFile::decode(&bytes).unwrap().origin.steps;
    assert_eq!(store.newest(&RUN).map(steps_of), Some(20));
    assert!(store.written_at(&RUN).is_some());
    assert_eq!(store.newest(&RunId([8; 32])), None);
    // The peer is writing the next one.
    let draft = folder.path().join("checkpoints").join(RUN.short()).join("000000000030.safetensors");
    fs::write(&draft, "half of it").unwrap();
    assert_eq!(store.newest(&RUN).map(steps_of), Some(20));
    assert!(draft.exists());
    // One that was changed on disk is passed over.
    let newest = draft.with_file_name("000000000020.safetensors");
    let mut bytes = fs::read(&newest).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&newest, bytes).unwrap();
    assert_eq!(store.newest(&RUN).map(steps_of), Some(10));
}
