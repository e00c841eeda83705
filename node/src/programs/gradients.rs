//! Gradients where parameters are in a table: a worker reads what its samples touch, and comes away with what to add to that.

use std::sync::Arc;

use peergrad_protocol::message::Tally;
use peergrad_protocol::table::{Names, Rows};

use crate::peer::{Clock, Interrupted};
use crate::table::Layout;
use crate::task::Task;

/// The gradient of a clock's samples, times `scale`, as rows of the table of parameters.
///
/// One that overflowed would ruin what all share: its samples count for nothing.
///
/// # Errors
/// The run ends first.
pub(super) async fn gradient(
    task: &Arc<dyn Task>,
    clock: &Clock,
    scale: f32,
) -> Result<(Rows, Tally), Interrupted> {
    let (task, samples, layout) = (task.clone(), clock.samples.clone(), clock.layout.clone());
    let cost = samples.len() as u64;
    if task.sparse().is_none() {
        let parameters = clock.parameters().await?;
        return clock
            .compute(cost, move || {
                let mut gradient = vec![0.0; parameters.len()];
                let loss = task.gradient(&parameters, &samples, &mut gradient);
                scaled(gradient, scale, Tally { samples: cost, loss }, &layout)
            })
            .await;
    }
    let (of, first) = (task.clone(), layout.parameters().ends().expect("there are parameters").0);
    let for_touched = samples.clone();
    let touched = clock.compute(0, move || sparse(&*of).touched(&for_touched)).await?;
    let names: Names = touched.iter().map(|index| first + u64::from(*index)).collect();
    let parameters = clock.get(names.clone()).expect("a touched parameter is one").await?;
    clock
        .compute(cost, move || {
            let mut gradient = vec![0.0; parameters.len()];
            let loss = sparse(&*task).gradient_at(&touched, &parameters, &samples, &mut gradient);
            finite(names, gradient, scale, Tally { samples: cost, loss })
        })
        .await
}

fn sparse(task: &dyn Task) -> &dyn crate::task::SparseTask {
    task.sparse().expect("a task that is sparse stays so")
}

/// A gradient with respect to all parameters, as rows of their table.
pub(super) fn scaled(mut gradient: Vec<f32>, scale: f32, tally: Tally, layout: &Layout) -> (Rows, Tally) {
    let names = layout.parameters();
    let width = layout.width(layout.chunk_of(names.ends().expect("there are parameters").0));
    gradient.resize(names.len() * width, 0.0);
    finite(names, gradient, scale, tally)
}

fn finite(names: Names, mut gradient: Vec<f32>, scale: f32, tally: Tally) -> (Rows, Tally) {
    gradient.iter_mut().for_each(|element| *element *= scale);
    if !tally.loss.is_finite() || gradient.iter().any(|element| !element.is_finite()) {
        return (Rows::default(), Tally::default());
    }
    (Rows { names, values: gradient }, tally)
}
