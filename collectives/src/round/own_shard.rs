//! The own shard in a round: from its sums to the final values that all members gather.
//!
//! ```text
//! own shard:   sent | final | summed, may be changed by the owner | not summed
//!              ------------------------------------------------>  each border moves to the right only
//! ```
//! No part waits for the whole shard: sums arrive while the beginning of the shard, already final, is being sent.

use peergrad_protocol::message::SampleStats;
use peergrad_protocol::{Buffer, Pool};

use super::{ResultVector, Round};
use crate::codec::Codec;
use crate::plan::Segment;

impl Round {
    /// The number of elements of the own shard that are summed; they are the first ones.
    #[must_use]
    pub fn summed(&self) -> usize {
        self.plan.own().len_of_first(self.reduce.reduced())
    }

    /// Whether the whole own shard is summed. True for a member that owns nothing.
    #[must_use]
    pub fn is_reduced(&self) -> bool {
        self.reduce.is_reduced(&self.plan)
    }

    /// The flat vector, which holds the sums of the own shard as far as they are [summed](Round::summed), and the samples and loss behind
    /// them; `None` if nothing is summed.
    #[must_use]
    pub fn own_shard(&mut self) -> Option<(&mut [f32], SampleStats)> {
        if self.reduce.reduced() == 0 {
            return None;
        }
        match &mut self.result {
            ResultVector::Filling(vector) => Some((vector, self.own_stats)),
            ResultVector::Unseen | ResultVector::Complete(_) => {
                unreachable!("its sums are on their way to everyone")
            }
        }
    }

    /// Replaces the sums of the own shard, as far as they are here, by their values after encoding and decoding with `codec`.
    ///
    /// # Panics
    /// If part of the shard is [final](Round::gather) already.
    pub fn quantize(&mut self, codec: Codec, segments: &Pool) {
        let summed = self.reduce.reduced();
        if !codec.is_exact() {
            assert!(self.gather.ready() <= self.quantized, "what is final stays as it is");
            for segment in &self.plan.own().segments()[self.quantized..summed] {
                segment.quantize(codec, filling(&mut self.result), segments);
            }
        }
        self.quantized = summed;
    }

    /// Notes that the first `final_count` elements of the own shard are final, apart from the rounding of their codec. Complete segments of
    /// them are then sent to all members, as credit allows.
    ///
    /// # Panics
    /// If they are not [summed](Round::summed).
    pub fn gather(&mut self, final_count: usize, segments: &Pool) {
        assert!(final_count <= self.summed(), "what is final is summed up");
        let own = self.plan.own();
        while let Some(segment) = own.segments().get(self.gather.ready()) {
            if own.len_of_first(self.gather.ready() + 1) > final_count {
                return;
            }
            let codec = self.plan.codecs.gather;
            if !codec.is_exact() {
                segment.quantize(codec, filling(&mut self.result), segments);
            }
            self.gather.finish_segment();
        }
        self.gather.open();
    }

    /// Whether the whole own shard is [final](Round::gather).
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.gather.is_open()
    }
}

fn filling(result: &mut ResultVector) -> &mut Buffer {
    match result {
        ResultVector::Filling(vector) => vector,
        ResultVector::Unseen | ResultVector::Complete(_) => {
            unreachable!("some of it is summed up, and not all is final")
        }
    }
}

impl Segment {
    /// Replaces this segment of `vector` by its values after encoding and decoding with `codec`.
    fn quantize(&self, codec: Codec, vector: &mut [f32], segments: &Pool) {
        let mut packed = segments.take(self.len());
        let mut bytes = segments.take_bytes(codec.encoded_len(self.len()));
        self.copy_out(vector, &mut packed);
        codec.encode_in_place(&mut packed, bytes.bytes_mut());
        self.copy_in(&packed, vector);
    }
}
