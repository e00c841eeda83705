//! The lines of a golden file: bytes, and beside them their meaning.

use std::fmt::{Debug, Write};

use peergrad_protocol::agreement::Ballot;
use peergrad_protocol::chunk_set::ChunkSet;
use peergrad_protocol::message::{Contact, SampleStats};
use peergrad_protocol::wire::{self, Encode};

/// The lines of one file.
#[derive(Default)]
pub(crate) struct Sheet {
    pub(crate) lines: Vec<(Vec<u8>, String)>,
}

impl Sheet {
    pub(crate) fn raw(&mut self, bytes: &[u8], comment: impl Into<String>) {
        self.lines.push((bytes.to_vec(), comment.into()));
    }

    /// A number, or an option or a variant without fields.
    pub(crate) fn value<T: Encode + Debug>(&mut self, name: &str, value: T) {
        self.raw(&wire::encode_record(&value), format!("{name} = {value:?}"));
    }

    pub(crate) fn array(&mut self, name: &str, bytes: &[u8]) {
        self.raw(bytes, format!("{name}, {} bytes", bytes.len()));
    }

    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.length(name, text.len());
        if !text.is_empty() {
            self.raw(text.as_bytes(), format!("{text:?}"));
        }
    }

    pub(crate) fn length(&mut self, name: &str, length: usize) {
        self.raw(&wire::encode_record(&(length as u64)), format!("{name}: length {length}"));
    }

    /// A list: its length, then each item.
    pub(crate) fn list<T>(&mut self, name: &str, items: &[T], item: impl Fn(&mut Self, &T)) {
        self.length(name, items.len());
        items.iter().for_each(|each| item(self, each));
    }

    /// An option with fields: whether it is present, then its fields.
    pub(crate) fn some<T>(&mut self, name: &str, value: Option<&T>, fields: impl Fn(&mut Self, &T)) {
        match value {
            None => self.raw(&[0], format!("{name} = None")),
            Some(value) => {
                self.raw(&[1], format!("{name} = Some"));
                fields(self, value);
            }
        }
    }

    pub(crate) fn addresses(&mut self, addresses: &[String]) {
        self.list("addresses", addresses, |sheet, address| sheet.text("address", address));
    }

    pub(crate) fn contact(&mut self, name: &str, contact: &Contact) {
        let Contact { peer, addresses } = contact;
        self.array(&format!("{name}.peer"), &peer.0);
        self.addresses(addresses);
    }

    pub(crate) fn ballot(&mut self, name: &str, ballot: &Ballot) {
        let Ballot { attempt, rank } = ballot;
        self.value(&format!("{name}.attempt"), attempt);
        self.value(&format!("{name}.rank"), rank);
    }

    pub(crate) fn stats(&mut self, name: &str, stats: &SampleStats) {
        let SampleStats { samples, loss } = stats;
        self.value(&format!("{name}.samples"), samples);
        self.raw(&loss.to_le_bytes(), format!("{name}.loss = {loss}"));
    }

    pub(crate) fn chunks(&mut self, name: &str, chunks: &ChunkSet) {
        let record = wire::encode_record(chunks);
        let (length, bits) = record.split_first().expect("a list has a length");
        self.raw(&[*length], format!("{name}: length {length}"));
        if !bits.is_empty() {
            self.raw(bits, format!("chunks {:?}", chunks.iter().collect::<Vec<_>>()));
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|(bytes, _)| bytes).copied().collect()
    }

    pub(crate) fn render(&self, heading: &str) -> String {
        let mut text = heading.lines().fold(String::new(), |text, line| text + "# " + line + "\n");
        for (bytes, comment) in &self.lines {
            let hex: String = bytes.iter().fold(String::new(), |mut hex, byte| {
                write!(hex, "{byte:02x}").expect("writing to a string succeeds");
                hex
            });
            writeln!(text, "{hex:8}  # {comment}").expect("writing to a string succeeds");
        }
        text
    }
}
