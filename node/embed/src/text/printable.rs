//! Printable text: what a terminal shows and does not obey.
//!
//! Names of files and columns, labels, reasons and the status of other peers may hold control characters. A terminal that gets them
//! moves its cursor, sets the title of its window, or fills the clipboard. So text for people passes through here before it is written.

use std::borrow::Cow;

pub use peergrad_config::terminal::is_obeyed;
use serde_json::Value;

/// The text with each character that a terminal would obey replaced by its number, such as `\u{1b}`. Line ends and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_obeyed(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Makes all strings of a JSON value printable, and the names of its fields.
pub fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = printable(text) {
                *text = shown;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(fields) => {
            let old = std::mem::take(fields);
            fields.extend(old.into_iter().map(|(name, mut value)| {
                make_printable(&mut value);
                (printable(&name).into_owned(), value)
            }));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_text_of_any_script_stays_as_it_is() {
        for text in ["", "label `Müller`", "a\tb\nc", "日本語 🙂 é", "השם"] {
            assert!(matches!(printable(text), Cow::Borrowed(shown) if shown == text));
        }
    }

    #[test]
    fn control_sequences_are_shown_as_numbers() {
        assert_eq!(printable("da\x1b[31mta\x1b]0;pwned\x07.csv"), "da\\u{1b}[31mta\\u{1b}]0;pwned\\u{7}.csv");
        assert_eq!(printable("a\rb\u{9b}2Jc\x7f"), "a\\u{d}b\\u{9b}2Jc\\u{7f}");
        assert_eq!(printable("gpj.\u{202e}exe"), "gpj.\\u{202e}exe");
    }

    #[test]
    fn all_strings_of_a_json_value_become_printable() {
        let mut value = json!({"a\x1b": ["\x07", 1, null, {"b": "c\u{85}"}]});
        make_printable(&mut value);
        assert_eq!(value, json!({"a\\u{1b}": ["\\u{7}", 1, null, {"b": "c\\u{85}"}]}));
    }
}
