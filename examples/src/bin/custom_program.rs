//! A program of one's own, on the primitives: Signum, that is signSGD with momentum and majority vote.
//!
//! Each member keeps a running mean of its own gradients and contributes only its signs: one vote an element, up or down.
//! The owner of an element counts, and moves it one step the way the majority voted. On the wire the votes are `f32`, as
//! everything is: this shows the algorithm, not its compression. (Bernstein et al., *signSGD: Compressed Optimisation for
//! Non-Convex Problems*, 2018, algorithms 2 and 3.)
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin custom_program -- start
//! cargo run --release -p peergrad-examples --bin custom_program -- join pg1...   (what `start` printed; on any machine)
//! ```
//! It ends with a test loss of 0.00006 (weights hover around the best by one step of 0.001), and one digest at both peers.

use std::process::ExitCode;
use std::sync::Arc;

use peergrad::{
    Buffer, Context, Contribution, Evaluation, Flow, Interrupted, Loaded, Manifest, Pending, Program,
    SampleStats, Step, Task,
};

/// Running mean of one member's gradients.
type Mean = Arc<[f32]>;

/// The algorithm at one member.
struct Signum {
    task: Arc<dyn Task>,
    momentum: Mean,
}

impl Program for Signum {
    const CUSTOM_RULE: bool = true;
    const NAME: &'static str = "signum";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let (step, parameters, room) = context.begin_step().await?;
        if step.is_over {
            return Ok(Flow::Break(()));
        }
        let (momentum, votes) = self.votes(&step, parameters, room).await?;
        let rate = step.rate as f32;
        let majority = move |_: SampleStats, old: &[f32], votes: &mut [f32]| {
            votes.iter_mut().zip(old).for_each(|(vote, old)| *vote = old - rate * sign(*vote));
        };
        // All are called before the first is awaited: nothing waits for a whole shard.
        let summed = step.reduce_scatter(votes);
        let updated = step.update_owned_with(majority);
        let gathered = step.all_gather();
        summed.await?;
        updated.await?;
        gathered.await?;
        // Only now: a round that is interrupted is repeated from the momentum that it began with.
        self.momentum = momentum;
        Ok(Flow::Continue(()))
    }
}

impl Signum {
    fn new(loaded: &Loaded) -> Self {
        let momentum = vec![0.0; loaded.manifest.parameter_count()].into();
        Self { task: Arc::clone(&loaded.task), momentum }
    }

    /// The new momentum, and the votes that are its signs: computed beside the network.
    fn votes(&self, step: &Step, parameters: Arc<Buffer>, mut room: Buffer) -> Pending<(Mean, Contribution)> {
        let (task, before, samples) = (self.task.clone(), self.momentum.clone(), step.samples.clone());
        step.compute(samples.len() as u64, move || {
            let loss = task.gradient(&parameters, &samples, &mut room);
            let mix = |(old, new): (&f32, &f32)| MOMENTUM * old + (1.0 - MOMENTUM) * new;
            let momentum: Mean = before.iter().zip(room.iter()).map(mix).collect();
            room.iter_mut().zip(&*momentum).for_each(|(vote, mean)| *vote = sign(*mean));
            let stats = SampleStats { samples: samples.len() as u64, loss };
            (momentum, Contribution { vector: room, stats })
        })
    }
}

const MOMENTUM: f32 = 0.9; // share of the running mean that is kept

/// 1, -1, or 0 where there is no majority.
fn sign(value: f32) -> f32 {
    f32::from(i8::from(value > 0.0) - i8::from(value < 0.0))
}

/// Find the weights behind y = w . x: 64 of them, the j-th being j / 64.
struct Weights;

/// Element `j` of sample `index`'s x: between -1 and 1, hashed.
fn x(index: u32, j: usize) -> f32 {
    let mixed = (index ^ (j as u32).wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    ((mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35) >> 16) as f32 / 32768.0 - 1.0
}

fn error(weights: &[f32], index: u32) -> f32 {
    weights.iter().enumerate().map(|(j, weight)| (weight - j as f32 / 64.0) * x(index, j)).sum()
}

impl Task for Weights {
    fn manifest(&self) -> Manifest {
        Manifest::new([("weights", &[64][..])])
    }

    fn sample_count(&self) -> u32 {
        10_000
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        let loss_of = |&sample: &u32| {
            let error = error(parameters, sample);
            gradient.iter_mut().enumerate().for_each(|(j, slope)| *slope += 2.0 * error * x(sample, j));
            f64::from(error * error)
        };
        samples.iter().map(loss_of).sum()
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let loss: f64 = (10_000..11_000).map(|index| f64::from(error(parameters, index).powi(2))).sum();
        Evaluation { samples: 1000, loss: loss / 1000.0, accuracy: None }
    }
}

fn main() -> ExitCode {
    peergrad::run_program("weights", Weights, Signum::new)
}
