//! Convolutional networks: a list of layers over a picture, and an output for each class.
//!
//! The names of the tensors are those of a `torch.nn.Sequential` of the same layers, with a `Flatten` before the first dense layer:
//! `0.weight` (channels, inputs, kernel, kernel), `0.bias` (channels), and so on. The last dense layer, which makes the outputs, is added.

use std::fmt;
use std::ops::Range;

use super::layer::{BlockNorm, Layer};
use super::tensors::{Start, TensorSpec};
use crate::task::activation::Activation;

/// The most layers.
pub const LAYERS_MAX: usize = 512;
/// The samples that a batch norm normalizes together: fixed blocks of a batch, each computed by one member, so that results do not depend on
/// how many members there are (Hoffer et al., "Train longer, generalize better", 2017, section 4).
pub const NORM_SAMPLES: usize = 16;
/// The most values of a sample between two layers.
const VALUES_MAX: usize = 1 << 28;

/// A convolutional network.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionalNet {
    input: PictureShape,
    layers: Vec<PlacedLayer>,
    tensors: Vec<TensorSpec>,
}

/// The shape of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureShape {
    /// Channels: 1 for grey, 3 for colours.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// The shape of a sample between two layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A picture.
    Picture(PictureShape),
    /// So many numbers.
    Row(usize),
}

/// A layer in its network.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedLayer {
    /// The layer.
    pub layer: Layer,
    /// The shape of its input.
    pub input: Shape,
    /// The shape of its output.
    pub output: Shape,
    /// Which of the network's tensors are its own.
    pub tensors: Range<usize>,
}

/// Why layers make no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer {number}, `{layer}`: {reason}")]
pub struct LayerError {
    /// Its number, from 1.
    number: usize,
    layer: String,
    reason: String,
}

impl PictureShape {
    /// Numbers of a picture.
    #[must_use]
    pub fn values(self) -> usize {
        self.channels.saturating_mul(self.height).saturating_mul(self.width)
    }
}

impl fmt::Display for PictureShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} x {}", self.channels, self.height, self.width)
    }
}

impl Shape {
    /// Numbers of a sample.
    #[must_use]
    pub fn values(self) -> usize {
        match self {
            Self::Picture(shape) => shape.values(),
            Self::Row(width) => width,
        }
    }
}

impl ConvolutionalNet {
    /// A network of `layers`, and a dense layer of so many `outputs`.
    ///
    /// # Errors
    /// A layer does not fit what comes before it.
    pub fn new(input: PictureShape, layers: &[Layer], outputs: usize) -> Result<Self, LayerError> {
        let mut builder = Builder { shape: Shape::Picture(input), index: 0, layers: vec![], tensors: vec![] };
        let last = Layer::Dense { width: outputs };
        for (index, layer) in layers.iter().chain([&last]).enumerate() {
            let wrong = |reason| LayerError { number: index + 1, layer: layer.to_string(), reason };
            if index > LAYERS_MAX {
                return Err(wrong(format!("there are more than {LAYERS_MAX} layers")));
            }
            let is_rectified =
                layers.get(index + 1).is_none_or(|next| *next != Layer::Activation(Activation::Tanh));
            builder.add(*layer, is_rectified && index < layers.len()).map_err(wrong)?;
        }
        Ok(builder.finished(input))
    }

    /// The shape of its pictures.
    #[must_use]
    pub fn input(&self) -> PictureShape {
        self.input
    }

    /// Its layers, the last dense one included.
    #[must_use]
    pub fn layers(&self) -> &[PlacedLayer] {
        &self.layers
    }

    /// Numbers that come out.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.layers.last().expect("there is a dense layer").output.values()
    }

    pub(super) fn tensors(&self) -> Vec<TensorSpec> {
        self.tensors.clone()
    }

    /// The tensors of each layer that has some, from the last layer to the first.
    pub(super) fn stages(&self) -> Vec<Range<usize>> {
        let layers = self.layers.iter().rev().filter(|placed| !placed.tensors.is_empty());
        layers.map(|placed| placed.tensors.clone()).collect()
    }

    /// Whether it has a batch norm.
    pub(super) fn has_batch_norm(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.is_statistic)
    }

    /// Products of a weight and a value in one forward pass of a sample.
    pub(super) fn products(&self) -> u64 {
        let places = |placed: &PlacedLayer| match placed.output {
            Shape::Picture(shape) => (shape.height * shape.width) as u64,
            Shape::Row(_) => 1,
        };
        let weights = |placed: &PlacedLayer| -> u64 {
            let matrices =
                self.tensors[placed.tensors.clone()].iter().filter(|tensor| tensor.shape.len() > 1);
            matrices.map(|tensor| tensor.len() as u64).sum()
        };
        self.layers.iter().map(|placed| places(placed) * weights(placed)).sum()
    }

    /// About how many numbers a backward pass keeps of one sample: each layer's output and its gradient.
    pub(super) fn kept_per_sample(&self) -> usize {
        let kept = |placed: &PlacedLayer| {
            let parts = match placed.layer {
                Layer::Block { .. } => 9,
                Layer::Norm { .. } | Layer::BatchNorm => 4,
                _ => 2,
            };
            parts * placed.output.values()
        };
        self.input.values() + self.layers.iter().map(kept).sum::<usize>()
    }
}

/// Adds one layer after the other.
struct Builder {
    shape: Shape,
    /// The number of the next layer in PyTorch's list.
    index: usize,
    layers: Vec<PlacedLayer>,
    tensors: Vec<TensorSpec>,
}

impl Builder {
    /// The network, with the tensors of the last layer first.
    fn finished(self, input: PictureShape) -> ConvolutionalNet {
        let Self { mut layers, tensors: forward, .. } = self;
        let mut tensors = Vec::with_capacity(forward.len());
        for placed in layers.iter_mut().rev() {
            let first = tensors.len();
            tensors.extend_from_slice(&forward[placed.tensors.clone()]);
            placed.tensors = first..tensors.len();
        }
        ConvolutionalNet { input, layers, tensors }
    }

    /// Adds a layer. `is_rectified` says that its outputs go through a relu or gelu, for which its first weights are drawn.
    fn add(&mut self, layer: Layer, is_rectified: bool) -> Result<(), String> {
        let first = self.tensors.len();
        let input = self.shape;
        self.shape = self.output(layer, is_rectified)?;
        if self.shape.values() > VALUES_MAX {
            return Err(format!("it would have {} outputs for each sample", self.shape.values()));
        }
        self.index += 1;
        let tensors = first..self.tensors.len();
        self.layers.push(PlacedLayer { layer, input, output: self.shape, tensors });
        Ok(())
    }

    /// Adds the tensors of a layer, and returns the shape of its output.
    fn output(&mut self, layer: Layer, is_rectified: bool) -> Result<Shape, String> {
        let picture = match self.shape {
            Shape::Picture(shape) => Ok(shape),
            Shape::Row(width) => Err(format!(
                "it needs a picture, but {width} numbers come out of the layer before: give it before `dense`"
            )),
        };
        Ok(match layer {
            Layer::Convolution { channels, kernel, stride, padding } => {
                let input = picture?;
                let output = convolved(input, channels, Window { kernel, stride, padding })?;
                self.convolution("", input.channels, channels, kernel, is_rectified);
                self.tensor("bias", &[channels], Start::Constant(0.0));
                Shape::Picture(output)
            }
            Layer::Block { channels, stride, norm } => {
                let input = picture?;
                let output = convolved(input, channels, Window { kernel: 3, stride, padding: 1 })?;
                if norm == BlockNorm::Group && channels % BLOCK_GROUPS.min(channels) != 0 {
                    return Err(format!("its channels must be a multiple of {BLOCK_GROUPS}, or fewer"));
                }
                for (number, inputs) in [(1, input.channels), (2, channels)] {
                    self.convolution(&format!("conv{number}."), inputs, channels, 3, true);
                    let prefix = format!("norm{number}.");
                    self.norm(&prefix, channels);
                    if norm == BlockNorm::Batch {
                        self.statistics(&prefix, channels);
                    }
                }
                if input != output {
                    self.convolution("shortcut.", input.channels, channels, 1, false);
                }
                Shape::Picture(output)
            }
            Layer::Norm { groups } => {
                let input = picture?;
                if !input.channels.is_multiple_of(groups) {
                    return Err(format!(
                        "{} channels cannot be divided into {groups} equal groups",
                        input.channels
                    ));
                }
                self.norm("", input.channels);
                Shape::Picture(input)
            }
            Layer::BatchNorm => {
                let input = picture?;
                self.norm("", input.channels);
                self.statistics("", input.channels);
                Shape::Picture(input)
            }
            Layer::MaxPool { size } | Layer::AveragePool { size } => {
                let input = picture?;
                Shape::Picture(convolved(
                    input,
                    input.channels,
                    Window { kernel: size, stride: size, padding: 0 },
                )?)
            }
            Layer::Mean => Shape::Picture(PictureShape { height: 1, width: 1, ..picture? }),
            Layer::Activation(_) | Layer::Dropout { .. } => self.shape,
            Layer::Dense { width } => {
                // PyTorch's list has a `Flatten` there.
                self.index += usize::from(picture.is_ok());
                let inputs = self.shape.values();
                let limit = (6.0 / (inputs + if is_rectified { 0 } else { width }) as f32).sqrt();
                self.tensor("weight", &[width, inputs], Start::Uniform { limit });
                self.tensor("bias", &[width], Start::Constant(0.0));
                Shape::Row(width)
            }
        })
    }

    /// The weights of a convolution. They start as those of a dense layer of the same inputs.
    fn convolution(
        &mut self,
        prefix: &str,
        inputs: usize,
        channels: usize,
        kernel: usize,
        is_rectified: bool,
    ) {
        let spread = (inputs + if is_rectified { 0 } else { channels }) * kernel * kernel;
        let limit = (6.0 / spread as f32).sqrt();
        self.tensor(
            &format!("{prefix}weight"),
            &[channels, inputs, kernel, kernel],
            Start::Uniform { limit },
        );
    }

    fn norm(&mut self, prefix: &str, channels: usize) {
        self.tensor(&format!("{prefix}weight"), &[channels], Start::Constant(1.0));
        self.tensor(&format!("{prefix}bias"), &[channels], Start::Constant(0.0));
    }

    /// The running mean and variance of a batch norm.
    fn statistics(&mut self, prefix: &str, channels: usize) {
        for (name, value) in [("running_mean", 0.0), ("running_var", 1.0)] {
            self.tensor(&format!("{prefix}{name}"), &[channels], Start::Constant(value));
            self.tensors.last_mut().expect("it was just added").is_statistic = true;
        }
    }

    fn tensor(&mut self, name: &str, shape: &[usize], start: Start) {
        self.tensors.push(TensorSpec::new(format!("{}.{name}", self.index), shape, start));
    }
}

/// Groups of the norms of a residual block, if it has so many channels.
pub const BLOCK_GROUPS: usize = 8;

/// Where a kernel goes.
#[derive(Clone, Copy)]
struct Window {
    kernel: usize,
    stride: usize,
    padding: usize,
}

/// The shape after a kernel has gone over a picture.
fn convolved(input: PictureShape, channels: usize, window: Window) -> Result<PictureShape, String> {
    let Window { kernel, stride, padding } = window;
    let misfit = || {
        format!(
            "a window of {kernel} x {kernel} does not fit the {input} values that come out of the layer before"
        )
    };
    if kernel > 2 * input.height.min(input.width) + 1 {
        return Err(misfit());
    }
    if padding > kernel / 2 {
        return Err(format!(
            "a padding of more than half the kernel, {}, adds nothing but zeros",
            kernel / 2
        ));
    }
    let extent = |extent: usize| {
        let room = (extent + 2 * padding).checked_sub(kernel);
        room.map(|room| room / stride + 1).ok_or_else(misfit)
    };
    Ok(PictureShape { channels, height: extent(input.height)?, width: extent(input.width)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: PictureShape = PictureShape { channels: 1, height: 28, width: 28 };

    fn net(layers: &[&str]) -> Result<ConvolutionalNet, LayerError> {
        let layers: Vec<Layer> = layers.iter().map(|text| text.parse().unwrap()).collect();
        ConvolutionalNet::new(INPUT, &layers, 10)
    }

    fn names(net: &ConvolutionalNet) -> Vec<String> {
        let text = |tensor: &TensorSpec| format!("{} {:?}", tensor.name, tensor.shape);
        net.tensors.iter().map(text).collect()
    }

    #[test]
    fn tensors_are_named_as_in_a_sequential_of_pytorch() {
        let net = net(&[
            "conv 32 3",
            "relu",
            "pool 2",
            "conv 64 3 stride 2",
            "norm 8",
            "relu",
            "dense 128",
            "relu",
        ])
        .unwrap();
        assert_eq!(
            names(&net),
            [
                "9.weight [10, 128]",
                "9.bias [10]",
                "7.weight [128, 3136]",
                "7.bias [128]",
                "4.weight [64]",
                "4.bias [64]",
                "3.weight [64, 32, 3, 3]",
                "3.bias [64]",
                "0.weight [32, 1, 3, 3]",
                "0.bias [32]"
            ]
        );
        assert_eq!(net.stages(), [0..2, 2..4, 4..6, 6..8, 8..10]);
        assert_eq!(net.layers()[0].tensors, 8..10);
        assert_eq!(net.outputs(), 10);
        let products = 784 * 32 * 9 + 49 * 64 * 32 * 9 + 3136 * 128 + 1280;
        assert_eq!(net.products(), products);
    }

    #[test]
    fn a_block_has_a_shortcut_where_the_shape_changes() {
        let net = net(&["conv 16 3", "block 16", "block 32 stride 2", "mean"]).unwrap();
        let of = |index: usize| {
            names(&net).into_iter().filter(|name| name.starts_with(&format!("{index}."))).count()
        };
        assert_eq!((of(0), of(1), of(2), of(3)), (2, 6, 7, 0));
        assert!(names(&net).contains(&"2.shortcut.weight [32, 16, 1, 1]".to_owned()));
        assert!(names(&net).contains(&"5.weight [10, 32]".to_owned()), "{:?}", names(&net));
    }

    #[test]
    fn a_batch_norm_has_statistics() {
        let net = net(&["conv 12 3", "batch-norm", "block 12 batch-norm", "mean"]).unwrap();
        let statistics: Vec<&str> = net
            .tensors
            .iter()
            .filter(|tensor| tensor.is_statistic)
            .map(|tensor| tensor.name.as_str())
            .collect();
        assert_eq!(statistics.len(), 6);
        assert_eq!(statistics[..3], ["2.norm1.running_mean", "2.norm1.running_var", "2.norm2.running_mean"]);
        assert_eq!(statistics[4..], ["1.running_mean", "1.running_var"]);
        assert!(net.has_batch_norm());
    }

    #[test]
    fn layers_that_do_not_fit_are_refused_in_words() {
        for (layers, words) in [
            (
                &["pool 2", "pool 2", "pool 2", "pool 2", "pool 2"][..],
                "layer 5, `pool 2`: a window of 2 x 2 does not fit the 1 x 1 x 1 values",
            ),
            (&["dense 10", "conv 8 3"], "layer 2, `conv 8 3`: it needs a picture, but 10 numbers"),
            (&["conv 12 3", "norm 8"], "12 channels cannot be divided into 8 equal groups"),
            (&["conv 8 3 padding 5"], "a padding of more than half"),
            (&["block 12"], "a multiple of 8"),
            (&["dense 8", "batch-norm"], "it needs a picture"),
        ] {
            let error = net(layers).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(net(&vec!["relu"; LAYERS_MAX + 1]).is_err());
        let large = PictureShape { channels: 1, height: 4096, width: 4096 };
        let error =
            ConvolutionalNet::new(large, &["conv 64 3".parse().unwrap()], 10).unwrap_err().to_string();
        assert!(error.contains("it would have 1073741824 outputs for each sample"), "{error}");
    }
}
