//! The replay: the commit log once more, in a plain loop, bit for bit.
//!
//! From nothing but the views and the order of commits it computes what members must hold after each step: who computes
//! which samples, in which order an owner's sum is added up, what its rule makes of it. Rounding included.
//!
//! # Not here
//! Rounds, segments, credit, links: whatever they do, this must come out.

use std::ops::Range;

use peergrad::io::Event;
use peergrad::loader::Loaded;
use peergrad::node::Standing;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::ledger::{Batch, Ledger, permutation};
use peergrad_protocol::manifest::Chunks;
use peergrad_protocol::message::Tally;
use peergrad_protocol::placement::Placement;
use peergrad_protocol::view::View;
use peergrad_protocol::{Rank, ViewDigest};

use crate::cluster::World;
use crate::laws::{Law, Observation};

/// The replay's name among what is checked.
pub const REPLAY: &str = "replay of the commit log";

/// The state of the whole run after the last replayed step.
pub struct Replay {
    loaded: Loaded,
    chunks: Chunks,
    parameters: Vec<f32>,
    /// By chunk: its moments, one after the other, and how many updates it has had.
    moments: Vec<(Vec<f32>, u32)>,
    ledger: Ledger,
    order: Option<(u64, Vec<u32>)>,
    /// Steps replayed.
    steps: u64,
    /// What the last of them is worth; its loss is a sum in one of several orders.
    tally: Tally,
    placement: Option<(ViewDigest, Placement)>,
}

impl Replay {
    /// The start of a run.
    #[must_use]
    pub fn new(loaded: &Loaded) -> Self {
        let chunks = loaded.manifest.chunks();
        let mut parameters = vec![0.0; chunks.parameter_count()];
        loaded.task.initial(loaded.training.seed, &mut parameters);
        let moment_count = loaded.training.rule.moment_count();
        let moments = |chunk: usize| (vec![0.0; chunks.range(chunk).len() * moment_count], 0);
        Self {
            moments: (0..chunks.count()).map(moments).collect(),
            loaded: loaded.clone(),
            chunks,
            parameters,
            ledger: Ledger::default(),
            order: None,
            steps: 0,
            tally: Tally::default(),
            placement: None,
        }
    }

    /// One step, as the members of `view` take it.
    fn step(&mut self, view: &View, digest: ViewDigest) {
        let training = &self.loaded.training;
        let sample_count = self.loaded.task.sample_count();
        let (batch, after) = self.ledger.take(training.batch_size, u64::from(sample_count));
        if self.order.as_ref().is_none_or(|(pass, _)| *pass != batch.pass) {
            self.order = Some((batch.pass, permutation(training.seed, batch.pass, sample_count)));
        }
        let contributions = self.contributions(&batch, view.members.len());
        let rate = training.schedule.rate(self.steps);
        let placement = self.placement(view, digest);
        let mut updated = self.parameters.clone();
        for chunk in 0..self.chunks.count() {
            let owner = placement.owner(chunk);
            let range = self.chunks.range(chunk);
            let (sum, tally) = sum_for(owner, &contributions, range.clone());
            updated[range.clone()].copy_from_slice(&sum);
            self.update(chunk, range, rate, tally, &mut updated);
            self.tally = tally;
        }
        self.parameters = updated;
        self.placement = Some((digest, placement));
        self.ledger = after;
        self.steps += 1;
    }

    fn placement(&mut self, view: &View, digest: ViewDigest) -> Placement {
        match self.placement.take() {
            Some((known, placement)) if known == digest => placement,
            _ => Placement::draw(&view.run, &view.members, self.chunks.count(), 1),
        }
    }

    /// By rank: the gradient of its part of the batch, and what it is worth.
    fn contributions(&self, batch: &Batch, member_count: usize) -> Vec<(Vec<f32>, Tally)> {
        let order = &self.order.as_ref().expect("drawn before").1;
        let shares = vec![1; member_count];
        let contribution = |index: usize| {
            let spans = batch.part(index, &shares);
            let samples: Vec<u32> =
                spans.iter().flat_map(|s| &order[s.start as usize..s.end as usize]).copied().collect();
            let mut gradient = vec![0.0; self.parameters.len()];
            let loss = self.loaded.task.gradient(&self.parameters, &samples, &mut gradient);
            if !loss.is_finite() || !gradient.iter().all(|element| element.is_finite()) {
                return (vec![0.0; self.parameters.len()], Tally::default());
            }
            (gradient, Tally { samples: samples.len() as u64, loss })
        };
        (0..member_count).map(contribution).collect()
    }

    /// What the owner of a chunk makes of its sum, which lies in `updated`.
    fn update(&mut self, chunk: usize, range: Range<usize>, rate: f64, tally: Tally, updated: &mut [f32]) {
        let (old, sum) = (&self.parameters[range.clone()], &mut updated[range]);
        if tally.samples == 0 || !sum.iter().all(|element| element.is_finite()) {
            sum.copy_from_slice(old);
            return;
        }
        let (moments, updates) = &mut self.moments[chunk];
        *updates += 1;
        let before = moments.clone();
        let scale = 1.0 / tally.samples as f32;
        self.loaded.training.rule.update(rate, *updates, scale).apply(old, sum, &before, moments);
    }
}

/// The sum as it reaches an owner: the member behind it first, itself last.
fn sum_for(owner: Rank, contributions: &[(Vec<f32>, Tally)], range: Range<usize>) -> (Vec<f32>, Tally) {
    let count = contributions.len();
    let in_order = (1..=count).map(|distance| &contributions[(owner.index() + distance) % count]);
    let mut sum: Option<(Vec<f32>, Tally)> = None;
    for (gradient, tally) in in_order {
        let part = &gradient[range.clone()];
        match &mut sum {
            None => sum = Some((part.to_vec(), *tally)),
            Some((sum, total)) => {
                sum.iter_mut().zip(part).for_each(|(sum, element)| *sum += element);
                *total += *tally;
            }
        }
    }
    sum.expect("a view has members")
}

/// Watches commits like a law: the first member that tells of a step is compared, [`crate::laws::same_bits`] sees to the
/// others.
impl Law for Replay {
    fn name(&self) -> &'static str {
        REPLAY
    }

    fn observe(&mut self, observation: &Observation<'_>, world: &World<'_>) -> Result<(), String> {
        let Observation::Told { host, event: Event::Committed(committed) } = observation else {
            return Ok(());
        };
        if committed.step.0 < self.steps {
            return Ok(());
        }
        // From a gap on nothing could be compared any more.
        if committed.step.0 > self.steps {
            return Err(format!(
                "{host} commits step {}, and nobody has told of step {}",
                committed.step.0, self.steps
            ));
        }
        let Some(Standing::Member(standing)) = world.standing(*host) else { return Ok(()) };
        self.step(&standing.view, standing.digest);
        let Tally { samples, loss } = self.tally;
        let mean = loss / samples as f64;
        let is_told = |told: f64| (told - mean).abs() <= LOSS_APART_MAX * mean.abs().max(1.0);
        if committed.samples != samples || (mean.is_finite() && !is_told(committed.loss)) {
            return Err(format!(
                "{host} says that step {} trained {} samples with loss {}; the commit log gives {samples} and {mean}",
                committed.step.0, committed.samples, committed.loss
            ));
        }
        let digest = ContentDigest::of(bytemuck::cast_slice(&self.parameters));
        if committed.digest.is_none_or(|told| told == digest) {
            return Ok(());
        }
        Err(format!(
            "after step {} the parameters of {host} are not what the commit log gives",
            committed.step.0
        ))
    }
}

/// Sums of the same losses in two orders are no further apart than this, relatively.
const LOSS_APART_MAX: f64 = 1e-9;
