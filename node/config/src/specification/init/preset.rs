//! The settings of a run file that depend on the size of the data: the model, the batch, the learning rate.

use peergrad_models::data::format::Format;
use peergrad_models::data::labels::Target;

use super::super::DataSettings;
use super::super::deep::convolutional::default_layers;
use super::super::run_file::{InputForm, ModelKind, SEED_DEFAULT};
use super::{line, toml};

/// Files with fewer rows than this get a model without a hidden layer: softmax or linear regression.
const ROWS_FOR_HIDDEN_LAYER: u32 = 1000;
/// Files with more feature columns than this get a hidden layer of twice the width.
const COLUMNS_FOR_NARROW_LAYER: usize = 256;

/// The settings that depend on the size of the data.
pub(super) struct Preset {
    epochs: u64,
    pub(super) batch: u64,
    pub(super) kind: ModelKind,
    /// Whether each step touches few parameters.
    pub(super) is_sparse: bool,
    hidden: usize,
    rate: f64,
    /// The L2 penalty: that of a support vector machine is one over the number of training rows.
    penalty: f64,
    /// Of a convolutional network.
    layers: Vec<String>,
}

impl Preset {
    pub(super) fn of(
        data: &DataSettings,
        input: InputForm,
        kind: Option<ModelKind>,
        picture: Option<[usize; 3]>,
    ) -> Self {
        let columns = data.layout.columns();
        let kind = kind.unwrap_or(match (&data.target, data.rows < ROWS_FOR_HIDDEN_LAYER) {
            (Target::Class { classes }, _) if input == InputForm::SparseTable && classes.len() == 2 => {
                ModelKind::Logistic
            }
            (_, false) => ModelKind::Mlp,
            (Target::Class { .. }, true) => ModelKind::Softmax,
            (Target::Number { .. } | Target::Token { .. }, true) => ModelKind::Linear,
        });
        let is_deep = kind.is_deep();
        let values = u64::from(data.rows) * columns as u64;
        let epochs = match values {
            _ if is_deep => 10,
            0..1_000_000 => 40,
            1_000_000..20_000_000 => 20,
            _ => 10,
        };
        let batch = match data.rows {
            0..ROWS_FOR_HIDDEN_LAYER => 32,
            ROWS_FOR_HIDDEN_LAYER..100_000 => 64,
            _ => 256,
        };
        let hidden = if columns > COLUMNS_FOR_NARROW_LAYER { 256 } else { 128 };
        // A model without a hidden layer tolerates a higher rate.
        let rate = match kind {
            ModelKind::Mlp => 0.005,
            _ if is_deep => 0.002,
            _ => 0.01,
        };
        let layers = picture.map(default_layers).unwrap_or_default();
        let is_sparse = match kind {
            ModelKind::Logistic => true,
            ModelKind::Svm => data.layout.format() == Format::Libsvm && has_two_classes(data),
            _ => false,
        };
        let training_rows = f64::from(data.rows - data.held_out_rows);
        // Two digits are enough.
        let inverse = || format!("{:.1e}", 1.0 / training_rows).parse().unwrap_or_default();
        let penalty = if kind == ModelKind::Svm { inverse() } else { 0.0 };
        Self { epochs, batch, kind, is_sparse, hidden, rate, penalty, layers }
    }

    /// The settings before the first section.
    pub(super) fn training(&self) -> String {
        let Self { epochs, batch, .. } = self;
        [
            line(&format!("epochs = {epochs}"), "passes over the training rows"),
            line(
                &format!("batch = {batch}"),
                "rows per step, over all peers together: it does not grow with their number",
            ),
            line(
                &format!("seed = {SEED_DEFAULT}"),
                "seed of the initial parameters, the row order and the held-out rows",
            ),
        ]
        .concat()
    }

    /// The sections `[model]` and `[optimizer]`.
    pub(super) fn model(&self) -> String {
        let Self { hidden, rate, penalty, .. } = self;
        let model = match self.kind {
            ModelKind::Mlp => [
                line("kind = \"mlp\"", "or softmax (classes) or linear (a number), without hidden layers"),
                line(&format!("hidden = [{hidden}]"), "widths of the hidden layers"),
                line("activation = \"relu\"", "or tanh, gelu"),
            ]
            .concat(),
            ModelKind::Softmax => {
                line("kind = \"softmax\"", "softmax regression; or mlp, with hidden = [128]")
            }
            ModelKind::Linear => line("kind = \"linear\"", "linear regression; or mlp, with hidden = [128]"),
            ModelKind::Logistic => {
                line("kind = \"logistic\"", "one weight per feature; or svm, softmax, mlp")
            }
            ModelKind::Svm => line("kind = \"svm\"", "a linear support vector machine; or softmax, mlp"),
            ModelKind::Cnn => [
                line("kind = \"cnn\"", "a convolutional network; or resnet"),
                format!("layers = {}\n", toml(&self.layers)),
            ]
            .concat(),
            ModelKind::Resnet => [
                line("kind = \"resnet\"", "a residual network; or cnn"),
                line("depth = 8", "layers with weights: 8, 14, 20, ..."),
                line("norm = \"group\"", "the norm after each convolution; or batch"),
            ]
            .concat(),
            ModelKind::Gpt | ModelKind::Llama | ModelKind::Factorization | ModelKind::Lda => {
                unreachable!("texts, ratings and documents have other run files")
            }
        };
        let penalty_comment = |otherwise: &'static str| match self.kind {
            ModelKind::Svm => "1 / (C x training rows), here with C = 1",
            _ => otherwise,
        };
        if self.is_sparse {
            let optimizer = [
                line("rule = \"ftrl\"", "a learning rate per feature; or prox, adagrad, sgd, ..."),
                line("rate = 0.1", "the learning rate of a feature before it first occurs"),
                line("l1 = 0.0", "factor of the L1 penalty, which makes weights zero"),
                line(
                    &format!("l2 = {penalty:?}"),
                    penalty_comment("factor of the L2 penalty (half the sum of squares)"),
                ),
            ]
            .concat();
            return format!("\n[model]\n{model}\n[optimizer]\n{optimizer}");
        }
        let optimizer = [
            line("rule = \"adam\"", "or adamw, adagrad, momentum, sgd; prox or ftrl for sparse models"),
            line(&format!("rate = {rate}"), "the highest learning rate"),
            line("schedule = \"cosine\"", "decays to 0 at the end; or step, constant"),
            line(
                &format!("weight_decay = {penalty:?}"),
                penalty_comment("this multiple of the parameters is added to the gradient"),
            ),
            line("warmup_steps = 0", "steps over which the rate rises from 0"),
            line("# clip_norm = 1.0", "a gradient with a larger norm is shortened to this one"),
            line("# bounds = [0.0, inf]", "parameters stay between these numbers; here: nonnegative"),
        ]
        .concat();
        format!("\n[model]\n{model}\n[optimizer]\n{optimizer}{}", groups())
    }
}

fn has_two_classes(data: &DataSettings) -> bool {
    matches!(&data.target, Target::Class { classes } if classes.len() == 2)
}

/// How tensors are trained differently from the rest, commented out.
fn groups() -> String {
    [
        line("# [[optimizer.groups]]", "tensors that are trained differently; there may be several groups"),
        line(
            "# tensors = [\"*.bias\"]",
            "names of tensors, such as layer.0.weight; * stands for any characters",
        ),
        line("# weight_decay = 0.0", "in place of the one above"),
        line("# rate_factor = 0.1", "times the learning rate"),
    ]
    .concat()
}
