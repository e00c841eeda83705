//! Tokens of a text: its bytes, or the numbers of a tokenizer in the format of Hugging Face (tokenizer.json).

#[cfg(not(feature = "tokenizers"))]
mod of_this_program {
    use anyhow::bail;
    use peergrad_config::specification::SpecificationError;

    /// Nothing reads tokenizers in this program.
    pub(in super::super) struct Tokenizer(std::convert::Infallible);

    impl Tokenizer {
        pub(in super::super) fn read(_: &[u8]) -> anyhow::Result<Self> {
            bail!(SpecificationError::NoBackend)
        }

        pub(in super::super) fn vocabulary(&self) -> usize {
            match self.0 {}
        }

        pub(in super::super) fn encode(&self, _: &str) -> anyhow::Result<Vec<u32>> {
            match self.0 {}
        }

        pub(in super::super) fn decode(&self, _: &[u32]) -> anyhow::Result<String> {
            match self.0 {}
        }
    }
}

#[cfg(feature = "tokenizers")]
mod of_this_program {
    use anyhow::anyhow;

    /// Makes numbers of a text, and a text of numbers.
    pub(in super::super) struct Tokenizer(tokenizers::Tokenizer);

    /// Texts are encoded in parts of about this length, which end with a line.
    const PART_BYTES: usize = 1 << 20;

    impl Tokenizer {
        /// Reads the text of a tokenizer.json.
        pub(in super::super) fn read(text: &[u8]) -> anyhow::Result<Self> {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(text)
                .map_err(|error| anyhow!("this is no tokenizer.json that can be read ({error})"))?;
            // A text is not cut, and nothing is added to it.
            tokenizer.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
            tokenizer.with_padding(None);
            Ok(Self(tokenizer))
        }

        /// How many different tokens there are.
        pub(in super::super) fn vocabulary(&self) -> usize {
            let ids = self.0.get_vocab(true).into_values();
            ids.max().map_or(0, |most| most as usize + 1)
        }

        /// The tokens of a text.
        pub(in super::super) fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
            let mut tokens = vec![];
            let mut rest = text;
            while !rest.is_empty() {
                let (part, after) = rest.split_at(part_end(rest));
                let encoding = self.0.encode(part, false).map_err(|error| anyhow!("{error}"))?;
                tokens.extend_from_slice(encoding.get_ids());
                rest = after;
            }
            Ok(tokens)
        }

        /// The text of tokens.
        pub(in super::super) fn decode(&self, tokens: &[u32]) -> anyhow::Result<String> {
            self.0.decode(tokens, false).map_err(|error| anyhow!("{error}"))
        }
    }

    /// Where the first part of a text ends: before a line that is not empty, or at the end.
    fn part_end(text: &str) -> usize {
        if text.len() <= PART_BYTES {
            return text.len();
        }
        let bytes = text.as_bytes();
        let is_start = |&at: &usize| bytes[at - 1] == b'\n' && !bytes[at].is_ascii_whitespace();
        (PART_BYTES..text.len()).find(is_start).unwrap_or(text.len())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn parts_end_with_a_line() {
            let line = "a line of text\n\n";
            let text = line.repeat(PART_BYTES / line.len() + 100);
            let end = part_end(&text);
            assert!(end >= PART_BYTES && end < PART_BYTES + line.len() && end.is_multiple_of(line.len()));
            assert_eq!(part_end("short"), 5);
            let one = "é".repeat(PART_BYTES);
            assert_eq!(part_end(&one), one.len(), "one long line");
        }
    }
}

pub(super) use of_this_program::Tokenizer;
