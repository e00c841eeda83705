//! The data of deep networks: pictures and texts, which may stay on disk while they are trained.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::column_hints::ColumnHints;
use peergrad_models::data::dataset::HeldOutSplit;
use peergrad_models::data::dense_table::DenseTable;
use peergrad_models::data::format::{FileLayout, Format, FormatError};
use peergrad_models::data::idx::{Outline, is_idx};
use peergrad_models::data::inferred::Inferred;
use peergrad_models::data::label_texts::LabelTexts;
use peergrad_models::data::labels::{Labels, Target};
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_models::data::standardize::Standardization;
use peergrad_models::deep::pictures::{PictureBytes, PictureSamples, SamplePart, byte_counts};
use peergrad_models::deep::task::{DeepSamples, StartValues, evaluate_text};
use peergrad_models::deep::text::{TextLayout, TextSamples, TokenKind, Tokens, VOCABULARY};
use peergrad_models::deep::{Adapters, Architecture, Backend};
use peergrad_models::task::Evaluation;

use super::mismatch;
use crate::prepared_text::PreparedText;
use crate::specification::answers::DataPart;
use crate::specification::run_file::InputForm;
use crate::specification::{Specification, SpecificationError};

/// A data file with samples, as far as its founder has to read it.
pub(in crate::specification) struct SampledFile {
    /// How it is read.
    pub(in crate::specification) layout: FileLayout,
    /// What was inferred and may be wrong, each a sentence for the user.
    pub(in crate::specification) notices: Vec<String>,
    /// The labels.
    pub(in crate::specification) labels: LabelTexts,
    /// The values of the samples.
    pub(in crate::specification) values: SampleValues,
    /// The dimensions of a sample of an IDX file; of another file there are none.
    pub(in crate::specification) sample_shape: Vec<usize>,
}

/// The values of samples.
pub(in crate::specification) enum SampleValues {
    /// Those of a sparse table, which are not scaled.
    Sparse,
    /// A table.
    Table(DenseTable),
    /// Bytes.
    Bytes {
        /// The file, unpacked.
        bytes: DataBytes,
        /// Where the first sample begins, and how many values each has.
        place: (u64, usize),
    },
}

impl SampledFile {
    /// Reads a file for a model with this input, and infers what the hints leave open.
    pub(in crate::specification) fn read(
        name: &str,
        packed: &DataBytes,
        input: InputForm,
        hints: &ColumnHints,
    ) -> Result<Self, SpecificationError> {
        let bytes = packed.unpacked(name, UNPACKED_BYTES_MAX)?;
        let outline = outline(name, &bytes)?;
        if input == InputForm::Pictures
            && hints.features.is_none()
            && let Some(outline) = &outline
            && let Some(start) = outline.byte_samples()
        {
            let Inferred { layout, notices, .. } = FileLayout::of_outline(name, outline, hints)?;
            let labels = outline.label_texts(name, &bytes).map_err(FormatError::from)?;
            let (place, sample_shape) = ((start, outline.width()), outline.sample_shape().to_vec());
            return Ok(Self {
                layout,
                notices,
                labels,
                values: SampleValues::Bytes { bytes, place },
                sample_shape,
            });
        }
        let bytes = in_memory(name, &bytes)?;
        let Inferred { layout, notices, .. } = FileLayout::infer(name, &bytes, hints)?;
        let sample_shape = outline.map(|outline| outline.sample_shape().to_vec()).unwrap_or_default();
        let is_sparse = match input {
            InputForm::AnyTable => layout.format() == Format::Libsvm,
            input => input == InputForm::SparseTable,
        };
        if is_sparse {
            let labels = layout.read_sparse(name, &bytes)?.labels;
            return Ok(Self { layout, notices, labels, values: SampleValues::Sparse, sample_shape });
        }
        let table = layout.read(name, &bytes)?;
        let labels = table.labels.clone();
        Ok(Self { layout, notices, labels, values: SampleValues::Table(table), sample_shape })
    }
}

/// Where the arrays of a file are, if it is an IDX file.
pub(in crate::specification) fn outline(
    name: &str,
    bytes: &DataBytes,
) -> Result<Option<Outline>, SpecificationError> {
    const MARK_BYTES: usize = 4;
    let head = bytes.head(MARK_BYTES).map_err(|error| unreadable(name, &error))?;
    // Two zeros also begin a text in UTF-32.
    if !is_idx(&head) || head.starts_with(&[0, 0, 0xfe, 0xff]) {
        return Ok(None);
    }
    Ok(Some(Outline::of(name, bytes).map_err(FormatError::from)?))
}

impl SampleValues {
    /// The standardization of these rows, with a mean and a deviation for each of `parts` equal parts of the values.
    pub(in crate::specification) fn standardization(
        &self,
        name: &str,
        parts: usize,
        rows: &[u32],
    ) -> Result<Standardization, SpecificationError> {
        Ok(match self {
            Self::Sparse => Standardization::identity(),
            Self::Table(table) => Standardization::fit_parts(&table.features, table.columns, parts, rows),
            Self::Bytes { bytes, place } => {
                let counts =
                    byte_counts(bytes, *place, parts, rows).map_err(|error| unreadable(name, &error))?;
                Standardization::of_byte_counts(&counts)
            }
        })
    }
}

/// All bytes of a file.
pub(in crate::specification) fn in_memory<'a>(
    name: &str,
    bytes: &'a DataBytes,
) -> Result<Cow<'a, [u8]>, SpecificationError> {
    bytes.all().map_err(|error| unreadable(name, &error))
}

/// The disk does not give the file.
fn unreadable(name: &str, error: &io::Error) -> SpecificationError {
    SpecificationError::Unreadable { name: name.to_owned(), reason: error.to_string() }
}

impl Specification {
    /// Whether the data file is a prepared text.
    pub(in crate::specification) fn has_prepared_text(&self) -> bool {
        matches!(self.data.layout, FileLayout::Text(TextLayout { tokens: TokenKind::Prepared, .. }))
    }

    /// The tokens of a file, unpacked: of a prepared text, or each byte of another one if the run's tokens are bytes.
    fn tokens(&self, file: &str, bytes: DataBytes) -> Result<Tokens, SpecificationError> {
        let Target::Token { vocabulary } = self.data.target else { return Err(self.other("it is no text")) };
        let Some(prepared) = PreparedText::find(file, &bytes)?.filter(|_| self.has_prepared_text()) else {
            if vocabulary == VOCABULARY {
                return Ok(bytes.into());
            }
            return Err(self.unprepared(file, "its tokens are not those of the model"));
        };
        if prepared.vocabulary != vocabulary {
            return Err(self.unprepared(file, "it has another vocabulary"));
        }
        prepared.tokens(file, &bytes)
    }

    fn unprepared(&self, file: &str, reason: &str) -> SpecificationError {
        SpecificationError::Prepared { name: file.to_owned(), reason: reason.to_owned() }
    }

    /// The digest of the transformer that it starts from, if there is one.
    pub(in crate::specification) fn base_digest(&self) -> Option<&str> {
        self.model.transformer()?.base.as_deref()
    }

    /// Where the parameters of a deep network start; `bytes` are those of the run's data file, unpacked.
    pub(in crate::specification) fn start_values(
        &self,
        bytes: &DataBytes,
    ) -> Result<StartValues, SpecificationError> {
        if self.base_digest().is_none() {
            return Ok(StartValues::Drawn);
        }
        let base = self.base(&self.data.name, bytes)?;
        Ok(match self.adapters_on(&base)? {
            Some(adapters) => StartValues::Adapted(adapters),
            None => StartValues::Given(base),
        })
    }

    /// The parameters of the transformer that a run started from; `bytes` are those of a prepared text.
    fn base(&self, file: &str, bytes: &DataBytes) -> Result<Arc<[f32]>, SpecificationError> {
        let Architecture::Transformer(transformer) = self.architecture()? else {
            return Err(self.other("it is no text"));
        };
        let prepared = PreparedText::find(file, bytes)?.ok_or(SpecificationError::NoBase)?;
        if prepared.base_digest(file, bytes)?.as_deref() != self.base_digest() {
            return Err(self.unprepared(file, "it holds another model than the one that was trained on"));
        }
        prepared.base(file, bytes, &transformer)
    }

    fn adapters_on(&self, base: &Arc<[f32]>) -> Result<Option<Adapters>, SpecificationError> {
        let (Architecture::Transformer(net), Some(lora)) = (self.architecture()?, self.adapters()) else {
            return Ok(None);
        };
        Ok(Some(Adapters::new(&net, lora.rank, lora.alpha, Arc::clone(base))))
    }

    /// The weights that the network computes with: the parameters, or, of a model of adapters, those of the transformer in the prepared text
    /// `file` with the adapters added.
    ///
    /// # Errors
    /// The model has only adapters, and the file is not the prepared text that it was trained on.
    pub fn weights<'a>(
        &self,
        parameters: &'a [f32],
        file: &str,
        prepared: Option<&DataBytes>,
    ) -> Result<Cow<'a, [f32]>, SpecificationError> {
        if self.adapters().is_none() {
            return Ok(Cow::Borrowed(parameters));
        }
        let base = self.base(file, prepared.ok_or(SpecificationError::NoBase)?)?;
        let adapters = self.adapters_on(&base)?.ok_or(SpecificationError::NoBase)?;
        Ok(Cow::Owned(adapters.effective(parameters)))
    }

    /// The samples of a deep network, from the bytes of the run's data file, unpacked.
    pub(in crate::specification) fn deep_samples(
        &self,
        bytes: DataBytes,
    ) -> Result<DeepSamples, SpecificationError> {
        if let FileLayout::Text(layout) = &self.data.layout {
            let tokens = self.tokens(&self.data.name, bytes)?;
            if layout.samples(tokens.count) != u64::from(self.data.rows) {
                return Err(self.other("it has a different length"));
            }
            let held_out = self.data.held_out_rows as usize;
            return Ok(DeepSamples::Text(TextSamples::new(tokens, *layout, held_out)));
        }
        let settings = self.model.convolutional().ok_or_else(mismatch)?;
        let (shape, changes) = (settings.shape(), settings.changes.clone());
        Ok(DeepSamples::Pictures { pictures: self.pictures(&bytes)?, shape, changes })
    }

    /// The pictures of the run's data file, unpacked.
    fn pictures(&self, bytes: &DataBytes) -> Result<PictureSamples, SpecificationError> {
        let name = &self.data.name;
        if self.has_byte_pictures() {
            return self.byte_pictures(name, bytes, |rows| self.split(rows));
        }
        let bytes = in_memory(name, bytes)?;
        Ok(PictureSamples::Table(self.unpacked_dataset(&bytes)?))
    }

    /// The pictures of a file whose values are bytes; `rows` says which of so many are trained.
    fn byte_pictures(
        &self,
        file: &str,
        bytes: &DataBytes,
        rows: impl FnOnce(usize) -> Result<HeldOutSplit, SpecificationError>,
    ) -> Result<PictureSamples, SpecificationError> {
        let (outline, place) = self.byte_outline(file, bytes)?;
        let texts = outline.label_texts(file, bytes).map_err(FormatError::from)?;
        let labels = self.data.target.labels(file, &texts)?;
        let split = rows(outline.rows())?;
        let standardization = &self.data.standardization;
        let pictures = PictureBytes::new(bytes.clone(), place, labels, split, standardization);
        Ok(PictureSamples::Bytes(pictures))
    }

    /// Where the pictures of a file are whose values are bytes: its arrays, the first byte and the values of a picture.
    fn byte_outline(
        &self,
        file: &str,
        bytes: &DataBytes,
    ) -> Result<(Outline, (u64, usize)), SpecificationError> {
        let wrong =
            |what: &str| SpecificationError::OtherPictures { file: file.to_owned(), what: what.to_owned() };
        let outline = outline(file, bytes)?.ok_or_else(|| wrong("it is no IDX file"))?;
        let start = outline.byte_samples().ok_or_else(|| wrong("its values are not bytes"))?;
        let (values, expected) = (outline.width(), self.data.layout.columns());
        if values != expected {
            return Err(wrong(&format!("a picture has {values} values, not {expected}")));
        }
        Ok((outline, (start, values)))
    }

    /// Evaluates a transformer on `part` of a text.
    pub(in crate::specification) fn evaluate_text(
        &self,
        parameters: &[f32],
        file: &str,
        packed: &DataBytes,
        backend: &dyn Backend,
        part: DataPart,
    ) -> Result<Evaluation, SpecificationError> {
        let architecture = self.architecture()?;
        let bytes = packed.unpacked(file, UNPACKED_BYTES_MAX)?;
        let FileLayout::Text(layout) = &self.data.layout else { return Err(self.other("it is no text")) };
        let held_out = if part == DataPart::HeldOut { self.data.held_out_rows as usize } else { 0 };
        let weights = self.weights(parameters, file, Some(&bytes))?;
        let tokens = self.tokens(file, bytes)?;
        if layout.samples(tokens.count) == 0 {
            return Err(SpecificationError::ShortText { file: file.to_owned(), context: layout.context });
        }
        if part == DataPart::HeldOut && layout.samples(tokens.count) != u64::from(self.data.rows) {
            return Err(self.other("it has a different length"));
        }
        let text = TextSamples::new(tokens, *layout, held_out);
        let samples = if part == DataPart::HeldOut { text.held_out() } else { text.training() };
        Ok(evaluate_text(&architecture, backend, &weights, &text, samples))
    }

    /// The pictures of a file, and which part of them `part` is.
    pub(in crate::specification) fn pictures_of(
        &self,
        file: &str,
        packed: &DataBytes,
        part: DataPart,
        notices: &mut Vec<String>,
    ) -> Result<(PictureSamples, SamplePart), SpecificationError> {
        let bytes = packed.unpacked(file, UNPACKED_BYTES_MAX)?;
        Ok(match part {
            DataPart::HeldOut => (self.pictures(&bytes)?, SamplePart::HeldOut),
            DataPart::Trained => (self.pictures(&bytes)?, SamplePart::Training),
            DataPart::All => (self.pictures_of_other(file, &bytes, notices)?, SamplePart::Training),
        })
    }

    /// Whether a file has pictures whose values are bytes.
    pub(in crate::specification) fn is_of_byte_pictures(
        &self,
        file: &str,
        packed: &DataBytes,
    ) -> Result<bool, SpecificationError> {
        let bytes = packed.unpacked(file, UNPACKED_BYTES_MAX)?;
        Ok(outline(file, &bytes)?.is_some_and(|outline| outline.byte_samples().is_some()))
    }

    /// All pictures of a file, whose labels are not read.
    pub(in crate::specification) fn unlabelled_pictures(
        &self,
        file: &str,
        packed: &DataBytes,
    ) -> Result<PictureSamples, SpecificationError> {
        let bytes = packed.unpacked(file, UNPACKED_BYTES_MAX)?;
        let (outline, place) = self.byte_outline(file, &bytes)?;
        let count = outline.rows();
        let rows = HeldOutSplit { training: (0..count as u32).collect(), held_out: vec![] };
        let labels = Labels::Classes(vec![0; count]);
        Ok(PictureSamples::Bytes(PictureBytes::new(bytes, place, labels, rows, &self.data.standardization)))
    }

    /// All pictures of another file than the run's.
    fn pictures_of_other(
        &self,
        file: &str,
        bytes: &DataBytes,
        notices: &mut Vec<String>,
    ) -> Result<PictureSamples, SpecificationError> {
        if self.has_byte_pictures()
            && outline(file, bytes)?.is_some_and(|outline| outline.byte_samples().is_some())
        {
            let all =
                |rows: usize| Ok(HeldOutSplit { training: (0..rows as u32).collect(), held_out: vec![] });
            return self.byte_pictures(file, bytes, all);
        }
        let bytes = in_memory(file, bytes)?;
        Ok(PictureSamples::of_table(self.samples(file, &bytes, notices)?))
    }
}
