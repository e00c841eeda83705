//! The model file: trained parameters in the safetensors format, with their origin in the metadata.
//!
//! Other tools read the tensors by name (`layer.0.weight`, ...), as row-major `f32`. One entry of the file's metadata, in TOML, holds
//! peergrad's own data: run, committed steps, specification, order of the tensors in the flat vector, and the vector's digest.
//!
//! # Invariants
//! - The bytes depend only on the contents: two peers with the same model export identical files.
//! - A file that decodes holds finite numbers and matches its digest. Decoding allocates no more than the size of the file.

use peergrad_models::data::bytes::DataBytes;
use peergrad_protocol::RunId;
use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::limits::{SPECIFICATION_BYTES_MAX, TENSORS_MAX};
use peergrad_protocol::manifest::Manifest;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

pub use crate::specification::answers::{Confusion, DataPart, Evaluated, Predictions};
use crate::specification::{DeepBackend, Specification, SpecificationError};

/// The maximum size of a file's header, which holds names, shapes and metadata.
pub const HEADER_BYTES_MAX: usize = 4 << 20;
/// A specification grows when it is quoted, by a factor far below this.
const _: () = assert!(HEADER_BYTES_MAX >= 8 * SPECIFICATION_BYTES_MAX);

/// The metadata entry of peergrad. It is the only one, because the format does not define an order of several.
const METADATA_KEY: &str = "peergrad";
/// The prefix of tensors that are not part of the model, such as a checkpoint's optimizer state.
pub const OWN_TENSORS: &str = "peergrad.";
/// The size of the header's length, which precedes the header.
const LENGTH_BYTES: usize = 8;

/// A trained model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFile {
    /// Names and shapes, in the order of the flat vector.
    pub manifest: Manifest,
    /// The flat vector.
    pub parameters: Vec<f32>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The run that trained it.
    pub run: RunId,
    /// How many steps of the run were committed.
    pub steps: u64,
    /// The run's specification; empty if it is not text.
    pub specification: String,
}

/// What is stored under [`METADATA_KEY`], as TOML.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    run: String,
    steps: u64,
    digest: String,
    tensors: Vec<String>,
    specification: String,
}

/// Why a model file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelFileError {
    /// The bytes are not a complete safetensors file.
    #[error("not a complete safetensors file ({0}); export or copy it again")]
    Damaged(String),
    /// The header is larger than any that peergrad writes.
    #[error(
        "the header claims {found} bytes, but at most {HEADER_BYTES_MAX} are supported; peergrad did not export this model"
    )]
    HeaderTooLarge {
        /// Bytes that the header claims.
        found: u64,
    },
    /// The safetensors file was written by another program.
    #[error("this safetensors file was not exported by peergrad ({0}); use one made by `peer export`")]
    Foreign(String),
    /// A tensor has another type or shape than peergrad writes.
    #[error("the tensor `{name}` is {found}, expected {expected}; export the model again")]
    Tensor {
        /// Its name.
        name: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// The parameters do not match their digest.
    #[error(
        "the parameters were altered after the export (their digest does not match); export or copy the file again"
    )]
    Altered,
    /// A parameter is infinite or NaN, because the training diverged.
    #[error(
        "the tensor `{name}` holds {found}: the training diverged; train again with a lower `rate` in [optimizer]"
    )]
    NotFinite {
        /// The tensor.
        name: String,
        /// The value.
        found: String,
    },
    /// The specification in the file, or the data, cannot be used.
    #[error(transparent)]
    Specification(#[from] SpecificationError),
}

impl ModelFile {
    /// The bytes of a safetensors file.
    ///
    /// # Panics
    /// The number of parameters is not that of the manifest.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = self.manifest.parameter_count();
        assert_eq!(self.parameters.len(), count, "as many parameters as the manifest has");
        let bytes: &[u8] = bytemuck::cast_slice(&self.parameters);
        let entry = metadata_of(&self.manifest, ContentDigest::of(bytes), &self.origin);
        let metadata = std::iter::once(entry).collect();
        let views = self.manifest.tensors().map(|(tensor, range)| {
            let shape = tensor.shape.iter().map(|&extent| extent as usize).collect();
            let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(&self.parameters[range]));
            (tensor.name.as_str(), view.expect("a range has as many elements as its shape"))
        });
        safetensors::serialize(views, Some(metadata)).expect("the header is within the format's bounds")
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// The bytes are truncated, altered or from another program, or hold numbers that are not finite.
    pub fn decode(bytes: &[u8]) -> Result<Self, ModelFileError> {
        let model = Self::decode_any(bytes)?;
        check_finite(&model.manifest, &model.parameters)?;
        Ok(model)
    }

    /// As [`ModelFile::decode`], but accepts parameters that are not finite.
    pub fn decode_any(bytes: &[u8]) -> Result<Self, ModelFileError> {
        check_header_length(bytes)?;
        let damaged = |error: safetensors::SafeTensorError| ModelFileError::Damaged(error.to_string());
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let foreign = |reason: &str| ModelFileError::Foreign(reason.to_owned());
        let ours = header.metadata().as_ref().and_then(|entries| entries.get(METADATA_KEY));
        let metadata: Metadata = toml::from_str(ours.ok_or_else(|| foreign("it has no entry `peergrad`"))?)
            .map_err(|error| foreign(error.message()))?;
        let run = blake3::Hash::from_hex(&metadata.run).map_err(|_| foreign("its run id is invalid"))?;
        let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
        let (manifest, parameters) = read_tensors(&file, &metadata.tensors)?;
        if ContentDigest::of(bytemuck::cast_slice(&parameters)).to_string() != metadata.digest {
            return Err(ModelFileError::Altered);
        }
        let origin = Origin {
            run: RunId(*run.as_bytes()),
            steps: metadata.steps,
            specification: metadata.specification,
        };
        Ok(Self { manifest, parameters, origin })
    }

    /// Evaluates the model on a data file: on the held-out rows of the file that it was trained on, or on all rows of another file
    /// with the same columns, in any order if they have names. `file` is the name for errors.
    ///
    /// # Errors
    /// The model is not a built-in one, or the data does not match it.
    pub fn evaluate(
        &self,
        file: &str,
        data: impl Into<DataBytes>,
        deep: &DeepBackend,
    ) -> Result<Evaluated, ModelFileError> {
        Ok(self.specification()?.evaluate(&self.parameters, file, data, deep)?)
    }

    /// The specification of the run that trained it.
    ///
    /// # Errors
    /// The model is not a built-in one.
    pub fn specification(&self) -> Result<Specification, ModelFileError> {
        let specification = Specification::parse(self.origin.specification.as_bytes())?;
        if specification.manifest() != self.manifest {
            return Err(ModelFileError::Foreign("its tensors are not those of its specification".to_owned()));
        }
        Ok(specification)
    }
}

/// The key and the value of peergrad's metadata entry.
pub fn metadata_of(manifest: &Manifest, digest: ContentDigest, origin: &Origin) -> (String, String) {
    let metadata = Metadata {
        run: origin.run.to_string(),
        steps: origin.steps,
        digest: digest.to_string(),
        tensors: manifest.tensors().map(|(tensor, _)| tensor.name.clone()).collect(),
        specification: origin.specification.clone(),
    };
    let metadata = toml::to_string(&metadata).expect("strings and numbers can be written as TOML");
    (METADATA_KEY.to_owned(), metadata)
}

/// Checks the length of the header.
///
/// # Errors
/// It is missing or too large.
fn check_header_length(bytes: &[u8]) -> Result<(), ModelFileError> {
    let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else {
        return Err(ModelFileError::Damaged(format!("it has {} bytes", bytes.len())));
    };
    match u64::from_le_bytes(*length) {
        found if found > HEADER_BYTES_MAX as u64 => Err(ModelFileError::HeaderTooLarge { found }),
        _ => Ok(()),
    }
}

/// Reads the tensors in the order of `names` into one flat vector.
fn read_tensors(file: &SafeTensors<'_>, names: &[String]) -> Result<(Manifest, Vec<f32>), ModelFileError> {
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let count = file.names().into_iter().filter(|name| !name.starts_with(OWN_TENSORS)).count();
    if sorted.len() != names.len() || names.len() != count || names.len() > TENSORS_MAX {
        let reason = format!("{count} tensors, but {} are listed", names.len());
        return Err(ModelFileError::Foreign(reason));
    }
    let mut shapes = Vec::with_capacity(names.len());
    let mut parameters = Vec::new();
    for name in names {
        let wrong = |found: String, expected: &str| ModelFileError::Tensor {
            name: name.clone(),
            found,
            expected: expected.to_owned(),
        };
        let tensor = file.tensor(name).map_err(|_| wrong("missing".to_owned(), "present"))?;
        if tensor.dtype() != Dtype::F32 {
            return Err(wrong(format!("{:?}", tensor.dtype()), "F32"));
        }
        let shape: Result<Vec<u32>, _> = tensor.shape().iter().map(|&extent| u32::try_from(extent)).collect();
        shapes.push(shape.map_err(|_| wrong(format!("{:?}", tensor.shape()), "extents below 2^32"))?);
        let values = tensor.data().chunks_exact(size_of::<f32>());
        parameters.extend(values.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))));
    }
    let pairs = names.iter().map(String::as_str).zip(shapes.iter().map(Vec::as_slice));
    Ok((Manifest::new(pairs), parameters))
}

fn check_finite(manifest: &Manifest, parameters: &[f32]) -> Result<(), ModelFileError> {
    for (tensor, range) in manifest.tensors() {
        if let Some(&value) = parameters[range].iter().find(|value| !value.is_finite()) {
            return Err(ModelFileError::NotFinite { name: tensor.name.clone(), found: value.to_string() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::single_process::train_single_process;
    use crate::specification::{RunFile, resolve};
    use proptest::prelude::*;

    const DATA: &[u8] = b"0,0,a\n1,0,b\n0.1,1,a\n0.9,1,b\n0,2,a\n1,2,b\n0.2,3,a\n1.1,3,b\n0,4,a\n1,4,b\n";

    /// A briefly trained model with eleven layers, whose order by name differs from the order of the layers.
    fn trained() -> ModelFile {
        let text = "epochs = 60\nbatch = 4\n[data]\nfile = \"f.csv\"\n[model]\nhidden = [3,3,3,3,3,3,3,3,3,4]\nactivation = \"tanh\"\n[optimizer]\nrate = 0.02";
        let specification = resolve(&RunFile::parse(text).unwrap(), "f.csv", DATA).unwrap();
        let loaded = specification.load(DATA).unwrap();
        let origin = Origin {
            run: RunId([7; 32]),
            steps: 120,
            specification: String::from_utf8(specification.to_bytes().unwrap()).unwrap(),
        };
        let parameters = train_single_process(&loaded, |_| ());
        ModelFile { manifest: loaded.manifest, parameters, origin }
    }

    #[test]
    fn a_model_reads_back() {
        let model = trained();
        let bytes = model.encode();
        assert_eq!(ModelFile::decode(&bytes).unwrap(), model);
        assert_eq!(bytes, model.encode(), "the same file each time");
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.tensor("layer.10.weight").unwrap().shape(), [2, 4]);
    }

    #[test]
    fn evaluation_uses_held_out_rows_of_the_training_file_and_all_of_another() {
        let model = trained();
        let own = model.evaluate("f.csv", DATA, &None).unwrap();
        assert_eq!((own.evaluation.samples, own.part), (2, DataPart::HeldOut));
        let other = model.evaluate("g.csv", b"x;y;kind\n0;1;a\n1;1;b\n0;3;a\n", &None).unwrap();
        assert_eq!((other.evaluation.samples, other.part), (3, DataPart::All));
        assert_eq!(other.evaluation.accuracy, Some(1.0));
        let error = model.evaluate("g.csv", b"0,1,2,a\n", &None).unwrap_err().to_string();
        assert!(
            error.starts_with("g.csv: the file has 4 columns, but the model was trained on 3"),
            "{error}"
        );
        let error = model.evaluate("g.csv", b"0,1,a\n1,1,c\n", &None).unwrap_err().to_string();
        assert!(error.starts_with("g.csv, line 2: the label `c` is not among the classes (a, b)"), "{error}");
    }

    #[test]
    fn damage_is_detected() {
        let bytes = trained().encode();
        for end in [0, 7, 8, 100, bytes.len() - 1] {
            assert!(matches!(ModelFile::decode(&bytes[..end]), Err(ModelFileError::Damaged(_))), "{end}");
        }
        let mut altered = bytes.clone();
        *altered.last_mut().unwrap() ^= 1;
        assert_eq!(ModelFile::decode(&altered), Err(ModelFileError::Altered));
        let huge = [&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat();
        assert!(matches!(ModelFile::decode(&huge), Err(ModelFileError::HeaderTooLarge { .. })));
    }

    #[test]
    fn a_diverged_model_is_an_error() {
        let mut model = trained();
        model.parameters[0] = f32::NAN;
        let error = ModelFile::decode(&model.encode()).unwrap_err();
        assert!(error.to_string().starts_with("the tensor `layer.0.weight` holds NaN"), "{error}");
    }

    #[test]
    fn files_of_other_programs_are_foreign() {
        let view = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
        let bytes = safetensors::serialize([("w", view)], None).unwrap();
        assert!(matches!(ModelFile::decode(&bytes), Err(ModelFileError::Foreign(_))));
    }

    #[test]
    fn tensors_must_fit_the_specification() {
        let mut model = trained();
        model.manifest = Manifest::new([("w", &[model.parameters.len() as u32][..])]);
        let again = ModelFile::decode(&model.encode()).unwrap();
        assert!(matches!(again.evaluate("f.csv", DATA, &None), Err(ModelFileError::Foreign(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200), place in 0_usize..400) {
            let _ = ModelFile::decode(&bytes);
            let mut altered = trained_bytes().to_vec();
            for (index, byte) in bytes.iter().take(8).enumerate() {
                altered[place + index] ^= byte;
            }
            let _ = ModelFile::decode(&altered);
        }
    }

    fn trained_bytes() -> &'static [u8] {
        static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        BYTES.get_or_init(|| trained().encode())
    }
}
