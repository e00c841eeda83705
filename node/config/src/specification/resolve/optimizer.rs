//! Resolving `[optimizer]`: the optimizer with its constants, and the schedule of its learning rate.

use peergrad_models::optimizer::{Optimizer, Schedule};
use peergrad_models::schedule::{Decay, scaled};

use super::Condition;
use crate::specification::run_file::{OptimizerKind, OptimizerSection, RunFile, ScheduleName};
use crate::specification::{SpecificationError, within};

/// The optimizer that a section names, with its constants.
///
/// # Errors
/// The section has a key of another optimizer.
pub fn resolve_rule(section: &OptimizerSection) -> Result<Optimizer, SpecificationError> {
    check_rule_keys(section)?;
    let is_adam = matches!(section.rule(), OptimizerKind::Adam | OptimizerKind::AdamW);
    let (l1, l2) = (section.l1.unwrap_or(0.0), section.l2.unwrap_or(0.0));
    let decay_default = if section.rule() == OptimizerKind::AdamW { 0.01 } else { 0.0 };
    let weight_decay = section.weight_decay.unwrap_or(decay_default);
    let (beta1, beta2) = (section.beta1.unwrap_or(0.9), section.beta2.unwrap_or(0.999));
    let epsilon = section.epsilon.unwrap_or(if is_adam { 1e-8 } else { 1e-10 });
    Ok(match section.rule() {
        OptimizerKind::Sgd => Optimizer::Sgd { weight_decay },
        OptimizerKind::Momentum => Optimizer::Momentum {
            momentum: section.momentum.unwrap_or(0.9),
            nesterov: section.nesterov.unwrap_or(false),
            weight_decay,
        },
        OptimizerKind::Adam => Optimizer::Adam { beta1, beta2, epsilon, weight_decay },
        OptimizerKind::AdamW => Optimizer::AdamW { beta1, beta2, epsilon, weight_decay },
        OptimizerKind::Adagrad => Optimizer::Adagrad { epsilon, weight_decay },
        OptimizerKind::Prox => Optimizer::Prox { l1, l2 },
        OptimizerKind::Ftrl => Optimizer::Ftrl { beta: section.beta.unwrap_or(1.0), l1, l2 },
    })
}

/// Rejects keys that another rule has.
fn check_rule_keys(section: &OptimizerSection) -> Result<(), SpecificationError> {
    let is_any_of = |rules: &[OptimizerKind]| rules.contains(&section.rule());
    let momentum =
        Condition { holds: is_any_of(&[OptimizerKind::Momentum]), allowed: "only if `rule` is \"momentum\"" };
    momentum.check("optimizer.momentum", section.momentum)?;
    momentum.check("optimizer.nesterov", section.nesterov)?;
    let adam = Condition {
        holds: is_any_of(&[OptimizerKind::Adam, OptimizerKind::AdamW]),
        allowed: "only if `rule` is \"adam\" or \"adamw\"",
    };
    adam.check("optimizer.beta1", section.beta1)?;
    adam.check("optimizer.beta2", section.beta2)?;
    let with_epsilon = Condition {
        holds: is_any_of(&[OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Adagrad]),
        allowed: "only if `rule` is \"adam\", \"adamw\" or \"adagrad\"",
    };
    with_epsilon.check("optimizer.epsilon", section.epsilon)?;
    let is_proximal = is_any_of(&[OptimizerKind::Prox, OptimizerKind::Ftrl]);
    let proximal = Condition { holds: is_proximal, allowed: "only if `rule` is \"prox\" or \"ftrl\"" };
    proximal.check("optimizer.l1", section.l1)?;
    proximal.check("optimizer.l2", section.l2)?;
    let ftrl = Condition { holds: is_any_of(&[OptimizerKind::Ftrl]), allowed: "only if `rule` is \"ftrl\"" };
    ftrl.check("optimizer.beta", section.beta)?;
    let smooth =
        Condition { holds: !is_proximal, allowed: "not with `rule` \"prox\" or \"ftrl\"; give `l2`" };
    smooth.check("optimizer.weight_decay", section.weight_decay)
}

pub(super) fn resolve_schedule(run: &RunFile, steps_per_epoch: u64) -> Result<Schedule, SpecificationError> {
    let section = &run.optimizer;
    let step = Condition {
        holds: section.schedule == ScheduleName::Step,
        allowed: "only if `schedule` is \"step\"",
    };
    step.check("optimizer.decay_factor", section.decay_factor)?;
    step.check("optimizer.decay_epochs", section.decay_epochs)?;
    let cosine = Condition {
        holds: section.schedule == ScheduleName::Cosine,
        allowed: "only if `schedule` is \"cosine\"",
    };
    cosine.check("optimizer.floor", section.floor)?;
    let rate_default = match section.rule() {
        OptimizerKind::Sgd | OptimizerKind::Prox | OptimizerKind::Ftrl => 0.1,
        OptimizerKind::Adagrad => 0.01,
        OptimizerKind::Momentum => 0.05,
        OptimizerKind::Adam | OptimizerKind::AdamW => 0.001,
    };
    let rate = section.rate.unwrap_or(rate_default);
    let reference_batch = section.scale_from_batch.unwrap_or(run.batch());
    within("optimizer.scale_from_batch", reference_batch, 1.., "at least 1")?;
    let decay = match section.schedule {
        ScheduleName::Constant => Decay::Constant,
        ScheduleName::Step => Decay::Step {
            factor: section.decay_factor.unwrap_or(0.1),
            every: section.decay_epochs.unwrap_or((run.epochs() / 3).max(1)).saturating_mul(steps_per_epoch),
        },
        ScheduleName::Cosine => Decay::Cosine {
            floor: section.floor.unwrap_or(0.0),
            total_steps: run.epochs().saturating_mul(steps_per_epoch),
        },
    };
    Ok(Schedule {
        base: scaled(rate, run.batch(), reference_batch),
        warmup_steps: section.warmup_steps,
        decay,
    })
}
