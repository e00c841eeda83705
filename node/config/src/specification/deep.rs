//! Deep networks in a run file and in a specification: convolutional networks on pictures, transformers on text.

use std::sync::Arc;

use peergrad_models::deep::tensors::TensorSpec;
use peergrad_models::deep::{Architecture, Backend, adapters};
use peergrad_protocol::limits::TENSORS_MAX;

use super::groups::GroupSettings;
use super::memory::ByteSize;
use super::{PARAMETERS_MAX, SpecificationError, within};
use transformer::LoraSettings;

pub mod convolutional;
pub(super) mod data;
pub mod transformer;

/// What computes deep networks, if this program has it.
pub type DeepBackend = Option<Arc<dyn Backend>>;

/// Returns what computes deep networks in this program.
///
/// # Errors
/// There is nothing that does.
pub fn check_backend(deep: &DeepBackend) -> Result<&Arc<dyn Backend>, SpecificationError> {
    deep.as_ref().ok_or(SpecificationError::NoBackend)
}

/// The tensors that a run of this network trains: only those of its adapters, if it has any.
pub(super) fn tensors(architecture: &Architecture, lora: Option<LoraSettings>) -> Vec<TensorSpec> {
    match (architecture, lora) {
        (Architecture::Transformer(net), Some(lora)) => adapters::tensors(net, lora.rank),
        _ => architecture.tensors(),
    }
}

/// Checks that the network has no more tensors, parameters and intermediate values than are supported.
fn check_size(architecture: &Architecture, lora: Option<LoraSettings>) -> Result<(), SpecificationError> {
    let tensors = tensors(architecture, lora);
    within("model.layers", tensors.len(), 1..=TENSORS_MAX, "layers with at most 4096 tensors")?;
    let parameters = tensors.iter().fold(0u64, |sum, tensor| {
        let elements =
            tensor.shape.iter().fold(1u64, |product, &extent| product.saturating_mul(extent as u64));
        sum.saturating_add(elements)
    });
    within("model.layers", parameters, 1..=PARAMETERS_MAX, "a model of at most 1073741824 parameters")?;
    let (found, limit) = (architecture.sample_bytes(), ByteSize(SAMPLE_BYTES_MAX));
    if found > SAMPLE_BYTES_MAX {
        let found = ByteSize(found);
        let reason = format!(
            "a single sample would have {found} of intermediate values, and at most {limit} are supported; give less of them, or smaller samples"
        );
        return Err(setting("model.layers", reason));
    }
    Ok(())
}

/// The most bytes of intermediate values that a sample may have.
const SAMPLE_BYTES_MAX: u64 = 16 << 30;

/// The running means and variances of batch norms.
fn statistics() -> GroupSettings {
    GroupSettings::of(["*.running_mean", "*.running_var"]).statistic()
}

/// Puts the statistics of batch norms into a group of their own, if there are any.
pub(super) fn add_statistics(architecture: &Architecture, groups: &mut Vec<GroupSettings>) {
    if architecture.block().is_some() && groups.first() != Some(&statistics()) {
        groups.retain(|group| *group != statistics());
        groups.insert(0, statistics());
    }
}

/// Checks that the statistics of batch norms are in a group of their own.
///
/// # Errors
/// They are not: an optimizer would take them for gradients.
pub(super) fn check_statistics(
    architecture: &Architecture,
    groups: &[GroupSettings],
) -> Result<(), SpecificationError> {
    if architecture.block().is_some() && groups.first() != Some(&statistics()) {
        return Err(SpecificationError::Foreign("the statistics of its norms are in no group".to_owned()));
    }
    Ok(())
}

fn setting(key: &'static str, reason: String) -> SpecificationError {
    SpecificationError::Network { key, reason }
}

/// Another peer's specification has a model for other data.
pub(super) fn mismatch() -> SpecificationError {
    SpecificationError::Foreign("the model is for other data".to_owned())
}

#[cfg(test)]
mod tests {
    use super::transformer::is_prose;
    use super::*;
    use crate::specification::{BuiltinLoader, RunFile, Specification, resolve};
    use peergrad_core::program::loader::Loader as _;
    use peergrad_models::data::bytes::DataBytes;
    use peergrad_models::data::embedded::{DIGITS, embedded};
    use peergrad_models::deep::changes::Change;

    const PROSE: &[u8] =
        b"It is a truth universally acknowledged, that a single man in possession of a good fortune";

    fn of_digits(settings: &str) -> Result<Specification, SpecificationError> {
        resolve(&RunFile::parse(settings)?, DIGITS, embedded(DIGITS).unwrap())
    }

    fn of_prose(settings: &str) -> Result<Specification, SpecificationError> {
        let text = format!("[data]\nfile = \"book.txt\"\n{settings}");
        resolve(&RunFile::parse(&text)?, "book.txt", PROSE)
    }

    const CNN: &str = "[data]\nfile = \"digits\"\n[model]\nkind = \"cnn\"\n";
    const GPT: &str = "[model]\nkind = \"gpt\"\ncontext = 8\n";
    const LLAMA: &str = "[model]\nkind = \"llama\"\ncontext = 8\nkv_heads = 2\n";

    #[test]
    fn a_specification_with_a_deep_network_reads_back() {
        let changed = "[data]\nfile = \"digits\"\nchanges = [\"flip\", \"shift 1\"]\n[model]\nkind = \"cnn\"\nlayers = [\"conv 4 3\"]";
        let texts = [CNN, changed, "[data]\nfile = \"digits\"\n[model]\nkind = \"resnet\"\ndepth = 14"];
        let resolved = texts.map(|text| of_digits(text).unwrap());
        for specification in resolved.iter().chain([&of_prose(GPT).unwrap(), &of_prose(LLAMA).unwrap()]) {
            let bytes = specification.to_bytes().unwrap();
            assert_eq!(Specification::parse(&bytes).unwrap(), *specification);
        }
        let of = |specification: &Specification| specification.model.convolutional().unwrap().clone();
        assert_eq!(of(&resolved[0]).picture, [1, 8, 8], "64 values are a square");
        assert_eq!(resolved[0].data.standardization.mean.len(), 1, "one mean for all pixels of a channel");
        assert_eq!(of(&resolved[1]).changes, [Change::Flip, Change::Shift { pixels: 1 }]);
    }

    #[test]
    fn prose_is_cut_into_windows_of_which_the_last_are_held_out() {
        let specification = of_prose(GPT).unwrap();
        assert_eq!((specification.data.rows, specification.data.held_out_rows), (11, 2));
        assert!(
            specification.manifest().tensors().any(|(tensor, _)| tensor.name == "transformer.wte.weight")
        );
        let llama = of_prose(LLAMA).unwrap().manifest();
        let shape =
            |name: &str| llama.tensors().find(|(tensor, _)| tensor.name == name).unwrap().0.shape.clone();
        assert_eq!(shape("model.layers.3.self_attn.k_proj.weight"), [64, 128]);
        assert_eq!(shape("model.layers.0.mlp.up_proj.weight"), [352, 128]);
        assert_eq!(shape("lm_head.weight"), [256, 128]);
        assert!(is_prose("book.txt", &PROSE.into()) && is_prose("a.md", &PROSE.into()));
        assert!(
            !is_prose("book.csv", &PROSE.into()) && !is_prose("book.txt", &DataBytes::from(&[0xff, 0xfe, 0]))
        );
    }

    #[test]
    fn pictures_and_layers_that_do_not_fit_are_refused_in_words() {
        let digits = |section: &str, setting: &str| {
            let data = if section == "data" { setting } else { "" };
            let model = if section == "model" { setting } else { "kind = \"cnn\"" };
            of_digits(&format!("[data]\nfile = \"digits\"\n{data}\n[model]\n{model}"))
                .unwrap_err()
                .to_string()
        };
        for (section, setting, words) in [
            (
                "data",
                "picture = [1, 8, 9]",
                "`data.picture` is [1, 8, 9], which has 72 values; allowed: channels, height and width whose product is 64",
            ),
            ("data", "changes = [\"crop\"]", "`data.changes`: `crop` is no change of a picture: give `flip`"),
            (
                "model",
                "kind = \"cnn\"\nlayers = [\"conv\"]",
                "`model.layers`: `conv` is no layer: the number of channels is missing",
            ),
            (
                "model",
                "kind = \"cnn\"\nlayers = [\"pool 2\", \"pool 8\"]",
                "`model.layers`: layer 2, `pool 8`: a window of 8 x 8 does not fit",
            ),
            ("model", "kind = \"cnn\"\nlayers = 3", "give a list such as"),
            (
                "model",
                "kind = \"cnn\"\ndepth = 8",
                "`model.depth` is given; allowed: only if `kind` is \"resnet\"",
            ),
            ("model", "kind = \"cnn\"\nheads = 8", "only if `kind` is \"gpt\" or \"llama\""),
            ("model", "kind = \"cnn\"\nhidden = [8]", "only if `kind` is \"mlp\""),
            ("model", "kind = \"resnet\"\ndepth = 9", "9 is not 6 n + 2: give 8, 14, 20"),
            ("model", "kind = \"resnet\"\nlayers = [\"relu\"]", "a \"resnet\" has a `depth`"),
            (
                "model",
                "kind = \"cnn\"\nnorm = \"batch\"",
                "`model.norm` is given; allowed: only if `kind` is \"resnet\"",
            ),
            (
                "model",
                "kind = \"mlp\"\nlayers = [\"relu\"]",
                "only if `kind` is \"cnn\", \"gpt\" or \"llama\"",
            ),
            (
                "model",
                "kind = \"cnn\"\nlayers = [\"dense 1048576\", \"dense 1048576\"]",
                "at most 1073741824 parameters",
            ),
        ] {
            let error = digits(section, setting);
            assert!(error.contains(words), "{setting}: {error}");
        }
    }

    #[test]
    fn transformers_that_do_not_fit_are_refused_in_words() {
        for (setting, words) in [
            (
                "context = 99",
                "`model.context` is 99; allowed: at most 44 tokens, so that the text has at least two samples",
            ),
            ("context = 0", "`model.context` is 0"),
            ("context = 8\nheads = 3", "`model.heads`: it must be a divisor of the width, 128"),
            ("context = 8\ndropout = 1.5", "`model.dropout`: it must be 0 up to"),
            ("context = 8\nkv_heads = 2", "`model.kv_heads` is given; allowed: only if `kind` is \"llama\""),
            ("context = 8\nlayers = [\"relu\"]", "give the number of blocks; only a \"cnn\" has a list"),
        ] {
            let error = of_prose(&format!("[model]\nkind = \"gpt\"\n{setting}")).unwrap_err().to_string();
            assert!(error.contains(words), "{setting}: {error}");
        }
        for (setting, words) in [
            ("kv_heads = 3", "`model.kv_heads`: it must be a divisor of the heads, 4"),
            ("hidden_width = 0", "`model.hidden_width`: it must be 1 to 262144"),
            ("heads = 3", "`model.heads`: it must be a divisor of the width, 128"),
            ("width = 12", "`model.heads`: it must be a number that leaves each head an even width"),
        ] {
            let text = format!("[model]\nkind = \"llama\"\ncontext = 8\n{setting}");
            let error = of_prose(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{setting}: {error}");
        }
        let error = of_prose(&format!("label = 1\n{GPT}")).unwrap_err().to_string();
        assert!(
            error.contains(
                "`data.label` is given; allowed: nothing if `kind` in [model] is \"gpt\" or \"llama\""
            ),
            "{error}"
        );
    }

    #[test]
    fn a_program_without_a_backend_says_how_to_get_one() {
        let specification = of_digits(CNN).unwrap();
        let error = specification.load(embedded(DIGITS).unwrap()).err().unwrap().to_string();
        assert!(error.contains("cargo build --release --features deep"), "{error}");
        let error = BuiltinLoader::default().data(&specification.to_bytes().unwrap()).unwrap_err();
        assert!(error.contains("--features deep"), "{error}");
    }

    #[test]
    fn specifications_of_other_peers_are_checked() {
        let altered = |of: &Specification, from: &str, to: &str| {
            let text = String::from_utf8(of.to_bytes().unwrap()).unwrap();
            assert!(text.contains(from), "{text}");
            Specification::parse(text.replace(from, to).as_bytes()).map(drop)
        };
        let cnn = of_digits(CNN).unwrap();
        assert!(altered(&cnn, "\"conv 32 3\"", "\"conv 32 9\"").is_ok());
        assert!(altered(&cnn, "\"conv 32 3\"", "\"conv 32\"").is_err());
        assert!(altered(&cnn, "picture = [1, 8, 8]", "picture = [1, 8, 4]").is_err());
        assert!(altered(&cnn, "kind = \"convolutional\"", "kind = \"transformer\"").is_err());
        let normed =
            of_digits("[data]\nfile = \"digits\"\n[model]\nkind = \"resnet\"\nnorm = \"batch\"").unwrap();
        assert_eq!(normed.training.groups, [statistics()]);
        assert!(altered(&normed, "statistic = true", "weight_decay = 0.0").is_err());
        let gpt = of_prose(GPT).unwrap();
        assert!(altered(&gpt, "heads = 4", "heads = 3").is_err());
        assert!(altered(&gpt, "heads = 4", "heads = 0").is_err());
        assert!(altered(&gpt, "vocabulary = 256", "vocabulary = 9").is_err());
        assert!(altered(&gpt, "context = 8", "context = 0").is_err());
        assert!(altered(&gpt, "width = 128", "width = 9999999999").is_err());
        let llama = of_prose(LLAMA).unwrap();
        assert!(altered(&llama, "kv_heads = 2", "kv_heads = 4").is_ok());
        assert!(altered(&llama, "kv_heads = 2", "kv_heads = 3").is_err());
        assert!(altered(&llama, "head_width = 32", "head_width = 4611686018427387904").is_err());
        assert!(altered(&llama, "hidden_width = 352", "hidden_width = 9999999999").is_err());
        assert!(altered(&llama, "rope_theta = 10000.0", "rope_theta = nan").is_err());
    }
}
