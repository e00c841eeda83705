//! The run file for a matrix factorization of ratings.

use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::format::{FileLayout, FormatError};
use peergrad_models::data::ids::Ids;
use peergrad_models::data::inferred::Inferred;
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_models::data::ratings::{Ratings, ratings_layout};

use super::super::SpecificationError;
use super::super::deep::data::in_memory;
use super::super::factorization::{RANK_DEFAULT, REGULARIZATION_DEFAULT};
use super::super::resolve::column_hints;
use super::super::run_file::{DataSection, SEED_DEFAULT};
use super::data_section::{column, columns_settings};
use super::fixed::{HEAD, REST, SSP, SYNC};
use super::{WrittenRunFile, counted, line, toml};

/// The run file for a factorization of the ratings in this file.
pub(super) fn run_file(name: &str, packed: &DataBytes) -> Result<WrittenRunFile, SpecificationError> {
    let unpacked = packed.unpacked(name, UNPACKED_BYTES_MAX)?;
    let bytes = in_memory(name, &unpacked)?;
    let hints = column_hints(&DataSection::new(name))?;
    let Inferred { layout, names, notices, .. } = ratings_layout(name, &bytes, &hints)?;
    let ratings = Ratings::read(name, &bytes, &layout).map_err(FormatError::from)?;
    let [users, items] = [&ratings.users, &ratings.items].map(|cells| Ids::of(cells).count());
    let FileLayout::Csv(layout) = &layout else { unreachable!("ratings are CSV") };
    let columns: Vec<_> = layout.features.iter().map(|&index| column(index, &names)).collect();
    let training = [
        line("epochs = 40", "passes over the training ratings"),
        line("batch = 256", "ratings per step, over all peers together: it does not grow with their number"),
        line(
            &format!("seed = {SEED_DEFAULT}"),
            "seed of the initial parameters, the order of ratings and the held-out ones",
        ),
    ]
    .concat();
    let data = [
        format!(
            "\n[data]                     # {} of {} by {}\n",
            counted(ratings.count() as u32, "rating"),
            counted(items as u32, "item"),
            counted(users as u32, "user")
        ),
        line(&format!("file = {}", toml(name)), "path relative to this file's folder; CSV, gzipped or not"),
        columns_settings(layout, &names),
        line(
            &format!("columns = {}", toml(&columns)),
            "the columns of users and of items, by number from 1 or by name",
        ),
        line("held_out = 0.2", "share of the ratings that is not trained but used for evaluation"),
    ]
    .concat();
    let rank = RANK_DEFAULT.min(users).min(items);
    let model = [
        "\n[model]\n".to_owned(),
        line("kind = \"factorization\"", "rating = mean + bias of user and item + product of their factors"),
        line(&format!("rank = {rank}"), "factors of each user and each item"),
        line(
            &format!("regularization = {REGULARIZATION_DEFAULT}"),
            "this times the squares of all numbers behind a rating is added to its loss",
        ),
        line("biases = true", "whether each user and each item has a bias"),
        line("global_mean = true", "whether the mean of the training ratings is part of each prediction"),
    ]
    .concat();
    let optimizer = [
        "\n[optimizer]\n".to_owned(),
        line("rule = \"adam\"", "or adagrad, momentum, sgd, ..."),
        line("rate = 0.01", "the highest learning rate"),
        line("schedule = \"cosine\"", "decays to 0 at the end; or step, constant"),
        line(
            "# bounds = [0.0, inf]",
            "nonnegative factors; give biases = false and global_mean = false as well",
        ),
    ]
    .concat();
    let rest = REST.replacen(SYNC, SSP, 1);
    let text = [HEAD, &training, &data, &model, &optimizer, &rest].concat();
    Ok(WrittenRunFile { text, notices })
}
