//! Former names of keys and values of a run file, for better errors.
//!
//! A run file with a former name is rejected, like any file with an unknown key. The error then states the current name. Only files
//! that could not be parsed are searched.

use toml::de::{DeTable, DeValue};

/// A key, or a value of a key, that has a new name.
struct FormerName {
    /// The section; empty for the top of the file.
    section: &'static str,
    key: &'static str,
    /// The former value; `None` if the key itself was renamed.
    value: Option<&'static str>,
    /// The current name.
    current: &'static str,
}

const FORMER_NAMES: [FormerName; 6] = [
    FormerName { section: "", key: "passes", value: None, current: "epochs" },
    FormerName { section: "optimizer", key: "decay_passes", value: None, current: "decay_epochs" },
    FormerName { section: "shards", key: "copies", value: None, current: "replicas" },
    FormerName { section: "sync", key: "kind", value: Some("ring"), current: "sync" },
    FormerName { section: "sync", key: "kind", value: Some("quorum"), current: "backup-workers" },
    FormerName { section: "sync", key: "local_steps", value: Some("pass"), current: "epoch" },
];

/// An error for the first former name in `text`, with its line and the current name; `None` if `text` has no former name. The run file is the
/// whole text, or its section `inside`.
#[must_use]
pub fn explain_former_name(text: &str, inside: Option<&str>) -> Option<String> {
    let root = DeTable::parse(text).ok()?.into_inner();
    let run = inside.map_or(Some(&root), |name| section_of(&root, name))?;
    FORMER_NAMES.iter().find_map(|former| former.explain(text, run))
}

impl FormerName {
    fn explain(&self, text: &str, run: &DeTable<'_>) -> Option<String> {
        let table = if self.section.is_empty() { run } else { section_of(run, self.section)? };
        let (key, value) = table.iter().find(|(key, _)| key.get_ref() == self.key)?;
        let found = match (self.value, value.get_ref()) {
            (None, _) => self.key,
            (Some(former), DeValue::String(written)) if written == former => former,
            (Some(_), _) => return None,
        };
        let line = text[..key.span().start].matches('\n').count() + 1;
        Some(match self.value {
            None => format!("line {line}: `{found}` is now called `{}`", self.current),
            Some(_) => {
                format!("line {line}: `{}` = \"{found}\" is now called \"{}\"", self.key, self.current)
            }
        })
    }
}

fn section_of<'a, 'text>(table: &'a DeTable<'text>, name: &str) -> Option<&'a DeTable<'text>> {
    match table.iter().find(|(key, _)| key.get_ref() == name)?.1.get_ref() {
        DeValue::Table(section) => Some(section),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::RunFile;

    #[test]
    fn each_former_name_is_rejected_with_the_current_one() {
        for (text, expected) in [
            ("batch = 8\npasses = 3", "line 2: `passes` is now called `epochs`"),
            ("[optimizer]\ndecay_passes = 3", "line 2: `decay_passes` is now called `decay_epochs`"),
            ("[shards]\ncopies = 2", "line 2: `copies` is now called `replicas`"),
            ("[sync]\nkind = \"ring\"", "line 2: `kind` = \"ring\" is now called \"sync\""),
            ("[sync]\nkind = \"quorum\"", "line 2: `kind` = \"quorum\" is now called \"backup-workers\""),
            (
                "[sync]\nkind = \"local\"\nlocal_steps = \"pass\"",
                "line 3: `local_steps` = \"pass\" is now called \"epoch\"",
            ),
        ] {
            assert_eq!(RunFile::parse(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn other_mistakes_are_reported_unchanged() {
        assert_eq!(explain_former_name("[sync]\nkind = \"gossip\"\ntopology = \"ring\"", None), None);
        assert_eq!(explain_former_name("[sync]\ncopies = 2", None), None, "another section");
        assert_eq!(explain_former_name("passes = ", None), None, "not TOML");
        assert!(RunFile::parse("epoch = 3").unwrap_err().to_string().contains("unknown field `epoch`"));
    }

    #[test]
    fn a_run_file_inside_another_file_is_searched() {
        let text = "passes = 1\n[run]\npasses = 3\n[run.shards]\ncopies = 2";
        let expected = "line 3: `passes` is now called `epochs`";
        assert_eq!(explain_former_name(text, Some("run")).as_deref(), Some(expected));
        assert_eq!(explain_former_name(text, Some("links")), None);
    }
}
