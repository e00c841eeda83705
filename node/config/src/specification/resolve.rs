//! Resolving: turns a run file and its data into a specification.
//!
//! Only the founder does this, once. Settings that the file leaves open are inferred from the data. Contradictions are errors before
//! training starts.

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::column_hints::ColumnHints;
use peergrad_models::data::dataset::HeldOutSplit;
use peergrad_models::data::dialect::SKIPPED_LINES_MAX;
use peergrad_models::data::format::Format;
use peergrad_models::data::labels::{Classes, Predict, Target, TargetHints};
use peergrad_models::data::limits::{FEATURES_MAX, UNPACKED_BYTES_MAX};
use peergrad_models::data::standardize::Standardization;
use peergrad_models::optimizer::Optimizer;
use peergrad_protocol::limits::{CHECKPOINTS_MAX, KEPT_DATA_BYTES_MAX};

use super::algorithm::{Aggregation, Algorithm, resolve_parts};
use super::deep::convolutional::{self, PictureForm, resolve_convolutional};
use super::deep::data::{SampleValues, SampledFile};
use super::deep::transformer::{resolve_text, resolve_transformer};
use super::factorization::resolve_factorization;
use super::run_file::{DataSection, InputForm, ModelKind, RunFile, SyncKind};
use super::topics::{check_topic_keys, resolve_topics};
use super::{
    DataSettings, ModelSettings, Specification, SpecificationError, TrainingSettings, VERSION, compression,
    dealing, deep, groups, patience, replicas, within,
};
use crate::prepared_text::PreparedText;
use optimizer::resolve_schedule;

mod optimizer;

pub use optimizer::resolve_rule;

/// The most classes that may be given as a count.
const CLASSES_COUNTED_MAX: u32 = 1 << 16;
/// The allowed value of `standardize` with samples that list what is not zero.
const ONLY_WITHOUT_ZEROS: &str = "false if `kind` in [model] is \"logistic\", or \"svm\" with a LIBSVM file: standardization would change the zeros";
/// Why a network with batch norms cannot be trained.
const NO_STATISTICS: &str = "batch norms need `kind` \"sync\", \"backup-workers\", \"local\" or \"diloco\" in [sync], with exact `gradients`: use these, or group norms";
/// Elements in a KiB of a segment.
const ELEMENTS_PER_KIB: usize = 1024 / size_of::<f32>();

/// Resolves a run file with the bytes of its data file.
///
/// `data_name` becomes the file's name in the specification; joiners look for a file of this name on their machines.
///
/// # Errors
/// A setting is out of bounds or contradicts another, or the data cannot be used.
pub fn resolve(
    run: &RunFile,
    data_name: &str,
    data: impl Into<DataBytes>,
) -> Result<Specification, SpecificationError> {
    resolve_with_notices(run, data_name, data).map(|(specification, _)| specification)
}

/// As [`resolve`], with notices about what was inferred from the data and may be wrong, each a sentence for the user.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_with_notices(
    run: &RunFile,
    data_name: &str,
    data: impl Into<DataBytes>,
) -> Result<(Specification, Vec<String>), SpecificationError> {
    let packed = &data.into();
    check_name_of_gzipped(data_name, packed)?;
    if !run.settings.is_empty() {
        return Err(SpecificationError::Setting {
            key: "settings",
            found: "given".to_owned(),
            allowed: "nothing with a built-in model: only custom tasks have such keys".to_owned(),
        });
    }
    let section = run.data()?;
    check_model_keys(run, section)?;
    let (model, data, notices) = match run.model.kind.input() {
        InputForm::Text => {
            let (model, data) = resolve_language_model(run, section, data_name, packed)?;
            (model, data, vec![])
        }
        InputForm::Ratings => resolve_factorization(run, section, data_name, packed)?,
        InputForm::Documents => resolve_topics(run, section, data_name, packed)?,
        input => {
            let ResolvedData { data, picture, notices } =
                resolve_data(section, input, run.seed, data_name, packed)?;
            let model = match picture {
                Some(picture) => {
                    ModelSettings::Convolutional(resolve_convolutional(&run.model, section, picture)?)
                }
                None => resolve_model_of_table(run, &data.target)?,
            };
            (model, data, notices)
        }
    };
    let mut training = resolve_training(run, u64::from(data.rows - data.held_out_rows))?;
    training.evaluation.check_held_out(u64::from(data.held_out_rows))?;
    if let Some(architecture) = model.architecture(&data)? {
        deep::add_statistics(&architecture, &mut training.groups);
        groups::check(&training)
            .map_err(|_| SpecificationError::Network { key: "model", reason: NO_STATISTICS.to_owned() })?;
    }
    let mut specification = Specification { version: VERSION, training, model, data };
    specification.check()?;
    if specification.to_bytes().is_err() {
        specification.data.shorten_names();
    }
    specification.to_bytes()?;
    Ok((specification, notices))
}

/// Resolves a run file that differs from that of `base` in its model or in how it is trained, with the bytes of the same data file. The
/// data is described as in `base`.
///
/// # Errors
/// As [`resolve`], and if the changed keys change what the rows are.
pub(crate) fn resolve_variant(
    run: &RunFile,
    base: &Specification,
    packed: &DataBytes,
) -> Result<Specification, SpecificationError> {
    if !matches!(base.model, ModelSettings::Dense { .. }) || run.model.kind.input() != InputForm::Table {
        let found = resolve(run, &base.data.name, packed)?;
        return if found.data == base.data { Ok(found) } else { Err(other_rows()) };
    }
    let section = run.data()?;
    check_model_keys(run, section)?;
    let model = resolve_model_of_table(run, &base.data.target)?;
    let training = resolve_training(run, u64::from(base.data.rows - base.data.held_out_rows))?;
    let specification = Specification { version: VERSION, training, model, data: base.data.clone() };
    specification.check()?;
    Ok(specification)
}

fn other_rows() -> SpecificationError {
    contradiction("model", "changed", "only values with which the model reads the same rows of the data")
}

/// Checks that a large gzipped file says so by its name: peers go by it when they have to know whether a file stays on disk.
fn check_name_of_gzipped(name: &str, packed: &DataBytes) -> Result<(), SpecificationError> {
    const GZIP_MARK: [u8; 2] = [0x1f, 0x8b];
    let is_gzipped = matches!(packed, DataBytes::Memory(bytes) if bytes.starts_with(&GZIP_MARK));
    let is_large = packed.byte_count() > KEPT_DATA_BYTES_MAX;
    let named = Condition {
        holds: !is_gzipped || !is_large || name.ends_with(".gz"),
        allowed: "a name that ends in .gz, because the file is gzipped and large",
    };
    named.check("data.file", Some(name))
}

/// Resolves a transformer, and the text that it reads.
fn resolve_language_model(
    run: &RunFile,
    section: &DataSection,
    name: &str,
    packed: &DataBytes,
) -> Result<(ModelSettings, DataSettings), SpecificationError> {
    let unpacked = packed.unpacked(name, UNPACKED_BYTES_MAX)?;
    let prepared = PreparedText::find(name, &unpacked)?;
    let data = resolve_text(section, &run.model, name, packed, prepared.as_ref())?;
    let digest = match &prepared {
        Some(text) => text.base_digest(name, &unpacked)?,
        None => None,
    };
    let base = prepared.and_then(|text| text.base);
    Ok((ModelSettings::Transformer(resolve_transformer(&run.model, (base, digest))?), data))
}

/// Resolves how a run trains its `samples` training samples.
pub(crate) fn resolve_training(run: &RunFile, samples: u64) -> Result<TrainingSettings, SpecificationError> {
    replicas::check(run.shards.replicas)?;
    patience::check(run.sync.patience_seconds)?;
    within("sync.segment_kib", run.sync.segment_kib, 1..=1024, "1 to 1024")?;
    within("checkpoints.seconds", run.checkpoints.seconds, ..=86_400, "0 to 86400")?;
    within("checkpoints.keep", run.checkpoints.keep, 1..=CHECKPOINTS_MAX, "1 to 4")?;
    let kind = run.sync_kind();
    check_kind(run.model.kind == ModelKind::Lda, kind == SyncKind::Lda)?;
    let (batch, steps_per_epoch) = match kind {
        SyncKind::Lda => {
            let parts = resolve_parts(&run.sync, samples)?;
            (samples.div_ceil(parts), parts)
        }
        _ => {
            within("batch", run.batch(), 1..=u64::from(u32::MAX), "1 to 4294967295 samples")?;
            (run.batch(), samples.div_ceil(run.batch()))
        }
    };
    let algorithm = Algorithm::resolve(&run.sync, kind, steps_per_epoch)?;
    let combine = Aggregation::resolve(&run.sync)?;
    let (gradients, parameters) = compression::resolve(&run.sync)?;
    // The schedule counts local steps; an incomplete round at the end of an epoch counts in full. Rounds that are as long as speeds allow
    // count as many local steps as they have.
    let local_steps = if algorithm.round_duration().is_some() { 1 } else { algorithm.local_steps() };
    let rated_steps = samples.div_ceil(batch.saturating_mul(local_steps)).saturating_mul(local_steps);
    let training = TrainingSettings {
        seed: run.seed,
        batch,
        epochs: run.epochs(),
        dealing: dealing::resolve(&run.sync, &algorithm, &combine)?,
        combine,
        gradients,
        parameters,
        topology: run.sync.topology,
        algorithm,
        segment_elements: run.sync.segment_kib * ELEMENTS_PER_KIB,
        replicas: run.shards.replicas,
        digest_every: run.sync.digest_every,
        patience_seconds: run.sync.patience_seconds,
        evaluation: run.evaluation,
        checkpoint_seconds: run.checkpoints.seconds,
        checkpoints_kept: run.checkpoints.keep,
        policy: run.partition.policy,
        shuffle: run.shuffle,
        optimizer: match kind {
            // Counts of topics are added up.
            SyncKind::Lda => Optimizer::Sgd { weight_decay: 0.0 },
            _ => resolve_rule(&run.optimizer)?,
        },
        groups: run.optimizer.groups.clone(),
        clip_norm: run.optimizer.clip_norm,
        bounds: run.optimizer.bounds,
        schedule: resolve_schedule(run, rated_steps)?,
    };
    training.algorithm.check(training.topology)?;
    training.evaluation.check(&training.algorithm)?;
    training.algorithm.check_rule(&training.optimizer, training.bounds)?;
    training.combine.check(training.topology, &training.algorithm)?;
    dealing::check(&training)?;
    compression::check(&training)?;
    groups::check(&training)?;
    Ok(training)
}

/// Checks that a topic model is trained in its way, and no other model is.
///
/// # Errors
/// It is not.
pub(super) fn check_kind(is_topic_model: bool, is_for_topics: bool) -> Result<(), SpecificationError> {
    let allowed = match (is_topic_model, is_for_topics) {
        (true, false) => {
            "\"lda\" or nothing if `kind` in [model] is \"lda\": topics are drawn, without gradients"
        }
        (false, true) => "another one: \"lda\" is only for the model of that name",
        _ => return Ok(()),
    };
    Err(contradiction("sync.kind", "given", allowed))
}

/// The data of a run.
pub(super) struct ResolvedData {
    /// How the file is read.
    pub(super) data: DataSettings,
    /// The pictures, if the model is for pictures.
    pub(super) picture: Option<PictureForm>,
    /// What was inferred and may be wrong, each a sentence for the user.
    pub(super) notices: Vec<String>,
}

/// Resolves how a table is read; `packed` are the bytes of its file on disk.
pub(super) fn resolve_data(
    section: &DataSection,
    input: InputForm,
    seed: u64,
    name: &str,
    packed: &DataBytes,
) -> Result<ResolvedData, SpecificationError> {
    let layout_hints = column_hints(section)?;
    if let (Some(Predict::Number), Some(_)) = (section.predict, &section.classes) {
        return Err(contradiction("data.classes", "given", "only if `predict` is \"class\""));
    }
    if let Some(Classes::Count(count)) = section.classes {
        within("data.classes", count, 2..=CLASSES_COUNTED_MAX, "2 to 65536, or a list of labels")?;
    }
    if let Some(width) = section.features {
        within("data.features", width, 1..=FEATURES_MAX, "1 to 16777216")?;
    }
    let SampledFile { layout, notices, labels, values, sample_shape } =
        SampledFile::read(name, packed, input, &layout_hints)?;
    let picture = match input {
        InputForm::Pictures => {
            let picture = convolutional::picture(section, layout.columns(), &sample_shape)?;
            Some(PictureForm { picture, bytes: matches!(values, SampleValues::Bytes { .. }) })
        }
        _ => None,
    };
    let is_sparse = matches!(values, SampleValues::Sparse);
    let dense_only = Condition { holds: !is_sparse, allowed: ONLY_WITHOUT_ZEROS };
    dense_only.check("data.standardize", section.standardize.filter(|is_wanted| *is_wanted))?;
    // Sparse formats omit zeros because they carry no information, and their values are usually scaled.
    let is_standardized = section.standardize.unwrap_or(layout.format() != Format::Libsvm) && !is_sparse;
    let rows = labels.rows().len() as u32;
    let held_out_rows = section.held_out_rows(rows);
    let split = HeldOutSplit::draw(seed, rows, held_out_rows);
    let target_hints = TargetHints { predict: section.predict, classes: section.classes.clone() };
    let target = Target::infer(name, &labels, &target_hints, &split.training)?;
    let parts = picture.map_or(layout.columns(), |picture| picture.picture[0]);
    let standardization = match is_standardized {
        true => values.standardization(name, parts, &split.training)?,
        false => Standardization::identity(),
    };
    let data = DataSettings {
        name: name.to_owned(),
        digest: packed.digest().to_string(),
        byte_count: packed.byte_count(),
        rows,
        held_out_rows,
        layout,
        target,
        standardization,
    };
    Ok(ResolvedData { data, picture, notices })
}

/// What a section says about the columns of a file.
///
/// # Errors
/// The share of held-out rows, or the number of skipped lines, is out of bounds.
pub(super) fn column_hints(section: &DataSection) -> Result<ColumnHints, SpecificationError> {
    within("data.held_out", section.held_out, 0.0..=0.9, "a share of 0 to 0.9")?;
    if let Some(count) = section.skip_lines {
        within("data.skip_lines", count, ..=SKIPPED_LINES_MAX, "0 to 1000")?;
    }
    Ok(ColumnHints {
        header: section.header,
        label: section.label.clone(),
        features: section.columns.clone(),
        width: section.features,
        encoding: section.encoding,
        delimiter: section.delimiter,
        decimal: section.decimal,
        skip_lines: section.skip_lines,
    })
}

/// Rejects keys of other kinds of models.
fn check_model_keys(run: &RunFile, data: &DataSection) -> Result<(), SpecificationError> {
    let (model, kind) = (&run.model, run.model.kind);
    let mlp = Condition { holds: kind == ModelKind::Mlp, allowed: "only if `kind` is \"mlp\"" };
    mlp.check("model.hidden", model.hidden.as_ref())?;
    mlp.check("model.activation", model.activation)?;
    let is_picture = matches!(kind, ModelKind::Cnn | ModelKind::Resnet);
    let pictures =
        Condition { holds: is_picture, allowed: "only if `kind` in [model] is \"cnn\" or \"resnet\"" };
    pictures.check("data.picture", data.picture)?;
    pictures.check("data.changes", data.changes.as_ref())?;
    let layered = Condition {
        holds: is_picture || kind.is_for_text(),
        allowed: "only if `kind` is \"cnn\", \"gpt\" or \"llama\"",
    };
    layered.check("model.layers", model.layers.as_ref())?;
    let resnet = Condition { holds: kind == ModelKind::Resnet, allowed: "only if `kind` is \"resnet\"" };
    resnet.check("model.depth", model.depth)?;
    resnet.check("model.norm", model.norm)?;
    let text = Condition { holds: kind.is_for_text(), allowed: "only if `kind` is \"gpt\" or \"llama\"" };
    text.check("model.width", model.width)?;
    text.check("model.heads", model.heads)?;
    text.check("model.context", model.context)?;
    text.check("model.dropout", model.dropout)?;
    text.check("model.lora", model.lora)?;
    text.check("model.lora_alpha", model.lora_alpha)?;
    let llama = Condition { holds: kind == ModelKind::Llama, allowed: "only if `kind` is \"llama\"" };
    llama.check("model.kv_heads", model.kv_heads)?;
    llama.check("model.hidden_width", model.hidden_width)?;
    check_factorization_keys(run, data)?;
    check_topic_keys(run, data)?;
    let table = Condition {
        holds: !kind.is_for_text() && kind != ModelKind::Lda,
        allowed: if kind == ModelKind::Lda {
            "nothing if `kind` in [model] is \"lda\": it reads documents, without columns"
        } else {
            "nothing if `kind` in [model] is \"gpt\" or \"llama\": they read the file as prose, without columns"
        },
    };
    table.check("data.label", data.label.as_ref())?;
    table.check("data.header", data.header)?;
    table.check("data.delimiter", data.delimiter)?;
    table.check("data.decimal", data.decimal)?;
    table.check("data.encoding", data.encoding)?;
    table.check("data.skip_lines", data.skip_lines)?;
    table.check("data.features", data.features)?;
    table.check("data.columns", data.columns.as_ref())?;
    table.check("data.predict", data.predict)?;
    table.check("data.classes", data.classes.as_ref())?;
    table.check("data.standardize", data.standardize)
}

/// Rejects the keys of a factorization for other models, and the keys of tables for a factorization.
fn check_factorization_keys(run: &RunFile, data: &DataSection) -> Result<(), SpecificationError> {
    let (model, is_factorization) = (&run.model, run.model.kind == ModelKind::Factorization);
    let own = Condition { holds: is_factorization, allowed: "only if `kind` is \"factorization\"" };
    own.check("model.rank", model.rank)?;
    own.check("model.regularization", model.regularization)?;
    own.check("model.biases", model.biases)?;
    own.check("model.global_mean", model.global_mean)?;
    let table = Condition {
        holds: !is_factorization,
        allowed: "nothing if `kind` in [model] is \"factorization\": ratings are numbers, and users and items are known by their ids",
    };
    table.check("data.features", data.features)?;
    table.check("data.predict", data.predict)?;
    table.check("data.classes", data.classes.as_ref())?;
    table.check("data.standardize", data.standardize)
}

fn resolve_model_of_table(run: &RunFile, target: &Target) -> Result<ModelSettings, SpecificationError> {
    let section = &run.model;
    match (section.kind, target) {
        (ModelKind::Logistic, Target::Number { .. }) => {
            let allowed =
                "linear or mlp, because the label is a number; or set `predict = \"class\"` in [data]";
            return Err(contradiction("model.kind", "logistic", allowed));
        }
        (ModelKind::Logistic, Target::Class { classes }) if classes.len() > 2 => {
            let allowed = "softmax or mlp, because there are more than two classes";
            return Err(contradiction("model.kind", "logistic", allowed));
        }
        (ModelKind::Svm, Target::Number { .. }) => {
            let allowed =
                "linear or mlp, because the label is a number; or set `predict = \"class\"` in [data]";
            return Err(contradiction("model.kind", "svm", allowed));
        }
        (ModelKind::Softmax, Target::Number { .. }) => {
            let allowed =
                "linear or mlp, because the label is a number; or set `predict = \"class\"` in [data]";
            return Err(contradiction("model.kind", "softmax", allowed));
        }
        (ModelKind::Linear, Target::Class { .. }) => {
            let allowed =
                "softmax or mlp, because the label is a class; or set `predict = \"number\"` in [data]";
            return Err(contradiction("model.kind", "linear", allowed));
        }
        _ => {}
    }
    match section.kind {
        ModelKind::Logistic => return Ok(ModelSettings::Logistic {}),
        ModelKind::Svm => return Ok(ModelSettings::Svm {}),
        _ => {}
    }
    let hidden_default = if section.kind == ModelKind::Mlp { vec![128] } else { Vec::new() };
    Ok(ModelSettings::Dense {
        hidden: section.hidden.clone().unwrap_or(hidden_default),
        activation: section.activation.unwrap_or_default(),
    })
}

/// A condition under which a run file may give certain keys.
pub(super) struct Condition {
    /// Whether this run file meets it.
    pub(super) holds: bool,
    /// The condition in words, for the error.
    pub(super) allowed: &'static str,
}

impl Condition {
    /// Checks that `key` has a value only if the condition holds.
    ///
    /// # Errors
    /// It has a value, and the condition does not hold.
    pub(super) fn check<T>(&self, key: &'static str, value: Option<T>) -> Result<(), SpecificationError> {
        match value {
            Some(_) if !self.holds => Err(contradiction(key, "given", self.allowed)),
            _ => Ok(()),
        }
    }
}

fn contradiction(key: &'static str, found: &str, allowed: &str) -> SpecificationError {
    SpecificationError::Setting { key, found: found.to_owned(), allowed: allowed.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use peergrad_models::data::format::FileLayout;
    use peergrad_models::task::activation::Activation;

    use peergrad_models::optimizer::Schedule;
    use peergrad_models::schedule::Decay;

    use super::*;
    use peergrad_protocol::placement::Replicas;

    use crate::specification::TopologyName;
    use crate::specification::answers::DataPart;
    use peergrad_models::data::embedded::{DIGITS, embedded};

    const SMALL: &[u8] = b"x,z,kind\n1,2,cat\n3,4,dog\n5,6,cat\n7,8,dog\n9,1,cat\n";

    fn resolved(text: &str, bytes: &[u8]) -> Result<Specification, SpecificationError> {
        resolve(&RunFile::parse(text)?, "f.csv", bytes)
    }

    #[test]
    fn a_specification_reads_back_from_its_bytes() {
        let text =
            "[data]\nfile = \"digits\"\n[optimizer]\nschedule = \"cosine\"\nrate = 0.003\nbeta1 = 0.87";
        let run = RunFile::parse(text).unwrap();
        let specification = resolve(&run, DIGITS, embedded(DIGITS).unwrap()).unwrap();
        let bytes = specification.to_bytes().unwrap();
        let read = Specification::parse(&bytes).unwrap();
        assert_eq!(read, specification);
        assert_eq!(read.to_bytes().unwrap(), bytes);
    }

    #[test]
    fn open_settings_are_inferred() {
        let specification = resolved("[data]\nfile = \"f.csv\"", SMALL).unwrap();
        let data = &specification.data;
        assert_eq!((data.rows, data.held_out_rows), (5, 1));
        assert_eq!(data.layout.columns(), 2);
        assert_eq!(data.target, Target::Class { classes: vec!["cat".into(), "dog".into()] });
        assert_eq!(specification.training.segment_elements, 32 * 1024);
        assert_eq!(specification.manifest().parameter_count(), 2 * 128 + 128 + 128 * 2 + 2);
    }

    #[test]
    fn omitted_zeros_stay_zeros_unless_standardization_is_requested() {
        const SPARSE: &[u8] = b"+1 2:0.5\n-1 3:2\n+1\n-1 1:1 3:4\n+1 2:1\n";
        let specification = resolved("[data]\nfile = \"f\"\nheld_out = 0.0", SPARSE).unwrap();
        let data = &specification.data;
        assert_eq!((data.rows, data.layout.columns(), data.layout.format()), (5, 3, Format::Libsvm));
        assert_eq!(data.target, Target::Class { classes: vec!["-1".into(), "1".into()] });
        assert_eq!(data.standardization, Standardization::identity());
        assert_eq!(Specification::parse(&specification.to_bytes().unwrap()).unwrap(), specification);
        let training = specification.dataset(SPARSE).unwrap().training;
        assert!(training.features.contains(&0.0) && training.features.contains(&0.5));

        let asked = resolved("[data]\nfile = \"f\"\nstandardize = true\nfeatures = 4", SPARSE).unwrap();
        assert_eq!((asked.data.layout.columns(), asked.data.standardization.mean.len()), (4, 4));
        let csv = resolved("[data]\nfile = \"f.csv\"\nstandardize = false", SMALL).unwrap();
        assert_eq!(csv.data.standardization, Standardization::identity());
        assert_eq!(Specification::parse(&csv.to_bytes().unwrap()).unwrap(), csv);
    }

    #[test]
    fn a_logistic_model_skips_zeros() {
        const SPARSE: &[u8] = b"+1 2:0.5\n-1 9000000:2\n+1\n-1 1:1 3:4\n+1 2:1\n";
        let text = "[data]\nfile = \"f\"\nheld_out = 0.2\n[model]\nkind = \"logistic\"\n";
        let specification = resolved(text, SPARSE).unwrap();
        assert_eq!(Specification::parse(&specification.to_bytes().unwrap()).unwrap(), specification);
        assert_eq!(specification.manifest().parameter_count(), 9_000_001);
        let loaded = specification.load(SPARSE).unwrap();
        let touched = loaded.task.sparse().unwrap().touched(&[0, 1, 2, 3]);
        assert!((2..=5).contains(&touched.len()) && touched.last() == Some(&9_000_000), "{touched:?}");
        let evaluated =
            specification.evaluate(&vec![0.0; 9_000_001], "g", b"-1 4:1\n+1 1:1\n-1\n", &None).unwrap();
        let evaluation = evaluated.evaluation;
        assert_eq!((evaluation.samples, evaluation.accuracy), (3, Some(2.0 / 3.0)));
        assert_eq!(evaluated.part, DataPart::All);
        for (more, words) in [
            ("hidden = [3]", "`model.hidden` is given"),
            (
                "[sync]\nkind = \"downpour\"\nn_fetch = 2",
                "`sync.n_fetch` is 2; allowed: 1 with a logistic model",
            ),
        ] {
            let error = resolved(&format!("{text}{more}"), SPARSE).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let text = text.replace("held_out", "standardize = true\nheld_out");
        let error = resolved(&text, SPARSE).unwrap_err().to_string();
        assert!(error.contains("`data.standardize` is given; allowed: false if `kind`"), "{error}");
        let three = resolved(
            "[data]\nfile = \"f\"\n[model]\nkind = \"logistic\"",
            b"1 1:1\n2 1:1\n3 1:1\n1 2:1\n2 1:1\n3 2:1\n",
        );
        assert!(three.unwrap_err().to_string().contains("more than two classes"));
    }

    #[test]
    fn settings_reach_the_training() {
        let text = "epochs = 6\nbatch = 2\nseed = 9\n[data]\nfile = \"f.csv\"\n\
            [optimizer]\nrule = \"momentum\"\nrate = 0.2\nscale_from_batch = 4\nschedule = \"step\"\n\
            [sync]\ntopology = \"direct\"\nsegment_kib = 4\n[model]\nkind = \"softmax\"";
        let specification = resolved(text, SMALL).unwrap();
        let training = specification.training;
        // Four training rows make two steps per epoch; a third of six epochs is two.
        let decay = Decay::Step { factor: 0.1, every: 4 };
        assert_eq!(training.schedule, Schedule { base: 0.1, warmup_steps: 0, decay });
        assert_eq!(
            training.optimizer,
            Optimizer::Momentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 }
        );
        assert_eq!((training.topology, training.segment_elements), (TopologyName::Direct, 1024));
        assert!(matches!(specification.model, ModelSettings::Dense { hidden, .. } if hidden.is_empty()));
    }

    #[test]
    fn replicas_are_a_number_or_all() {
        for (written, replicas) in
            [("1", Replicas::Number(1)), ("8", Replicas::Number(8)), ("\"all\"", Replicas::All)]
        {
            let text = format!("[data]\nfile = \"f.csv\"\n[shards]\nreplicas = {written}");
            let specification = resolved(&text, SMALL).unwrap();
            let training = specification.training.training(&specification.manifest()).unwrap();
            assert_eq!(training.replicas, replicas);
            let bytes = specification.to_bytes().unwrap();
            assert!(String::from_utf8_lossy(&bytes).contains(&format!("\nreplicas = {written}\n")));
            assert_eq!(Specification::parse(&bytes).unwrap(), specification);
        }
    }

    #[test]
    fn patience_is_named_only_where_it_is_not_the_default() {
        for (written, seconds, is_named) in [("", 10, false), ("10", 10, false), ("300", 300, true)] {
            let key =
                if written.is_empty() { String::new() } else { format!("patience_seconds = {written}") };
            let specification = resolved(&format!("[data]\nfile = \"f.csv\"\n[sync]\n{key}"), SMALL).unwrap();
            let training = specification.training.training(&specification.manifest()).unwrap();
            assert_eq!(training.patience, Duration::from_secs(seconds));
            let bytes = specification.to_bytes().unwrap();
            assert_eq!(String::from_utf8_lossy(&bytes).contains("patience"), is_named);
            assert_eq!(Specification::parse(&bytes).unwrap(), specification);
        }
    }

    #[track_caller]
    fn assert_error(sections: &str, expected: &str) {
        let text = format!("[data]\nfile = \"f.csv\"\n{sections}");
        assert_eq!(resolved(&text, SMALL).unwrap_err().to_string(), expected);
    }

    #[test]
    fn contradictions_are_found_before_training() {
        for count in ["0", "9", "32"] {
            let expected = format!("`shards.replicas` is {count}; allowed: 1 to 8, or \"all\"");
            assert_error(&format!("[shards]\nreplicas = {count}"), &expected);
        }
        for seconds in ["0", "86401"] {
            let expected = format!("`sync.patience_seconds` is {seconds}; allowed: 1 to 86400");
            assert_error(&format!("[sync]\npatience_seconds = {seconds}"), &expected);
        }
        assert_error("held_out = 1.0", "`data.held_out` is 1; allowed: a share of 0 to 0.9");
        for count in ["0", "16777217"] {
            let expected = format!("`data.features` is {count}; allowed: 1 to 16777216");
            assert_error(&format!("features = {count}"), &expected);
        }
        assert_error(
            "features = 3",
            "f.csv: `features` in [data] does not apply to a CSV file; remove it from the run file",
        );
        assert_error("classes = 1", "`data.classes` is 1; allowed: 2 to 65536, or a list of labels");
        assert_error("held_out = nan", "`data.held_out` is NaN; allowed: a share of 0 to 0.9");
        assert_error(
            "[optimizer]\nmomentum = 0.5",
            "`optimizer.momentum` is given; allowed: only if `rule` is \"momentum\"",
        );
        assert_error(
            "[optimizer]\nbeta2 = 1.0",
            "`optimizer.beta2` is 1; allowed: 0 up to, not including, 1",
        );
        assert_error(
            "[sync]\nkind = \"local\"\nlocal_steps = 0",
            "`sync.local_steps` is 0; allowed: 1 to 1, the steps of an epoch; or \"epoch\"",
        );
        assert_error("[optimizer]\nrate = 0.0", "`optimizer.rate` is 0; allowed: above 0, up to 1000000");
        assert_error(
            "[model]\nkind = \"linear\"",
            "`model.kind` is linear; allowed: softmax or mlp, because the label is a class; or set `predict = \"number\"` in [data]",
        );
        assert_error("[model]\nhidden = [0]", "`model.hidden` is 0; allowed: layers of 1 to 1048576");
        assert_error(
            "[model]\nhidden = [1048576, 1048576]",
            "`model.hidden` is 1099517919234; allowed: a model of at most 1073741824 parameters",
        );
        assert_error("[sync]\nsegment_kib = 2000", "`sync.segment_kib` is 2000; allowed: 1 to 1024");
        assert_error(
            "label = \"z\"\ncolumns = [\"z\"]",
            "f.csv: column 2 is used twice; list in `columns` each feature once, and not the label",
        );
    }

    #[test]
    fn bytes_from_other_peers_are_checked() {
        let specification = resolved("[data]\nfile = \"f.csv\"", SMALL).unwrap();
        let altered = |change: fn(&mut Specification)| {
            let mut altered = specification.clone();
            change(&mut altered);
            Specification::parse(&altered.to_bytes().unwrap())
        };
        assert!(altered(|_| ()).is_ok());
        assert!(altered(|s| s.version = 2).is_err());
        let other_column = altered(|s| match &mut s.data.layout {
            FileLayout::Csv(layout) => layout.features = vec![0, 7],
            FileLayout::Numbered(_) | FileLayout::Text(_) | FileLayout::Documents(_) => (),
        });
        assert!(other_column.is_err());
        assert!(altered(|s| s.data.standardization.scale[0] = 0.0).is_err());
        assert!(altered(|s| s.data.standardization.mean.clear()).is_err());
        assert!(altered(|s| s.data.held_out_rows = 5).is_err());
        let too_wide = altered(|s| {
            s.model = ModelSettings::Dense { hidden: vec![1 << 20; 3], activation: Activation::Relu };
        });
        assert!(too_wide.is_err());
        assert!(altered(|s| s.model = ModelSettings::Logistic {}).is_err(), "three classes");
        assert!(altered(|s| s.training.batch = 0).is_err());
        assert!(altered(|s| s.training.replicas = Replicas::Number(9)).is_err());
        assert!(altered(|s| s.training.segment_elements = 1 << 30).is_err());
        assert!(altered(|s| s.training.patience_seconds = 0).is_err());
        assert!(altered(|s| s.data.digest = "12".into()).is_err());
        assert!(altered(|s| s.data.target = Target::Class { classes: vec!["a".into(); 2] }).is_err());
        assert!(Specification::parse(b"\xff").is_err());
        assert!(Specification::parse(b"version = 1").is_err());
    }
}
