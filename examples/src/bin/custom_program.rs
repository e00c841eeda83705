//! Your own program: Signum, which is signSGD with momentum and majority vote.
//!
//! Each member keeps a running mean of its own gradients and contributes only the signs of that mean: one vote for each element,
//! up or down. The owner of an element counts the votes, and moves the element by one step in the direction of the majority. The
//! votes travel as `f32`: the example shows the algorithm and not its compression. (Bernstein et al., *signSGD: Compressed
//! Optimisation for Non-Convex Problems*, 2018, algorithms 2 and 3.)
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin custom_program -- start
//! cargo run --release -p peergrad-examples --bin custom_program -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The run ends with a test loss of 0.00006 (each weight stays within one step, 0.001, of its best value), and with the same digest
//! at both peers.

use peergrad::prelude::*;

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
        step.all_reduce(votes, ShardUpdate::custom(majority)).await?;
        // Only now: the host repeats an interrupted round, which must find the momentum from before.
        self.momentum = momentum;
        Ok(Flow::Continue(()))
    }
}

impl Signum {
    fn new(loaded: &Loaded) -> Self {
        let momentum = vec![0.0; loaded.manifest.parameter_count()].into();
        Self { task: Arc::clone(&loaded.task), momentum }
    }

    /// Computes the new momentum, and the votes, which are its signs, beside the network.
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

/// Find the 64 weights of y = w . x, of which number j is j / 64.
struct Weights;

/// Element `j` of x in sample `index`: a hash, between -1 and 1.
fn x(index: u32, j: usize) -> f32 {
    let mixed = (index ^ (j as u32).wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    ((mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35) >> 16) as f32 / 32768.0 - 1.0
}

/// How far w . x of sample `index` is above its y.
fn error(weights: &[f32], index: u32) -> f32 {
    weights.iter().enumerate().map(|(j, weight)| (weight - j as f32 / 64.0) * x(index, j)).sum()
}

impl Task for Weights {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("weights", [64])
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
    peergrad::train("weights", Weights).program(Signum::new).run()
}
