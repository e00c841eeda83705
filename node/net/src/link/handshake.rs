//! The bytes on a lane besides frames: the opening, the answer to it, and acknowledgements. Fixed sizes, little-endian.
//!
//! ```text
//! opening           version u8, session, known session of the other end (zeros: none), token of the lane that it joins u64 (0: a lane of its own)
//! answer            version u8, verdict u8, port for direct lanes u16 (0: none), session, acknowledgement, token u64 (0: nothing can join)
//! session           start of the process u64, draw u64
//! acknowledgement   frames received u64, segments consumed u64 (both since the pair of sessions began),
//!                   arrival of the last frame u64 (microseconds)
//! ```

use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite, AsyncWriteExt};
use peergrad_protocol::Incarnation;

use super::{LANE_VERSION, LaneError};
use crate::proof::read_array;
use crate::random::random_bytes;

/// One end's number for a life of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionId {
    /// Grows with each start of the peer.
    pub(crate) start: Incarnation,
    /// A random number, drawn for each life.
    draw: NonZeroU64,
}

impl SessionId {
    pub(crate) fn draw(start: Incarnation) -> Self {
        // Zero is drawn once in 2^64 times; then any other number serves.
        let draw = NonZeroU64::new(u64::from_le_bytes(random_bytes())).unwrap_or(NonZeroU64::MIN);
        Self { start, draw }
    }

    fn to_bytes(session: Option<Self>) -> [u8; SESSION_BYTES] {
        let mut bytes = [0; SESSION_BYTES];
        if let Some(session) = session {
            bytes[..8].copy_from_slice(&session.start.0.to_le_bytes());
            bytes[8..].copy_from_slice(&session.draw.get().to_le_bytes());
        }
        bytes
    }

    async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<Self>, LaneError> {
        let start = Incarnation(u64::from_le_bytes(read_array(stream).await?));
        let draw = NonZeroU64::new(u64::from_le_bytes(read_array(stream).await?));
        Ok(draw.map(|draw| Self { start, draw }))
    }
}

/// The first bytes of the end that opens a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenRequest {
    /// The opener's session.
    pub(crate) session: SessionId,
    /// The session of the receiver that the opener knows; `None` before it knows any.
    pub(crate) known: Option<SessionId>,
    /// The token of the lane to which the connection is added; `None` if it begins a lane.
    pub(crate) joins: Option<NonZeroU64>,
}

/// The first bytes of the end that receives frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenResponse {
    pub(crate) verdict: Verdict,
    /// The port on which it listens for direct lanes; `None` if it offers none.
    pub(crate) port: Option<NonZeroU16>,
    /// The receiver's session.
    pub(crate) session: SessionId,
    /// How far the receiver has come.
    pub(crate) acknowledgement: Acknowledgement,
    /// What the opening of a connection names that is added to this lane; `None` if none can be added.
    pub(crate) token: Option<NonZeroU64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Frames may follow.
    Welcome,
    /// The opener named an earlier session: both ends begin a new link.
    UnknownSession,
    /// A process with the opener's identity was started later.
    DuplicateIdentity,
}

/// How far a receiver has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    /// Frames received whole.
    pub(crate) received: u64,
    /// When the last of them had arrived, by a clock of the receiver that began at any time; whole microseconds.
    pub(crate) arrived_at: Duration,
    /// Segments consumed, and those that may be sent in addition.
    pub(crate) consumed: u64,
}

impl OpenRequest {
    pub(super) async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<(), LaneError> {
        let mut bytes = [LANE_VERSION; OPEN_REQUEST_BYTES];
        bytes[1..][..SESSION_BYTES].copy_from_slice(&SessionId::to_bytes(Some(self.session)));
        bytes[1 + SESSION_BYTES..][..SESSION_BYTES].copy_from_slice(&SessionId::to_bytes(self.known));
        bytes[1 + 2 * SESSION_BYTES..].copy_from_slice(&token_to_bytes(self.joins));
        stream.write_all(&bytes).await?;
        Ok(stream.flush().await?)
    }

    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Self, LaneError> {
        check_version(stream).await?;
        let session = SessionId::read(stream).await?.ok_or(LaneError::Handshake)?;
        let known = SessionId::read(stream).await?;
        Ok(Self { session, known, joins: read_token(stream).await? })
    }
}

impl OpenResponse {
    pub(super) async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<(), LaneError> {
        let mut bytes = [LANE_VERSION; OPEN_RESPONSE_BYTES];
        bytes[1] = match self.verdict {
            Verdict::Welcome => 0,
            Verdict::UnknownSession => 1,
            Verdict::DuplicateIdentity => 2,
        };
        bytes[2..4].copy_from_slice(&self.port.map_or(0, NonZeroU16::get).to_le_bytes());
        bytes[4..][..SESSION_BYTES].copy_from_slice(&SessionId::to_bytes(Some(self.session)));
        bytes[4 + SESSION_BYTES..][..ACKNOWLEDGEMENT_BYTES].copy_from_slice(&self.acknowledgement.to_bytes());
        bytes[4 + SESSION_BYTES + ACKNOWLEDGEMENT_BYTES..].copy_from_slice(&token_to_bytes(self.token));
        stream.write_all(&bytes).await?;
        Ok(stream.flush().await?)
    }

    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Self, LaneError> {
        check_version(stream).await?;
        let verdict = match read_array::<1>(stream).await? {
            [0] => Verdict::Welcome,
            [1] => Verdict::UnknownSession,
            [2] => Verdict::DuplicateIdentity,
            _ => return Err(LaneError::Handshake),
        };
        let port = NonZeroU16::new(u16::from_le_bytes(read_array(stream).await?));
        let session = SessionId::read(stream).await?.ok_or(LaneError::Handshake)?;
        let acknowledgement = Acknowledgement::read(stream).await?;
        Ok(Self { verdict, port, session, acknowledgement, token: read_token(stream).await? })
    }
}

impl Acknowledgement {
    pub(super) async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<(), LaneError> {
        stream.write_all(&self.to_bytes()).await?;
        Ok(stream.flush().await?)
    }

    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Self, LaneError> {
        let received = u64::from_le_bytes(read_array(stream).await?);
        let consumed = u64::from_le_bytes(read_array(stream).await?);
        let arrived_at = Duration::from_micros(u64::from_le_bytes(read_array(stream).await?));
        Ok(Self { received, consumed, arrived_at })
    }

    fn to_bytes(self) -> [u8; ACKNOWLEDGEMENT_BYTES] {
        let mut bytes = [0; ACKNOWLEDGEMENT_BYTES];
        bytes[..8].copy_from_slice(&self.received.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.consumed.to_le_bytes());
        let micros = u64::try_from(self.arrived_at.as_micros()).unwrap_or(u64::MAX);
        bytes[16..].copy_from_slice(&micros.to_le_bytes());
        bytes
    }
}

fn token_to_bytes(token: Option<NonZeroU64>) -> [u8; TOKEN_BYTES] {
    token.map_or(0, NonZeroU64::get).to_le_bytes()
}

async fn read_token(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<NonZeroU64>, LaneError> {
    Ok(NonZeroU64::new(u64::from_le_bytes(read_array(stream).await?)))
}

/// Reads the version alone first: another version may have other sizes.
async fn check_version(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), LaneError> {
    match read_array(stream).await? {
        [LANE_VERSION] => Ok(()),
        [other @ ..=VERSION_MAX] => Err(LaneError::Version(other)),
        _ => Err(LaneError::Handshake),
    }
}

/// No release has a version above it: such a byte is not the beginning of an opening.
const VERSION_MAX: u8 = 32;
const SESSION_BYTES: usize = 16;
const TOKEN_BYTES: usize = 8;
const OPEN_REQUEST_BYTES: usize = 1 + 2 * SESSION_BYTES + TOKEN_BYTES;
const OPEN_RESPONSE_BYTES: usize = 4 + SESSION_BYTES + ACKNOWLEDGEMENT_BYTES + TOKEN_BYTES;
pub(super) const ACKNOWLEDGEMENT_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use futures::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn open_requests_and_responses_read_back() {
        let session = || SessionId::draw(Incarnation::of_start(3, 7));
        let token = NonZeroU64::new(9);
        for (known, joins) in [(None, None), (Some(session()), token)] {
            let opening = OpenRequest { session: session(), known, joins };
            let mut bytes = Cursor::new(Vec::new());
            opening.write(&mut bytes).await.unwrap();
            assert_eq!(OpenRequest::read(&mut Cursor::new(bytes.into_inner())).await.unwrap(), opening);
        }
        let acknowledgement =
            Acknowledgement { received: 1 << 40, consumed: 7, arrived_at: Duration::from_micros(1 << 50) };
        for (verdict, port, token) in [
            (Verdict::Welcome, 0, token),
            (Verdict::UnknownSession, 7401, None),
            (Verdict::DuplicateIdentity, 0, None),
        ] {
            let (port, session) = (NonZeroU16::new(port), session());
            let answer = OpenResponse { verdict, port, session, acknowledgement, token };
            let mut bytes = Cursor::new(Vec::new());
            answer.write(&mut bytes).await.unwrap();
            assert_eq!(OpenResponse::read(&mut Cursor::new(bytes.into_inner())).await.unwrap(), answer);
        }
    }

    #[tokio::test]
    async fn another_version_and_malformed_bytes_are_told_apart() {
        let error = OpenRequest::read(&mut Cursor::new([1_u8; OPEN_REQUEST_BYTES])).await.unwrap_err();
        assert!(matches!(error, LaneError::Version(1)));
        let error = OpenRequest::read(&mut Cursor::new([163_u8; OPEN_REQUEST_BYTES])).await.unwrap_err();
        assert!(matches!(error, LaneError::Handshake), "noise has no version");
        let mut no_session = [0_u8; OPEN_REQUEST_BYTES];
        no_session[0] = LANE_VERSION;
        let error = OpenRequest::read(&mut Cursor::new(no_session)).await.unwrap_err();
        assert!(matches!(error, LaneError::Handshake) && error.is_violation());
        let error = OpenRequest::read(&mut Cursor::new([LANE_VERSION; 3])).await.unwrap_err();
        assert!(matches!(error, LaneError::Broken(_)) && !error.is_violation());
    }
}
