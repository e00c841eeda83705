//! The task of a deep network: its samples, cut into pieces for a backend.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use peergrad_protocol::manifest::Manifest;

use super::adapters::Adapters;
use super::changes::{Change, change};
use super::convolutional::PictureShape;
use super::draws::sample_seed;
use super::pictures::{PictureSamples, SamplePart};
use super::text::TextSamples;
use super::{Architecture, Backend, Inputs, Piece, Targets};
use crate::data::labels::Labels;
use crate::task::loss::{Loss, Score};
use crate::task::step_info::StepInfo;
use crate::task::{Evaluation, KnownGradient, Task};

/// A deep network that learns from samples.
#[derive(Debug)]
pub struct DeepTask {
    architecture: Architecture,
    start: StartValues,
    samples: DeepSamples,
    seed: u64,
    backend: Arc<dyn Backend>,
}

/// Where the parameters of a deep network start, and which of them are trained.
#[derive(Clone, Debug, Default)]
pub enum StartValues {
    /// They are drawn.
    #[default]
    Drawn,
    /// (parameters): those of a network that was trained before.
    Given(Arc<[f32]>),
    /// A network that was trained before stays as it is, and adapters are trained.
    Adapted(Adapters),
}

/// The samples of a deep network.
#[derive(Debug)]
pub enum DeepSamples {
    /// Pictures.
    Pictures {
        /// The pictures and their labels.
        pictures: PictureSamples,
        /// The shape of each.
        shape: PictureShape,
        /// How they are changed in training.
        changes: Vec<Change>,
    },
    /// A text.
    Text(TextSamples),
}

impl DeepTask {
    /// A task that trains `architecture` on `samples`; `seed` is the run's.
    #[must_use]
    pub fn new(
        architecture: Architecture,
        samples: DeepSamples,
        seed: u64,
        backend: Arc<dyn Backend>,
    ) -> Self {
        Self { architecture, start: StartValues::Drawn, samples, seed, backend }
    }

    /// The same, which starts elsewhere.
    #[must_use]
    pub fn starting_at(self, start: StartValues) -> Self {
        Self { start, ..self }
    }

    /// The weights that the network computes with.
    fn weights<'a>(&self, parameters: &'a [f32]) -> Cow<'a, [f32]> {
        match &self.start {
            StartValues::Adapted(adapters) => Cow::Owned(adapters.effective(parameters)),
            StartValues::Drawn | StartValues::Given(_) => Cow::Borrowed(parameters),
        }
    }

    /// The piece of these training samples in an epoch.
    fn piece(&self, epoch: u64, samples: &[u32]) -> Piece {
        let seeds: Vec<u64> = samples.iter().map(|&sample| sample_seed(self.seed, epoch, sample)).collect();
        let rows = samples.iter().map(|&sample| sample as usize);
        let weight = self.samples.row_weight();
        let (inputs, targets) = match &self.samples {
            DeepSamples::Pictures { pictures, shape, changes } => {
                let (mut inputs, targets) = pictures.piece(SamplePart::Training, rows);
                if let Inputs::Pictures { values, .. } = &mut inputs {
                    let changed = values.chunks_mut(shape.values()).zip(&seeds);
                    changed.for_each(|(picture, &seed)| change(changes, *shape, seed, picture));
                }
                (inputs, targets)
            }
            DeepSamples::Text(text) => text.piece(rows),
        };
        Piece { inputs, targets, weight, seeds }
    }

    fn gradient_in(
        &self,
        epoch: u64,
        parameters: &[f32],
        samples: &[u32],
        gradient: &mut [f32],
        finished: Option<&mut KnownGradient<'_>>,
    ) -> f64 {
        let size = self.architecture.samples_per_piece();
        let piece =
            |index| self.piece(epoch, samples.chunks(size).nth(index).expect("as many as are counted"));
        let count = samples.len().div_ceil(size);
        let weights = self.weights(parameters);
        let StartValues::Adapted(adapters) = &self.start else {
            return self.backend.gradient(&self.architecture, &weights, count, &piece, gradient, finished);
        };
        let mut whole = vec![0.0; weights.len()];
        let loss = self.backend.gradient(&self.architecture, &weights, count, &piece, &mut whole, None);
        adapters.project(parameters, &whole, gradient);
        loss
    }
}

impl DeepSamples {
    /// The factor of a row's loss: that of a text is the mean over its tokens.
    fn row_weight(&self) -> f32 {
        match self {
            Self::Pictures { .. } => 1.0,
            Self::Text(text) => 1.0 / text.context() as f32,
        }
    }
}

impl Task for DeepTask {
    fn manifest(&self) -> Manifest {
        match &self.start {
            StartValues::Adapted(adapters) => adapters.manifest(),
            StartValues::Drawn | StartValues::Given(_) => self.architecture.manifest(),
        }
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        match &self.start {
            StartValues::Drawn => self.architecture.initial(seed, parameters),
            StartValues::Given(values) => parameters.copy_from_slice(values),
            StartValues::Adapted(adapters) => adapters.initial(seed, parameters),
        }
    }

    fn sample_count(&self) -> u32 {
        let count = match &self.samples {
            DeepSamples::Pictures { pictures, .. } => pictures.count(SamplePart::Training),
            DeepSamples::Text(text) => text.training().len(),
        };
        u32::try_from(count).expect("fewer than 2^32 samples")
    }

    fn block(&self) -> u32 {
        self.architecture.block().map_or(1, |block| block as u32)
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        self.gradient_in(0, parameters, samples, gradient, None)
    }

    fn contribute(&self, step: &StepInfo, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        self.gradient_in(step.epoch, parameters, samples, gradient, None)
    }

    fn contribute_in_parts(
        &self,
        step: &StepInfo,
        parameters: &[f32],
        samples: &[u32],
        gradient: &mut [f32],
        finished: &mut KnownGradient<'_>,
    ) -> f64 {
        self.gradient_in(step.epoch, parameters, samples, gradient, Some(finished))
    }

    fn flops_per_sample(&self) -> Option<u64> {
        Some(self.architecture.flops_per_sample())
    }

    fn tokens_per_sample(&self) -> Option<u64> {
        match &self.samples {
            DeepSamples::Pictures { .. } => None,
            DeepSamples::Text(text) => Some(text.context() as u64),
        }
    }

    fn held_out_count(&self) -> u32 {
        let count = match &self.samples {
            DeepSamples::Pictures { pictures, .. } => pictures.count(SamplePart::HeldOut),
            DeepSamples::Text(text) => text.held_out().len(),
        };
        u32::try_from(count).expect("fewer than 2^32 samples")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let parameters = &*self.weights(parameters);
        match &self.samples {
            DeepSamples::Pictures { pictures, .. } => {
                let part = SamplePart::HeldOut;
                evaluate_pictures(&self.architecture, &*self.backend, parameters, pictures, part)
            }
            DeepSamples::Text(text) => {
                evaluate_text(&self.architecture, &*self.backend, parameters, text, text.held_out())
            }
        }
    }
}

/// The outputs for all pictures of a part: (pictures, outputs) row-major. They are computed on the threads of the pool.
#[must_use]
pub fn picture_outputs(
    architecture: &Architecture,
    backend: &dyn Backend,
    parameters: &[f32],
    pictures: &PictureSamples,
    part: SamplePart,
) -> Vec<f32> {
    let size = architecture.samples_per_piece();
    let width = architecture.outputs();
    let mut outputs = vec![0.0; pictures.count(part) * width];
    let of_piece = |first: usize, outputs: &mut [f32]| {
        let (inputs, _) = pictures.piece(part, first..first + outputs.len() / width);
        outputs.copy_from_slice(&backend.outputs(architecture, parameters, &inputs));
    };
    in_pieces(0, &mut outputs, size * width, &|start, outputs| of_piece(start / width, outputs));
    outputs
}

/// Calls `work` for each piece of `values`, with the index of its first value. Pieces have `size` values; the last one may have fewer.
fn in_pieces(start: usize, values: &mut [f32], size: usize, work: &(impl Fn(usize, &mut [f32]) + Sync)) {
    match values.len().div_ceil(size) {
        0 => {}
        1 => work(start, values),
        count => {
            let middle = count / 2 * size;
            let (first, second) = values.split_at_mut(middle);
            rayon_core::join(
                || in_pieces(start, first, size, work),
                || in_pieces(start + middle, second, size, work),
            );
        }
    }
}

/// The mean loss and the accuracy on this part of pictures.
#[must_use]
pub fn evaluate_pictures(
    architecture: &Architecture,
    backend: &dyn Backend,
    parameters: &[f32],
    pictures: &PictureSamples,
    part: SamplePart,
) -> Evaluation {
    evaluate(architecture, backend, parameters, pictures.count(part), |range| pictures.piece(part, range))
}

/// The mean loss and the accuracy on these samples of a text, counted from its first one.
#[must_use]
pub fn evaluate_text(
    architecture: &Architecture,
    backend: &dyn Backend,
    parameters: &[f32],
    text: &TextSamples,
    samples: Range<usize>,
) -> Evaluation {
    evaluate(architecture, backend, parameters, samples.len(), |range| {
        text.piece(range.map(|sample| samples.start + sample))
    })
}

/// The mean loss and the accuracy of `count` samples, in pieces; without samples, a loss of 0 and no accuracy.
fn evaluate(
    architecture: &Architecture,
    backend: &dyn Backend,
    parameters: &[f32],
    count: usize,
    piece: impl Fn(Range<usize>) -> (Inputs, Targets) + Sync,
) -> Evaluation {
    let size = architecture.samples_per_piece();
    let of_piece = |index: usize| {
        let (inputs, targets) = piece(index * size..count.min((index + 1) * size));
        let (loss, labels) = match targets {
            Targets::Classes(classes) => (Loss::SoftmaxCrossEntropy, Labels::Classes(classes)),
            Targets::Numbers(numbers) => (Loss::HalfSquaredError, Labels::Numbers(numbers)),
        };
        let mut outputs = backend.outputs(architecture, parameters, &inputs);
        let width = architecture.outputs();
        let rows = outputs.len() / width;
        let score = loss.score_all(&mut outputs, width, &labels);
        Evaluated { score, rows, has_classes: loss == Loss::SoftmaxCrossEntropy }
    };
    let total = evaluated(0..count.div_ceil(size), &of_piece);
    let share = |sum: f64| if total.rows == 0 { 0.0 } else { sum / total.rows as f64 };
    Evaluation {
        samples: u32::try_from(count).unwrap_or(u32::MAX),
        loss: share(total.score.loss),
        accuracy: total.has_classes.then(|| share(total.score.correct as f64)),
    }
}

/// What is known of some pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Evaluated {
    score: Score,
    rows: usize,
    has_classes: bool,
}

/// The sum over these pieces, which are computed on the threads of the pool and added in a fixed order.
fn evaluated(pieces: Range<usize>, of_piece: &(impl Fn(usize) -> Evaluated + Sync)) -> Evaluated {
    match pieces.len() {
        0 => Evaluated::default(),
        1 => of_piece(pieces.start),
        count => {
            let middle = pieces.start + count / 2;
            let (mut total, second) = rayon_core::join(
                || evaluated(pieces.start..middle, of_piece),
                || evaluated(middle..pieces.end, of_piece),
            );
            total.score += second.score;
            total.rows += second.rows;
            total.has_classes |= second.has_classes;
            total
        }
    }
}
