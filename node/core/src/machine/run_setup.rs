//! Run setup: from the bytes that define a run to a task that can be trained.
//!
//! ```text
//! unknown -- a member's welcome ------------------------------------.
//!                                                                   v
//! defined, by the user or by this peer's record -- first input --> preparing --> ready
//! ```

use std::sync::Arc;

use peergrad_protocol::durable::RunDefinition;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::{DataPiece, WantData};
use peergrad_protocol::wire::encode_record;
use peergrad_protocol::{Buffer, PeerId, Pool, StepNumber};

use crate::io::{Event, Failure, FoundData, Output, Reject, Work};
use crate::machine::jobs::{Jobs, Purpose};
use crate::machine::preparation::{Donor, LoadRequest, Preparation, Prepared};
use crate::program::loader::{Loaded, Loader};
use crate::state::checkpoint::Checkpoint;
use crate::table::store::TableStore;

/// The run of a peer, and its task.
pub(super) struct RunSetup {
    /// Turns the specification into a task.
    loader: Arc<dyn Loader>,
    /// How far the run is known and prepared.
    stage: Stage,
}

enum Stage {
    /// No member has told this peer what the run is.
    Unknown,
    /// The specification and the random bytes of the run are known. Preparation begins with the first input.
    Defined(Arc<[u8]>, [u8; 32]),
    /// The task is being prepared, or is ready. Holds the random bytes of the run.
    Preparing(Preparation, [u8; 32]),
}

impl RunSetup {
    /// A run that is `defined` by its specification and random bytes; `None` if a member will send them.
    pub(super) fn new(loader: Arc<dyn Loader>, defined: Option<(Arc<[u8]>, [u8; 32])>) -> Self {
        let stage =
            defined.map_or(Stage::Unknown, |(specification, nonce)| Stage::Defined(specification, nonce));
        Self { loader, stage }
    }

    /// Whether the run is defined, and its preparation has not begun.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.stage, Stage::Defined(..))
    }

    /// Begins the preparation of a run that was defined from the start.
    ///
    /// # Errors
    /// This program cannot read the specification.
    pub(super) fn begin(&mut self, jobs: &mut Jobs, out: &mut Vec<Output>) -> Result<(), Failure> {
        let Stage::Defined(specification, nonce) = &self.stage else { return Ok(()) };
        let (specification, nonce) = (Arc::clone(specification), *nonce);
        self.prepare(specification, nonce, jobs, out)
    }

    /// Begins the preparation of a run that a member has described.
    ///
    /// # Errors
    /// This program cannot read the specification.
    pub(super) fn prepare(
        &mut self,
        specification: Arc<[u8]>,
        nonce: [u8; 32],
        jobs: &mut Jobs,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let (preparation, load_request) = Preparation::start(specification, &*self.loader, out)?;
        self.stage = Stage::Preparing(preparation, nonce);
        self.load(load_request, jobs, out);
        Ok(())
    }

    fn load(&self, load_request: Option<LoadRequest>, jobs: &mut Jobs, out: &mut Vec<Output>) {
        let Some(LoadRequest { specification, data }) = load_request else { return };
        let loader = Arc::clone(&self.loader);
        let work = Work::whole(move || loader.load(&specification, data).map(Prepared::draw));
        // The load has no cost in samples: how long it takes depends on the disk.
        jobs.start(Purpose::Load, 0, work, out);
    }

    fn preparing(&self) -> Option<&Preparation> {
        if let Stage::Preparing(preparation, _) = &self.stage { Some(preparation) } else { None }
    }

    fn preparing_mut(&mut self) -> Option<&mut Preparation> {
        if let Stage::Preparing(preparation, _) = &mut self.stage { Some(preparation) } else { None }
    }

    // The data file.

    /// The driver has looked for the data file on this machine. If it was not found, this peer asks `donor` for it.
    ///
    /// # Errors
    /// The file is not available anywhere.
    pub(super) fn data_found(
        &mut self,
        data: FoundData,
        donor: Donor,
        jobs: &mut Jobs,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let Some(preparation) = self.preparing_mut() else { return Ok(()) };
        let load_request = preparation.data_found(data, donor, out)?;
        self.load(load_request, jobs, out);
        Ok(())
    }

    /// A piece of the data file has arrived.
    ///
    /// # Errors
    /// The piece was not requested, or the complete file is not the one of the specification.
    pub(super) fn piece(
        &mut self,
        from: PeerId,
        piece: DataPiece,
        payload: Option<Buffer>,
        jobs: &mut Jobs,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let preparation = self.preparing_mut().ok_or(Reject::Data)?;
        let load_request = preparation.piece(from, piece, &payload.ok_or(Reject::Data)?, out)?;
        self.load(load_request, jobs, out);
        Ok(())
    }

    /// The disk has the data file up to an offset, or could not write a piece of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn data_stored(
        &mut self,
        stored: Result<u64, String>,
        donor: Donor,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let Some(preparation) = self.preparing_mut() else { return Ok(()) };
        preparation.data_stored(stored, donor, out)
    }

    /// The link to the donor is up again: requests again the pieces that were on their way.
    pub(super) fn restart_fetching(&mut self, donor: PeerId, out: &mut Vec<Output>) {
        if let Some(preparation) = self.preparing_mut() {
            preparation.restart_fetching(donor, out);
        }
    }

    /// A piece of the data file for a joiner; `None` if the file is not here, or is not sent.
    pub(super) fn data_piece(&self, want: WantData, segments: &Pool) -> Option<(DataPiece, Buffer)> {
        self.preparing()?.data_piece(want, segments)
    }

    // The task.

    /// The task has been built.
    pub(super) fn prepared(&mut self, prepared: Prepared, out: &mut Vec<Output>) {
        let (size, program) = (prepared.loaded.run_size(), &prepared.loaded.program);
        let has_own_losses = program.has_local_parameters() || program.has_tables();
        if let Some(preparation) = self.preparing_mut() {
            preparation.prepared(prepared);
            out.push(Output::Event(Event::Prepared { size, has_own_losses }));
        }
    }

    /// Whether preparation has begun.
    pub(super) fn is_preparing(&self) -> bool {
        self.preparing().is_some()
    }

    /// The task; `None` until it is built.
    pub(super) fn ready(&self) -> Option<&Loaded> {
        Some(&self.preparing()?.ready()?.loaded)
    }

    /// The digest of the task's initial parameters; `None` until it is built.
    pub(super) fn initial_digest(&self) -> Option<ContentDigest> {
        Some(self.preparing()?.ready()?.initial_digest)
    }

    /// The pool of vectors with as many elements as there are parameters; `None` until the task is built.
    pub(super) fn vectors(&self) -> Option<&Pool> {
        Some(&self.preparing()?.ready()?.vectors)
    }

    /// The initial parameters, for a run that begins with them; `None` if one has begun already.
    pub(super) fn take_initial(&mut self) -> Option<Arc<Buffer>> {
        self.preparing_mut()?.take_initial()
    }

    /// The encoded specification, once the data file is here or if none is needed; `None` before.
    pub(super) fn specification_with_data(&self) -> Option<&Arc<[u8]>> {
        self.preparing().filter(|preparation| preparation.has_data()).map(Preparation::specification)
    }

    /// The encoded specification and the random bytes of the run.
    ///
    /// # Panics
    /// The run is not known, so this peer is not about to enter a view.
    pub(super) fn identity(&self) -> (&Arc<[u8]>, [u8; 32]) {
        let Stage::Preparing(preparation, nonce) = &self.stage else {
            panic!("a peer prepares the run before it enters a view")
        };
        (preparation.specification(), *nonce)
    }

    /// The encoded definition of the run, for the record on disk.
    pub(super) fn definition(&self) -> Arc<[u8]> {
        let (specification, nonce) = self.identity();
        encode_record(&RunDefinition { specification: specification.to_vec(), nonce }).into()
    }

    /// The checkpoint after `steps` steps that the driver has read, if it is of this run's model and tables.
    ///
    /// # Errors
    /// The checkpoint could not be read, or is of another model.
    pub(super) fn fitting_checkpoint(
        &self,
        StepNumber(steps): StepNumber,
        result: Result<Arc<Checkpoint>, String>,
    ) -> Result<Arc<Checkpoint>, Failure> {
        let loaded = self.ready();
        // A founder may get the checkpoint before it has read its data.
        let fits = |checkpoint: &Checkpoint| loaded.is_none_or(|loaded| is_of(checkpoint, loaded));
        let fitting = result.and_then(|checkpoint| match fits(&checkpoint) {
            true => Ok(checkpoint),
            false => Err("it is of another model, or of another version of this program".to_owned()),
        });
        fitting.map_err(|reason| Failure::CheckpointLost { steps, reason })
    }

    /// Checks that a run can start from this checkpoint alone, once the task is built.
    ///
    /// # Errors
    /// It is of another model, or has only some chunks of the tables.
    pub(super) fn check_alone(&self, checkpoint: Arc<Checkpoint>) -> Result<(), Failure> {
        let steps = checkpoint.saved.steps;
        let checkpoint = self.fitting_checkpoint(steps, Ok(checkpoint))?;
        let layout = self.ready().and_then(|loaded| Some(loaded.program.table_spec(loaded)?.layout));
        let chunk_count = layout.map_or(0, |layout| layout.chunk_count());
        let found = checkpoint.tables.as_ref().map_or(0, |tables| tables.chunks.len());
        if found >= chunk_count {
            return Ok(());
        }
        let reason = format!(
            "it has {found} of the {chunk_count} chunks of the tables: continue together with the other peers, which have the rest"
        );
        Err(Failure::CheckpointLost { steps: steps.0, reason })
    }
}

/// Whether a checkpoint is of this model and these tables.
fn is_of(checkpoint: &Checkpoint, loaded: &Loaded) -> bool {
    let is_of_tables = |layout| {
        let store = TableStore::new(layout);
        let mut chunks = checkpoint.tables.iter().flat_map(|tables| &tables.chunks);
        chunks.all(|chunk| store.check(chunk).is_ok())
    };
    loaded.manifest == checkpoint.manifest
        && match loaded.program.table_spec(loaded) {
            Some(table_spec) => checkpoint.tables.is_some() && is_of_tables(table_spec.layout),
            None => checkpoint.tables.is_none(),
        }
}
