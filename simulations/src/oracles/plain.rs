//! The plain oracle: the same training in one process and one loop. Sums are in another order there, so it is close and not
//! the same.

use peergrad::alone::train_alone;
use peergrad::io::Committed;
use peergrad::loader::Loaded;

/// Compares the losses of committed steps with those of the plain loop; how far they are apart at most, relatively.
///
/// # Errors
/// In words, where they are further apart than `apart_max`.
pub fn compare<'a>(
    loaded: &Loaded,
    committed: impl IntoIterator<Item = &'a Committed>,
    apart_max: f64,
) -> Result<f64, String> {
    let mut plain = Vec::new();
    train_alone(loaded, |step| plain.push(step.loss));
    let mut largest = 0.0;
    for ours in committed.into_iter().filter(|ours| ours.step.0 < STEPS_MAX) {
        let Some(theirs) = plain.get(ours.step.0 as usize) else {
            return Err(format!("step {} is committed, and the plain loop has {}", ours.step.0, plain.len()));
        };
        let apart = (ours.loss - theirs).abs() / theirs.abs().max(LOSS_MIN);
        if apart > apart_max || apart.is_nan() {
            return Err(format!(
                "the loss of step {} is {}, and {theirs} in the plain loop: {apart:.0e} apart, and rounding explains {apart_max:.0e}",
                ours.step.0, ours.loss
            ));
        }
        largest = f64::max(largest, apart);
    }
    Ok(largest)
}

/// Rounding in another order grows with every step, in any trainer.
const STEPS_MAX: u64 = 200;
/// Below this, losses are compared absolutely.
const LOSS_MIN: f64 = 1e-6;
