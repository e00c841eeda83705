//! Adapters: a transformer that was trained elsewhere learns something new by small additions to its weights (Hu et al., "LoRA: Low-Rank
//! Adaptation of Large Language Models", 2021).
//!
//! ```text
//! weight of a dense layer (inputs, outputs) = that of the base + alpha / rank * A^T B^T
//!                                              A (rank, inputs), drawn    B (outputs, rank), starts at 0
//! ```
//! Where a weight lies in memory as (outputs, inputs), it is read and written as its transpose.
//!
//! Only A and B are parameters of the run: only they travel, and only they have optimizer state. The base stays as it is, at every peer.
//! The tensors have the names that the library PEFT has for them.
//!
//! # How it works
//! The backend computes the gradient of the whole weights W, and knows nothing of adapters. Theirs follow from it by the chain rule:
//! `dA = alpha / rank * (dW B)^T` and `dB = alpha / rank * (A dW)^T`.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{ArrayView2, ArrayViewMut2, Ix2, Shape, ShapeBuilder as _};
use peergrad_protocol::manifest::Manifest;

use super::Transformer;
use super::tensors::{Start, TensorSpec};
use super::transformer::WeightOrder;
use crate::task::product::{WriteMode, multiply};

/// Adapters of a transformer.
#[derive(Clone, Debug)]
pub struct Adapters {
    tensors: Vec<TensorSpec>,
    rank: usize,
    scale: f32,
    base: Arc<[f32]>,
    adapted: Vec<Adapted>,
}

/// The weight of a dense layer in a block, which has an adapter.
#[derive(Clone, Debug)]
struct Adapted {
    /// Where it is among the parameters of the base.
    weight: Range<usize>,
    order: WeightOrder,
    inputs: usize,
    outputs: usize,
    /// Where its A is among the parameters of the run. B follows.
    start: usize,
}

/// The tensors of the adapters of a transformer.
///
/// A starts as the weights of a dense layer of PyTorch do, as in PEFT.
#[must_use]
pub fn tensors(transformer: &Transformer, rank: usize) -> Vec<TensorSpec> {
    let mut tensors = vec![];
    for weight in transformer.tensors().iter().filter(|tensor| transformer.is_dense_weight(&tensor.name)) {
        let (inputs, outputs) = sides(weight, transformer.weight_order());
        let layer = weight.name.strip_suffix(".weight").expect("it ends so");
        let limit = 1.0 / (inputs as f32).sqrt();
        let name = |matrix: &str| format!("base_model.model.{layer}.{matrix}.weight");
        tensors.push(TensorSpec::new(name("lora_A"), &[rank, inputs], Start::Uniform { limit }));
        tensors.push(TensorSpec::new(name("lora_B"), &[outputs, rank], Start::Constant(0.0)));
    }
    tensors
}

/// Names and shapes of the tensors of the adapters of a transformer.
#[must_use]
pub fn manifest(transformer: &Transformer, rank: usize) -> Manifest {
    super::tensors::manifest(&tensors(transformer, rank))
}

/// The inputs and outputs of the weight of a dense layer.
fn sides(weight: &TensorSpec, order: WeightOrder) -> (usize, usize) {
    match (weight.shape.as_slice(), order) {
        (&[inputs, outputs], WeightOrder::InputsFirst) | (&[outputs, inputs], WeightOrder::OutputsFirst) => {
            (inputs, outputs)
        }
        _ => panic!("the weight of a dense layer is a matrix"),
    }
}

impl Adapted {
    /// How it lies in memory, as (inputs, outputs).
    fn layout(&self) -> Shape<Ix2> {
        (self.inputs, self.outputs).set_f(self.order == WeightOrder::OutputsFirst)
    }
}

impl Adapters {
    /// Adapters of `rank`, times `alpha / rank`.
    ///
    /// - `base`: (parameters of the transformer).
    ///
    /// # Panics
    /// The base has another number of parameters.
    #[must_use]
    pub fn new(transformer: &Transformer, rank: usize, alpha: f32, base: Arc<[f32]>) -> Self {
        let (mut adapted, mut at, mut start) = (vec![], 0, 0);
        for tensor in transformer.tensors() {
            let weight = at..at + tensor.len();
            at = weight.end;
            if transformer.is_dense_weight(&tensor.name) {
                let order = transformer.weight_order();
                let (inputs, outputs) = sides(&tensor, order);
                adapted.push(Adapted { weight, order, inputs, outputs, start });
                start += rank * (inputs + outputs);
            }
        }
        assert_eq!(at, base.len(), "the parameters of the base");
        let tensors = tensors(transformer, rank);
        Self { tensors, rank, scale: alpha / rank as f32, base, adapted }
    }

    /// Names and shapes of the tensors of all adapters.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        super::tensors::manifest(&self.tensors)
    }

    /// Fills `parameters` with first values, with which the network is still its base.
    ///
    /// - `parameters`: (parameters of the run).
    pub fn initial(&self, seed: u64, parameters: &mut [f32]) {
        super::tensors::initial(0..self.tensors.len(), &self.tensors, seed, parameters);
    }

    /// The weights that the transformer computes with.
    ///
    /// - `parameters`: (parameters of the run).
    #[must_use]
    pub fn effective(&self, parameters: &[f32]) -> Vec<f32> {
        let mut weights = self.base.to_vec();
        for adapted in &self.adapted {
            let (a, b) = self.matrices(adapted, parameters);
            let scaled = a.t().mapv(|value| value * self.scale);
            let weight = ArrayViewMut2::from_shape(adapted.layout(), &mut weights[adapted.weight.clone()]);
            multiply(scaled.view(), b.t(), WriteMode::Add, weight.expect("as many values"));
        }
        weights
    }

    /// Overwrites the gradient of the adapters with what follows from the gradient of the whole weights.
    ///
    /// - `parameters`, `gradient`: (parameters of the run).
    /// - `whole`: (parameters of the transformer).
    pub fn project(&self, parameters: &[f32], whole: &[f32], gradient: &mut [f32]) {
        for adapted in &self.adapted {
            let (a, b) = self.matrices(adapted, parameters);
            let slope = ArrayView2::from_shape(adapted.layout(), &whole[adapted.weight.clone()]);
            let slope = slope.expect("as many values");
            let of_a = adapted.start..adapted.start + self.rank * adapted.inputs;
            let of_b = of_a.end..of_a.end + self.rank * adapted.outputs;
            for (range, (rows, columns), left, right) in [
                (of_a, (self.rank, adapted.inputs), b.t(), slope.t()),
                (of_b, (adapted.outputs, self.rank), slope.t(), a.t()),
            ] {
                let found = ArrayViewMut2::from_shape((rows, columns), &mut gradient[range]);
                let mut found = found.expect("as many values");
                multiply(left, right, WriteMode::Replace, found.view_mut());
                found.mapv_inplace(|value| value * self.scale);
            }
        }
    }

    /// A (rank, inputs) and B (outputs, rank) of a weight.
    fn matrices<'a>(
        &self,
        adapted: &Adapted,
        parameters: &'a [f32],
    ) -> (ArrayView2<'a, f32>, ArrayView2<'a, f32>) {
        let (a, b) = parameters[adapted.start..].split_at(self.rank * adapted.inputs);
        let a = ArrayView2::from_shape((self.rank, adapted.inputs), a);
        let b = ArrayView2::from_shape((adapted.outputs, self.rank), &b[..self.rank * adapted.outputs]);
        (a.expect("as many values"), b.expect("as many values"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deep::transformer::{Family, Llama};

    const NET: Transformer = Transformer {
        layers: 2,
        width: 4,
        heads: 2,
        context: 3,
        vocabulary: 5,
        dropout: 0.0,
        family: Family::Gpt2,
    };
    const RANK: usize = 2;

    fn llama() -> Transformer {
        Transformer { family: Family::Llama(Llama { kv_heads: 1, ..Llama::new(4, 2) }), ..NET }
    }

    fn numbers(count: usize, factor: f32) -> Vec<f32> {
        (0..count).map(|index| ((index * 37 % 23) as f32 - 11.0) * factor).collect()
    }

    fn adapters(net: &Transformer) -> Adapters {
        let count = net.tensors().iter().map(TensorSpec::len).sum();
        Adapters::new(net, RANK, 3.0, numbers(count, 0.1).into())
    }

    fn count(net: &Transformer) -> usize {
        super::tensors(net, RANK).iter().map(TensorSpec::len).sum()
    }

    #[test]
    fn adapters_start_as_the_base() {
        let mut parameters = vec![f32::NAN; count(&NET)];
        let adapters = adapters(&NET);
        adapters.initial(1, &mut parameters);
        assert_eq!(adapters.effective(&parameters), *adapters.base);
        assert!(parameters.iter().any(|&value| value != 0.0));
    }

    #[test]
    fn names_are_those_of_peft() {
        let tensors = super::tensors(&NET, RANK);
        assert_eq!(tensors.len(), 2 * 4 * 2);
        assert_eq!(tensors[0].name, "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight");
        assert_eq!((tensors[0].shape.clone(), tensors[1].shape.clone()), (vec![2, 4], vec![12, 2]));
        assert_eq!(tensors[7].name, "base_model.model.transformer.h.1.mlp.c_proj.lora_B.weight");
        assert_eq!(tensors[7].shape, [4, 2]);
        let tensors = super::tensors(&llama(), RANK);
        assert_eq!(tensors.len(), 2 * 7 * 2);
        assert_eq!(tensors[0].name, "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight");
        let shapes = |index: usize| (tensors[index].shape.clone(), tensors[index + 1].shape.clone());
        assert_eq!(shapes(2), (vec![2, 4], vec![2, 2]), "one head of keys");
        assert_eq!(shapes(12), (vec![2, 32], vec![4, 2]));
        assert_eq!(tensors[13].name, "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight");
    }

    /// By hand for one weight: base + 1.5 (A^T B^T).
    #[test]
    fn the_product_is_added() {
        for (net, adapted_index, sides) in [(NET, 2, (4, 16)), (llama(), 6, (32, 4))] {
            let adapters = adapters(&net);
            let parameters = numbers(count(&net), 0.01);
            let effective = adapters.effective(&parameters);
            let Adapted { weight, order, inputs, outputs, start } = adapters.adapted[adapted_index].clone();
            assert_eq!((inputs, outputs), sides);
            let (a, b) = (&parameters[start..], &parameters[start + RANK * inputs..]);
            for (input, output) in [(0, 0), (1, 2), (3, outputs - 1)] {
                let product: f32 = (0..RANK).map(|k| a[k * inputs + input] * b[output * RANK + k]).sum();
                let index = weight.start
                    + match order {
                        WeightOrder::InputsFirst => input * outputs + output,
                        WeightOrder::OutputsFirst => output * inputs + input,
                    };
                assert!((effective[index] - adapters.base[index] - 1.5 * product).abs() < 1e-6);
            }
        }
    }

    /// A loss that is linear in the weights has its slope along every adapter.
    #[test]
    fn gradients_follow_from_the_whole() {
        for net in [NET, llama()] {
            let adapters = adapters(&net);
            let whole = numbers(adapters.base.len(), 0.03);
            let loss = |parameters: &[f32]| -> f64 {
                let weights = adapters.effective(parameters);
                weights.iter().zip(&whole).map(|(weight, slope)| f64::from(*weight) * f64::from(*slope)).sum()
            };
            let parameters = numbers(count(&net), 0.01);
            let mut gradient = vec![f32::NAN; parameters.len()];
            adapters.project(&parameters, &whole, &mut gradient);
            for index in (0..parameters.len()).step_by(7) {
                let moved = |by: f32| {
                    let mut moved = parameters.clone();
                    moved[index] += by;
                    loss(&moved)
                };
                let slope = (moved(0.125) - moved(-0.125)) / 0.25;
                let found = f64::from(gradient[index]);
                assert!((slope - found).abs() < 1e-4, "{index}: {slope} {found}");
            }
        }
    }
}
