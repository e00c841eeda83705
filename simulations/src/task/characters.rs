//! A language model of characters: it predicts the next one from the last few.
//!
//! ```text
//! 8 characters --embedding--> 8 x 8 numbers --dense, tanh--> 64 --dense, softmax--> the next character
//! ```
//! Bengio et al., *A Neural Probabilistic Language Model*, 2003, with characters in place of words. It is small enough for a simulated
//! swarm and, other than the digits, a model whose inner optimizer matters: embeddings of rare characters have few gradients.

use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The task: a text, the end of which is held out.
#[derive(Clone, Debug)]
pub struct Characters {
    /// By position: the index of the character in the alphabet.
    text: Vec<u8>,
    alphabet: usize,
    training: usize,
    held_out: usize,
}

/// The offsets of the tensors in the flat vector.
struct TensorOffsets {
    hidden: usize,
    hidden_bias: usize,
    output: usize,
    output_bias: usize,
    end: usize,
}

impl Characters {
    /// The first `samples` characters of a text, with up to a tenth as many of the following ones for evaluation. Upper and lower case are
    /// not distinguished, and all characters rarer than one in ten thousand count as one.
    ///
    /// # Errors
    /// Why the text cannot be used.
    pub fn new(text: &[u8], samples: usize) -> Result<Self, String> {
        let wanted = samples + samples / 10 + CONTEXT + 1;
        let text: Vec<u8> = text.iter().take(wanted).map(u8::to_ascii_lowercase).collect();
        if text.len() < 100 * CONTEXT {
            return Err(format!(
                "a text of {} characters; {} are needed at least",
                text.len(),
                100 * CONTEXT
            ));
        }
        let mut counts = [0_usize; 256];
        text.iter().for_each(|character| counts[*character as usize] += 1);
        let mut codes = [0_u8; 256];
        let mut alphabet = 1;
        for (code, count) in codes.iter_mut().zip(counts) {
            if count * 10_000 > text.len() {
                *code = alphabet;
                alphabet += 1;
            }
        }
        let known = text.len() - CONTEXT;
        let training = samples.min(known * 10 / 11);
        Ok(Self {
            text: text.iter().map(|character| codes[*character as usize]).collect(),
            alphabet: alphabet as usize,
            training,
            held_out: known - training,
        })
    }

    fn tensor_offsets(&self) -> TensorOffsets {
        let hidden = self.alphabet * EMBEDDING;
        let hidden_bias = hidden + HIDDEN * INPUTS;
        let output = hidden_bias + HIDDEN;
        let output_bias = output + self.alphabet * HIDDEN;
        TensorOffsets { hidden, hidden_bias, output, output_bias, end: output_bias + self.alphabet }
    }

    /// Forward pass, and backward pass if there is a gradient to add to. Returns the loss, and whether the prediction was right.
    fn forward_backward(
        &self,
        parameters: &[f32],
        sample: usize,
        scratch: &mut Scratch,
        gradient: Option<&mut [f32]>,
    ) -> (f64, bool) {
        let at = self.tensor_offsets();
        let context = &self.text[sample..sample + CONTEXT];
        let next = self.text[sample + CONTEXT] as usize;
        for (place, &character) in scratch.input.chunks_exact_mut(EMBEDDING).zip(context) {
            place.copy_from_slice(&parameters[character as usize * EMBEDDING..][..EMBEDDING]);
        }
        let weights = parameters[at.hidden..at.hidden_bias].chunks_exact(INPUTS);
        let biases = &parameters[at.hidden_bias..at.output];
        for ((value, weights), bias) in scratch.hidden.iter_mut().zip(weights).zip(biases) {
            *value = libm::tanhf(bias + dot(weights, &scratch.input));
        }
        let weights = parameters[at.output..at.output_bias].chunks_exact(HIDDEN);
        let biases = &parameters[at.output_bias..at.end];
        scratch.output.clear();
        scratch
            .output
            .extend(weights.zip(biases).map(|(weights, bias)| bias + dot(weights, &scratch.hidden)));
        let most = scratch.output.iter().copied().fold(f32::MIN, f32::max);
        let is_right = scratch.output[next] >= most;
        scratch.output.iter_mut().for_each(|logit| *logit = libm::expf(*logit - most));
        let total: f32 = scratch.output.iter().sum();
        scratch.output.iter_mut().for_each(|share| *share /= total);
        let loss = -libm::log(f64::from(scratch.output[next].max(f32::MIN_POSITIVE)));
        if let Some(gradient) = gradient {
            scratch.output[next] -= 1.0;
            self.backward(parameters, context, scratch, gradient);
        }
        (loss, is_right)
    }

    /// Backward pass; `scratch.output` has the gradient of the logits.
    fn backward(&self, parameters: &[f32], context: &[u8], scratch: &mut Scratch, gradient: &mut [f32]) {
        let at = self.tensor_offsets();
        let Scratch { input, hidden, output, hidden_change, input_change } = scratch;
        hidden_change.fill(0.0);
        for (class, &change) in output.iter().enumerate() {
            let start = at.output + class * HIDDEN;
            add(&mut gradient[start..start + HIDDEN], change, hidden);
            gradient[at.output_bias + class] += change;
            add(hidden_change, change, &parameters[start..start + HIDDEN]);
        }
        input_change.fill(0.0);
        for (unit, (change, value)) in hidden_change.iter().zip(hidden.iter()).enumerate() {
            let change = change * (1.0 - value * value);
            let start = at.hidden + unit * INPUTS;
            add(&mut gradient[start..start + INPUTS], change, input);
            gradient[at.hidden_bias + unit] += change;
            add(input_change, change, &parameters[start..start + INPUTS]);
        }
        for (change, &character) in input_change.chunks_exact(EMBEDDING).zip(context) {
            add(&mut gradient[character as usize * EMBEDDING..][..EMBEDDING], 1.0, change);
        }
    }
}

#[derive(Clone, Debug)]
struct Scratch {
    input: Vec<f32>,
    hidden: Vec<f32>,
    output: Vec<f32>,
    hidden_change: Vec<f32>,
    input_change: Vec<f32>,
}

impl Scratch {
    fn new() -> Self {
        Self {
            input: vec![0.0; INPUTS],
            hidden: vec![0.0; HIDDEN],
            output: Vec::new(),
            hidden_change: vec![0.0; HIDDEN],
            input_change: vec![0.0; INPUTS],
        }
    }
}

/// A dot product in a fixed order, so that it has the same bits everywhere: eight partial sums, then their sum.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

fn add(sums: &mut [f32], factor: f32, values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

impl Task for Characters {
    fn manifest(&self) -> Manifest {
        let alphabet = self.alphabet as u32;
        Manifest::new([
            ("embedding", &[alphabet, EMBEDDING as u32][..]),
            ("hidden.weight", &[HIDDEN as u32, INPUTS as u32]),
            ("hidden.bias", &[HIDDEN as u32]),
            ("output.weight", &[alphabet, HIDDEN as u32]),
            ("output.bias", &[alphabet]),
        ])
    }

    fn initial(&self, seed: u64, parameters: &mut [f32]) {
        let at = self.tensor_offsets();
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let mut fill = |range: std::ops::Range<usize>, limit: f32| {
            for weight in &mut parameters[range] {
                *weight = limit * ((generator.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0);
            }
        };
        fill(0..at.hidden, 0.5);
        fill(at.hidden..at.hidden_bias, (6.0 / (INPUTS + HIDDEN) as f32).sqrt());
        fill(at.output..at.output_bias, (6.0 / (HIDDEN + self.alphabet) as f32).sqrt());
    }

    fn sample_count(&self) -> u32 {
        self.training as u32
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let mut scratch = Scratch::new();
        let mut loss = 0.0;
        for &sample in samples {
            loss += self.forward_backward(parameters, sample as usize, &mut scratch, Some(&mut *gradient)).0;
        }
        loss
    }

    fn held_out_count(&self) -> u32 {
        self.held_out as u32
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let mut scratch = Scratch::new();
        let (mut loss, mut right) = (0.0, 0_u64);
        for sample in self.training..self.training + self.held_out {
            let (own, is_right) = self.forward_backward(parameters, sample, &mut scratch, None);
            loss += own;
            right += u64::from(is_right);
        }
        let count = self.held_out.max(1) as f64;
        Evaluation { samples: self.held_out as u32, loss: loss / count, accuracy: Some(right as f64 / count) }
    }
}

/// Number of characters from which the next one is predicted.
const CONTEXT: usize = 8;
/// Numbers in the embedding of each of them.
const EMBEDDING: usize = 8;
const INPUTS: usize = CONTEXT * EMBEDDING;
const HIDDEN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Characters {
        let text: Vec<u8> = (0..3000_u32).map(|i| b"abcdefgh "[(i * i % 91 % 9) as usize]).collect();
        Characters::new(&text, 2000).expect("long enough")
    }

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        let task = task();
        let count = task.manifest().parameter_count();
        let mut parameters = vec![0.0; count];
        task.initial(3, &mut parameters);
        let (samples, mut gradient) = ([0, 5, 77, 1234], vec![0.0; count]);
        task.gradient(&parameters, &samples, &mut gradient);
        let mut room = vec![0.0; count];
        for index in (0..count).step_by(37) {
            let before = parameters[index];
            parameters[index] = before + 1e-2;
            let above = task.gradient(&parameters, &samples, &mut room);
            parameters[index] = before - 1e-2;
            let slope = (above - task.gradient(&parameters, &samples, &mut room)) / 2e-2;
            parameters[index] = before;
            let found = f64::from(gradient[index]);
            assert!((found - slope).abs() < 5e-3 * slope.abs().max(1.0), "{index}: {found} {slope}");
        }
    }

    #[test]
    fn the_end_of_the_text_is_held_out() {
        let task = task();
        assert_eq!((task.sample_count(), task.held_out_count()), (2000, 201));
        assert!(Characters::new(b"too short", 100).is_err());
    }
}
