//! The run files to compare: reads them, resolves them against their data as a founder does, and checks that they are comparable.
//!
//! Comparable files train the same model on the same data with the same held-out rows.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use peergrad_config::specification::{DataSettings, Specification, resolve};

use crate::commands::{files, run};

/// One of the run files.
pub(super) struct ComparedRun {
    /// The file's name, as the user typed it.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The path of its data file; `None` if the data is built in.
    pub(super) data: Option<PathBuf>,
    specification: Specification,
}

impl ComparedRun {
    pub(super) fn seed(&self) -> u64 {
        self.specification.training.seed
    }

    /// Samples that it trains, over all epochs.
    pub(super) fn samples(&self) -> u64 {
        let data = &self.specification.data;
        u64::from(data.rows - data.held_out_rows).saturating_mul(self.specification.training.epochs)
    }
}

/// Reads all files; `seed`, if given, replaces their seeds.
///
/// # Errors
/// A file cannot be used, or is not comparable with the first one.
pub(super) fn read_all(paths: &[PathBuf], seed: Option<u64>) -> anyhow::Result<Vec<ComparedRun>> {
    let entries: Vec<ComparedRun> =
        paths.iter().map(|path| read(path, seed)).collect::<anyhow::Result<_>>()?;
    for other in &entries[1..] {
        let one = &entries[0];
        if let Some(difference) = difference(&one.specification, &other.specification) {
            bail!("{} and {} {difference}", one.name, other.name);
        }
    }
    Ok(entries)
}

fn read(path: &Path, seed: Option<u64>) -> anyhow::Result<ComparedRun> {
    let name = path.display().to_string();
    let run_file = run::read_run_file(path, seed)?;
    let file = &run_file.data().with_context(|| name.clone())?.file;
    let specification =
        resolve(&run_file, file, &files::data_of(path, file)?).with_context(|| name.clone())?;
    Ok(ComparedRun { data: files::data_path(path, file), path: path.to_owned(), name, specification })
}

/// Why two specifications are not comparable, and what to change; `None` if they are.
fn difference(one: &Specification, other: &Specification) -> Option<String> {
    let (seed, other_seed) = (one.training.seed, other.training.seed);
    // The paths of the data files may differ.
    let nameless = |data: &DataSettings| DataSettings { name: String::new(), ..data.clone() };
    match () {
        () if one.data.digest != other.data.digest => {
            Some("train on different data: give both the same `file` in [data]".to_owned())
        }
        () if one.model != other.model => {
            Some("train different models: make their [model] sections the same".to_owned())
        }
        () if seed != other_seed => Some(format!(
            "have the seeds {seed} and {other_seed}, and so hold out different rows: use one seed, e.g. --seeds {seed}..{}",
            seed.saturating_add(1)
        )),
        () if nameless(&one.data) != nameless(&other.data) => {
            Some("read their data in different ways: make their [data] sections the same".to_owned())
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peergrad_config::specification::RunFile;

    const SMALL: &[u8] = b"x,z,kind\n1,2,cat\n3,4,dog\n5,6,cat\n7,8,dog\n9,1,cat\n";

    fn specification(head: &str, sections: &str, bytes: &[u8]) -> Specification {
        let text = format!("{head}\n[data]\nfile = \"f.csv\"\n{sections}");
        resolve(&RunFile::parse(&text).unwrap(), "f.csv", bytes).unwrap()
    }

    #[test]
    fn only_trainings_of_the_same_model_and_data_are_comparable() {
        let one = specification("", "", SMALL);
        let difference = |other: &Specification| super::difference(&one, other);
        assert_eq!(difference(&one), None);
        let sync = "[sync]\nkind = \"local\"\n[optimizer]\nrate = 0.1";
        assert_eq!(difference(&specification("batch = 2\nepochs = 3", sync, SMALL)), None);
        let mut elsewhere = one.clone();
        elsewhere.data.name = "folder/f.csv".to_owned();
        assert_eq!(difference(&elsewhere), None);
        let cases = [
            (specification("", "[model]\nhidden = [4]", SMALL), "different models"),
            (specification("", "", &[SMALL, b"2,2,dog\n"].concat()), "different data"),
            (specification("", "held_out = 0.4", SMALL), "in different ways"),
            (specification("", "standardize = false", SMALL), "in different ways"),
            (specification("seed = 9", "", SMALL), "the seeds 7 and 9"),
        ];
        for (other, words) in cases {
            assert!(difference(&other).is_some_and(|difference| difference.contains(words)), "{words}");
        }
    }
}
