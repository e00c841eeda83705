//! The search of L-BFGS: which point comes after which, from scalar products alone.
//!
//! Nothing here sees a vector. The owners of the parameters send the dot products of all vectors with each other, and get linear
//! combinations to carry out. The outcome of a pass is a [`Search`], a few numbers from which every worker derives the same
//! [operations](Search::operations).
//!
//! # Line search
//! A step length is accepted if the objective has decreased enough and its slope along the direction has flattened (the weak Wolfe
//! conditions). Otherwise the next pass tries another one. Near the minimum the decrease drowns in rounding errors; there the slope decides,
//! as in Hager and Zhang's *approximate* condition.
//!
//! # Reading
//! Chen et al., *Large-scale L-BFGS using MapReduce*, 2014. Nocedal and Wright, *Numerical Optimization*, 2006, algorithms 3.5 and 7.4.
//! Hager and Zhang, *A new conjugate gradient method with guaranteed descent and an efficient line search*, 2005.

use peergrad_protocol::table::Map;

/// The number of each vector in the table.
pub(super) mod vector {
    /// The point of the present pass: the parameters.
    pub(crate) const POINT: u32 = 0;
    /// The gradient of the objective there, once the pass is complete.
    pub(crate) const GRADIENT: u32 = 1;
    /// The best point so far, where the line search begins.
    pub(crate) const BASE: u32 = 2;
    /// The gradient there.
    pub(crate) const BASE_GRADIENT: u32 = 3;
    /// The direction of the line search.
    pub(crate) const DIRECTION: u32 = 4;

    /// The change of the point in a step of the history.
    pub(crate) fn point_change(slot: usize) -> u32 {
        5 + 2 * slot as u32
    }

    /// The change of the gradient in a step of the history.
    pub(crate) fn gradient_change(slot: usize) -> u32 {
        6 + 2 * slot as u32
    }
}

/// The settings of L-BFGS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LbfgsSettings {
    /// How many of the last steps the approximation of the Hessian uses, at least 1.
    pub history: usize,
    /// The factor of the L2 penalty, half the sum of squared parameters.
    pub l2: f64,
    /// The run ends when the norm of the gradient is at most this times the norm of the parameters, or times 1 if that is larger.
    pub tolerance: f64,
}

impl LbfgsSettings {
    /// The number of vectors.
    pub(super) fn vectors(&self) -> usize {
        5 + 2 * self.history
    }
}

/// The result of a pass: the losses of all samples at the point, and the dot products of all vectors.
pub(super) struct Pass {
    /// The mean loss of the samples; infinite if it is not a number, or if not all samples were computed.
    pub(super) loss: f64,
    /// The dot products, as [`Reduce::Gram`](peergrad_protocol::table::Reduce::Gram) lists them.
    pub(super) products: Vec<f64>,
}

/// How far the search is, after so many passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Search {
    /// The passes that it includes.
    pub(super) passes: u64,
    /// Whether the search has ended.
    pub(super) is_over: bool,
    /// Whether the point of the last pass is the new base.
    has_accepted: bool,
    /// The slot of the history that the last accepted step goes to; `None` if it goes to none.
    new_slot: Option<usize>,
    /// The steps of the history.
    steps: usize,
    /// The slot of the newest of them.
    newest: usize,
    /// The step length of the next pass.
    length: f64,
    /// The largest length that was too short.
    low: f64,
    /// The smallest length that was too long; infinite if none was.
    high: f64,
    /// The lengths that were tried from this base.
    trials: u32,
    /// The objective at the base.
    value: f64,
    /// The slope of the objective at the base, along the direction.
    slope: f64,
    /// The factors of the vectors whose sum is the direction, by vector.
    factors: Vec<f32>,
}

/// A linear combination of vectors.
type Combination = Vec<(u32, f64)>;

/// A step of the history: the changes of the point and of the gradient.
#[derive(Clone)]
struct Step {
    slot: usize,
    point: Combination,
    gradient: Combination,
}

impl Pass {
    /// The dot product of two vectors.
    fn product(&self, one: u32, other: u32) -> f64 {
        // count * (count + 1) / 2 products.
        let count = ((8.0 * self.products.len() as f64 + 1.0).sqrt() as usize - 1) / 2;
        let (row, column) = (one.min(other) as usize, one.max(other) as usize);
        let before = row * count - row * row.saturating_sub(1) / 2;
        self.products[before + column - row]
    }

    /// The dot product of two linear combinations.
    fn dot(&self, one: &[(u32, f64)], other: &[(u32, f64)]) -> f64 {
        let with = |(vector, factor): &(u32, f64)| {
            let products = other.iter().map(|(of, by)| by * self.product(*vector, *of));
            factor * products.sum::<f64>()
        };
        one.iter().map(with).sum()
    }

    fn norm(&self, vector: u32) -> f64 {
        self.product(vector, vector).sqrt()
    }
}

impl Search {
    /// The search after one more pass. With `is_last`, it ends with the better one of the point and the base.
    pub(super) fn after(&self, pass: &Pass, passes: u64, is_last: bool, settings: &LbfgsSettings) -> Self {
        let value = pass.loss + settings.l2 / 2.0 * pass.product(vector::POINT, vector::POINT);
        let next = if passes == self.passes + 1 && is_descent(self.slope) {
            self.tried(pass, value, is_last, settings)
        } else if passes > 1 && self.passes == 0 && !value.is_finite() {
            // The search was lost in the middle of this pass.
            Self { is_over: false, ..self.restarted(settings) }
        } else {
            // There is no line search, or nothing is known of it: the point is the new base.
            Self::default().accepted(pass, value, settings)
        };
        Self { passes, is_over: next.is_over || is_last, ..next }
    }

    /// The search after the pass has tried the step length.
    fn tried(&self, pass: &Pass, value: f64, is_last: bool, settings: &LbfgsSettings) -> Self {
        let slope = pass.product(vector::DIRECTION, vector::GRADIENT);
        let has_decreased = value <= self.value + DECREASE * self.length * self.slope;
        let is_as_low = value <= self.value + ROUNDING * self.value.abs();
        let has_turned = slope <= (2.0 * DECREASE - 1.0) * self.slope;
        let is_low_enough = has_decreased || (is_as_low && has_turned);
        let is_flat_enough = slope >= FLATNESS * self.slope;
        let is_out_of_trials = self.trials + 1 >= TRIALS_MAX;
        if is_low_enough && (is_flat_enough || is_last || is_out_of_trials) {
            return self.accepted(pass, value, settings);
        }
        let (low, high) =
            if is_low_enough { (self.length, self.high) } else { (self.low, self.high.min(self.length)) };
        let length = if high.is_infinite() {
            2.0 * self.length
        } else if low > 0.0 {
            f64::midpoint(low, high)
        } else {
            // The minimum of the parabola with this value and slope at the base, and this value at the length.
            let bend = value - self.value - self.slope * high;
            let lowest = -self.slope * high * high / (2.0 * bend);
            if lowest.is_finite() { lowest.clamp(0.1 * high, 0.5 * high) } else { 0.1 * high }
        };
        let is_too_short = length * pass.norm(vector::DIRECTION) <= STEP_MIN * pass.norm(vector::BASE);
        let (length, trials) = match is_out_of_trials || is_too_short {
            false => (length, self.trials + 1),
            // The longest step that was good enough is taken, though the slope is steep there.
            true if low > 0.0 && self.trials < TRIALS_MAX => (low, TRIALS_MAX),
            true => return self.restarted(settings),
        };
        Self {
            has_accepted: false,
            new_slot: None,
            length: f64::from(length as f32),
            low,
            high,
            trials,
            ..self.clone()
        }
    }

    /// The search if no step from the base helps. The next pass computes the gradient at the base again, and the history is forgotten: both may
    /// be of a chunk that was lost and has restarted. If there was no history, the search is over.
    fn restarted(&self, settings: &LbfgsSettings) -> Self {
        Self {
            passes: self.passes,
            is_over: self.steps == 0,
            value: self.value,
            high: f64::INFINITY,
            factors: vec![0.0; settings.vectors()],
            ..Self::default()
        }
    }

    /// The search if the point of the pass is the new base.
    fn accepted(&self, pass: &Pass, value: f64, settings: &LbfgsSettings) -> Self {
        let mut history = self.history(settings);
        let change = |of, base| vec![(of, 1.0), (base, -1.0)];
        let newest = if self.steps == 0 { 0 } else { (self.newest + 1) % settings.history };
        let step = Step {
            slot: newest,
            point: change(vector::POINT, vector::BASE),
            gradient: change(vector::GRADIENT, vector::BASE_GRADIENT),
        };
        let squared = pass.dot(&step.gradient, &step.gradient);
        // A step without positive curvature would spoil the approximation.
        let is_usable = self.passes > 0
            && pass.dot(&step.point, &step.gradient) > CURVATURE_MIN * squared
            && squared > 0.0;
        if is_usable {
            history.truncate(settings.history - 1);
            history.insert(0, step);
        }
        let mut factors = direction(pass, &history, settings.vectors());
        let slope_of = |factors: &[f32], history: &[Step]| pass.dot(&combined(factors, history), &GRADIENT);
        let mut slope = slope_of(&factors, &history);
        if !is_descent(slope) {
            history.clear();
            factors = direction(pass, &history, settings.vectors());
            slope = slope_of(&factors, &history);
        }
        let norm = pass.norm(vector::GRADIENT);
        let has_converged = norm <= settings.tolerance * pass.norm(vector::POINT).max(1.0);
        // Without a history, nothing is known of the scale.
        let length = if history.is_empty() { (1.0 / norm).min(1.0) } else { 1.0 };
        let along = combined(&factors, &history);
        let is_too_short = length * pass.dot(&along, &along).sqrt() <= STEP_MIN * pass.norm(vector::POINT);
        Self {
            passes: self.passes,
            is_over: has_converged || !value.is_finite() || !is_descent(slope) || is_too_short,
            has_accepted: true,
            new_slot: (is_usable && !history.is_empty()).then_some(newest),
            steps: history.len(),
            newest: if history.is_empty() { 0 } else { history[0].slot },
            length: f64::from(length as f32),
            low: 0.0,
            high: f64::INFINITY,
            trials: 0,
            value,
            slope,
            factors,
        }
    }

    /// The steps of the history, the newest first.
    fn history(&self, settings: &LbfgsSettings) -> Vec<Step> {
        let slot = |age: usize| (self.newest + settings.history - age) % settings.history;
        let step = |slot: usize| Step {
            slot,
            point: vec![(vector::point_change(slot), 1.0)],
            gradient: vec![(vector::gradient_change(slot), 1.0)],
        };
        (0..self.steps).map(slot).map(step).collect()
    }

    /// What owners do after the last pass: they move on to the point of the next one, or to the result. Every gradient begins as that of the
    /// penalty.
    pub(super) fn operations(&self, settings: &LbfgsSettings) -> Map {
        use vector::{BASE, BASE_GRADIENT, DIRECTION, GRADIENT, POINT};
        let penalty = |map: Map| map.then(GRADIENT, vec![(POINT, settings.l2 as f32)]);
        let mut map = Map::default();
        if self.passes == 0 {
            return penalty(map);
        }
        if let Some(slot) = self.new_slot {
            map = map
                .then(vector::point_change(slot), vec![(POINT, 1.0), (BASE, -1.0)])
                .then(vector::gradient_change(slot), vec![(GRADIENT, 1.0), (BASE_GRADIENT, -1.0)]);
        }
        if self.has_accepted {
            map = map.then(BASE, vec![(POINT, 1.0)]).then(BASE_GRADIENT, vec![(GRADIENT, 1.0)]);
            let terms = self.factors.iter().enumerate().filter(|(_, factor)| **factor != 0.0);
            map = map.then(DIRECTION, terms.map(|(vector, factor)| (vector as u32, *factor)).collect());
        }
        if self.is_over {
            return map.then(POINT, vec![(BASE, 1.0)]);
        }
        penalty(map.then(POINT, vec![(BASE, 1.0), (DIRECTION, self.length as f32)]))
    }

    /// The search as the numbers of a row, of [`row_width`] numbers.
    pub(super) fn to_row(&self) -> Vec<f32> {
        let Self { is_over, has_accepted, new_slot, steps, newest, trials, .. } = *self;
        let flags = u32::from(is_over) + 2 * u32::from(has_accepted);
        let counts = [self.passes as f32, flags as f32, new_slot.map_or(0, |slot| slot + 1) as f32]
            .into_iter()
            .chain([steps as f32, newest as f32, trials as f32]);
        // A row has finite numbers only.
        let high = if self.high.is_finite() { self.high } else { 0.0 };
        let value = if self.value.is_finite() { self.value } else { f64::from(f32::MAX) };
        let measures = [self.length, self.low, high, value, self.slope].into_iter().flat_map(split);
        let numbers = counts.chain(measures).chain(self.factors.iter().copied());
        numbers.map(|number| if number.is_finite() { number } else { 0.0 }).collect()
    }

    /// The search that a row holds; `None` for a row of zeros or of another width.
    pub(super) fn from_row(row: &[f32], settings: &LbfgsSettings) -> Option<Self> {
        let (head, factors) = row.split_at_checked(ROW_HEAD)?;
        if factors.len() != settings.vectors() || head[0] == 0.0 {
            return None;
        }
        let (flags, measure) = (head[1] as u32, |at: usize| joined(head[6 + 2 * at], head[7 + 2 * at]));
        Some(Self {
            passes: head[0] as u64,
            is_over: flags & 1 != 0,
            has_accepted: flags & 2 != 0,
            new_slot: (head[2] as usize).checked_sub(1),
            steps: head[3] as usize,
            newest: head[4] as usize,
            trials: head[5] as u32,
            length: measure(0),
            low: measure(1),
            high: if measure(2) == 0.0 { f64::INFINITY } else { measure(2) },
            value: measure(3),
            slope: measure(4),
            factors: factors.to_vec(),
        })
    }

    /// The objective at the base.
    pub(super) fn value(&self) -> f64 {
        self.value
    }
}

/// The count of numbers of a row that holds a search.
pub(super) fn row_width(settings: &LbfgsSettings) -> usize {
    ROW_HEAD + settings.vectors()
}

/// A number as the sum of two of half the precision.
pub(super) fn split(number: f64) -> [f32; 2] {
    let high = number as f32;
    [high, (number - f64::from(high)) as f32]
}

/// The number that was split.
pub(super) fn joined(high: f32, low: f32) -> f64 {
    f64::from(high) + f64::from(low)
}

/// The direction of the next line search: minus the approximated inverse Hessian times the gradient, as the factor of each vector. The history
/// has the newest step first.
fn direction(pass: &Pass, history: &[Step], vectors: usize) -> Vec<f32> {
    let mut sum: Combination = vec![(vector::GRADIENT, -1.0)];
    let mut factors = vec![0.0_f64; vectors];
    factors[vector::GRADIENT as usize] = -1.0;
    let mut shares = Vec::with_capacity(history.len());
    for step in history {
        let share = pass.dot(&step.point, &sum) / pass.dot(&step.point, &step.gradient);
        sum.extend(step.gradient.iter().map(|(vector, by)| (*vector, -share * by)));
        factors[vector::gradient_change(step.slot) as usize] -= share;
        shares.push(share);
    }
    if let Some(newest) = history.first() {
        let scale = pass.dot(&newest.point, &newest.gradient) / pass.dot(&newest.gradient, &newest.gradient);
        sum.iter_mut().for_each(|(_, factor)| *factor *= scale);
        factors.iter_mut().for_each(|factor| *factor *= scale);
    }
    for (step, share) in history.iter().zip(shares).rev() {
        let other = pass.dot(&step.gradient, &sum) / pass.dot(&step.point, &step.gradient);
        sum.extend(step.point.iter().map(|(vector, by)| (*vector, (share - other) * by)));
        factors[vector::point_change(step.slot) as usize] += share - other;
    }
    factors.into_iter().map(|factor| factor as f32).collect()
}

/// Whether the objective decreases along a direction of this slope, which may not be a number.
fn is_descent(slope: f64) -> bool {
    slope < 0.0
}

/// The direction of these factors, as a combination of the vectors before the newest step is in its slot.
fn combined(factors: &[f32], history: &[Step]) -> Combination {
    let mut sum = vec![(vector::GRADIENT, f64::from(factors[vector::GRADIENT as usize]))];
    for step in history {
        for (change, vector) in [
            (&step.point, vector::point_change(step.slot)),
            (&step.gradient, vector::gradient_change(step.slot)),
        ] {
            let factor = f64::from(factors[vector as usize]);
            sum.extend(change.iter().map(|(of, by)| (*of, factor * by)));
        }
    }
    sum
}

/// The gradient, as a combination.
const GRADIENT: [(u32, f64); 1] = [(vector::GRADIENT, 1.0)];
/// The part of the decrease that the slope promises which a step must bring.
const DECREASE: f64 = 1e-4;
/// The part of the slope at the base that may be left after a step.
const FLATNESS: f64 = 0.9;
/// Up to this part of it, a value may have been rounded.
const ROUNDING: f64 = 1e-7;
/// The least curvature of a step that is used.
const CURVATURE_MIN: f64 = 1e-10;
/// A step shorter than this part of the point is lost to rounding.
const STEP_MIN: f64 = 1e-7;
/// The step lengths that are tried from one base.
const TRIALS_MAX: u32 = 12;
/// The numbers of a row before the factors.
const ROW_HEAD: usize = 16;

#[cfg(test)]
mod tests;
