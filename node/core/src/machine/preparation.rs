//! Preparation: from a specification's bytes to a task that can be trained.
//!
//! ```text
//! specification --> locate the data file --> (fetch it from the swarm) --> load, beside the network --> ready
//! ```
//! A file on this machine is preferred; whatever comes is checked against the digest in the specification.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{DATA_PIECE_BYTES_MAX, DATA_PIECES_IN_FLIGHT_MAX, SHIPPED_DATA_BYTES_MAX};
use peergrad_protocol::message::{DataPiece, JoinMessage, Message, WantData};
use peergrad_protocol::{Buffer, Frame, PeerId};

use crate::io::{DataReference, Event, Failure, Output, Reject};
use crate::program::loader::{Loaded, Loader};

/// How far the task of a run is prepared at this peer.
pub(crate) struct Preparation {
    specification: Arc<[u8]>,
    reference: Option<DataReference>,
    stage: Stage,
}

enum Stage {
    /// Waiting to hear whether the file is on this machine.
    Locating,
    /// Pieces come from a member.
    Fetching { received: Vec<u8>, requested: u64 },
    /// Everything is here; the task is being built.
    Loading(Option<Arc<[u8]>>),
    /// Done.
    Ready(Option<Arc<[u8]>>, Box<Loaded>),
}

/// What loading a task needs.
pub(crate) struct LoadRequest {
    pub(crate) specification: Arc<[u8]>,
    pub(crate) data: Option<Arc<[u8]>>,
}

impl Preparation {
    /// Reads the specification, and looks for its data or goes on to loading.
    ///
    /// # Errors
    /// This binary cannot read the specification.
    pub(crate) fn start(
        specification: Arc<[u8]>,
        loader: &dyn Loader,
        out: &mut Vec<Output>,
    ) -> Result<(Self, Option<LoadRequest>), Failure> {
        let reference = loader.data(&specification).map_err(Failure::Unusable)?;
        if let Some(reference) = &reference {
            out.push(Output::FindData(reference.clone()));
            return Ok((
                Self { specification, reference: Some(reference.clone()), stage: Stage::Locating },
                None,
            ));
        }
        let load_request = LoadRequest { specification: Arc::clone(&specification), data: None };
        Ok((Self { specification, reference, stage: Stage::Loading(None) }, Some(load_request)))
    }

    /// The file was looked for on this machine. If it is not here, it is asked for at `donor`; one may come up later if
    /// `may_wait`.
    ///
    /// # Errors
    /// It is nowhere to be had.
    pub(crate) fn data_found(
        &mut self,
        data: Option<Arc<[u8]>>,
        donor: Option<PeerId>,
        may_wait: bool,
        out: &mut Vec<Output>,
    ) -> Result<Option<LoadRequest>, Failure> {
        let (Stage::Locating, Some(reference)) = (&self.stage, &self.reference) else { return Ok(None) };
        let is_it = |data: &Arc<[u8]>| ContentDigest::of(data) == reference.digest;
        if let Some(data) = data.filter(is_it) {
            return Ok(Some(self.load(data)));
        }
        let missing = Failure::DataMissing { name: reference.name.clone(), byte_count: reference.byte_count };
        if reference.byte_count > SHIPPED_DATA_BYTES_MAX || (donor.is_none() && !may_wait) {
            return Err(missing);
        }
        self.stage = Stage::Fetching { received: Vec::new(), requested: 0 };
        if let Some(donor) = donor {
            self.request(donor, out);
        }
        Ok(None)
    }

    /// Keeps a few pieces on their way.
    fn request(&mut self, donor: PeerId, out: &mut Vec<Output>) {
        let (Stage::Fetching { received, requested }, Some(reference)) = (&mut self.stage, &self.reference)
        else {
            return;
        };
        let in_flight_max = (DATA_PIECES_IN_FLIGHT_MAX * DATA_PIECE_BYTES_MAX) as u64;
        while *requested < reference.byte_count && *requested < received.len() as u64 + in_flight_max {
            let message = Message::Join(JoinMessage::WantData(WantData {
                digest: reference.digest,
                offset: *requested,
            }));
            out.push(Output::Send { to: donor, frame: Frame::encode(&message, None) });
            *requested = reference.byte_count.min(*requested + DATA_PIECE_BYTES_MAX as u64);
        }
    }

    /// The donor is linked again after its link was down: what was on its way is asked for once more.
    pub(crate) fn restart_fetching(&mut self, donor: PeerId, out: &mut Vec<Output>) {
        if let Stage::Fetching { received, requested } = &mut self.stage {
            *requested = received.len() as u64;
            self.request(donor, out);
        }
    }

    /// A piece of the data file arrived. One that was on its way when it was asked for anew is dropped.
    ///
    /// # Errors
    /// It is of no file that was asked for, or the file is complete and not the one of the specification.
    pub(crate) fn piece(
        &mut self,
        from: PeerId,
        piece: DataPiece,
        payload: &Buffer,
        out: &mut Vec<Output>,
    ) -> Result<Option<LoadRequest>, Reject> {
        let reference = self.reference.as_ref().filter(|reference| reference.digest == piece.digest);
        let reference = reference.ok_or(Reject::Data)?;
        let Stage::Fetching { received, requested } = &mut self.stage else { return Ok(None) };
        if piece.offset != received.len() as u64 {
            return Ok(None);
        }
        let end = received.len() as u64 + payload.byte_count() as u64;
        if end > *requested || payload.byte_count() == 0 {
            return Err(Reject::Data);
        }
        received.extend_from_slice(payload.bytes());
        out.push(Output::Event(Event::FetchingData { received: end, total: reference.byte_count }));
        if end < reference.byte_count {
            self.request(from, out);
            return Ok(None);
        }
        let data: Arc<[u8]> = std::mem::take(received).into();
        if ContentDigest::of(&data) != reference.digest {
            // From the start again; the founder hears no more of it after too many rejects.
            *requested = 0;
            self.request(from, out);
            return Err(Reject::Data);
        }
        let reference = reference.clone();
        out.push(Output::StoreData { reference, data: Arc::clone(&data) });
        Ok(Some(self.load(data)))
    }

    fn load(&mut self, data: Arc<[u8]>) -> LoadRequest {
        self.stage = Stage::Loading(Some(Arc::clone(&data)));
        LoadRequest { specification: Arc::clone(&self.specification), data: Some(data) }
    }

    /// The task was built.
    pub(crate) fn loaded(&mut self, loaded: Loaded) {
        if let Stage::Loading(data) = &mut self.stage {
            self.stage = Stage::Ready(data.take(), Box::new(loaded));
        }
    }

    /// The task, once it is built.
    pub(crate) fn ready(&self) -> Option<&Loaded> {
        match &self.stage {
            Stage::Ready(_, loaded) => Some(loaded),
            _ => None,
        }
    }

    /// Whether the data file is at hand, where one is needed.
    pub(crate) fn has_data(&self) -> bool {
        matches!(self.stage, Stage::Loading(_) | Stage::Ready(..))
    }

    /// A piece of the data file for a joiner, if it is here and small enough to be shipped.
    pub(crate) fn data_piece(&self, want: WantData) -> Option<(DataPiece, &[u8])> {
        let (Stage::Loading(Some(data)) | Stage::Ready(Some(data), _)) = &self.stage else { return None };
        let reference = self.reference.as_ref()?;
        let start = usize::try_from(want.offset).ok()?;
        let is_shipped = reference.digest == want.digest && reference.byte_count <= SHIPPED_DATA_BYTES_MAX;
        if !is_shipped || start >= data.len() {
            return None;
        }
        let end = data.len().min(start + DATA_PIECE_BYTES_MAX);
        Some((DataPiece { digest: want.digest, offset: want.offset }, &data[start..end]))
    }

    /// The specification's bytes.
    pub(crate) fn specification(&self) -> &Arc<[u8]> {
        &self.specification
    }
}
