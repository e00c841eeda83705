//! Text from a trained transformer, one token after the other.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::{Architecture, Backend, Inputs, Transformer};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// By how much the outputs are divided: below 1 likely tokens become more likely. 0 takes the most likely one.
    pub temperature: f32,
    /// How many of the most likely tokens are considered; 0 for all.
    pub top: usize,
    /// The seed of the draws.
    pub seed: u64,
}

/// Continues `prompt`, and hands each new token to `next`, which returns whether to go on. At most `count` tokens are made.
///
/// # Panics
/// The prompt is empty.
pub fn generate(
    transformer: Transformer,
    backend: &dyn Backend,
    parameters: &[f32],
    prompt: &[u32],
    count: usize,
    choice: Choice,
    mut next: impl FnMut(u32) -> bool,
) {
    assert!(!prompt.is_empty(), "a text to continue");
    let architecture = Architecture::Transformer(transformer);
    let mut generator = ChaCha8Rng::seed_from_u64(choice.seed);
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let start = tokens.len().saturating_sub(transformer.context);
        let inputs = Inputs::Tokens { tokens: tokens[start..].to_vec(), count: 1 };
        let outputs = backend.outputs(&architecture, parameters, &inputs);
        let last = &outputs[outputs.len() - transformer.vocabulary..];
        let token = choose(last, choice, &mut generator);
        tokens.push(token);
        if !next(token) {
            return;
        }
    }
}

/// Draws one of the outputs by its probability.
fn choose(outputs: &[f32], choice: Choice, generator: &mut ChaCha8Rng) -> u32 {
    let mut order: Vec<usize> = (0..outputs.len()).collect();
    order.sort_by(|&a, &b| outputs[b].total_cmp(&outputs[a]));
    if choice.temperature <= 0.0 {
        return order[0] as u32;
    }
    order.truncate(if choice.top == 0 { outputs.len() } else { choice.top });
    let greatest = outputs[order[0]];
    let weights: Vec<f64> = order
        .iter()
        .map(|&index| f64::from((outputs[index] - greatest) / choice.temperature).exp())
        .collect();
    let mut left = weights.iter().sum::<f64>() * f64::from(generator.next_u32()) / f64::from(u32::MAX);
    let found = weights.iter().position(|weight| {
        left -= weight;
        left <= 0.0
    });
    order[found.unwrap_or(0)] as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(temperature: f32, top: usize) -> Vec<u32> {
        let mut generator = ChaCha8Rng::seed_from_u64(1);
        let choice = Choice { temperature, top, seed: 1 };
        (0..200).map(|_| choose(&[0.0, 3.0, 1.0, 2.0], choice, &mut generator)).collect()
    }

    #[test]
    fn likely_tokens_are_drawn_more_often() {
        let count = |tokens: &[u32], token: u32| tokens.iter().filter(|&&found| found == token).count();
        let all = drawn(1.0, 0);
        assert!(count(&all, 1) > count(&all, 3) && count(&all, 3) > count(&all, 2) && count(&all, 0) > 0);
        assert!(drawn(0.0, 0).iter().all(|&token| token == 1));
        assert!(drawn(1.0, 2).iter().all(|&token| token == 1 || token == 3));
        assert!(count(&drawn(0.3, 0), 1) > count(&all, 1));
    }
}
