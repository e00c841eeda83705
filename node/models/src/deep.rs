//! Deep networks: convolutional networks for pictures, and transformers for text.
//!
//! What a network is, is described here: its layers, its tensors and how they start, its samples, its loss. A [`Backend`] computes it, with
//! the tensors of a framework that no crate here knows.
//!
//! ```text
//! run.toml ── Architecture (convolutional, transformer) ── DeepTask ── Piece: a part of a batch ──> Backend
//!                                                           samples        parameters, inputs,        gradient,
//!                                                                          targets, seeds             outputs
//! ```
//! # Invariants
//! - Tensors and first parameters have the same bits on every machine.
//! - What is drawn at random for a sample, such as dropout, depends on the run's seed, the epoch and the sample, and on nothing else: any member
//!   that computes the sample draws the same.
//!
//! # Not here
//! Arithmetic: gradients may differ in their last bits between machines and backends. Each is computed by one member, which sends it.

use std::fmt;
use std::ops::Range;

use peergrad_protocol::manifest::Manifest;

pub mod adapters;
pub mod changes;
pub mod convolutional;
pub mod draws;
pub mod generate;
pub mod layer;
pub mod pictures;
pub mod task;
pub mod tensors;
pub mod text;
pub mod transformer;

pub use adapters::Adapters;
pub use convolutional::ConvolutionalNet;
pub use task::DeepTask;
pub use transformer::{Family, Llama, Transformer};

use crate::task::KnownGradient;
use tensors::TensorSpec;

/// A deep network.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// For pictures.
    Convolutional(ConvolutionalNet),
    /// For text.
    Transformer(Transformer),
}

/// Computes deep networks.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Overwrites `gradient` with the gradient of the summed loss of all pieces, and returns that loss.
    ///
    /// - `parameters`, `gradient`: (parameters), in the order of the architecture's tensors.
    /// - `pieces`: makes the piece of a number below `count`.
    /// - `finished`: takes, when the gradient of a [stage](Architecture::stages) is known, the loss, and the elements of the gradient that are
    ///   known so far, from the first one on. `None` if nobody waits for them. A backend may ignore it.
    ///
    /// It takes the threads of the Rayon pool that it is called in. Their number does not change the result.
    fn gradient(
        &self,
        architecture: &Architecture,
        parameters: &[f32],
        count: usize,
        pieces: &(dyn Fn(usize) -> Piece + Sync),
        gradient: &mut [f32],
        finished: Option<&mut KnownGradient<'_>>,
    ) -> f64;

    /// The outputs for these inputs, without dropout: (rows, outputs) row-major. A row is a picture or a token.
    ///
    /// - `parameters`: (parameters), in the order of the architecture's tensors.
    fn outputs(&self, architecture: &Architecture, parameters: &[f32], inputs: &Inputs) -> Vec<f32>;
}

/// Samples that are computed together.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// What goes into the network.
    pub inputs: Inputs,
    /// What should come out.
    pub targets: Targets,
    /// The factor of each row's loss.
    pub weight: f32,
    /// (samples): what each draws from, such as its dropout.
    pub seeds: Vec<u64>,
}

/// What goes into a network.
#[derive(Clone, Debug, PartialEq)]
pub enum Inputs {
    /// Pictures.
    Pictures {
        /// (pictures, channels, height, width) row-major.
        values: Vec<f32>,
        /// The number of pictures.
        count: usize,
    },
    /// Texts of equal length.
    Tokens {
        /// (texts, length) row-major, each below the vocabulary.
        tokens: Vec<u32>,
        /// The number of texts.
        count: usize,
    },
}

/// What should come out of a network, for each row.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// Indices of outputs: the loss is the cross-entropy of their softmax.
    Classes(Vec<u32>),
    /// Numbers: the loss is half the squared difference.
    Numbers(Vec<f32>),
}

impl Inputs {
    /// The number of pictures or texts.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Pictures { count, .. } | Self::Tokens { count, .. } => *count,
        }
    }
}

impl Architecture {
    /// Its tensors, in the order of the flat vector: the last layer's come first, since their gradient is known first.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorSpec> {
        match self {
            Self::Convolutional(net) => net.tensors(),
            Self::Transformer(net) => net.tensors(),
        }
    }

    /// The tensors of each stage of the forward pass, from the last stage to the first: together they have all tensors, in order. A later stage
    /// may use tensors of an earlier one too, as the outputs of a transformer may use its table of tokens.
    #[must_use]
    pub fn stages(&self) -> Vec<Range<usize>> {
        match self {
            Self::Convolutional(net) => net.stages(),
            Self::Transformer(net) => net.stages(),
        }
    }

    /// Names and shapes of its tensors.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        tensors::manifest(&self.tensors())
    }

    /// Fills `parameters` with first values, as a function of `seed`.
    ///
    /// - `parameters`: (parameters).
    pub fn initial(&self, seed: u64, parameters: &mut [f32]) {
        let tensors = self.tensors();
        tensors::initial(self.stages().into_iter().rev().flatten(), &tensors, seed, parameters);
    }

    /// Outputs of a row.
    #[must_use]
    pub fn outputs(&self) -> usize {
        match self {
            Self::Convolutional(net) => net.outputs(),
            Self::Transformer(net) => net.vocabulary,
        }
    }

    /// Floating-point operations of the gradient of one sample: a multiplication and an addition for each weight and place at which it is
    /// used, once forward and twice backward.
    #[must_use]
    pub fn flops_per_sample(&self) -> u64 {
        match self {
            Self::Convolutional(net) => 6 * net.products(),
            Self::Transformer(net) => 6 * net.products(),
        }
    }

    /// About how many numbers a backward pass keeps of one sample.
    #[must_use]
    fn kept_per_sample(&self) -> usize {
        match self {
            Self::Convolutional(net) => net.kept_per_sample(),
            Self::Transformer(net) => net.kept_per_sample(),
        }
    }

    /// About how many bytes of intermediate values a sample has.
    #[must_use]
    pub fn sample_bytes(&self) -> u64 {
        (self.kept_per_sample() as u64).saturating_mul(size_of::<f32>() as u64)
    }

    /// How many pieces of a network of so many parameters are computed at once, at most: each needs two gradients, which stay within 512 MiB
    /// for all unless there are only two pieces.
    #[must_use]
    pub fn pieces_at_once(parameters: usize) -> usize {
        const GRADIENT_ELEMENTS_MAX: usize = (512 << 20) / (2 * size_of::<f32>());
        (GRADIENT_ELEMENTS_MAX / parameters.max(1)).clamp(2, 8)
    }

    /// About how many bytes a gradient takes, beside the parameters and itself: intermediate values, a copy of the parameters, and the
    /// gradients of pieces.
    #[must_use]
    pub fn gradient_bytes(&self, parameters: usize) -> u64 {
        let at_once = Self::pieces_at_once(parameters) as u64;
        let vector = (parameters * size_of::<f32>()) as u64;
        let piece = self.sample_bytes().saturating_mul(self.samples_per_piece() as u64);
        at_once.saturating_mul(piece.saturating_add(2 * vector)).saturating_add(vector)
    }

    /// How many samples of a batch have to be computed together, if the network has a batch norm.
    #[must_use]
    pub fn block(&self) -> Option<usize> {
        match self {
            Self::Convolutional(net) => net.has_batch_norm().then_some(convolutional::NORM_SAMPLES),
            Self::Transformer(_) => None,
        }
    }

    /// How many samples are computed together: as many as keep within 16 MiB of intermediate values, and at least one. Several pieces are
    /// computed at once, on as many threads.
    #[must_use]
    pub fn samples_per_piece(&self) -> usize {
        if let Some(block) = self.block() {
            return block;
        }
        const KEPT_MAX: usize = (16 << 20) / size_of::<f32>();
        (KEPT_MAX / self.kept_per_sample().max(1)).clamp(1, 64)
    }
}
