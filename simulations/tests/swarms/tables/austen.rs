//! A topic model of six novels: as good with many workers as with one, and its topics tell the novels apart.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::Path;

use peergrad_models::data::corpus::Corpus;
use peergrad_models::data::dense_table::unpack;
use peergrad_models::task::lda::{Lda, LdaSettings, Sampler, TopicCounts};

use super::lda::{ROW_WORDS, end_of};

const EPOCHS: u64 = 60;
const NOVELS: [&str; 6] =
    ["emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility"];

/// The chapters of the novels, without words that are in less than five of them or in more than half, and the novel of each chapter. `None` if
/// the novels are not here.
fn chapters() -> Option<(Corpus, Vec<usize>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/austen");
    let (mut chapters, mut novels) = (Vec::<Vec<String>>::new(), Vec::new());
    for (novel, name) in NOVELS.iter().enumerate() {
        let packed = std::fs::read(folder.join(format!("{name}.txt.gz"))).ok()?;
        let text = unpack(name, &packed).expect("it is gzipped");
        let text = String::from_utf8_lossy(&text);
        for chapter in
            text.lines().collect::<Vec<_>>().split(|line| line.to_lowercase().starts_with("chapter ")).skip(1)
        {
            let words = chapter.iter().flat_map(|line| line.split(|letter: char| !letter.is_alphabetic()));
            chapters.push(words.filter(|word| word.len() > 2).map(str::to_lowercase).collect());
            novels.push(novel);
        }
    }
    let mut found = BTreeMap::<&str, usize>::new();
    for chapter in &chapters {
        let different: std::collections::BTreeSet<&str> = chapter.iter().map(String::as_str).collect();
        different.into_iter().for_each(|word| *found.entry(word).or_default() += 1);
    }
    found.retain(|_, count| (5..=chapters.len() / 2).contains(count));
    let index: BTreeMap<&str, u32> = found.keys().zip(0..).map(|(word, index)| (*word, index)).collect();
    let known = |chapter: &Vec<String>| -> Vec<u32> {
        chapter.iter().filter_map(|word| index.get(word.as_str()).copied()).collect()
    };
    Some((Corpus::new(index.len() as u32, chapters.iter().map(known)), novels))
}

const SETTINGS: LdaSettings = LdaSettings { topics: 20, alpha: 0.1, beta: 0.01, sampler: Sampler::Dense };

/// The topic of each word, from 1, and how often each word has each topic.
type End = (Vec<u32>, Vec<f32>);

/// The end of so many sweeps in one process, without tables.
fn alone(corpus: &Corpus, sampler: Sampler) -> End {
    let lda = Lda::new(LdaSettings { sampler, ..SETTINGS }, corpus.clone(), Corpus::default());
    let documents: Vec<u32> = (0..corpus.documents()).collect();
    let words: Vec<u32> = (0..corpus.vocabulary()).collect();
    let topics = SETTINGS.topics as usize;
    let (by_word, totals) = (vec![0.0; words.len() * topics], vec![0; topics]);
    let mut counts = TopicCounts { words, by_word, totals };
    let mut assignments = vec![0; corpus.token_count()];
    for epoch in 0..EPOCHS {
        let seed = [epoch as u8 + 1; 32];
        lda.sweep(seed, &documents, &mut assignments, &mut counts);
    }
    (assignments, counts.by_word)
}

/// The end of so many sweeps with these peers.
fn together(corpus: &Corpus, sampler: Sampler, peers: usize) -> End {
    let scenario = format!(
        "about = \"topics\"\npeers = {peers}\n[task]\nkind = \"squares\"\nsample_time = \"1ms\"\n[run]\nepochs = 1\nbatch = 16\n"
    );
    let lda = || Lda::new(LdaSettings { sampler, ..SETTINGS }, corpus.clone(), Corpus::default());
    let (ends, _) = end_of(&scenario, lda, NonZeroU64::MIN.saturating_add(31), EPOCHS, 1);
    let topics = SETTINGS.topics as usize;
    let (by_word, rest) = ends[0].split_at(corpus.vocabulary() as usize * topics);
    let mut rows = rest[2 * topics..].chunks(ROW_WORDS + 1);
    let lengths = (0..corpus.documents()).map(|document| corpus.words(document).len());
    let parts =
        lengths.flat_map(|length| (0..length).step_by(ROW_WORDS).map(move |at| ROW_WORDS.min(length - at)));
    let of_part = |part: usize| rows.next().expect("a row for each part")[1..=part].to_vec();
    (parts.flat_map(of_part).map(|topic| topic as u32).collect(), by_word.to_vec())
}

/// The mean log-likelihood of a word, and the share of each topic in each chapter.
fn quality(corpus: &Corpus, (assignments, by_word): &End) -> (f64, Vec<Vec<f64>>) {
    let LdaSettings { topics, alpha, beta, .. } = SETTINGS;
    let topics = topics as usize;
    let mut totals = vec![beta * f64::from(corpus.vocabulary()); topics];
    assignments.iter().for_each(|topic| totals[*topic as usize - 1] += 1.0);
    let mut sum = 0.0;
    let chapter = |document| {
        let mut mixture = vec![alpha; topics];
        assignments[corpus.range(document)].iter().for_each(|topic| mixture[*topic as usize - 1] += 1.0);
        let all: f64 = mixture.iter().sum();
        mixture.iter_mut().for_each(|share| *share /= all);
        for word in corpus.words(document) {
            let counts = &by_word[*word as usize * topics..][..topics];
            let terms = counts.iter().zip(&totals).zip(&mixture);
            let of_topic =
                |((count, total), share): ((&f32, &f64), &f64)| share * (f64::from(*count) + beta) / total;
            sum += libm::log(terms.map(of_topic).sum());
        }
        mixture
    };
    let mixtures = (0..corpus.documents()).map(chapter).collect();
    (sum / corpus.token_count() as f64, mixtures)
}

/// The share of chapters whose nearest neighbours, three other chapters, are mostly of the same novel.
fn recognized(mixtures: &[Vec<f64>], novels: &[usize]) -> f64 {
    let closeness = |one: &[f64], other: &[f64]| -> f64 {
        one.iter().zip(other).map(|(one, other)| (one * other).sqrt()).sum()
    };
    let is_found = |chapter: usize| {
        let mut others: Vec<usize> = (0..mixtures.len()).filter(|other| *other != chapter).collect();
        let close = |other: &usize| closeness(&mixtures[chapter], &mixtures[*other]);
        others.sort_by(|one, other| close(other).total_cmp(&close(one)));
        others[..3].iter().filter(|other| novels[**other] == novels[chapter]).count() >= 2
    };
    (0..mixtures.len()).filter(|chapter| is_found(*chapter)).count() as f64 / mixtures.len() as f64
}

#[test]
fn many_workers_find_topics_as_good_as_one_does() {
    let Some((corpus, novels)) = chapters() else {
        eprintln!("skipped: the novels are not here");
        return;
    };
    println!("{} chapters, {} words of {}", corpus.documents(), corpus.token_count(), corpus.vocabulary());
    let (dense, _) = quality(&corpus, &alone(&corpus, Sampler::Dense));
    println!("dense, alone: {dense:.4}");
    let check = |name: &str, end: &End| {
        let (likelihood, mixtures) = quality(&corpus, end);
        let recognized = recognized(&mixtures, &novels);
        println!("{name}: {likelihood:.4}; {recognized:.3} of all chapters found their novel");
        assert!(likelihood > 1.01 * dense, "{likelihood} and {dense}");
        assert!(recognized >= 0.95, "{recognized}");
    };
    for sampler in [Sampler::Sparse, Sampler::Alias, Sampler::Light] {
        check(&format!("{sampler:?}, alone"), &alone(&corpus, sampler));
    }
    for peers in [4, 16] {
        check(&format!("sparse, {peers} workers"), &together(&corpus, Sampler::Sparse, peers));
    }
}
