//! Preparation: from a specification's bytes to a task that can be trained.
//!
//! ```text
//! specification --> locate the data file --> (fetch it from the swarm) --> load, beside the network --> ready
//! ```
//! A file on this machine is preferred. Any file is checked against the digest in the specification.

use std::sync::Arc;

use peergrad_models::data::bytes::DataBytes;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{DATA_PIECE_BYTES_MAX, DATA_PIECES_IN_FLIGHT_MAX, SHIPPED_DATA_BYTES_MAX};
use peergrad_protocol::message::{DataPiece, JoinMessage, Message, WantData};
use peergrad_protocol::{Buffer, Frame, PeerId, Pool};

use crate::io::{DataReference, Event, Failure, Output, Reject};
use crate::program::loader::{Loaded, Loader};
use crate::training::VECTORS_KEPT_MAX;

/// How far the task of a run is prepared at this peer.
pub(crate) struct Preparation {
    /// The encoded specification.
    specification: Arc<[u8]>,
    /// The data file of the run; `None` if it has none.
    reference: Option<DataReference>,
    /// What the preparation waits for.
    stage: Stage,
}

enum Stage {
    /// The driver is looking for the file on this machine.
    Locating,
    /// A member is sending the file in pieces. Holds the bytes received so far, and the offset up to which bytes were requested.
    Fetching { received: Vec<u8>, requested: u64 },
    /// The task is being built; all that it needs is here. Holds the data file, if others may ask for it.
    Loading(Option<Arc<[u8]>>),
    /// The task is built. Holds the data file, if others may ask for it, and the task.
    Ready(Option<Arc<[u8]>>, Box<Prepared>),
}

/// A task that is built, with the parameters that a run of it begins with.
pub(crate) struct Prepared {
    /// The task.
    pub(crate) loaded: Loaded,
    /// The pool of vectors with as many elements as there are parameters.
    pub(crate) vectors: Pool,
    /// Its initial parameters, until a run has begun with them. A task may draw others when it is asked again.
    initial: Option<Arc<Buffer>>,
    /// Their digest.
    pub(crate) initial_digest: ContentDigest,
}

impl Prepared {
    /// Draws the initial parameters of a task. This takes as long as the parameters are many.
    pub(crate) fn draw(loaded: Loaded) -> Self {
        let vectors = Pool::new(VECTORS_KEPT_MAX);
        let mut initial = vectors.take_zeroed(loaded.manifest.parameter_count());
        loaded.task.initial(loaded.config.seed, &mut initial);
        let initial_digest = ContentDigest::of(initial.bytes());
        Self { loaded, vectors, initial: Some(Arc::new(initial)), initial_digest }
    }
}

/// The peer that may send the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Donor {
    /// No peer will send the file: a founder needs its own.
    Nobody,
    /// No member has welcomed this peer yet.
    Awaited,
    /// The member that has welcomed this peer.
    Sponsor(PeerId),
}

/// What is needed to load a task: its specification, and its data file if it has one.
pub(crate) struct LoadRequest {
    /// The encoded specification.
    pub(crate) specification: Arc<[u8]>,
    /// The data file; `None` if the run has none.
    pub(crate) data: Option<DataBytes>,
}

impl Preparation {
    /// Reads the specification. Then looks for its data file, or loads the task if no file is needed.
    ///
    /// # Errors
    /// This program cannot read the specification.
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

    /// The driver has looked for the file on this machine. If it was not found, this peer asks `donor` for it.
    ///
    /// # Errors
    /// The file is not available anywhere.
    pub(crate) fn data_found(
        &mut self,
        data: Option<DataBytes>,
        donor: Donor,
        out: &mut Vec<Output>,
    ) -> Result<Option<LoadRequest>, Failure> {
        let (Stage::Locating, Some(reference)) = (&self.stage, &self.reference) else { return Ok(None) };
        if let Some(data) = data.filter(|data| data.digest() == reference.digest) {
            return Ok(Some(self.load(data)));
        }
        let missing = Failure::DataMissing { name: reference.name.clone(), byte_count: reference.byte_count };
        if !is_shipped(reference) || donor == Donor::Nobody {
            return Err(missing);
        }
        self.stage = Stage::Fetching { received: Vec::new(), requested: 0 };
        if let Donor::Sponsor(donor) = donor {
            self.request(donor, out);
        }
        Ok(None)
    }

    /// Requests pieces until the window is full.
    fn request(&mut self, donor: PeerId, out: &mut Vec<Output>) {
        let (Stage::Fetching { received, requested }, Some(reference)) = (&mut self.stage, &self.reference)
        else {
            return;
        };
        // Each piece that arrives brings two more, up to the limit: a long line needs many, and a slow one few.
        let in_flight_max = (DATA_PIECES_IN_FLIGHT_MAX * DATA_PIECE_BYTES_MAX) as u64;
        let received = received.len() as u64;
        let end = received + in_flight_max.min(in_flight_max / 8 + received);
        while *requested < reference.byte_count.min(end) {
            let message = Message::Join(JoinMessage::WantData(WantData {
                digest: reference.digest,
                offset: *requested,
            }));
            out.push(Output::Send { to: donor, frame: Frame::encode(&message, None) });
            *requested = reference.byte_count.min(*requested + DATA_PIECE_BYTES_MAX as u64);
        }
    }

    /// The link to the donor is up again: requests again the pieces that were on their way.
    pub(crate) fn restart_fetching(&mut self, donor: PeerId, out: &mut Vec<Output>) {
        if let Stage::Fetching { received, requested } = &mut self.stage {
            *requested = received.len() as u64;
            self.request(donor, out);
        }
    }

    /// A piece of the data file has arrived. A piece at another offset than the next one was requested twice, and is dropped.
    ///
    /// # Errors
    /// The piece is not of the requested file or was not requested, or the complete file does not match the digest in the specification.
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
            // The transfer starts again from offset 0. After too many rejects this peer ignores the sender.
            *requested = 0;
            self.request(from, out);
            return Err(Reject::Data);
        }
        let reference = reference.clone();
        out.push(Output::StoreData { reference, data: Arc::clone(&data) });
        Ok(Some(self.load(data.into())))
    }

    fn load(&mut self, data: DataBytes) -> LoadRequest {
        let is_kept = self.reference.as_ref().is_some_and(is_shipped);
        self.stage = Stage::Loading(match &data {
            DataBytes::Memory(bytes) if is_kept => Some(Arc::clone(bytes)),
            _ => None,
        });
        LoadRequest { specification: Arc::clone(&self.specification), data: Some(data) }
    }

    /// The task has been built.
    pub(crate) fn prepared(&mut self, prepared: Prepared) {
        if let Stage::Loading(data) = &mut self.stage {
            self.stage = Stage::Ready(data.take(), Box::new(prepared));
        }
    }

    /// The task; `None` until it is built.
    pub(crate) fn ready(&self) -> Option<&Prepared> {
        match &self.stage {
            Stage::Ready(_, prepared) => Some(prepared),
            _ => None,
        }
    }

    /// The initial parameters, for a run that begins with them; `None` if one has begun already.
    pub(crate) fn take_initial(&mut self) -> Option<Arc<Buffer>> {
        match &mut self.stage {
            Stage::Ready(_, prepared) => prepared.initial.take(),
            _ => None,
        }
    }

    /// Whether the data file is here, or none is needed.
    pub(crate) fn has_data(&self) -> bool {
        matches!(self.stage, Stage::Loading(_) | Stage::Ready(..))
    }

    /// A piece of the data file for a joiner; `None` if the file is not here or too large to be sent.
    pub(crate) fn data_piece(&self, want: WantData) -> Option<(DataPiece, &[u8])> {
        let (Stage::Loading(Some(data)) | Stage::Ready(Some(data), _)) = &self.stage else { return None };
        let reference = self.reference.as_ref()?;
        let start = usize::try_from(want.offset).ok()?;
        if reference.digest != want.digest || start >= data.len() {
            return None;
        }
        let end = data.len().min(start + DATA_PIECE_BYTES_MAX);
        Some((DataPiece { digest: want.digest, offset: want.offset }, &data[start..end]))
    }

    /// The encoded specification.
    pub(crate) fn specification(&self) -> &Arc<[u8]> {
        &self.specification
    }
}

/// Whether the swarm sends a data file to peers that lack it. A larger one is not kept in memory once its samples are made.
fn is_shipped(reference: &DataReference) -> bool {
    reference.byte_count <= SHIPPED_DATA_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads nothing; its data file has so many bytes.
    struct Sized(u64);

    impl Loader for Sized {
        fn data(&self, _: &[u8]) -> Result<Option<DataReference>, String> {
            let digest = ContentDigest::of(b"data");
            Ok(Some(DataReference { digest, byte_count: self.0, name: "data".to_owned() }))
        }
        fn load(&self, _: &[u8], _: Option<DataBytes>) -> Result<Loaded, String> {
            Err("not loaded".to_owned())
        }
    }

    #[test]
    fn a_file_is_kept_only_if_others_may_ask_for_it() {
        for (byte_count, kept) in [(SHIPPED_DATA_BYTES_MAX, 1), (SHIPPED_DATA_BYTES_MAX + 1, 0)] {
            let data: Arc<[u8]> = Arc::from(&b"data"[..]);
            let started = Preparation::start(Arc::from(&b"run"[..]), &Sized(byte_count), &mut Vec::new());
            let Ok((mut preparation, None)) = started else { panic!("it looks for the file first") };
            let found =
                preparation.data_found(Some(Arc::clone(&data).into()), Donor::Nobody, &mut Vec::new());
            let Ok(Some(load_request)) = found else { panic!("the file is there") };
            drop(load_request);
            assert_eq!(Arc::strong_count(&data), 1 + kept);
            let want = WantData { digest: ContentDigest::of(b"data"), offset: 0 };
            assert_eq!(preparation.data_piece(want).is_some(), kept == 1);
        }
    }
}
