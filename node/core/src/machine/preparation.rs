//! Preparation: from a specification's bytes to a task that can be trained.
//!
//! ```text
//! specification --> locate the data file --> (fetch it from the swarm) --> load, beside the network --> ready
//! ```
//! A file on this machine is preferred. Any file is checked against the digest in the specification.

use std::sync::Arc;

use peergrad_models::data::bytes::DataBytes;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{DATA_PIECE_BYTES_MAX, KEPT_DATA_BYTES_MAX};
use peergrad_protocol::message::{DataPiece, WantData};
use peergrad_protocol::{Buffer, PeerId, Pool};

use super::fetching::{Fetched, Fetching};
use crate::io::{DataReference, Failure, FoundData, Output, Reject};
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
    /// A member is sending the file in pieces.
    Fetching(Fetching),
    /// The task is being built; all that it needs is here. Holds the data file, if others may ask for it.
    Loading(Option<DataBytes>),
    /// The task is built. Holds the data file, if others may ask for it, and the task.
    Ready(Option<DataBytes>, Box<Prepared>),
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
        loaded.initial(&mut initial);
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

impl Donor {
    /// The member that can be asked now.
    fn sponsor(self) -> Option<PeerId> {
        match self {
            Self::Nobody | Self::Awaited => None,
            Self::Sponsor(peer) => Some(peer),
        }
    }
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
        data: FoundData,
        donor: Donor,
        out: &mut Vec<Output>,
    ) -> Result<Option<LoadRequest>, Failure> {
        let (Stage::Locating | Stage::Fetching(_), Some(reference)) = (&self.stage, &self.reference) else {
            return Ok(None);
        };
        let part = match data {
            FoundData::Whole(data) if data.digest() == reference.digest => return Ok(Some(self.load(data))),
            FoundData::Part { byte_count } => byte_count,
            FoundData::Whole(_) | FoundData::Nothing => 0,
        };
        let (name, byte_count) = (reference.name.clone(), reference.byte_count);
        if !is_sent(reference) || donor == Donor::Nobody {
            return Err(Failure::DataMissing { name, byte_count });
        }
        let mut fetching = match std::mem::replace(&mut self.stage, Stage::Locating) {
            Stage::Fetching(mut fetching) => {
                if !fetching.begin_again() {
                    return Err(Failure::DataDiffers { name });
                }
                fetching
            }
            _ => Fetching::new(reference.clone(), part),
        };
        if let Some(donor) = donor.sponsor() {
            fetching.request(donor, out);
        }
        self.stage = Stage::Fetching(fetching);
        Ok(None)
    }

    /// The link to the donor is up again: requests again the pieces that were on their way.
    pub(crate) fn restart_fetching(&mut self, donor: PeerId, out: &mut Vec<Output>) {
        if let Stage::Fetching(fetching) = &mut self.stage {
            fetching.restart(donor, out);
        }
    }

    /// The disk has the data file up to this offset, or could not write a piece of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn data_stored(
        &mut self,
        stored: Result<u64, String>,
        donor: Donor,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let (Stage::Fetching(fetching), Some(reference)) = (&mut self.stage, &self.reference) else {
            return Ok(());
        };
        let (name, byte_count) = (reference.name.clone(), reference.byte_count);
        let stored = stored.map_err(|reason| Failure::DataNotStored { name, byte_count, reason })?;
        fetching.stored(stored, donor.sponsor(), out);
        Ok(())
    }

    /// A piece of the data file has arrived.
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
        let Stage::Fetching(fetching) = &mut self.stage else { return Ok(None) };
        let Fetched::Whole(bytes) = fetching.piece(from, piece, payload, out)? else { return Ok(None) };
        let data: Arc<[u8]> = bytes.into();
        out.push(Output::StoreData { reference: reference.clone(), data: Arc::clone(&data) });
        Ok(Some(self.load(data.into())))
    }

    fn load(&mut self, data: DataBytes) -> LoadRequest {
        // What is on disk takes no memory.
        let is_kept = matches!(data, DataBytes::Disk(_)) || data.byte_count() <= KEPT_DATA_BYTES_MAX;
        self.stage = Stage::Loading(Some(data.clone()).filter(|_| is_kept));
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

    /// A piece of the data file for a joiner; `None` if the file is not here, or is not sent.
    pub(crate) fn data_piece(&self, want: WantData, segments: &Pool) -> Option<(DataPiece, Buffer)> {
        let (Stage::Loading(Some(data)) | Stage::Ready(Some(data), _)) = &self.stage else { return None };
        let reference = self.reference.as_ref()?;
        let left = data.byte_count().checked_sub(want.offset).filter(|left| *left > 0)?;
        if reference.digest != want.digest {
            return None;
        }
        let mut payload = segments.take_bytes(left.min(DATA_PIECE_BYTES_MAX as u64) as usize);
        data.read_at(want.offset, payload.bytes_mut()).ok()?;
        Some((DataPiece { digest: want.digest, offset: want.offset }, payload))
    }

    /// The encoded specification.
    pub(crate) fn specification(&self) -> &Arc<[u8]> {
        &self.specification
    }
}

/// Whether the swarm sends a data file to peers that lack it. A large one that is packed is not kept once its samples are made; any other
/// large one stays on disk.
fn is_sent(reference: &DataReference) -> bool {
    reference.byte_count <= KEPT_DATA_BYTES_MAX || !reference.name.ends_with(".gz")
}

#[cfg(test)]
mod tests {
    use std::io;

    use peergrad_models::data::bytes::{DiskFile, ReadAt};
    use peergrad_protocol::message::{JoinMessage, Message};

    use super::*;

    /// Loads nothing; its data file has this name and so many bytes.
    struct Sized {
        name: &'static str,
        byte_count: u64,
    }

    impl Loader for Sized {
        fn data(&self, _: &[u8]) -> Result<Option<DataReference>, String> {
            let digest = ContentDigest::of(DATA);
            Ok(Some(DataReference { digest, byte_count: self.byte_count, name: self.name.to_owned() }))
        }
        fn load(&self, _: &[u8], _: Option<DataBytes>) -> Result<Loaded, String> {
            Err("not loaded".to_owned())
        }
    }

    const DATA: &[u8] = b"data";

    /// A preparation that looks for a file which claims to have so many bytes.
    fn locating(name: &'static str, byte_count: u64) -> Preparation {
        let loader = Sized { name, byte_count };
        let started = Preparation::start(Arc::from(&b"run"[..]), &loader, &mut Vec::new());
        let Ok((preparation, None)) = started else { panic!("it looks for the file first") };
        preparation
    }

    /// A disk with a file of this length, all zeros behind its first bytes.
    #[derive(Debug)]
    struct Zeros;

    impl ReadAt for Zeros {
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            out.fill(0);
            if offset == 0 {
                out[..DATA.len()].copy_from_slice(DATA);
            }
            Ok(())
        }
    }

    #[test]
    fn others_get_what_is_small_or_on_disk() {
        let large = KEPT_DATA_BYTES_MAX + 1;
        let digest = ContentDigest::of(DATA);
        let memory = DataBytes::from(DATA);
        let disk = DataBytes::Disk(DiskFile { reader: Arc::new(Zeros), byte_count: large, digest });
        for (byte_count, data, at_the_end) in [(DATA.len() as u64, memory, &b"a"[..]), (large, disk, b"\0")] {
            let mut preparation = locating("data", byte_count);
            let found = preparation.data_found(FoundData::Whole(data), Donor::Nobody, &mut Vec::new());
            assert!(found.is_ok_and(|request| request.is_some()), "the file is there");
            let piece = |offset| preparation.data_piece(WantData { digest, offset }, &Pool::new(1));
            assert_eq!(piece(0).unwrap().1.bytes()[..4], *DATA);
            assert_eq!(piece(byte_count - 1).unwrap().1.bytes(), at_the_end);
            assert!(piece(byte_count).is_none());
        }
    }

    const DONOR: PeerId = PeerId([7; 32]);

    /// Offsets that were requested, pieces that go to disk, and whether the file is looked for.
    fn asked(out: &mut Vec<Output>) -> (Vec<u64>, Vec<u64>, bool) {
        let (mut requested, mut stored, mut is_looked_for) = (vec![], vec![], false);
        for output in out.drain(..) {
            match output {
                Output::Send { frame, .. } => match frame.decode().unwrap() {
                    Message::Join(JoinMessage::WantData(want)) => requested.push(want.offset),
                    _ => panic!("only data is requested"),
                },
                Output::StorePiece { offset, .. } => stored.push(offset),
                Output::FindData(_) => is_looked_for = true,
                _ => {}
            }
        }
        (requested, stored, is_looked_for)
    }

    #[test]
    fn a_large_file_goes_to_disk_and_no_faster_than_it_is_written() {
        let piece = DATA_PIECE_BYTES_MAX as u64;
        let total = KEPT_DATA_BYTES_MAX + piece;
        let mut preparation = locating("data", total);
        let mut out = vec![];
        // An earlier try has left all but three pieces, and a half of the next one.
        let left = FoundData::Part { byte_count: total - 3 * piece + piece / 2 };
        let sponsor = Donor::Sponsor(DONOR);
        assert!(preparation.data_found(left, sponsor, &mut out).unwrap().is_none());
        let offsets = [3, 2, 1].map(|pieces| total - pieces * piece);
        assert_eq!(asked(&mut out), (offsets.to_vec(), vec![], false));
        let mut arrive = |offset| {
            let found = DataPiece { digest: ContentDigest::of(DATA), offset };
            let payload = Pool::new(1).take_bytes(DATA_PIECE_BYTES_MAX);
            preparation.piece(DONOR, found, &payload, &mut out).map(drop)
        };
        assert!(arrive(offsets[1]).is_ok(), "one that is not next is dropped");
        for offset in offsets {
            arrive(offset).unwrap();
        }
        assert_eq!(arrive(total), Err(Reject::Data), "nothing behind the end was requested");
        assert_eq!(asked(&mut out), (vec![], offsets.to_vec(), false));
        preparation.data_stored(Ok(total - piece), sponsor, &mut out).unwrap();
        assert_eq!(asked(&mut out), (vec![], vec![], false));
        preparation.data_stored(Ok(total), sponsor, &mut out).unwrap();
        assert_eq!(asked(&mut out), (vec![], vec![], true), "all of it is there");
        // What was left may be damaged: then all of it is fetched again, once.
        assert!(preparation.data_found(FoundData::Nothing, sponsor, &mut out).unwrap().is_none());
        assert_eq!(asked(&mut out).0.first(), Some(&0));
        let failed = preparation.data_found(FoundData::Nothing, sponsor, &mut out).err();
        assert_eq!(failed, Some(Failure::DataDiffers { name: "data".to_owned() }));
    }

    #[test]
    fn a_full_disk_ends_the_peer_with_a_reason() {
        let mut preparation = locating("data", KEPT_DATA_BYTES_MAX + 1);
        let mut out = vec![];
        preparation.data_found(FoundData::Nothing, Donor::Awaited, &mut out).map(drop).unwrap();
        assert_eq!(asked(&mut out).0, [], "nobody can be asked yet");
        preparation.restart_fetching(DONOR, &mut out);
        assert_eq!(asked(&mut out).0.first(), Some(&0));
        let full = preparation.data_stored(Err("no space".to_owned()), Donor::Sponsor(DONOR), &mut out);
        assert!(full.unwrap_err().to_string().contains("(no space): mend that, or start with --dir"));
    }
}
