//! Parameter groups as written in files: `[[optimizer.groups]]`, tensors that are trained differently from the rest.
//!
//! ```text
//! [[optimizer.groups]]                     first group   layer.0.bias, layer.1.bias: no weight decay
//! tensors = ["*.bias"]
//! weight_decay = 0.0
//! [[optimizer.groups]]                     second group  layer.0.weight: a tenth of the learning rate
//! tensors = ["layer.0.*"]                                (layer.0.bias is in the first group already)
//! rate_factor = 0.1
//! ```
//! A specification has the groups as they are written. Every peer has the same manifest, so every peer finds the same tensors.
//!
//! The greatest norm of a gradient, `clip_norm`, is checked here as well, because the same programs support it. They support `bounds`, too,
//! which tables have besides.
//!
//! # Invariants
//! - A tensor is in the first group with a pattern that matches its name.
//! - A pattern that matches no tensor is an error: most often, it is a misspelt name.

use peergrad_core::program::ProgramFactory;
use peergrad_models::optimizer::{Optimizer, ParameterGroups, Treatment};
use peergrad_protocol::manifest::Manifest;
use serde::{Deserialize, Serialize};

use super::{Algorithm, Compression, SpecificationError, TrainingSettings, within};

/// One entry of `[[optimizer.groups]]`: some tensors, and how they are trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSettings {
    /// Names of tensors, in which `*` stands for any characters. A tensor that is in an earlier group is not in this one.
    pub tensors: Vec<String>,
    /// Their weight decay; not for `prox` and `ftrl`. Default: that of the optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// This times the learning rate of the schedule is their learning rate; 0 keeps their initial values. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_factor: Option<f64>,
    /// Whether the optimizer leaves them alone, and their new value is the mean, over the samples of a step, of what the task computes:
    /// see [`peergrad_models::optimizer::Treatment::Statistic`]. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub statistic: bool,
}

impl GroupSettings {
    /// A group of these tensors, in which nothing differs yet.
    #[must_use]
    pub fn of<'a>(tensors: impl IntoIterator<Item = &'a str>) -> Self {
        Self { tensors: tensors.into_iter().map(str::to_owned).collect(), ..Self::default() }
    }

    /// The same group with this weight decay.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay: Some(weight_decay), ..self }
    }

    /// The same group with this factor on the learning rate.
    #[must_use]
    pub fn rate_factor(self, rate_factor: f64) -> Self {
        Self { rate_factor: Some(rate_factor), ..self }
    }

    /// The same tensors as statistics.
    #[must_use]
    pub fn statistic(self) -> Self {
        Self { statistic: true, ..self }
    }

    fn treatment(&self) -> Treatment {
        if self.statistic {
            return Treatment::Statistic;
        }
        Treatment::Trained { weight_decay: self.weight_decay, rate_factor: self.rate_factor.unwrap_or(1.0) }
    }

    /// The first problem with the keys of this group, of a run with the optimizer `rule`: the key, its value, and what is allowed.
    fn problem(&self, rule: &Optimizer) -> Option<(&'static str, String, String)> {
        let given = || "given".to_owned();
        let problem = |key, found: String, allowed: &str| Some((key, found, allowed.to_owned()));
        let patterns = 1..=PATTERNS_MAX;
        if !patterns.contains(&self.tensors.len()) {
            return problem(TENSORS, format!("a list of {}", self.tensors.len()), "1 to 64 names of tensors");
        }
        if let Some(pattern) = self.tensors.iter().find(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
            return problem(
                TENSORS,
                format!("a name of {} bytes", pattern.len()),
                "names of up to 256 bytes",
            );
        }
        let (has_decay, has_factor) = (self.weight_decay.is_some(), self.rate_factor.is_some());
        if self.statistic {
            let allowed = "nothing beside `statistic = true`: the mean by samples replaces a statistic, and no optimizer moves it";
            return match (has_factor, has_decay) {
                (true, _) => problem(RATE_FACTOR, given(), allowed),
                (false, true) => problem(WEIGHT_DECAY, given(), allowed),
                (false, false) => None,
            };
        }
        if !has_decay && !has_factor {
            let allowed =
                "groups in which something differs: give `weight_decay`, `rate_factor` or `statistic = true`";
            return problem(GROUPS, "the same as no group".to_owned(), allowed);
        }
        if has_decay && !rule.has_weight_decay() {
            let allowed = "nothing with `rule` \"prox\" or \"ftrl\", which have `l2` for all tensors alike";
            return problem(WEIGHT_DECAY, given(), allowed);
        }
        if let Some(decay) = self.weight_decay.filter(|decay| !(0.0..=f32::MAX).contains(decay)) {
            return problem(WEIGHT_DECAY, decay.to_string(), "0 or more");
        }
        let is_ftrl = matches!(rule, Optimizer::Ftrl { .. });
        match self.rate_factor {
            Some(factor) if is_ftrl && !(f64::MIN_POSITIVE..=FACTOR_MAX).contains(&factor) => {
                problem(RATE_FACTOR, factor.to_string(), "above 0, up to 1000000 with `rule` \"ftrl\"")
            }
            Some(factor) if !(0.0..=FACTOR_MAX).contains(&factor) => {
                problem(RATE_FACTOR, factor.to_string(), "0 to 1000000")
            }
            _ => None,
        }
    }
}

/// Checks the keys of each group and the norm to which gradients are clipped, and that the other settings support them.
///
/// # Errors
/// A key is wrong, or another setting does not support it.
pub(super) fn check(settings: &TrainingSettings) -> Result<(), SpecificationError> {
    let TrainingSettings { groups, algorithm, optimizer, clip_norm, .. } = settings;
    if let Some(norm) = clip_norm {
        within(CLIP_NORM, *norm, f32::MIN_POSITIVE..=f32::MAX, "above 0")?;
    }
    if groups.len() > GROUPS_MAX {
        return refuse(GROUPS, format!("a list of {}", groups.len()), "at most 32 groups".to_owned());
    }
    for (index, group) in groups.iter().enumerate() {
        if let Some((key, found, allowed)) = group.problem(optimizer) {
            return refuse(key, format!("{found} in group {}", index + 1), allowed);
        }
    }
    if let Some(allowed) = statistics_problem(settings).filter(|_| has_statistics(groups)) {
        return refuse(STATISTIC, "true".to_owned(), allowed.to_owned());
    }
    check_program(settings, &algorithm.launch())
}

/// Checks that a program supports groups, clipping and bounds.
///
/// # Errors
/// It does not.
pub(super) fn check_program(
    settings: &TrainingSettings,
    program: &ProgramFactory,
) -> Result<(), SpecificationError> {
    let TrainingSettings { groups, clip_norm, bounds, .. } = settings;
    let given = || "given".to_owned();
    let key = match (groups.is_empty(), clip_norm, bounds) {
        (false, _, _) => GROUPS,
        (true, Some(_), _) => CLIP_NORM,
        (true, None, Some(_)) if !program.has_tables() => BOUNDS,
        (true, None, _) => return Ok(()),
    };
    if program.has_tables() {
        let allowed = "nothing with this [sync] kind: the owner of a table updates each row when it can, and all rows alike";
        return refuse(key, given(), allowed.to_owned());
    }
    if !program.has_grouped_optimizer() {
        let allowed = format!(
            "nothing with the program `{}`, which does not declare `Program::GROUPED_OPTIMIZER`",
            program.name()
        );
        return refuse(key, given(), allowed);
    }
    if has_statistics(groups) && program.has_local_parameters() {
        let allowed = "false with this program: its means count all peers alike, and not their samples";
        return refuse(STATISTIC, "true".to_owned(), allowed.to_owned());
    }
    Ok(())
}

/// What other settings allow instead, if they do not support statistics.
fn statistics_problem(settings: &TrainingSettings) -> Option<&'static str> {
    if matches!(settings.algorithm, Algorithm::DsSync { .. }) {
        return Some("false with `kind` \"ds-sync\": its means count all peers alike, and not their samples");
    }
    if settings.gradients.is_lossy() {
        return Some(
            "false with lossy `gradients` in [sync]: what an encoding leaves out would be added to the next value",
        );
    }
    if settings.parameters == Compression::Int8 {
        return Some(
            "false with `parameters = \"int8\"` in [sync]: a small value beside large ones would become 0",
        );
    }
    None
}

fn has_statistics(groups: &[GroupSettings]) -> bool {
    groups.iter().any(|group| group.statistic)
}

/// Finds the elements of each group in a model of these tensors.
///
/// # Errors
/// A pattern matches no tensor, or all tensors of a group are in earlier groups.
pub(super) fn resolve(
    groups: &[GroupSettings],
    manifest: &Manifest,
) -> Result<ParameterGroups, SpecificationError> {
    let mut ranges = vec![Vec::new(); groups.len()];
    let is_in = |group: &GroupSettings, name: &str| {
        group.tensors.iter().any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
    };
    for (tensor, range) in manifest.tensors() {
        if let Some(index) = groups.iter().position(|group| is_in(group, &tensor.name)) {
            ranges[index].push(range);
        }
    }
    for (index, group) in groups.iter().enumerate() {
        let matches_none = |pattern: &&String| {
            !manifest.tensors().any(|(tensor, _)| matches(pattern.as_bytes(), tensor.name.as_bytes()))
        };
        if let Some(pattern) = group.tensors.iter().find(matches_none) {
            let allowed =
                format!("the name of a tensor, or a pattern that matches one: {}", listed(manifest));
            return refuse(TENSORS, format!("{pattern:?} in group {}", index + 1), allowed);
        }
        if ranges[index].is_empty() {
            let (found, allowed) = (
                format!("{:?} in group {}", group.tensors, index + 1),
                "a tensor that no earlier group has: the first group that matches a tensor has it".to_owned(),
            );
            return refuse(TENSORS, found, allowed);
        }
    }
    Ok(ParameterGroups::new(groups.iter().map(GroupSettings::treatment).zip(ranges)))
}

/// The first tensors of a model, in words.
fn listed(manifest: &Manifest) -> String {
    let mut names: Vec<String> =
        manifest.tensors().take(TENSORS_LISTED_MAX).map(|(tensor, _)| tensor.name.clone()).collect();
    let more = manifest.tensors().count() - names.len();
    names.extend((more > 0).then(|| format!("and {more} more")));
    names.join(", ")
}

/// Whether `name` matches `pattern`, in which each `*` stands for any number of characters.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // The last `*`, and the place in the name up to which it reaches.
    let mut star = None;
    while place < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(byte) if *byte == name[place] => (at, place) = (at + 1, place + 1),
            _ => {
                // The last `*` takes one more character; earlier ones need no other length.
                let Some((index, reached)) = star else { return false };
                star = Some((index, reached + 1));
                (at, place) = (index + 1, reached + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

fn refuse<T>(key: &'static str, found: String, allowed: String) -> Result<T, SpecificationError> {
    Err(SpecificationError::Setting { key, found, allowed })
}

const CLIP_NORM: &str = "optimizer.clip_norm";
const BOUNDS: &str = "optimizer.bounds";
const GROUPS: &str = "optimizer.groups";
const TENSORS: &str = "optimizer.groups.tensors";
const WEIGHT_DECAY: &str = "optimizer.groups.weight_decay";
const RATE_FACTOR: &str = "optimizer.groups.rate_factor";
const STATISTIC: &str = "optimizer.groups.statistic";
/// The most groups of a run.
const GROUPS_MAX: usize = 32;
/// The most patterns of a group.
const PATTERNS_MAX: usize = 64;
/// The most bytes of a pattern.
const PATTERN_BYTES_MAX: usize = 256;
/// The largest factor on the learning rate.
const FACTOR_MAX: f64 = 1e6;
/// How many tensors an error names.
const TENSORS_LISTED_MAX: usize = 8;

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::super::resolve::resolve_training;
    use super::*;
    use crate::specification::{RunFile, Specification, resolve as resolve_run};

    const DATA: &[u8] = b"0,0,a\n1,0,b\n0.1,1,a\n0.9,1,b\n0,2,a\n";
    const DECAY: &str = "[[optimizer.groups]]\ntensors = [\"*.bias\"]\nweight_decay = 0.0\n";

    fn manifest() -> Manifest {
        let tensors = ["conv.weight", "conv.bias", "norm.weight", "norm.mean", "head.weight", "head.bias"];
        tensors.iter().fold(Manifest::default(), |manifest, name| manifest.and(name, [10]))
    }

    fn settings(text: &str) -> Result<TrainingSettings, SpecificationError> {
        let training = resolve_training(&RunFile::parse(text)?, 100)?;
        training.check()?;
        Ok(training)
    }

    fn groups(text: &str) -> Result<ParameterGroups, SpecificationError> {
        Ok(settings(text)?.training(&manifest())?.groups)
    }

    #[test]
    fn a_star_matches_any_characters() {
        let found = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        for (pattern, name) in [
            ("norm.bias", "norm.bias"),
            ("*.bias", "layer.0.bias"),
            ("norm*", "norm"),
            ("norm*", "norm.1.weight"),
            ("*", ""),
            ("*a*b*", "xaaxbx"),
            ("a*ab", "aaab"),
            ("layer.*.norm.*", "layer.10.norm.weight"),
            ("**", "x"),
        ] {
            assert!(found(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("norm", "norm.bias"),
            ("*.bias", "layer.0.bias2"),
            ("", "x"),
            ("a*b*c", "acb"),
            ("layer.?.bias", "layer.0.bias"),
            ("Norm*", "norm"),
        ] {
            assert!(!found(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_group_that_matches_has_the_tensor() {
        let text = format!(
            "{DECAY}[[optimizer.groups]]\ntensors = [\"norm.mean\"]\nstatistic = true\n\
             [[optimizer.groups]]\ntensors = [\"head.*\", \"norm*\"]\nrate_factor = 0.5\nweight_decay = 0.1"
        );
        let expected = ParameterGroups::new([
            (Treatment::Trained { weight_decay: Some(0.0), rate_factor: 1.0 }, vec![10..20, 50..60]),
            (Treatment::Statistic, vec![30..40]),
            (Treatment::Trained { weight_decay: Some(0.1), rate_factor: 0.5 }, vec![20..30, 40..50]),
        ]);
        assert_eq!(groups(&text), Ok(expected));
        assert_eq!(groups(""), Ok(ParameterGroups::default()));
    }

    #[test]
    fn groups_are_part_of_the_specification() {
        let resolved = |text: &str| {
            let text = format!("[data]\nfile = \"f.csv\"\n{text}");
            resolve_run(&RunFile::parse(&text).unwrap(), "f.csv", DATA)
        };
        let text = |specification: &Specification| {
            String::from_utf8(specification.to_bytes().unwrap()).expect("it is text")
        };
        let without = resolved("").unwrap();
        assert!(!text(&without).contains("groups"), "a run without groups has the bytes that it always had");
        let with = resolved(DECAY).unwrap();
        let bytes = with.to_bytes().unwrap();
        assert_eq!(Specification::parse(&bytes), Ok(with.clone()));
        let groups = with.load(DATA).unwrap().config.groups;
        let no_decay = Treatment::Trained { weight_decay: Some(0.0), rate_factor: 1.0 };
        // Two features, 128 hidden units and two classes.
        assert_eq!(groups, ParameterGroups::new([(no_decay, vec![256..384, 640..642])]));
        let error = resolved(&DECAY.replace("*.bias", "*.bais")).unwrap_err().to_string();
        let words = "`optimizer.groups.tensors` is \"*.bais\" in group 1; allowed: the name of a tensor, or a pattern \
            that matches one: layer.0.weight, layer.0.bias, layer.1.weight, layer.1.bias";
        assert_eq!(error, words);
        let altered = text(&with).replace("*.bias", "*.bais");
        assert!(Specification::parse(altered.as_bytes()).is_err(), "another peer may have written it");
    }

    #[test]
    fn only_the_first_tensors_of_a_large_model_are_listed() {
        let large = (0..100)
            .fold(Manifest::default(), |manifest, index| manifest.and(&format!("layer.{index}"), [1]));
        assert!(listed(&large).ends_with("layer.6, layer.7, and 92 more"), "{}", listed(&large));
        assert_eq!(listed(&Manifest::tensor("w", [2])), "w");
    }

    #[track_caller]
    fn assert_error(text: &str, words: &str) {
        let error = groups(text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn keys_that_make_no_sense_are_refused() {
        let group = |keys: &str| format!("[[optimizer.groups]]\ntensors = [\"norm.mean\"]\n{keys}");
        for (keys, words) in [
            (
                "statistic = true\nrate_factor = 0.1",
                "rate_factor` is given in group 1; allowed: nothing beside",
            ),
            (
                "statistic = true\nweight_decay = 0.1",
                "weight_decay` is given in group 1; allowed: nothing beside",
            ),
            ("", "`optimizer.groups` is the same as no group in group 1; allowed: groups in which"),
            ("statistic = false", "is the same as no group"),
            ("weight_decay = -0.1", "weight_decay` is -0.1 in group 1; allowed: 0 or more"),
            ("weight_decay = nan", "weight_decay` is NaN in group 1; allowed: 0 or more"),
            ("rate_factor = -1.0", "rate_factor` is -1 in group 1; allowed: 0 to 1000000"),
            ("rate_factor = inf", "rate_factor` is inf in group 1"),
            ("rate = 0.1", "unknown field `rate`"),
        ] {
            assert_error(&group(keys), words);
        }
        let rule = |rule: &str, keys: &str| format!("[optimizer]\nrule = \"{rule}\"\n{}", group(keys));
        assert_error(
            &rule("prox", "weight_decay = 0.1"),
            "weight_decay` is given in group 1; allowed: nothing",
        );
        assert_error(&rule("ftrl", "rate_factor = 0.0"), "rate_factor` is 0 in group 1; allowed: above 0");
        assert!(groups(&rule("prox", "rate_factor = 0.0")).is_ok());
        assert_error("[[optimizer.groups]]\ntensors = []\nrate_factor = 1.0", "is a list of 0 in group 1");
        let long = "x".repeat(257);
        let text = format!("[[optimizer.groups]]\ntensors = [\"{long}\"]\nrate_factor = 0.5");
        assert_error(&text, "is a name of 257 bytes in group 1");
        assert_error(&DECAY.repeat(33), "`optimizer.groups` is a list of 33; allowed: at most 32 groups");
        assert_error(
            &DECAY.repeat(2),
            "[\"*.bias\"] in group 2; allowed: a tensor that no earlier group has",
        );
        assert_error("[[optimizer.groups]]\nrate_factor = 1.0", "missing field `tensors`");
    }

    #[test]
    fn a_norm_is_above_zero_and_needs_the_whole_gradient() {
        let norm = |norm: &str| format!("[optimizer]\nclip_norm = {norm}\n");
        let with = settings(&norm("2.5")).unwrap();
        assert_eq!((with.clip_norm, with.training(&manifest()).unwrap().clip_norm), (Some(2.5), Some(2.5)));
        assert!(toml::to_string(&with).unwrap().contains("\nclip_norm = 2.5\n"));
        assert!(!toml::to_string(&settings("").unwrap()).unwrap().contains("clip_norm"));
        for wrong in ["0.0", "-1.0", "nan", "inf"] {
            assert_error(&norm(wrong), "; allowed: above 0");
        }
        for kind in ["sync", "backup-workers", "local", "diloco", "ds-sync"] {
            assert!(settings(&format!("{}[sync]\nkind = \"{kind}\"", norm("1.0"))).is_ok(), "{kind}");
        }
        for kind in ["ssp", "async", "downpour"] {
            let words = "`optimizer.clip_norm` is given; allowed: nothing with this [sync] kind";
            assert_error(&format!("{}[sync]\nkind = \"{kind}\"", norm("1.0")), words);
        }
    }

    #[test]
    fn settings_that_do_not_support_groups_are_refused() {
        let statistic = "[[optimizer.groups]]\ntensors = [\"norm.mean\"]\nstatistic = true\n";
        for kind in ["sync", "backup-workers", "local", "diloco", "ds-sync"] {
            assert!(groups(&format!("{DECAY}[sync]\nkind = \"{kind}\"")).is_ok(), "{kind}");
            let with_statistic = groups(&format!("{statistic}[sync]\nkind = \"{kind}\""));
            assert_eq!(with_statistic.is_ok(), kind != "ds-sync", "{kind}");
        }
        for kind in ["ssp", "async", "downpour"] {
            let words = "`optimizer.groups` is given; allowed: nothing with this [sync] kind";
            assert_error(&format!("{DECAY}[sync]\nkind = \"{kind}\""), words);
        }
        for codec in ["bf16", "f16", "int8", "top-k"] {
            let text = format!("[sync]\ngradients = \"{codec}\"\n");
            assert!(groups(&format!("{text}{DECAY}")).is_ok());
            assert_error(&format!("{text}{statistic}"), "false with lossy `gradients` in [sync]");
        }
        assert!(groups(&format!("[sync]\nparameters = \"bf16\"\n{statistic}")).is_ok());
        assert_error(
            &format!("[sync]\nparameters = \"int8\"\n{statistic}"),
            "beside large ones would become 0",
        );
    }
}
