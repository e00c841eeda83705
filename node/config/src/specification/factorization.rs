//! Matrix factorization in a specification: its shape, and the ratings that it is trained on.
//!
//! The ids of users and items are part of the specification, so a saved model knows them without the data file.

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::dataset::HeldOutSplit;
use peergrad_models::data::format::{FileLayout, FormatError};
use peergrad_models::data::ids::Ids;
use peergrad_models::data::inferred::Inferred;
use peergrad_models::data::labels::{Labels, Target};
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_models::data::ratings::{Ratings, ratings_layout, rows_of};
use peergrad_models::data::standardize::Standardization;
use peergrad_models::task::factorization::{Factorization, RatingSamples};
use peergrad_protocol::limits::SPECIFICATION_BYTES_MAX;
use serde::{Deserialize, Serialize};

use super::deep::data::in_memory;
use super::resolve::column_hints;
use super::run_file::{DataSection, ModelSection, RunFile};
use super::{
    DataSettings, ModelSettings, PARAMETERS_MAX, Specification, SpecificationError, TrainingSettings, within,
};

/// The default of `rank`.
pub(super) const RANK_DEFAULT: usize = 10;
/// The default of `regularization`.
pub(super) const REGULARIZATION_DEFAULT: f32 = 0.02;

/// The model between users, items and ratings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FactorizationSettings {
    /// Factors of a user, and of an item.
    pub rank: usize,
    /// This times the squares of all numbers behind a rating is added to its loss.
    pub regularization: f32,
    /// Whether each user and each item has a bias.
    pub biases: bool,
    /// The ids of the users, in the order of their rows.
    pub users: Ids,
    /// The ids of the items, in the order of their rows.
    pub items: Ids,
}

impl FactorizationSettings {
    /// The settings that a section names, for these ids.
    fn resolve(section: &ModelSection, [users, items]: [Ids; 2]) -> Self {
        Self {
            rank: section.rank.unwrap_or(RANK_DEFAULT),
            regularization: section.regularization.unwrap_or(REGULARIZATION_DEFAULT),
            biases: section.biases.unwrap_or(true),
            users,
            items,
        }
    }

    /// The model.
    pub(super) fn model(&self) -> Factorization {
        Factorization {
            users: self.users.count(),
            items: self.items.count(),
            rank: self.rank,
            has_biases: self.biases,
            regularization: self.regularization,
        }
    }

    /// Checks that the model is within its bounds, and fits the data and how it is trained.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn check(
        &self,
        data: &DataSettings,
        training: &TrainingSettings,
    ) -> Result<(), SpecificationError> {
        let foreign = |what: &str| Err(SpecificationError::Foreign(what.to_owned()));
        if let Some(problem) = self.users.problem().or_else(|| self.items.problem()) {
            return foreign(problem);
        }
        let is_ratings = matches!(&data.layout, FileLayout::Csv(layout) if layout.features.len() == 2);
        if !is_ratings || data.standardization != Standardization::identity() {
            return foreign("a factorization needs ratings");
        }
        if !matches!(data.target, Target::Number { scale: 1.0, .. }) {
            return foreign("ratings are numbers");
        }
        let (users, items) = (self.users.count(), self.items.count());
        let most = users.min(items);
        let allowed = format!(
            "1 to {most}: the file has {users} users and {items} items, and a matrix has no larger rank than rows and columns"
        );
        within("model.rank", self.rank, 1..=most, &allowed)?;
        within("model.regularization", self.regularization, 0.0..=f32::MAX, "0 or more")?;
        let parameters = (users + items) as u64 * (self.rank as u64 + u64::from(self.biases));
        let allowed = "a model of at most 1073741824 parameters: each user and each item has `rank` factors";
        within("model.rank", parameters, ..=PARAMETERS_MAX, allowed)?;
        super::model::check_sparse(training, "a factorization")
    }
}

/// Resolves a factorization and the ratings that it is trained on; `packed` are the bytes of their file on disk.
pub(super) fn resolve_factorization(
    run: &RunFile,
    section: &DataSection,
    name: &str,
    packed: &DataBytes,
) -> Result<(ModelSettings, DataSettings, Vec<String>), SpecificationError> {
    let hints = column_hints(section)?;
    let unpacked = packed.unpacked(name, UNPACKED_BYTES_MAX)?;
    let bytes = in_memory(name, &unpacked)?;
    let Inferred { layout, notices, .. } = ratings_layout(name, &bytes, &hints)?;
    let ratings = Ratings::read(name, &bytes, &layout).map_err(FormatError::from)?;
    let ids = [Ids::of(&ratings.users), Ids::of(&ratings.items)];
    let rows = ratings.count() as u32;
    let held_out_rows = section.held_out_rows(rows);
    let training = HeldOutSplit::draw(run.seed, rows, held_out_rows).training;
    let mean = match run.model.global_mean {
        Some(false) => 0.0,
        _ => mean(name, &ratings, &training)?,
    };
    let data = DataSettings {
        name: name.to_owned(),
        digest: packed.digest().to_string(),
        byte_count: packed.byte_count(),
        rows,
        held_out_rows,
        layout,
        target: Target::Number { mean, scale: 1.0 },
        standardization: Standardization::identity(),
    };
    let settings = FactorizationSettings::resolve(&run.model, ids);
    check_room(name, &settings)?;
    Ok((ModelSettings::Factorization(settings), data, notices))
}

/// The mean of the ratings in these rows.
fn mean(name: &str, ratings: &Ratings, rows: &[u32]) -> Result<f64, SpecificationError> {
    let as_they_are = Target::Number { mean: 0.0, scale: 1.0 };
    let Labels::Numbers(values) = as_they_are.labels(name, &ratings.values)? else {
        unreachable!("the target is a number")
    };
    let sum: f64 = rows.iter().map(|&row| f64::from(values[row as usize])).sum();
    Ok(sum / rows.len() as f64)
}

/// Checks that the specification has room for the ids.
fn check_room(name: &str, settings: &FactorizationSettings) -> Result<(), SpecificationError> {
    /// Everything else in a specification is shorter.
    const OTHERS_BYTES: usize = 8192;
    let bytes = toml::to_string(settings).map_or(usize::MAX, |text| text.len());
    if bytes.saturating_add(OTHERS_BYTES) <= SPECIFICATION_BYTES_MAX {
        return Ok(());
    }
    let [users, items] = [settings.users.count(), settings.items.count()];
    Err(SpecificationError::ManyIds { name: name.to_owned(), users, items, bytes })
}

impl DataSection {
    /// How many of a file's rows are held out; at least one row is trained.
    pub(super) fn held_out_rows(&self, rows: u32) -> u32 {
        ((f64::from(rows) * self.held_out).round() as u32).min(rows - 1)
    }
}

impl Specification {
    /// The run's ratings, from the bytes of the data file (unpacked): first the training ratings, then the held-out ones.
    pub(super) fn own_ratings(&self, bytes: &[u8]) -> Result<RatingSamples, SpecificationError> {
        let samples = self.ratings(&self.data.name, &self.data.layout, bytes)?;
        let split = self.split(samples.values.len())?;
        Ok(samples.select(&[split.training, split.held_out].concat()))
    }

    /// All ratings of an unpacked file.
    pub(super) fn ratings(
        &self,
        file: &str,
        layout: &FileLayout,
        bytes: &[u8],
    ) -> Result<RatingSamples, SpecificationError> {
        let ratings = Ratings::read(file, bytes, layout).map_err(FormatError::from)?;
        let Labels::Numbers(values) = self.data.target.labels(file, &ratings.values)? else {
            return Err(self.other("its ratings are no numbers"));
        };
        Ok(RatingSamples { values, ..self.pairs(file, &ratings)? })
    }

    /// The rows of the users and items of ratings, whose values are not read.
    pub(super) fn pairs(&self, file: &str, ratings: &Ratings) -> Result<RatingSamples, SpecificationError> {
        let ModelSettings::Factorization(FactorizationSettings { users, items, .. }) = &self.model else {
            return Err(self.other("the model is for no ratings"));
        };
        let users = rows_of(users, &ratings.users, file, "user").map_err(FormatError::from)?;
        let items = rows_of(items, &ratings.items, file, "item").map_err(FormatError::from)?;
        let values = vec![0.0; users.len()];
        Ok(RatingSamples { users, items, values })
    }
}

#[cfg(test)]
mod tests;
