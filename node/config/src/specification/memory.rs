//! The memory of a run: about how much it takes at a peer, as far as its specification tells.
//!
//! Another peer wrote the specification, and its numbers are small to write and large to obey. So a peer adds them up before it takes
//! memory of their size.
//!
//! ```text
//! while loading     data file, unpacked file, table (8 bytes per number), samples (4 bytes per number)
//! large files of pictures of bytes or of text stay on disk: only their labels are in memory
//! while training    data file unless it is large, samples, and vectors of 4 bytes per parameter:
//!                   values, gradients, one more copy, and what lossy codecs keep; a share of the optimizer's moments on top;
//!                   with a deep network, the intermediate values and the gradients of the pieces that are computed at once
//! ```
//! # Not here
//! Segments on their way, tables of asynchronous modes and the code itself: they are the same for most runs, or have other bounds.

use std::fmt;

use peergrad_models::data::format::{FileLayout, Format};
use peergrad_models::data::limits::UNPACKED_BYTES_MAX;
use peergrad_protocol::limits::KEPT_DATA_BYTES_MAX;

use super::{Specification, SpecificationError, TrainingSettings};

/// How much memory a run may take at this peer; no limit by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimit {
    bytes: Option<u64>,
}

impl MemoryLimit {
    /// A limit of so many bytes; `None` for no limit.
    #[must_use]
    pub fn new(bytes: Option<u64>) -> Self {
        Self { bytes }
    }

    /// Checks that a run may take `needed` bytes.
    ///
    /// # Errors
    /// They are more than the limit.
    pub fn check(self, needed: u64) -> Result<(), SpecificationError> {
        match self.bytes {
            Some(limit) if needed > limit => Err(SpecificationError::TooMuchMemory { needed, limit }),
            _ => Ok(()),
        }
    }

    /// To how many bytes a run's data file may be unpacked if the rest of loading takes `taken` bytes.
    fn unpacked_bytes_max(self, taken: u64) -> u64 {
        self.bytes.map_or(UNPACKED_BYTES_MAX, |limit| UNPACKED_BYTES_MAX.min(limit.saturating_sub(taken)))
    }
}

impl Specification {
    /// About how many bytes of memory a peer of this run needs at most at one time. How far a gzipped data file unpacks is not known before.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let file = self.data.byte_count;
        let kept_file = if file <= KEPT_DATA_BYTES_MAX { file } else { 0 };
        let samples = match self.data.layout {
            _ if self.stays_on_disk() => u64::from(self.data.rows).saturating_mul(ROW_BYTES),
            // A packed text has more bytes than its file.
            FileLayout::Text(layout) => {
                let tokens = u64::from(self.data.rows).saturating_mul(layout.context as u64);
                self.data.byte_count.max(tokens)
            }
            FileLayout::Documents(ref layout) => layout.tokens.saturating_mul(TOKEN_BYTES),
            _ if self.has_byte_pictures() => {
                let columns = self.data.layout.columns() as u64;
                u64::from(self.data.rows).saturating_mul(columns.saturating_add(ROW_BYTES))
            }
            _ => self.value_count().saturating_mul(SAMPLE_BYTES),
        };
        let state = self.training.state_bytes(self.manifest().parameter_count() as u64);
        let deep = self.architecture().map_or(0, |architecture| {
            let whole = architecture.manifest().parameter_count();
            architecture.gradient_bytes(whole).saturating_add(self.base_bytes(whole))
        });
        let training = kept_file.saturating_add(samples).saturating_add(state).saturating_add(deep);
        self.loading_bytes().max(training)
    }

    /// Bytes taken while the data file is loaded, without the unpacked file. A specification may claim any numbers.
    pub(super) fn loading_bytes(&self) -> u64 {
        let table = self.value_count().saturating_mul(TABLE_BYTES + SAMPLE_BYTES);
        let entries = match self.data.layout {
            FileLayout::Documents(ref layout) => layout.tokens.saturating_mul(ENTRY_BYTES),
            _ => 0,
        };
        let all = self.data.byte_count.saturating_add(table).saturating_add(entries);
        if self.stays_on_disk() { 0 } else { all }
    }

    /// Bytes of the model that a run starts from, of so many parameters; with adapters also of the weights that follow from it, and of their
    /// gradient. While it is read, it is there up to three times.
    fn base_bytes(&self, parameters: usize) -> u64 {
        if self.base_digest().is_some() {
            (parameters as u64).saturating_mul(3 * size_of::<f32>() as u64)
        } else {
            0
        }
    }

    /// Whether the data file stays on disk, where samples are read when they are needed.
    fn stays_on_disk(&self) -> bool {
        let is_read_there = self.data.layout.format() == Format::Text || self.has_byte_pictures();
        is_read_there && self.data.byte_count > KEPT_DATA_BYTES_MAX && !self.data.name.ends_with(".gz")
    }

    /// To how many bytes the data file may be unpacked.
    pub(super) fn unpacked_bytes_max(&self, limit: MemoryLimit) -> u64 {
        limit.unpacked_bytes_max(self.loading_bytes())
    }

    /// The numbers of a dense table; 0 if the samples are sparse, since they take about as much as the file that lists them,
    /// with prose and documents, and with pictures that stay bytes.
    fn value_count(&self) -> u64 {
        if self.is_sparse() || self.has_byte_pictures() || self.data.layout.format() == Format::Text {
            0
        } else {
            u64::from(self.data.rows).saturating_mul(self.data.layout.columns() as u64)
        }
    }
}

impl TrainingSettings {
    /// About how many bytes a member keeps for a model of so many parameters, however many members there are. What it owns comes on top.
    #[must_use]
    pub fn state_bytes(&self, parameters: u64) -> u64 {
        let residual = u64::from(self.gradients.is_lossy());
        let vectors = VECTORS + residual;
        parameters.saturating_mul(vectors * size_of::<f32>() as u64)
    }
}

/// A number of bytes as people read it: `300 MiB`, `4.2 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..MEBIBYTE => write!(f, "{} KiB", self.0.div_ceil(1 << 10)),
            MEBIBYTE..GIBIBYTE => write!(f, "{} MiB", self.0.div_ceil(MEBIBYTE)),
            _ => write!(f, "{:.1} GiB", self.0 as f64 / GIBIBYTE as f64),
        }
    }
}

impl ByteSize {
    /// The next larger round size, as an argument: `300MiB`, `5GiB`.
    #[must_use]
    pub fn rounded_up(self) -> String {
        match self.0 {
            0..GIBIBYTE => format!("{}MiB", self.0.div_ceil(MEBIBYTE)),
            _ => format!("{}GiB", self.0.div_ceil(GIBIBYTE)),
        }
    }
}

/// Values, gradients, and one more copy.
const VECTORS: u64 = 3;
/// Bytes of a number in a table.
const TABLE_BYTES: u64 = size_of::<f64>() as u64;
/// Bytes of a number in a sample.
const SAMPLE_BYTES: u64 = size_of::<f32>() as u64;
/// Bytes of the label of a picture that stays bytes, and of its place in the file.
const ROW_BYTES: u64 = 2 * size_of::<u32>() as u64;
/// Bytes of a word of a document while it is trained: the word and its topic.
const TOKEN_BYTES: u64 = 2 * size_of::<u32>() as u64;
/// Bytes of a word of a document while it is loaded: the word twice, and how often it occurs.
const ENTRY_BYTES: u64 = 3 * size_of::<u32>() as u64;
const MEBIBYTE: u64 = 1 << 20;
const GIBIBYTE: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::{RunFile, resolve};

    const DATA: &[u8] = b"0,0,a\n1,0,b\n0.1,1,a\n0.9,1,b\n0,2,a\n";

    fn specification(optimizer: &str) -> Specification {
        let run = format!(
            "[data]\nfile = \"f.csv\"\n[model]\nkind = \"mlp\"\nhidden = [1000]\n[optimizer]\nrule = \"{optimizer}\""
        );
        resolve(&RunFile::parse(&run).unwrap(), "f.csv", DATA).unwrap()
    }

    #[test]
    fn memory_is_that_of_the_data_and_the_vectors() {
        let parameters = 2 * 1000 + 1000 + 1000 * 2 + 2;
        let data = DATA.len() as u64 + 5 * 2 * 4;
        assert_eq!(specification("sgd").memory_bytes(), data + parameters * 4 * 3);
        assert_eq!(specification("adam").memory_bytes(), data + parameters * 4 * 3, "its moments are shared");
        let mut large = specification("sgd");
        large.data.byte_count = KEPT_DATA_BYTES_MAX + 1;
        large.data.rows = 1 << 20;
        let loading = KEPT_DATA_BYTES_MAX + 1 + (2 << 20) * 12;
        assert_eq!(large.memory_bytes(), loading, "the file is not kept, so that loading takes more");
    }

    /// Four pictures of one byte for each of 8 x 8 values, with two classes.
    fn pictures() -> Specification {
        let head = b"\0\0\x08\x03\0\0\0\x04\0\0\0\x08\0\0\0\x08".to_vec();
        let values = (0..4 * 64).map(|value| value as u8);
        let data: Vec<u8> =
            head.into_iter().chain(values).chain(*b"\0\0\x08\x01\0\0\0\x04\0\x01\0\x01").collect();
        let run =
            RunFile::parse("[data]\nfile = \"p.idx\"\nheld_out = 0.0\n[model]\nkind = \"cnn\"\nlayers = []")
                .unwrap();
        resolve(&run, "p.idx", &data).unwrap()
    }

    #[test]
    fn pictures_of_bytes_take_a_byte_for_each_value_or_stay_on_disk() {
        let small = pictures();
        let of = |specification: &Specification| specification.memory_bytes();
        let mut more = small.clone();
        more.data.rows += 100;
        assert_eq!(of(&more) - of(&small), 100 * (64 + ROW_BYTES));
        let mut large = small.clone();
        large.data.byte_count = KEPT_DATA_BYTES_MAX + 1;
        let with_file = of(&small) - small.data.byte_count;
        assert_eq!(of(&large), with_file - 4 * 64, "neither the file nor its values are in memory");
        let mut packed = large.clone();
        packed.data.name += ".gz";
        assert!(of(&packed) > KEPT_DATA_BYTES_MAX, "what is unpacked is in memory");
    }

    #[test]
    fn a_text_takes_a_byte_for_each_character_or_stays_on_disk() {
        let text = "It is a truth universally acknowledged. ".repeat(100);
        let run = RunFile::parse(
            "[data]\nfile = \"b.txt\"\n[model]\nkind = \"gpt\"\nwidth = 8\nlayers = 1\ncontext = 8",
        )
        .unwrap();
        let small = resolve(&run, "b.txt", text.as_bytes()).unwrap();
        let mut large = small.clone();
        large.data.byte_count = KEPT_DATA_BYTES_MAX + 1;
        let file = 2 * text.len() as u64;
        let rows = u64::from(small.data.rows) * ROW_BYTES;
        assert_eq!(large.memory_bytes(), small.memory_bytes() - file + rows);
    }

    #[test]
    fn more_than_the_limit_is_refused_with_both_sizes() {
        assert_eq!(MemoryLimit::default().check(u64::MAX), Ok(()));
        let limit = MemoryLimit::new(Some(3 << 30));
        assert_eq!(limit.check(3 << 30), Ok(()));
        let error = limit.check(4_500_000_000).unwrap_err().to_string();
        assert_eq!(
            error,
            "this run needs about 4.2 GiB of memory, but this peer may take 3.0 GiB: allow more with `--max-memory 5GiB`, or use a machine with more memory"
        );
    }

    #[test]
    fn sizes_are_short() {
        let texts = [1, 300 << 20, (300 << 20) + 1, 9 << 29].map(|bytes| ByteSize(bytes).to_string());
        assert_eq!(texts, ["1 KiB", "300 MiB", "301 MiB", "4.5 GiB"]);
        assert_eq!(
            [1, 300 << 20, 9 << 29].map(|bytes| ByteSize(bytes).rounded_up()),
            ["1MiB", "300MiB", "5GiB"]
        );
    }
}
