//! The turn between the halves of a round: from the sums of the own shard to what everyone gathers.
//!
//! ```text
//! own shard:   sent | final | summed, and the owner's to change | still to come
//!              ------------------------------------------------>  each border moves to the right only
//! ```
//! Nothing waits for the whole shard: sums come in while the beginning of the shard, final already, is on its way to everyone.

use peergrad_protocol::message::SampleStats;
use peergrad_protocol::{Buffer, Pool};

use super::{ResultVector, Round};
use crate::codec::Codec;
use crate::plan::Segment;

impl Round {
    /// How many elements of the own shard are summed up: the first ones.
    #[must_use]
    pub fn summed(&self) -> usize {
        self.plan.own().len_of_first(self.reduce.reduced())
    }

    /// Whether all of the own shard is summed up. Always so for a member that owns nothing.
    #[must_use]
    pub fn is_reduced(&self) -> bool {
        self.reduce.is_reduced(&self.plan)
    }

    /// The vector that holds the sums of the own shard as far as it is [summed up](Round::summed), and what each of them is
    /// worth; `None` where that is nothing.
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

    /// Turns the sums of the own shard, as far as they are here, into what they are after `codec`: what others will see of
    /// them, if they are told in this way.
    ///
    /// # Panics
    /// If some of it is [final](Round::gather) already.
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

    /// The first so many elements of the own shard are final, but for what their codec does to them. Whole segments of them
    /// are sent to everyone, as credit allows.
    ///
    /// # Panics
    /// If they are not [summed up](Round::summed).
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

    /// Whether all of the own shard is [final](Round::gather).
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
    /// Turns this segment of `vector` into what it is after `codec`.
    fn quantize(&self, codec: Codec, vector: &mut [f32], segments: &Pool) {
        let mut packed = segments.take(self.len());
        let mut bytes = segments.take_bytes(codec.encoded_len(self.len()));
        self.copy_out(vector, &mut packed);
        codec.encode_in_place(&mut packed, bytes.bytes_mut());
        self.copy_in(&packed, vector);
    }
}
