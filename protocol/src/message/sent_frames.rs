//! Sent frames: what a heartbeat says about the frames before it, so that the receiver notices when some were lost.

use crate::wire::codec::{Decode, Encode};

/// How many frames one peer has sent to another one, or received from it.
///
/// A link delivers frames in order. So what the sender of a heartbeat counts before it and what the receiver counts differ only if a frame
/// was lost or repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SentFrames {
    /// Which of the sender's links they are of. Counts of different links cannot be compared.
    pub link: u32,
    /// The number of frames.
    pub count: u64,
}
