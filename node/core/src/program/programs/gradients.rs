//! Gradients for parameters in a table: a worker reads the rows that its samples use, and computes what to add to them.

use std::sync::Arc;

use peergrad_models::task::Task;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::{RowSet, Rows};

use crate::program::context::{Clock, Interrupted};
use crate::table::TableLayout;

/// The gradient of a clock's samples, times `scale`, as rows of the table of parameters.
///
/// A gradient that overflowed would ruin the shared parameters, so its samples are left out, and the loss is not a number.
///
/// # Errors
/// [`Interrupted`] if the run ends first.
pub(super) async fn gradient(
    task: &Arc<dyn Task>,
    clock: &Clock,
    scale: f32,
) -> Result<(Rows, SampleStats), Interrupted> {
    let (task, samples, layout) = (task.clone(), clock.samples.clone(), clock.layout.clone());
    let (cost, info) = (samples.len() as u64, clock.info());
    if task.sparse().is_none() {
        let parameters = clock.parameters().await?;
        return clock
            .compute(cost, move || {
                let mut gradient = vec![0.0; parameters.len()];
                let loss = task.contribute(&info, &parameters, &samples, &mut gradient);
                scaled(gradient, scale, SampleStats { samples: cost, loss }, &layout)
            })
            .await;
    }
    let (of, first) = (task.clone(), layout.parameter_rows().bounds().expect("there are parameters").0);
    let for_touched = samples.clone();
    let touched = clock.compute(0, move || sparse(&*of).touched(&for_touched)).await?;
    let indices: RowSet = touched.iter().map(|index| first + u64::from(*index)).collect();
    let parameters = clock.get(indices.clone()).expect("a touched parameter is one").await?;
    clock
        .compute(cost, move || {
            let mut gradient = vec![0.0; parameters.len()];
            let loss = sparse(&*task).gradient_at(&touched, &parameters, &samples, &mut gradient);
            finite(indices, gradient, scale, SampleStats { samples: cost, loss })
        })
        .await
}

fn sparse(task: &dyn Task) -> &dyn peergrad_models::task::SparseTask {
    task.sparse().expect("a task that is sparse stays so")
}

/// Scales a gradient with respect to all parameters, and returns it as rows of their table.
pub(super) fn scaled(
    mut gradient: Vec<f32>,
    scale: f32,
    stats: SampleStats,
    layout: &TableLayout,
) -> (Rows, SampleStats) {
    let indices = layout.parameter_rows();
    let width = layout.width(layout.chunk_of(indices.bounds().expect("there are parameters").0));
    gradient.resize(indices.len() * width, 0.0);
    finite(indices, gradient, scale, stats)
}

fn finite(indices: RowSet, mut gradient: Vec<f32>, scale: f32, stats: SampleStats) -> (Rows, SampleStats) {
    gradient.iter_mut().for_each(|element| *element *= scale);
    if !stats.loss.is_finite() || gradient.iter().any(|element| !element.is_finite()) {
        return (Rows::default(), SampleStats { samples: 0, loss: f64::NAN });
    }
    (Rows { indices, values: gradient }, stats)
}
