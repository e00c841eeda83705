//! The layers of a convolutional network, as users write them.
//!
//! ```text
//! conv CHANNELS KERNEL [stride N] [padding N]   a convolution; by default half the kernel is padding, and the stride 1
//! block CHANNELS [stride N] [batch-norm]        two convolutions of 3 x 3 beside a shortcut (a residual block)
//! norm GROUPS                                   group normalization
//! batch-norm                                    batch normalization
//! relu, gelu, tanh                              an activation
//! pool N, average-pool N                        the greatest or the mean value of N x N
//! mean                                          the mean of each channel
//! dropout SHARE                                 values left out in training
//! dense WIDTH                                   a dense layer
//! ```

use std::fmt;
use std::str::FromStr;

use crate::task::activation::Activation;

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layer {
    /// A convolution.
    Convolution {
        /// Channels of its output.
        channels: usize,
        /// Height and width of its kernel.
        kernel: usize,
        /// The distance between two places of the kernel.
        stride: usize,
        /// Zeros on each side.
        padding: usize,
    },
    /// Two convolutions of 3 x 3 with norms, whose output is added to the input (He et al., "Deep Residual Learning", 2015). If the shape
    /// changes, the input goes through a convolution of 1 x 1.
    Block {
        /// Channels of its output.
        channels: usize,
        /// The stride of the first convolution.
        stride: usize,
        /// The norm after each convolution.
        norm: BlockNorm,
    },
    /// Batch normalization (Ioffe and Szegedy, 2015): each channel of [so many](super::convolutional::NORM_SAMPLES) samples gets a mean of 0
    /// and a deviation of 1, and then a scale and an offset that are learned. Running means of both are kept for evaluations.
    BatchNorm,
    /// Group normalization (Wu and He, 2018): each group of channels of a sample gets a mean of 0 and a deviation of 1, and then each
    /// channel a scale and an offset that are learned.
    Norm {
        /// The number of groups.
        groups: usize,
    },
    /// An activation.
    Activation(Activation),
    /// The greatest value of each square.
    MaxPool {
        /// Its height and width, and the distance between two.
        size: usize,
    },
    /// The mean of each square.
    AveragePool {
        /// Its height and width, and the distance between two.
        size: usize,
    },
    /// The mean of each channel.
    Mean,
    /// Leaves values out in training.
    Dropout {
        /// The share that is left out, 0 up to, not including, 1.
        share: f32,
    },
    /// A dense layer.
    Dense {
        /// Its outputs.
        width: usize,
    },
}

/// The norm in a residual block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockNorm {
    /// Group normalization.
    Group,
    /// Batch normalization.
    Batch,
}

/// A text that is not a layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no layer: {reason}")]
pub struct NotALayer {
    text: String,
    reason: String,
}

/// The largest width of a dense layer.
const WIDTH_MAX: usize = 1 << 20;
/// The most channels and groups.
const CHANNELS_MAX: usize = 1 << 16;
/// The largest kernel, pool, stride and padding.
const KERNEL_MAX: usize = 255;

impl FromStr for Layer {
    type Err = NotALayer;

    fn from_str(text: &str) -> Result<Self, NotALayer> {
        let wrong = |reason: &str| NotALayer { text: text.to_owned(), reason: reason.to_owned() };
        let mut words = text.split_whitespace();
        let kind = words.next().ok_or_else(|| wrong(KINDS))?;
        let mut number = |what: &str, max: usize| {
            let word = words.next().ok_or_else(|| wrong(&format!("{what} is missing")))?;
            let found: Option<usize> = word.parse().ok().filter(|found| (1..=max).contains(found));
            found.ok_or_else(|| {
                wrong(&format!("{what} is `{word}`, but must be a whole number from 1 to {max}"))
            })
        };
        let channels = "the number of channels";
        let layer = match kind {
            "conv" => {
                let channels = number(channels, CHANNELS_MAX)?;
                let kernel = number("the size of the kernel", KERNEL_MAX)?;
                let [stride, padding] = options(&mut words, ["stride", "padding"], text)?;
                let (stride, padding) = (stride.unwrap_or(1), padding.unwrap_or(kernel / 2));
                Self::Convolution { channels, kernel, stride, padding }
            }
            "block" => {
                let channels = number(channels, CHANNELS_MAX)?;
                let mut rest: Vec<&str> = words.by_ref().collect();
                let flag = rest.iter().position(|word| *word == BATCH_NORM);
                let norm = if flag.is_some() { BlockNorm::Batch } else { BlockNorm::Group };
                flag.map(|flag| rest.remove(flag));
                let [stride] = options(&mut rest.into_iter(), ["stride"], text)?;
                Self::Block { channels, stride: stride.unwrap_or(1), norm }
            }
            BATCH_NORM => Self::BatchNorm,
            "norm" => Self::Norm { groups: number("the number of groups", CHANNELS_MAX)? },
            "relu" => Self::Activation(Activation::Relu),
            "gelu" => Self::Activation(Activation::Gelu),
            "tanh" => Self::Activation(Activation::Tanh),
            "pool" => Self::MaxPool { size: number("the size", KERNEL_MAX)? },
            "average-pool" => Self::AveragePool { size: number("the size", KERNEL_MAX)? },
            "mean" => Self::Mean,
            "dropout" => {
                let share = words
                    .next()
                    .and_then(|word| word.parse().ok())
                    .filter(|share| (0.0..1.0).contains(share));
                let share = share.ok_or_else(|| wrong("the share must be 0 up to, not including, 1"))?;
                Self::Dropout { share }
            }
            "dense" => Self::Dense { width: number("the width", WIDTH_MAX)? },
            _ => return Err(wrong(KINDS)),
        };
        match words.next() {
            Some(word) => Err(wrong(&format!("`{word}` is not expected there"))),
            None => Ok(layer),
        }
    }
}

const BATCH_NORM: &str = "batch-norm";
const KINDS: &str = "give conv, block, norm, batch-norm, relu, gelu, tanh, pool, average-pool, mean, dropout or dense, such as `conv 32 3`";

/// Numbers behind their names, each at most once and in any order. A stride is at least 1.
fn options<'a, const N: usize>(
    words: &mut impl Iterator<Item = &'a str>,
    names: [&str; N],
    text: &str,
) -> Result<[Option<usize>; N], NotALayer> {
    let wrong = |reason: String| NotALayer { text: text.to_owned(), reason };
    let mut found = [None; N];
    while let Some(name) = words.next() {
        let index = names.iter().position(|known| *known == name);
        let index = index.ok_or_else(|| wrong(format!("`{name}` is not expected there")))?;
        let least = usize::from(name == "stride");
        let value: Option<usize> = words.next().and_then(|word| word.parse().ok());
        let value = value.filter(|value| (least..=KERNEL_MAX).contains(value));
        if value.is_none() || found[index].is_some() {
            return Err(wrong(format!(
                "give `{name}` once, with a whole number from {least} to {KERNEL_MAX}"
            )));
        }
        found[index] = value;
    }
    Ok(found)
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stride_words =
            |stride: usize| if stride == 1 { String::new() } else { format!(" stride {stride}") };
        match *self {
            Self::Convolution { channels, kernel, stride, padding } => {
                write!(f, "conv {channels} {kernel}{}", stride_words(stride))?;
                if padding == kernel / 2 { Ok(()) } else { write!(f, " padding {padding}") }
            }
            Self::Block { channels, stride, norm } => {
                let norm = if norm == BlockNorm::Batch { " batch-norm" } else { "" };
                write!(f, "block {channels}{}{norm}", stride_words(stride))
            }
            Self::BatchNorm => f.write_str(BATCH_NORM),
            Self::Norm { groups } => write!(f, "norm {groups}"),
            Self::Activation(Activation::Relu) => f.write_str("relu"),
            Self::Activation(Activation::Gelu) => f.write_str("gelu"),
            Self::Activation(Activation::Tanh) => f.write_str("tanh"),
            Self::MaxPool { size } => write!(f, "pool {size}"),
            Self::AveragePool { size } => write!(f, "average-pool {size}"),
            Self::Mean => f.write_str("mean"),
            Self::Dropout { share } => write!(f, "dropout {share}"),
            Self::Dense { width } => write!(f, "dense {width}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_read_back_as_they_are_written() {
        for text in [
            "conv 32 3",
            "conv 32 5 stride 2",
            "conv 8 4 stride 4 padding 0",
            "block 16",
            "block 32 stride 2",
            "block 32 batch-norm",
            "block 32 stride 2 batch-norm",
            "batch-norm",
            "norm 8",
            "relu",
            "gelu",
            "tanh",
            "pool 2",
            "average-pool 4",
            "mean",
            "dropout 0.5",
            "dense 128",
        ] {
            assert_eq!(text.parse::<Layer>().unwrap().to_string(), text);
        }
        let reordered: Layer = " conv  8 3  padding 0 stride 2".parse().unwrap();
        assert_eq!(reordered.to_string(), "conv 8 3 stride 2 padding 0");
    }

    #[test]
    fn other_texts_are_refused_in_words() {
        for (text, words) in [
            ("", "give conv, block"),
            ("convolution 3", "give conv, block"),
            ("conv", "the number of channels is missing"),
            ("conv 32", "the size of the kernel is missing"),
            ("conv 0 3", "`0`, but must be a whole number from 1 to 65536"),
            ("conv 8 256", "`256`, but must be a whole number from 1 to 255"),
            ("conv 9999999 3", "`9999999`"),
            ("conv 8 3 stride", "give `stride` once, with a whole number from 1 to 255"),
            ("conv 8 3 stride 0", "from 1 to 255"),
            ("conv 8 3 stride 1 stride 2", "once"),
            ("conv 8 3 5", "`5` is not expected"),
            ("dropout 1", "0 up to, not including, 1"),
            ("dropout nan", "0 up to"),
            ("block 8 batch-norm batch-norm", "`batch-norm` is not expected"),
            ("batch-norm 3", "`3` is not expected"),
            ("relu 3", "`3` is not expected"),
            ("dense -1", "`-1`"),
        ] {
            let error = text.parse::<Layer>().unwrap_err().to_string();
            assert!(error.contains(words) && error.starts_with(&format!("`{text}`")), "{error}");
        }
    }
}
