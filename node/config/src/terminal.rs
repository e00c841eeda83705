//! What a terminal obeys: characters that are no text to it.

/// Whether a terminal acts on this character, or shows what follows in another order.
#[must_use]
pub fn is_obeyed(character: char) -> bool {
    let changes_direction = matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    changes_direction || (character.is_control() && !matches!(character, '\n' | '\t'))
}
