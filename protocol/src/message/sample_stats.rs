//! The statistics of a sum: how many samples are behind it, and their loss. They travel with contributions, and with records of steps.

use crate::wire::codec::{Decode, Encode};

/// What a sum of contributions is worth: added up beside the elements, in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct SampleStats {
    /// Samples behind the sum: the weight of a contribution.
    pub samples: u64,
    /// Sum of the samples' losses.
    pub loss: f64,
}

impl std::ops::AddAssign for SampleStats {
    fn add_assign(&mut self, other: Self) {
        self.samples += other.samples;
        self.loss += other.loss;
    }
}

impl SampleStats {
    /// Whether as many samples as a batch can have stand behind it, so that adding some up does not overflow.
    pub(super) fn is_bounded(&self) -> bool {
        self.samples <= u64::from(u32::MAX)
    }
}
