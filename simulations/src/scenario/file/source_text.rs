//! The position of a key in the text of a scenario.

use toml::de::{DeTable, DeValue};

use super::ScenarioError;

/// A scenario's text, for finding lines.
pub(super) struct SourceText<'a> {
    text: &'a str,
}

impl<'a> SourceText<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text }
    }

    /// A mistake at a key: `sweep.peers`, or `faults.0.at` in the first fault. If the key is missing, the line is that of its section. In a
    /// fault, the message names the key without its path.
    pub(super) fn mistake(&self, path: &str, text: impl Into<String>) -> ScenarioError {
        let key = match path.split('.').collect::<Vec<_>>()[..] {
            ["faults", _, key] => key,
            _ => path,
        };
        ScenarioError::Mistake { line: self.line(path), key: key.to_owned(), text: text.into() }
    }

    fn line(&self, path: &str) -> usize {
        let Ok(tree) = DeTable::parse(self.text) else { return 1 };
        let tree = tree.into_inner();
        let mut at = 0;
        let mut table = Some(&tree);
        let mut faults = None;
        for part in path.split('.') {
            let value = match (table, faults.take()) {
                (_, Some(list)) => {
                    let list: &toml::de::DeArray<'_> = list;
                    part.parse::<usize>().ok().and_then(|index| list.get(index))
                }
                (Some(table), None) => {
                    table.iter().find(|(key, _)| key.get_ref() == part).map(|(key, value)| {
                        at = key.span().start;
                        value
                    })
                }
                (None, None) => None,
            };
            let Some(value) = value else { break };
            table = None;
            match value.get_ref() {
                DeValue::Table(inner) => {
                    table = Some(inner);
                    // A section in a list is found by its own header.
                    at = at.max(value.span().start);
                }
                DeValue::Array(list) => faults = Some(list),
                _ => {}
            }
        }
        self.text[..at].matches('\n').count() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_key_is_found_or_else_that_of_its_section() {
        let text = "about = \"x\"\n\n[run]\nbatch = 0\n[run.optimizer]\nrule = \"sgd\"\n\n[[faults]]\nat = \"1s\"\n\n[[faults]]\nkind = \"crash\"\nat = \"2s\"\n[sweep]\n";
        let source = SourceText::new(text);
        for (path, line) in [
            ("about", 1),
            ("run.batch", 4),
            ("run.epochs", 3),
            ("run.optimizer.rule", 6),
            ("run.optimizer.rate", 5),
            ("faults.0.at", 9),
            ("faults.1.at", 13),
            ("faults.1.peers", 11),
            ("sweep.peers", 14),
            ("expect.steps", 1),
        ] {
            assert_eq!(source.line(path), line, "{path}");
        }
    }
}
