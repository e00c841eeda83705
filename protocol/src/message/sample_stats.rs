//! The number of samples behind a sum, and their loss. Both travel with contributions and with records of steps.

use crate::wire::codec::{Decode, Encode};

/// The samples and loss of a sum of contributions. They are summed like the elements, in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct SampleStats {
    /// The number of samples.
    pub samples: u64,
    /// The sum of the samples' losses.
    pub loss: f64,
}

impl std::ops::AddAssign for SampleStats {
    fn add_assign(&mut self, other: Self) {
        self.samples += other.samples;
        self.loss += other.loss;
    }
}

impl SampleStats {
    /// Whether the number of samples is at most that of a batch, so that sums of them do not overflow.
    pub(super) fn is_bounded(&self) -> bool {
        self.samples <= u64::from(u32::MAX)
    }
}
