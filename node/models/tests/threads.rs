//! Gradients and evaluations have the same bits on any number of threads, and are right where they are cut into pieces.

use peergrad_models::data::dataset::{Dataset, Samples};
use peergrad_models::data::labels::Labels;
use peergrad_models::task::activation::Activation;
use peergrad_models::task::loss::Loss;
use peergrad_models::task::network::Network;
use peergrad_models::task::supervised::Supervised;
use peergrad_models::task::{Evaluation, Task};

/// Rows of the data: two blocks, of which the second is not full.
const ROWS: usize = 301;

/// Networks whose widths fit no piece, each with at least one product that is cut.
fn networks() -> Vec<Network> {
    let classes = Loss::SoftmaxCrossEntropy;
    vec![
        Network::new(&[300, 517, 259, 11], Activation::Relu, classes),
        Network::new(&[97, 1031, 403], Activation::Tanh, classes),
        Network::new(&[33, 701, 1], Activation::Gelu, Loss::HalfSquaredError),
        Network::softmax(1009, 333),
        Network::linear(70_001),
        Network::new(&[900, 11], Activation::default(), Loss::SquaredHinge),
    ]
}

fn task(network: Network) -> (Supervised, Vec<f32>) {
    let columns = network.features();
    let features =
        (0..ROWS * columns).map(|index| ((index * 7919) % 10_007) as f32 / 5_003.0 - 1.0).collect();
    let labels = match network.loss() {
        Loss::SoftmaxCrossEntropy | Loss::SquaredHinge => {
            Labels::Classes((0..ROWS as u32).map(|row| row % 11).collect())
        }
        Loss::HalfSquaredError => Labels::Numbers((0..ROWS).map(|row| (row % 7) as f32 - 3.0).collect()),
    };
    let samples = Samples { features, columns, labels };
    let mut parameters = vec![0.0; network.manifest().parameter_count()];
    network.initial(3, &mut parameters);
    (Supervised::new(network, Dataset { held_out: samples.clone(), training: samples }), parameters)
}

fn gradient(task: &Supervised, parameters: &[f32], samples: &[u32]) -> (f64, Vec<f32>) {
    let mut gradient = vec![f32::NAN; parameters.len()];
    let loss = task.gradient(parameters, samples, &mut gradient);
    (loss, gradient)
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let all: Vec<u32> = (0..ROWS as u32).rev().collect();
    for network in networks() {
        let name = format!("{network:?}");
        let (task, parameters) = task(network);
        let compute = || -> (u64, Vec<u32>, Evaluation) {
            let (loss, gradient) = gradient(&task, &parameters, &all);
            let bits = gradient.iter().map(|element| element.to_bits()).collect();
            (loss.to_bits(), bits, task.evaluate(&parameters))
        };
        let expected = compute();
        for threads in 1..5 {
            let pool = rayon_core::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for _ in 0..3 {
                assert!(pool.install(compute) == expected, "{name} on {threads} threads");
            }
        }
    }
}

#[test]
fn a_gradient_in_pieces_is_the_sum_of_small_ones() {
    let all: Vec<u32> = (0..ROWS as u32).collect();
    for network in networks() {
        let name = format!("{network:?}");
        let (task, parameters) = task(network);
        let (loss, whole) = gradient(&task, &parameters, &all);
        let (mut loss_sum, mut sum) = (0.0, vec![0.0_f64; whole.len()]);
        for samples in all.chunks(3) {
            let (loss, part) = gradient(&task, &parameters, samples);
            loss_sum += loss;
            sum.iter_mut().zip(part).for_each(|(sum, element)| *sum += f64::from(element));
        }
        assert!((loss - loss_sum).abs() < 1e-4 * loss_sum, "{name}: {loss} {loss_sum}");
        let largest = sum.iter().fold(0.0_f64, |most, element| most.max(element.abs()));
        for (index, (found, expected)) in whole.iter().zip(sum).enumerate() {
            assert!((f64::from(*found) - expected).abs() < 1e-4 * largest, "{name}: {index}");
        }
    }
}
