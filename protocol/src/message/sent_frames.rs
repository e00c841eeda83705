//! Sent frames: what a peer says about the frames that it has sent before, so that the receiver notices when some were lost.

use crate::wire::codec::{Decode, Encode};

/// How many frames one peer has sent to another one, or received from it.
///
/// A link delivers the frames of one priority in order. So what the sender of a message counts before it and what the receiver counts differ
/// only if a frame was lost or repeated. Heartbeats count urgent frames, and `FrameCount` normal ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SentFrames {
    /// Which of the sender's links they are of. Counts of different links cannot be compared.
    pub link: u32,
    /// The number of frames.
    pub count: u64,
}
