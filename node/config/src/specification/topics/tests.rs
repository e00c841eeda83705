use super::*;
use crate::specification::{Algorithm, resolve, resolve_with_notices, write_run_file};
use peergrad_models::optimizer::Optimizer;
use peergrad_models::task::lda::TopicCounts;

/// Documents about animals and about stars, in turns, and one without a word of the vocabulary.
pub(super) fn corpus() -> String {
    let line = |number: usize| match number % 2 {
        0 => "The cat and the dog saw a bird; the dog's bird sang.\n",
        _ => "A star, a planet and a comet: the planet orbits its star.\n",
    };
    (0..30).map(line).chain(["It was so.\n"]).collect()
}

const MODEL: &str = "[data]\nfile = \"f.txt\"\n[model]\nkind = \"lda\"\ntopics = 2\n";
const COUNTS: &[u8] = b"2 0:1 2:2\n0\n1 1:3\n1 0:2\n2 1:1 2:1\n";

fn resolved(text: &str, bytes: &[u8]) -> Result<Specification, SpecificationError> {
    let mut run = RunFile::parse(text)?;
    let read = |path: &str| match path {
        "words.txt" => Ok(b"cat\ndog\nbird\n".to_vec()),
        "twice.txt" => Ok(b"cat\ndog\ncat\n".to_vec()),
        "long.txt" => Ok(b"cat\ndog\nbird\nfish\n".to_vec()),
        _ => Err(()),
    };
    let section = run.data.as_mut().expect("it has data");
    // A list that cannot be read is an error of the command.
    _ = section.read_word_lists(read);
    resolve(&run, "f.txt", bytes)
}

fn settings(specification: &Specification) -> &TopicSettings {
    specification.topic_settings().unwrap()
}

#[test]
fn a_specification_has_the_vocabulary_and_how_to_read_the_documents() {
    let run = RunFile::parse(MODEL).unwrap();
    let (specification, notices) = resolve_with_notices(&run, "f.txt", corpus().as_bytes()).unwrap();
    assert_eq!(notices, ["1 of 31 documents have no word of the vocabulary, and are left out"]);
    let bytes = specification.to_bytes().unwrap();
    assert_eq!(Specification::parse(&bytes).unwrap(), specification);
    let text = String::from_utf8(bytes).unwrap();
    let words = "vocabulary = [\"bird\", \"cat\", \"comet\", \"dog\", \"orbits\", \"planet\", \"sang\", \"saw\", \"star\"]";
    assert!(text.contains(words), "{text}");
    assert!(text.contains("[data.layout]\ndocuments = \"text\"\ntokens = 195\n"), "{text}");
    let found = settings(&specification);
    assert_eq!((found.topics, found.alpha, found.beta, found.sampler), (2, 0.1, 0.01, Sampler::Sparse));
    let training = &specification.training;
    assert_eq!((training.epochs, training.batch), (60, 1));
    assert_eq!(training.optimizer, Optimizer::Sgd { weight_decay: 0.0 });
    assert!(matches!(training.algorithm, Algorithm::Lda { parts } if parts.get() == 24));
    let loaded = specification.load(corpus().as_bytes()).unwrap();
    assert_eq!((loaded.task.sample_count(), loaded.task.held_out_count()), (24, 6));
    assert_eq!(loaded.manifest, specification.manifest());
    assert_eq!(specification.manifest().parameter_count(), 9 * 2);
}

#[test]
fn counts_have_numbers_or_a_list_of_words() {
    let numbered = resolved(MODEL, COUNTS).unwrap();
    assert_eq!(settings(&numbered).vocabulary, Vocabulary::Numbered(3));
    assert_eq!(Specification::parse(&numbered.to_bytes().unwrap()).unwrap(), numbered);
    assert_eq!((numbered.data.rows, numbered.data.held_out_rows), (4, 1));
    let with = |list: &str| MODEL.replace("[model]", &format!("vocabulary = \"{list}\"\n[model]"));
    let named = resolved(&with("words.txt"), COUNTS).unwrap();
    assert_eq!(settings(&named).vocabulary.word(1), "dog");
    assert_eq!(named.load(COUNTS).unwrap().task.sample_count(), 3);
    let error = |list: &str, bytes: &[u8]| resolved(&with(list), bytes).unwrap_err().to_string();
    assert!(error("twice.txt", COUNTS).starts_with("twice.txt, line 3: the word `cat` is in line 1 already"));
    assert!(
        error("words.txt", b"1 3:1\n").starts_with("f.txt, line 1: there is no word 3: the vocabulary has 3")
    );
    assert!(
        error("none.txt", COUNTS)
            .starts_with("`data.vocabulary` is \"none.txt\"; allowed: the path of a file")
    );
    let longer = MODEL.replace("[model]", "vocabulary = \"long.txt\"\n[model]");
    let mut run = RunFile::parse(&longer).unwrap();
    run.data.as_mut().unwrap().read_word_lists(|_| Ok::<_, ()>(b"cat\ndog\nbird\nfish\n".to_vec())).unwrap();
    let (_, notices) = resolve_with_notices(&run, "f.txt", COUNTS).unwrap();
    assert!(notices[0].starts_with("the vocabulary has 4 words, and the documents use only the first 3"));
}

#[track_caller]
fn refused(text: &str, bytes: &[u8], words: &str) {
    let error = resolved(text, bytes).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

/// A run file for a topic model, with these keys in `[data]`.
fn with_data(keys: &str) -> String {
    MODEL.replace("[model]", &format!("{keys}\n[model]"))
}

#[test]
fn wrong_keys_of_the_model_are_refused() {
    let corpus = corpus();
    let model = |keys: &str, words: &str| {
        let text = format!("[data]\nfile = \"f.txt\"\n[model]\nkind = \"lda\"\n{keys}\n");
        refused(&text, corpus.as_bytes(), words);
    };
    model("topics = 1", "`model.topics` is 1; allowed: 2 to 195: the documents have 195 words in all");
    model("topics = 196", "`model.topics` is 196; allowed: 2 to 195");
    model("alpha = 0.0", "`model.alpha` is 0; allowed: above 0, up to 1000");
    model("alpha = nan", "`model.alpha` is NaN");
    model("beta = -1.0", "`model.beta` is -1; allowed: above 0");
    model("sampler = \"fast\"", "unknown variant `fast`");
    model("rank = 2", "`model.rank` is given; allowed: only if `kind` is \"factorization\"");
    for keys in ["rule = \"adam\"", "rate = 0.1", "[[optimizer.groups]]\ntensors = [\"*\"]"] {
        model(&format!("[optimizer]\n{keys}"), "`optimizer` is given; allowed: nothing if");
    }
    for kind in ["sync", "ssp", "async", "local", "l-bfgs"] {
        let sync = format!("[sync]\nkind = \"{kind}\"\n");
        model(&sync, "`sync.kind` is given; allowed: \"lda\" or nothing if `kind` in [model] is \"lda\"");
    }
    model("[sync]\nparts = 25", "`sync.parts` is 25; allowed: 1 to 24, with 24 training");
    model("[sync]\nparts = 0", "`sync.parts` is 0");
    model("[sync]\nstaleness = 1", "`sync.staleness` is given; allowed: only with kind");
    model("[evaluation]\nevery = 5", "`evaluation.every` is given");
    let batch = format!("batch = 64\n{MODEL}");
    refused(&batch, corpus.as_bytes(), "`batch` is given; allowed: nothing if `kind` in [model] is \"lda\"");
}

#[test]
fn wrong_keys_of_the_documents_are_refused() {
    let corpus = corpus();
    let text = |keys: &str, words: &str| refused(&with_data(keys), corpus.as_bytes(), words);
    text("label = 1", "`data.label` is given; allowed: nothing if `kind` in [model] is \"lda\"");
    text("min_documents = 0", "`data.min_documents` is 0; allowed: at least 1");
    text("max_share = 1.5", "`data.max_share` is 1.5; allowed: a share above 0, up to 1");
    text("vocabulary_size = 0", "`data.vocabulary_size` is 0");
    text("vocabulary = \"words.txt\"", "`data.vocabulary` is given; allowed: nothing with a text");
    text("stop_words = \"german\"", "`data.stop_words` is \"german\"; allowed: \"english\", \"none\"");
    text("separator = \"Chapter \"", "f.txt: no line begins with `Chapter `; set `separator`");
    text("min_documents = 16", "f.txt: no word is left for the vocabulary");
    text("held_out = 1.5", "`data.held_out` is 1.5");
    let counts = |keys: &str, words: &str| refused(&with_data(keys), COUNTS, words);
    counts("stop_words = \"none\"", "`data.stop_words` is given; allowed: nothing with an LDA-C");
    counts("separator = \"\"", "`data.separator` is given; allowed: nothing with an LDA-C file");
    refused(MODEL, b"a\xff", "f.txt, line 1: this is not UTF-8");
}

#[test]
fn other_models_have_no_keys_of_documents() {
    let others = "[data]\nfile = \"f.csv\"\nKEY\n[model]\nkind = \"softmax\"\n";
    for key in ["separator = \"\"", "stop_words = \"none\"", "max_share = 0.5", "vocabulary = \"v\""] {
        refused(&others.replace("KEY", key), b"1,2,0\n", "allowed: only if `kind` in [model] is \"lda\"");
    }
    let other = format!("{}topics = 3\n", others.replace("KEY", ""));
    refused(&other, b"1,2,0\n", "`model.topics` is given; allowed: only if `kind` in [model] is \"lda\"");
    let other = format!("{}[sync]\nkind = \"lda\"\n", others.replace("KEY", ""));
    refused(
        &other,
        b"1,2,0\n3,4,1\n",
        "`sync.kind` is given; allowed: another one: \"lda\" is only for the model",
    );
}

#[test]
fn a_vocabulary_without_room_is_refused() {
    let letters = |number: usize| {
        (0..8).map(|place| (b'a' + (number >> (2 * place)) as u8 % 4) as char).collect::<String>()
    };
    let text: String = (0..60_000).map(|number| format!("{} ", letters(number) + "abcdefgh")).collect();
    let text = format!("{text}\n{text}\n");
    let keys = "max_share = 1.0\nmin_documents = 1\nvocabulary_size = 60000\n[model]";
    let error = resolved(&MODEL.replace("[model]", keys), text.as_bytes()).unwrap_err().to_string();
    assert!(
        error.contains("the vocabulary of 60000 words takes") && error.contains("lower `vocabulary_size`"),
        "{error}"
    );
    let fewer = keys.replace("60000", "20000");
    assert!(resolved(&MODEL.replace("[model]", &fewer), text.as_bytes()).unwrap().to_bytes().is_ok());
}

#[test]
fn a_specification_of_another_peer_is_checked() {
    let corpus = corpus();
    let text = String::from_utf8(resolved(MODEL, corpus.as_bytes()).unwrap().to_bytes().unwrap()).unwrap();
    for (from, to) in [
        ("\"bird\", \"cat\"", "\"cat\", \"cat\""),
        ("\"bird\", \"cat\"", "\"cat\""),
        ("tokens = 195", "tokens = 194"),
        ("tokens = 195", "tokens = 9999999999999"),
        ("topics = 2", "topics = 1"),
        ("topics = 2", "topics = 4294967295"),
        ("alpha = 0.1", "alpha = -0.1"),
        ("documents = \"text\"", "documents = \"lda-c\""),
        ("documents = \"text\"", "documents = \"text\"\nseparator = \"\""),
        ("kind = \"lda\"\nparts = 24", "kind = \"sync\""),
        ("parts = 24", "parts = 0"),
        ("parts = 24", "parts = 257"),
        ("rows = 30", "rows = 31"),
        ("vocabulary = 9", "vocabulary = 8"),
    ] {
        assert!(text.contains(from), "{from}: {text}");
        let changed = text.replacen(from, to, 1);
        let loaded = Specification::parse(changed.as_bytes())
            .and_then(|changed| changed.load(corpus.as_bytes()).map(drop));
        assert!(loaded.is_err(), "{to}");
    }
    let huge = text.replacen("tokens = 195", "tokens = 268435456", 1);
    assert!(Specification::parse(huge.as_bytes()).unwrap().memory_bytes() > 2 << 30);
}

/// Counts of a model that knows animals and stars.
fn parameters(specification: &Specification) -> Vec<f32> {
    let is_animal = |word: &str| ["bird", "cat", "dog", "sang", "saw"].contains(&word);
    let words = (0..9).map(|word| specification.vocabulary().unwrap().word(word).into_owned());
    words.flat_map(|word| if is_animal(&word) { [10.0, 0.0] } else { [0.0, 10.0] }).collect()
}

#[test]
fn a_model_answers_for_documents() {
    let corpus = corpus();
    let specification = resolved(MODEL, corpus.as_bytes()).unwrap();
    let parameters = parameters(&specification);
    let evaluate = |file: &str, bytes: &[u8]| specification.evaluate(&parameters, file, bytes, &None);
    let own = evaluate("f.txt", corpus.as_bytes()).unwrap();
    assert_eq!((own.part, own.evaluation.samples), (DataPart::HeldOut, 6));
    assert_eq!(own.perplexity, Some(own.evaluation.loss.exp()));
    assert!((4.0..6.0).contains(&own.perplexity.unwrap()), "about one of five words: {own:?}");
    let task = specification.load(corpus.as_bytes()).unwrap().task;
    assert_eq!(own.evaluation, task.evaluate(&parameters), "the same bits as at the end of a run");
    let other = evaluate("g.txt", b"A cat saw a bird.\nNothing.\n").unwrap();
    assert_eq!((other.part, other.evaluation.samples), (DataPart::All, 1));
    assert_eq!(other.notices, ["1 of 2 documents have no word of the vocabulary, and are left out"]);
    assert_eq!(evaluate("g.ldac", b"2 0:1 1:2\n").unwrap().evaluation.samples, 1, "counts of the same words");
    assert!(evaluate("g.txt", b"Nothing.\n").is_err());
    let predicted = specification.predict(&parameters, "g.txt", corpus.as_bytes(), &None).unwrap_err();
    assert_eq!(predicted, SpecificationError::PredictsTopics);
    let table =
        resolve(&RunFile::parse("[data]\nfile = \"f.csv\"").unwrap(), "f.csv", b"1,2,0\n3,4,1\n").unwrap();
    assert_eq!(table.topic_model(&[]).unwrap_err(), SpecificationError::NoTopics);
    let topics = specification.topic_model(&parameters).unwrap();
    assert_eq!(topics.topic_shares(), [5.0 / 9.0, 4.0 / 9.0]);
}

#[test]
fn topics_of_animals_and_stars_are_found() {
    let corpus = corpus();
    let specification = resolved(MODEL, corpus.as_bytes()).unwrap();
    let [training, held_out] = specification.own_documents(corpus.as_bytes()).unwrap();
    let task = Lda::new(settings(&specification).settings(), training, held_out);
    let documents: Vec<u32> = (0..task.training().documents()).collect();
    let words = task.words_of(&documents);
    let by_word = vec![0.0; words.len() * 2];
    let mut counts = TopicCounts { words, by_word, totals: vec![0; 2] };
    let mut assignments = vec![0; task.training().token_count()];
    for sweep in 0..40 {
        task.sweep([sweep; 32], &documents, &mut assignments, &mut counts);
    }
    let topics = specification.topic_model(&counts.by_word).unwrap();
    let vocabulary = specification.vocabulary().unwrap();
    let mut found = [0, 1].map(|topic| {
        let words = topics.top_words(topic, 4).into_iter();
        let mut words: Vec<String> = words.map(|(word, _)| vocabulary.word(word).into_owned()).collect();
        words.sort_unstable();
        words.join(" ")
    });
    found.sort_unstable();
    assert!(found[0].contains("bird") && found[0].contains("dog"), "{found:?}");
    assert_eq!(found[1], "comet orbits planet star");
}

#[test]
fn peer_init_writes_a_run_file_for_documents() {
    let written = |bytes: &[u8]| {
        let written = write_run_file("f.txt", bytes, Some(ModelKind::Lda)).unwrap();
        let run = RunFile::parse(&written.text).unwrap_or_else(|error| panic!("{error}\n{}", written.text));
        let plain = RunFile::parse("[data]\nfile = \"f.txt\"\n[model]\nkind = \"lda\"").unwrap();
        let mut same = RunFile { data: plain.data.clone(), ..plain.clone() };
        same.data.as_mut().unwrap().separator = run.data().unwrap().separator.clone();
        assert_eq!(resolve(&run, "f.txt", bytes), resolve(&same, "f.txt", bytes), "it has the defaults");
        (written, run.data.unwrap().separator)
    };
    let corpus = corpus();
    let (lines, separator) = written(corpus.as_bytes());
    assert_eq!(separator, None);
    assert!(
        lines.text.contains("[data]                     # 30 documents with 9 different words"),
        "{}",
        lines.text
    );
    assert_eq!(lines.notices, ["1 of 31 documents have no word of the vocabulary, and are left out"]);
    let (counts, _) = written(&COUNTS.repeat(3));
    let few = write_run_file("f.txt", COUNTS, Some(ModelKind::Lda)).unwrap().text;
    assert!(few.contains("topics = 10 "), "as many as there are words in all: {few}");
    assert!(counts.text.contains("# vocabulary = \"vocab.txt\"") && !counts.text.contains("stop_words"));
    let paragraphs = corpus.replace(" and ", "\nand ").replace(".\n", ".\n\n");
    assert_eq!(written(paragraphs.as_bytes()).1.as_deref(), Some(""));
    let chapter = |(number, line): (usize, &str)| format!("CHAPTER {number}\n\n{line}\n\n");
    let chapters: String = corpus.lines().enumerate().map(chapter).collect();
    assert_eq!(written(chapters.as_bytes()).1.as_deref(), Some("chapter "));
}
