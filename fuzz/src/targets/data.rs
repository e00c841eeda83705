//! Data files: text and numbers as users have them, packed or not.

use std::io::{Read, Write};

use flate2::Crc;
use flate2::write::GzEncoder;
use peergrad_config::base_model::BaseModel;
use peergrad_config::prepared_text::{PreparedText, TextTokens, prepare};
use peergrad_config::specification::{RunFile, Specification, resolve_with_notices};
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::data::column_hints::ColumnHints;
use peergrad_models::data::dense_table::unpack;
use peergrad_models::data::format::{FileLayout, Format};
use peergrad_models::data::idx::Outline;
use peergrad_models::deep::text::VOCABULARY;
use peergrad_models::deep::{Architecture, Family, Transformer};

use crate::target::{Bound, Form, Target, Verdict};

/// The name of the file in errors.
const FILE: &str = "file";

/// Reads a file as `peer init` and `peer start` do, up to the samples of the task.
fn read(bytes: &[u8], model: &str) -> Verdict {
    let hints = ColumnHints::default();
    let Ok(inferred) = FileLayout::infer(FILE, bytes, &hints) else { return Verdict::Refused };
    let layout = inferred.layout;
    assert_eq!(layout.problem(), None, "a layout that was inferred can be used");
    assert!(layout.of_other(FILE, bytes).is_ok() || layout.read_sparse(FILE, bytes).is_err());
    let Ok(table) = layout.read_sparse(FILE, bytes) else { return Verdict::Refused };
    assert_eq!(table.features.rows(), table.labels.rows().len());
    let run_file = format!("[data]\nfile = \"{FILE}\"\n[model]\nkind = \"{model}\"\n");
    let run_file = RunFile::parse(&run_file).expect("these settings are valid");
    let Ok((specification, _)) = resolve_with_notices(&run_file, FILE, bytes) else {
        return Verdict::Accepted;
    };
    let encoded = specification.to_bytes().expect("its size was checked");
    assert_eq!(Specification::parse(&encoded).as_ref(), Ok(&specification), "a specification reads back");
    specification.load(bytes).expect("the file that the specification was made from");
    Verdict::Accepted
}

/// What reading may take: some copies of the text, the table, which has at most eight bytes for each of the text, and what is known of up
/// to 65,536 columns. Each guess at the dialect has a reader with a buffer, and there are thousands of guesses.
fn table_bound(input_bytes: usize) -> Bound {
    Bound { largest_bytes: (16 << 20) + 64 * input_bytes, total_bytes: (128 << 20) + 1024 * input_bytes }
}

/// Tables as text.
pub(super) struct CsvTarget;

impl Target for CsvTarget {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let texts = [
            "a,b,label\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n",
            "1,2,0\n3,4,1\n5,6,0\n7,8,1\n",
            "1,5;2,5;0\n2,5;3,5;1\n3,5;4,5;0\n",
            "\"height, cm\";\"weight, kg\";\"kind\"\n1;2;a\n3;4;b\n5;6;a\n",
            "a\tb\tlabel\n1\t2\tx\n3\t4\ty\n5\t6\tx\n",
            "1 2 0\n3 4 1\n5 6 0\n7 8 1\n",
            "a|b|label\n1|2|x\n3|4|y\n",
            "sep=;\na;b;label\n1;2;x\n3;4;y\n",
            "# measured in May\na,b,label\n1,2,x\n3,4,y\n",
            "a,price,share,flag,label\n1,\"$1,234\",5%,TRUE,x\n2,\"$2,345\",6%,FALSE,y\n3,\"$3,456\",7%,TRUE,x\n",
            "1.0e+00,2.5,3.5\n0.0e+00,2.5,3.25\n1.0e+00,1.5,0.5\n0.0e+00,1,2\n",
            "\u{feff}a,b,größe\n1,2,3.5\n3,4,4.5\n5,6,1.25\n",
        ];
        let utf_16 = |text: &str| -> Vec<u8> {
            [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
        };
        let mut examples: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        examples.push(utf_16(texts[0]));
        examples.push(b"a;b;label\n1;2;M\xfcller\n3;4;M\xf6ller\n5;6;Maier\n".to_vec());
        examples
    }

    fn run(&self, input: &[u8]) -> Verdict {
        read(input, "mlp")
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        table_bound(input_bytes)
    }
}

/// Ratings as text.
pub(super) struct RatingsTarget;

impl Target for RatingsTarget {
    fn name(&self) -> &'static str {
        "ratings"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let texts = [
            "user,item,rating\nann,3,4\nbob,3,2.5\nann,7,1\neve,4,5\n",
            "1\t3\t4\t881\n2\t3\t2\t882\n1\t7\t1\t883\n",
            "movieId;score;userId\n7;1,5;\"a;b\"\n8;2,5;c\n",
            "1,1,3\n1,2,4\n\n2,1,3\n",
            "0,18446744073709551615,3\n01,2,1e3\n",
        ];
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let run_file = format!("[data]\nfile = \"{FILE}\"\n[model]\nkind = \"factorization\"\nrank = 1\n");
        let run_file = RunFile::parse(&run_file).expect("these settings are valid");
        let Ok((specification, _)) = resolve_with_notices(&run_file, FILE, input) else {
            return Verdict::Refused;
        };
        let encoded = specification.to_bytes().expect("its size was checked");
        assert_eq!(Specification::parse(&encoded).as_ref(), Ok(&specification), "a specification reads back");
        let loaded = specification.load(input).expect("the file that the specification was made from");
        let parameters = vec![0.5; loaded.manifest.parameter_count()];
        specification.evaluate(&parameters, FILE, input, &None).expect("the model knows its own file");
        // Another file's header is inferred by other signs.
        _ = specification.predict(&parameters, FILE, input, &None);
        Verdict::Accepted
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        table_bound(input_bytes)
    }
}

/// Documents: text, or counts of words.
pub(super) struct DocumentsTarget;

impl DocumentsTarget {
    /// Reads documents as `peer start` does, with these keys in `[data]`.
    fn read(input: &[u8], keys: &str) -> Verdict {
        /// A peer that may take no more memory than this refuses a short file of many words.
        const MEMORY_BYTES_MAX: u64 = 4 << 20;
        let run_file = format!("[data]\nfile = \"{FILE}\"\n{keys}\n[model]\nkind = \"lda\"\ntopics = 2\n");
        let run_file = RunFile::parse(&run_file).expect("these settings are valid");
        let Ok((specification, _)) = resolve_with_notices(&run_file, FILE, input) else {
            return Verdict::Refused;
        };
        let encoded = specification.to_bytes().expect("its size was checked");
        assert_eq!(Specification::parse(&encoded).as_ref(), Ok(&specification), "a specification reads back");
        if specification.memory_bytes() > MEMORY_BYTES_MAX {
            return Verdict::Refused;
        }
        let loaded = specification.load(input).expect("the file that the specification was made from");
        let parameters = vec![1.5; loaded.manifest.parameter_count()];
        specification.evaluate(&parameters, FILE, input, &None).expect("the model knows its own file");
        Verdict::Accepted
    }
}

impl Target for DocumentsTarget {
    fn name(&self) -> &'static str {
        "documents"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let texts = [
            "The cat sat.\nA dog sat, and the dog's star rose.\nDer Löwe schlief\nsat dog cat\n",
            "Title\n\nCHAPTER 1\nIt was a dog.\r\n\r\nChapter 2\nIt was a cat; the dog slept.\n",
            "one paragraph\nof two lines\n\nanother paragraph\n\n\nlines, lines\n",
            "2 0:1 2:3\n0\n\n1 1:2\n3 0:1 1:1 2:1\n",
            "0\n1 7:16777216\n1 3:1\n2 7:1 3:2\n",
        ];
        let examples = texts.iter().map(|text| text.as_bytes().to_vec());
        examples.filter(|text| self.run(text) == Verdict::Accepted).collect()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let all = "max_share = 1.0\nmin_documents = 1\nstop_words = \"none\"";
        let keys = ["", all, "separator = \"\"", "separator = \"chapter \"\nmax_share = 1.0"];
        let is_read = keys.map(|keys| Self::read(input, keys) == Verdict::Accepted).contains(&true);
        Verdict::of(is_read)
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        table_bound(input_bytes)
    }
}

/// Text that leaves out zeros. As a table it may be far larger than its text, so it is read in its sparse form.
pub(super) struct LibsvmTarget;

impl Target for LibsvmTarget {
    fn name(&self) -> &'static str {
        "libsvm"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let texts = [
            "1 2:5 3:7\n0 1:4\n1 3:1\n0 2:0.5\n",
            "+1 1:0.708333 2:1 3:1 4:-0.320755 # sample\n-1 1:0.583333 2:-1 4:-0.603774\n",
            "1 1:3e-2 2:4\r\n0 1:3 9:4\r\n",
        ];
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        // Another format is the task of another target.
        match Format::of(FILE, input) {
            Ok(Format::Libsvm) => read(input, "logistic"),
            _ => Verdict::Refused,
        }
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        table_bound(input_bytes)
    }
}

/// Arrays of numbers.
pub(super) struct IdxTarget;

/// An array in the IDX format.
fn array(kind: u8, extents: &[u32], elements: &[u8]) -> Vec<u8> {
    let extents_bytes: Vec<u8> = extents.iter().flat_map(|extent| extent.to_be_bytes()).collect();
    [&[0, 0, kind, extents.len() as u8], &extents_bytes[..], elements].concat()
}

impl Target for IdxTarget {
    fn name(&self) -> &'static str {
        "idx"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let labels = array(8, &[4], &[0, 1, 2, 1]);
        let pixels: Vec<u8> = (0..16).collect();
        let floats: Vec<u8> = (0..8_u8).flat_map(|index| f32::from(index).to_be_bytes()).collect();
        let named = array(8, &[3, 4], b"cat\0birddog\0");
        let samples =
            [array(8, &[4, 2, 2], &pixels), array(8, &[4], &[1, 2, 3, 4]), array(0x0d, &[4, 2], &floats)];
        let named = [samples[0].clone(), labels.clone(), named].concat();
        samples.map(|samples| [samples, labels.clone()].concat()).into_iter().chain([named]).collect()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        match Format::of(FILE, input) {
            Ok(Format::Idx) => {
                let stored = DataBytes::from(input);
                if let Ok(outline) = Outline::of(FILE, &stored) {
                    let _ = outline.label_texts(FILE, &stored);
                    // As pictures of bytes, if they are some. Nothing computes them here.
                    let run_file =
                        format!("[data]\nfile = \"{FILE}\"\n[model]\nkind = \"cnn\"\nlayers = []\n");
                    let run_file = RunFile::parse(&run_file).expect("these settings are valid");
                    let _ = resolve_with_notices(&run_file, FILE, input);
                }
                read(input, "mlp")
            }
            _ => Verdict::Refused,
        }
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        table_bound(input_bytes)
    }
}

/// Prepared texts.
pub(super) struct PreparedTarget;

/// A small transformer.
const BASE: Transformer = Transformer {
    layers: 1,
    width: 2,
    heads: 1,
    context: 3,
    vocabulary: VOCABULARY,
    dropout: 0.0,
    family: Family::Gpt2,
};

impl Target for PreparedTarget {
    fn name(&self) -> &'static str {
        "prepared"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let count = Architecture::Transformer(BASE).manifest().parameter_count();
        let base = BaseModel {
            transformer: BASE,
            parameters: (0..count).map(|index| index as f32 / 64.0).collect(),
        };
        let numbers = TextTokens::Numbers { tokens: &[5, 3, 299, 0, 7], vocabulary: 300, tokenizer: b"{}" };
        [prepare(TextTokens::Bytes(b"a short text"), Some(&base)), prepare(numbers, None)]
            .map(|prepared| prepared.expect("its base suits it"))
            .to_vec()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let bytes = DataBytes::from(input);
        let Ok(Some(text)) = PreparedText::find(FILE, &bytes) else { return Verdict::Refused };
        let _ = text.tokenizer(&bytes);
        let _ = text.base_digest(FILE, &bytes);
        let _ = text.base(FILE, &bytes, &BASE);
        if let Ok(tokens) = text.tokens(FILE, &bytes) {
            assert_eq!(tokens.count, text.token_count());
        }
        Verdict::Accepted
    }

    /// The parts that are read at once, and tensors that a file has several times over.
    fn bound(&self, input_bytes: usize) -> Bound {
        Bound { largest_bytes: (4 << 20) + 16 * input_bytes, total_bytes: (64 << 20) + 1024 * input_bytes }
    }
}

/// Gzipped files.
pub(super) struct GzipTarget;

/// The length of a header without optional parts.
const GZIP_HEADER_BYTES: usize = 10;
/// Checksum and length at the end.
const GZIP_TRAILER_BYTES: usize = 8;

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("writing to memory succeeds")
}

impl Target for GzipTarget {
    fn name(&self) -> &'static str {
        "gz"
    }

    fn form(&self) -> Form {
        Form::Binary
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let rows: Vec<u8> = (0..200_u32)
            .flat_map(|row| format!("{row},{},{}\n", row * 7 % 13, row % 2).into_bytes())
            .collect();
        let plain = gzipped(b"1,2,0\n3,4,1\n5,6,0\n");
        let members = [gzipped(b"1,2,0\n3,4,1\n"), gzipped(b"5,6,0\n7,8,1\n")].concat();
        vec![plain, gzipped(&rows), members]
    }

    /// Corrects the checksum and the length of a file with one member.
    fn mend(&self, input: &mut Vec<u8>) {
        let Some(mut rest) = input.get(GZIP_HEADER_BYTES..) else { return };
        let mut text = Vec::new();
        let decoder = flate2::bufread::DeflateDecoder::new(&mut rest);
        if decoder.take(1 << 20).read_to_end(&mut text).is_err() {
            return;
        }
        let end = input.len() - rest.len();
        let mut checksum = Crc::new();
        checksum.update(&text);
        if rest.len() <= GZIP_TRAILER_BYTES {
            input.truncate(end);
            input.extend(checksum.sum().to_le_bytes());
            input.extend((text.len() as u32).to_le_bytes());
        }
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let Ok(unpacked) = unpack(FILE, input) else { return Verdict::Refused };
        Verdict::of(input.len() != unpacked.len() || *input != *unpacked)
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        // A byte unpacks to at most 1032, and a buffer that grows has up to twice as many.
        Bound { largest_bytes: (1 << 20) + 2100 * input_bytes, total_bytes: (2 << 20) + 4200 * input_bytes }
    }
}
