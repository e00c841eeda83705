//! What a trained model answers: how well it does on a data file, and its predictions for one.

use std::collections::BTreeMap;
use std::ops::Range;

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::dataset::{HeldOutSplit, Samples};
use peergrad_models::data::dense_table::unpack;
use peergrad_models::data::format::FormatError;
use peergrad_models::data::labels::{Labels, Target};
use peergrad_models::data::ratings::{Ratings, pairs_layout};
use peergrad_models::deep::Architecture;
use peergrad_models::deep::pictures::{PictureBytes, PictureSamples, SamplePart};
use peergrad_models::deep::task::{evaluate_pictures, picture_outputs};
use peergrad_models::task::Evaluation;
use peergrad_models::task::factorization::{Factorization, RatingSamples};
use peergrad_models::task::loss::{Loss, largest, softmax};
use peergrad_models::task::margin_loss::MarginLoss;
use peergrad_models::task::network::Network;
use peergrad_models::task::sparse_linear::{self, SparseDataset};
use peergrad_models::task::supervised;

use super::deep::data::in_memory;
use super::deep::{DeepBackend, check_backend};
use super::model::TableModel;
use super::{ModelSettings, Specification, SpecificationError};

/// Which rows of a data file are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPart {
    /// The held-out rows, which were never trained.
    HeldOut,
    /// All rows of the file that the model was trained on: it has no held-out rows.
    Trained,
    /// All rows of another file.
    All,
}

/// The evaluation of a model on a data file.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The results, with the number of rows.
    pub evaluation: Evaluation,
    /// Which rows were used.
    pub part: DataPart,
    /// The root of the mean squared error, in the units of the labels; `None` if the model predicts classes or tokens.
    pub rmse: Option<f64>,
    /// The exponential of the loss: among how many words the model chooses, as it were; `None` if it is no topic model.
    pub perplexity: Option<f64>,
    /// Which classes were taken for which; `None` if the model predicts none.
    pub confusion: Option<Confusion>,
    /// What is doubtful about the file's columns, each a sentence for the user.
    pub notices: Vec<String>,
}

/// Which classes a model takes for which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confusion {
    /// The names of the classes.
    pub classes: Vec<String>,
    /// How many rows of a class (first) were taken for a class (second); only what occurred.
    pub counts: BTreeMap<(u32, u32), u64>,
}

/// The predictions of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// The names of the classes; empty if numbers are predicted.
    pub classes: Vec<String>,
    /// (rows, classes) row-major: the probability of each class, or its margin if the model is a support vector machine; or (rows): numbers.
    pub values: Vec<f32>,
    /// What is doubtful about the file's columns, each a sentence for the user.
    pub notices: Vec<String>,
}

impl Predictions {
    /// Values of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.classes.len().max(1)
    }
}

/// Samples for a model.
enum Questions {
    Dense(Network, Samples),
    Sparse(MarginLoss, SparseDataset, Range<u32>),
    Ratings(Factorization, RatingSamples, Range<u32>),
    Pictures(Architecture, PictureSamples, SamplePart),
}

impl Questions {
    fn labels(&self) -> Labels {
        match self {
            Self::Dense(_, samples) => samples.labels.clone(),
            Self::Sparse(_, samples, which) => {
                let labels = &samples.labels[which.start as usize..which.end as usize];
                Labels::Classes(labels.iter().map(|&is_second| u32::from(is_second)).collect())
            }
            Self::Ratings(_, samples, which) => {
                Labels::Numbers(samples.values[which.start as usize..which.end as usize].to_vec())
            }
            Self::Pictures(_, pictures, part) => pictures.labels(*part),
        }
    }

    /// The model's outputs for these samples: (rows, outputs) row-major. Those of a logistic model are 0 and the margin; those of a support
    /// vector machine for two classes are the margin of the first and of the second.
    fn answers(&self, parameters: &[f32], deep: &DeepBackend) -> Result<Vec<f32>, SpecificationError> {
        Ok(match self {
            Self::Dense(network, samples) => match (network.loss(), network.outputs(parameters, samples)) {
                (Loss::SquaredHinge, margins) if margins.len() == samples.rows() => of_both_classes(margins),
                (_, outputs) => outputs,
            },
            Self::Sparse(loss, samples, which) => {
                let margins = sparse_linear::margins(samples, which.clone(), parameters);
                match loss {
                    MarginLoss::SquaredHinge => of_both_classes(margins),
                    MarginLoss::CrossEntropy => {
                        margins.into_iter().flat_map(|margin| [0.0, margin]).collect()
                    }
                }
            }
            Self::Ratings(model, samples, which) => {
                let which = which.start as usize..which.end as usize;
                let users = samples.users[which.clone()].iter().copied();
                model.predictions(parameters, users.zip(samples.items[which].iter().copied()))
            }
            Self::Pictures(net, pictures, part) => {
                picture_outputs(net, &**check_backend(deep)?, parameters, pictures, *part)
            }
        })
    }

    /// The loss and the accuracy on these samples: the same bits as at the end of a run.
    fn evaluation(&self, parameters: &[f32], deep: &DeepBackend) -> Result<Evaluation, SpecificationError> {
        Ok(match self {
            Self::Dense(network, samples) => {
                supervised::evaluate(network, parameters, samples, &mut network.scratch())
            }
            Self::Sparse(loss, samples, which) => {
                sparse_linear::evaluate(*loss, samples, which.clone(), parameters)
            }
            Self::Ratings(model, samples, which) => model.evaluate(samples, which.clone(), parameters),
            Self::Pictures(net, pictures, part) => {
                evaluate_pictures(net, &**check_backend(deep)?, parameters, pictures, *part)
            }
        })
    }
}

impl Specification {
    /// Evaluates `parameters` on a data file: on the held-out rows of the run's file, or on all rows of another file (or of the
    /// run's, if it has no held-out rows). `file` is the name for errors.
    ///
    /// A CSV file may differ from the run's file in its header and in the order of its columns; a LIBSVM file may lack the last features.
    ///
    /// # Errors
    /// The file has another format than the run's, or other columns or labels; or the network is a deep one, which `deep` does not compute.
    ///
    /// # Panics
    /// The number of parameters is not that of the model.
    pub fn evaluate(
        &self,
        parameters: &[f32],
        file: &str,
        data: impl Into<DataBytes>,
        deep: &DeepBackend,
    ) -> Result<Evaluated, SpecificationError> {
        let data = &data.into();
        let part = match (data.digest() == self.digest()?, self.data.held_out_rows) {
            (false, _) => DataPart::All,
            (true, 0) => DataPart::Trained,
            (true, _) => DataPart::HeldOut,
        };
        let mut notices = Vec::new();
        if let ModelSettings::Lda(_) = &self.model {
            let evaluation = self.evaluate_topics(parameters, file, data, part, &mut notices)?;
            let perplexity = Some(evaluation.loss.exp());
            return Ok(Evaluated { evaluation, part, rmse: None, perplexity, confusion: None, notices });
        }
        if let Target::Token { .. } = self.data.target {
            let evaluation = self.evaluate_text(parameters, file, data, &**check_backend(deep)?, part)?;
            return Ok(Evaluated {
                evaluation,
                part,
                rmse: None,
                perplexity: None,
                confusion: None,
                notices,
            });
        }
        let questions = self.questions(file, data, part, &mut notices)?;
        let evaluation = questions.evaluation(parameters, deep)?;
        let confusion = match &self.data.target {
            Target::Class { classes } => {
                Some(confusion(classes, &questions.answers(parameters, deep)?, &questions.labels()))
            }
            Target::Number { .. } | Target::Token { .. } => None,
        };
        let rmse = match (&self.data.target, &self.model) {
            // The loss of ratings is the squared error; that of other numbers is half of it, in units of their deviation.
            (Target::Number { .. }, ModelSettings::Factorization(_)) => Some(evaluation.loss.sqrt()),
            (Target::Number { scale, .. }, _) => Some(scale * (2.0 * evaluation.loss).sqrt()),
            _ => None,
        };
        Ok(Evaluated { evaluation, part, rmse, perplexity: None, confusion, notices })
    }

    /// What the model predicts for all rows of a file, which need no labels if it is a CSV file. `file` is the name for errors.
    ///
    /// # Errors
    /// The file has another format than the run's, or lacks columns; the model is for text; or the network is a deep one, which `deep` does
    /// not compute.
    ///
    /// # Panics
    /// The number of parameters is not that of the model.
    pub fn predict(
        &self,
        parameters: &[f32],
        file: &str,
        data: impl Into<DataBytes>,
        deep: &DeepBackend,
    ) -> Result<Predictions, SpecificationError> {
        let data = &data.into();
        let mut notices = Vec::new();
        let questions = self.unlabelled(file, data, &mut notices)?;
        let answers = questions.answers(parameters, deep)?;
        Ok(self.predictions(answers, notices))
    }

    /// What the model predicts for pictures.
    ///
    /// - `pictures`: (pictures, channels, height, width) row-major, of the shape that [`picture_shape`](Self::picture_shape) gives.
    ///
    /// # Errors
    /// `deep` computes no deep networks, or the model is not for pictures of bytes.
    pub fn predict_pictures(
        &self,
        parameters: &[f32],
        pictures: Vec<u8>,
        deep: &DeepBackend,
    ) -> Result<Predictions, SpecificationError> {
        let [channels, height, width] = self.picture_shape()?;
        let values = channels * height * width;
        let count = (pictures.len() / values) as u32;
        let rows = HeldOutSplit { training: (0..count).collect(), held_out: vec![] };
        let labels = Labels::Classes(vec![0; count as usize]);
        let standardization = &self.data.standardization;
        let pictures = PictureBytes::new(pictures.into(), (0, values), labels, rows, standardization);
        let pictures = PictureSamples::Bytes(pictures);
        let questions = Questions::Pictures(self.architecture()?, pictures, SamplePart::Training);
        let answers = questions.answers(parameters, deep)?;
        Ok(self.predictions(answers, vec![]))
    }

    /// Channels, height and width of the pictures that the model is for.
    ///
    /// # Errors
    /// It was trained on something else than pictures whose values are bytes.
    pub fn picture_shape(&self) -> Result<[usize; 3], SpecificationError> {
        let net = self.model.convolutional().filter(|net| net.bytes);
        Ok(net.ok_or(SpecificationError::NoPictures)?.picture)
    }

    /// The samples of a part of a file, with their labels.
    fn questions(
        &self,
        file: &str,
        data: &DataBytes,
        part: DataPart,
        notices: &mut Vec<String>,
    ) -> Result<Questions, SpecificationError> {
        Ok(match (&self.model, self.model.table_model(&self.data)) {
            (_, Some(TableModel::Dense(network))) => {
                let bytes = &*in_memory(file, data)?;
                let samples = match part {
                    DataPart::HeldOut => self.dataset(bytes)?.held_out,
                    DataPart::Trained => self.dataset(bytes)?.training,
                    DataPart::All => self.samples(file, bytes, notices)?,
                };
                Questions::Dense(network, samples)
            }
            (_, Some(TableModel::Sparse(loss))) => {
                let bytes = &*in_memory(file, data)?;
                let training = self.data.rows - self.data.held_out_rows;
                match part {
                    DataPart::HeldOut => {
                        Questions::Sparse(loss, self.own_rows(bytes)?, training..self.data.rows)
                    }
                    DataPart::Trained => Questions::Sparse(loss, self.own_rows(bytes)?, 0..training),
                    DataPart::All => {
                        let unpacked = unpack(file, bytes)?;
                        let other = self.data.layout.of_other(file, &unpacked)?;
                        notices.extend(other.notices);
                        let rows = self.listed(file, &other.layout, &unpacked)?;
                        let which = 0..rows.labels.len() as u32;
                        Questions::Sparse(loss, rows, which)
                    }
                }
            }
            (ModelSettings::Factorization(settings), _) => {
                let unpacked = unpack(file, &in_memory(file, data)?)?.into_owned();
                let training = self.data.rows - self.data.held_out_rows;
                let (samples, which) = match part {
                    DataPart::HeldOut => (self.own_ratings(&unpacked)?, training..self.data.rows),
                    DataPart::Trained => (self.own_ratings(&unpacked)?, 0..training),
                    DataPart::All => {
                        let other = self.data.layout.of_other(file, &unpacked)?;
                        notices.extend(other.notices);
                        let samples = self.ratings(file, &other.layout, &unpacked)?;
                        let which = 0..samples.count();
                        (samples, which)
                    }
                };
                Questions::Ratings(settings.model(), samples, which)
            }
            _ => {
                let (pictures, part) = self.pictures_of(file, data, part, notices)?;
                Questions::Pictures(self.architecture()?, pictures, part)
            }
        })
    }

    /// The samples of a file, without labels.
    fn unlabelled(
        &self,
        file: &str,
        data: &DataBytes,
        notices: &mut Vec<String>,
    ) -> Result<Questions, SpecificationError> {
        if let ModelSettings::Lda(_) = &self.model {
            return Err(SpecificationError::PredictsTopics);
        }
        if let Target::Token { .. } = self.data.target {
            return Err(SpecificationError::PredictsText);
        }
        if self.has_byte_pictures() && self.is_of_byte_pictures(file, data)? {
            let (pictures, all) = (self.unlabelled_pictures(file, data)?, SamplePart::Training);
            return Ok(Questions::Pictures(self.architecture()?, pictures, all));
        }
        let bytes = &*in_memory(file, data)?;
        let unpacked = unpack(file, bytes)?;
        if let ModelSettings::Factorization(settings) = &self.model {
            let other = pairs_layout(&self.data.layout, file, &unpacked)?;
            notices.extend(other.notices);
            let pairs = Ratings::read_pairs(file, &unpacked, &other.layout).map_err(FormatError::from)?;
            let pairs = self.pairs(file, &pairs)?;
            let which = 0..pairs.count();
            return Ok(Questions::Ratings(settings.model(), pairs, which));
        }
        let other = self.data.layout.of_unlabelled(file, &unpacked)?;
        notices.extend(other.notices);
        let model = self.model.table_model(&self.data);
        if let Some(TableModel::Sparse(loss)) = model {
            let features = other.layout.read_sparse(file, &unpacked)?.features;
            let labels = vec![false; features.rows()];
            let which = 0..labels.len() as u32;
            return Ok(Questions::Sparse(loss, SparseDataset { features, labels }, which));
        }
        let table = other.layout.read(file, &unpacked)?;
        let rows: Vec<u32> = (0..table.rows() as u32).collect();
        let labels = Labels::Classes(vec![0; rows.len()]);
        let samples = Samples::select(&table, &labels, &self.data.standardization, &rows);
        Ok(match model {
            Some(TableModel::Dense(network)) => Questions::Dense(network, samples),
            _ => {
                let pictures = PictureSamples::of_table(samples);
                Questions::Pictures(self.architecture()?, pictures, SamplePart::Training)
            }
        })
    }

    /// Probabilities, margins or numbers of these answers.
    fn predictions(&self, mut values: Vec<f32>, notices: Vec<String>) -> Predictions {
        let classes = match &self.data.target {
            Target::Class { classes } => {
                // A support vector machine knows no probabilities.
                if !matches!(self.model, ModelSettings::Svm {}) {
                    values.chunks_exact_mut(classes.len()).for_each(softmax);
                }
                classes.clone()
            }
            Target::Number { mean, scale } => {
                values.iter_mut().for_each(|value| *value = (f64::from(*value) * scale + mean) as f32);
                vec![]
            }
            Target::Token { .. } => vec![],
        };
        Predictions { classes, values, notices }
    }
}

/// The margins of both classes, from those of the second.
fn of_both_classes(margins: Vec<f32>) -> Vec<f32> {
    margins.into_iter().flat_map(|margin| [-margin, margin]).collect()
}

/// Which of the classes are taken for which in these answers, (rows, classes) row-major.
fn confusion(classes: &[String], answers: &[f32], labels: &Labels) -> Confusion {
    let mut counts = BTreeMap::new();
    if let Labels::Classes(labels) = labels {
        for (row, &label) in answers.chunks_exact(classes.len()).zip(labels) {
            *counts.entry((label, largest(row) as u32)).or_default() += 1;
        }
    }
    Confusion { classes: classes.to_vec(), counts }
}
