//! A transformer that was trained before learns a new text: with adapters, or as a whole.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::sync::Arc;

use peergrad_config::base_model::{BaseModel, indexed_files};
use peergrad_config::model_file::{ModelFile, Origin};
use peergrad_config::prepared_text::{PreparedText, TextTokens, prepare};
use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::{DeepBackend, RunFile, Specification, resolve, write_run_file};
use peergrad_deep::Burn;
use peergrad_models::data::bytes::DataBytes;
use peergrad_models::task::Task;
use peergrad_protocol::RunId;
use peergrad_simulations::scenario::Scenario;
use peergrad_simulations::simulation::Simulation;
use peergrad_simulations::workload::Workload;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

fn deep() -> DeepBackend {
    Some(Arc::new(Burn::cpu()))
}

fn of(text: &str, name: &str, data: &DataBytes) -> Specification {
    resolve(&RunFile::parse(text).unwrap(), name, data).unwrap()
}

fn task(specification: &Specification, data: &DataBytes) -> Arc<dyn Task> {
    specification.load_within(data, MemoryLimit::default(), &deep()).unwrap().task
}

/// The model file of a small transformer that was never trained.
fn model_file() -> Vec<u8> {
    let text = "[data]\nfile = \"old.txt\"\n[model]\nkind = \"gpt\"\nlayers = 2\nwidth = 16\nheads = 2\ncontext = 12";
    let data = DataBytes::from(b"an old text that the model has seen before, many times");
    let specification = of(text, "old.txt", &data);
    let mut parameters = vec![0.0; specification.manifest().parameter_count()];
    task(&specification, &data).initial(5, &mut parameters);
    let bytes = specification.to_bytes().unwrap();
    let origin = Origin { run: RunId([1; 32]), steps: 3, specification: String::from_utf8(bytes).unwrap() };
    ModelFile { manifest: specification.manifest(), parameters, origin }.encode()
}

fn book() -> Vec<u8> {
    "It is a truth universally acknowledged. ".repeat(30).into_bytes()
}

fn prepared() -> DataBytes {
    let base = BaseModel::of_model_file(&model_file()).unwrap();
    prepare(TextTokens::Bytes(&book()), Some(&base)).unwrap().into()
}

const LORA: &str = "epochs = 2\nbatch = 24\nseed = 3\n[data]\nfile = \"book.safetensors\"\n[model]\nkind = \"gpt\"\ncontext = 8\nlora = 2\n[optimizer]\nrate = 0.02\n";

#[test]
fn only_adapters_are_parameters_and_they_start_as_the_base() {
    let data = prepared();
    let base = BaseModel::of_model_file(&model_file()).unwrap();
    let adapted = of(LORA, "book.safetensors", &data);
    assert_eq!(Specification::parse(&adapted.to_bytes().unwrap()).unwrap(), adapted);
    let count = adapted.manifest().parameter_count();
    assert_eq!(count, 2 * 2 * ((16 + 48) + (16 + 16) + (16 + 64) + (64 + 16)));
    assert!(count * 4 < base.parameters.len());
    let whole = of(&LORA.replace("lora = 2\n", ""), "book.safetensors", &data);
    let (adapters, all) = (task(&adapted, &data), task(&whole, &data));
    let (mut small, mut large) = (vec![f32::NAN; count], vec![f32::NAN; all.manifest().parameter_count()]);
    adapters.initial(3, &mut small);
    all.initial(3, &mut large);
    // The table of places has a row for each token that is seen at once: fewer here.
    assert_eq!(large[..256 * 16], base.parameters[..256 * 16]);
    assert_eq!(large.len() + 4 * 16, base.parameters.len());
    assert_eq!(adapters.evaluate(&small), all.evaluate(&large));
    let evaluated = adapted.evaluate(&small, "book.safetensors", &data, &deep()).unwrap().evaluation;
    assert_eq!(evaluated, adapters.evaluate(&small));
    let error = adapted.evaluate(&small, "book.txt", book(), &deep()).unwrap_err().to_string();
    assert!(error.contains("the model has only adapters"), "{error}");
    let mut other = BaseModel::of_model_file(&model_file()).unwrap();
    other.parameters[7] += 0.5;
    let other = DataBytes::from(prepare(TextTokens::Bytes(&book()), Some(&other)).unwrap());
    let error = adapted.evaluate(&small, "other", &other, &deep()).unwrap_err().to_string();
    assert!(error.contains("it holds another model than the one that was trained on"), "{error}");
    let written = write_run_file("book.safetensors", &data, None).unwrap().text;
    let run = RunFile::parse(&written).unwrap();
    assert_eq!(run.model.lora, Some(8), "{written}");
    resolve(&run, "book.safetensors", &data).unwrap();
}

#[test]
fn a_swarm_trains_adapters() {
    let run = RunFile::parse(LORA).unwrap();
    let workload = Workload::deep(&run, "book.safetensors", prepared(), &deep()).unwrap();
    for peers in [1, 4] {
        let outcome = Simulation::new(&Scenario::new("adapters", peers, workload.clone()), 1).run();
        assert_eq!(outcome.violations, [], "{peers} peers");
        assert!(outcome.plain_loss_error.unwrap() < 1e-5, "{:?}", outcome.plain_loss_error);
    }
}

/// The folder of a model as the library Transformers writes it, with its tensors in so many files.
fn of_folder(change: impl Fn(&str) -> String, prefix: &str, file_count: usize) -> Result<BaseModel, String> {
    let base = BaseModel::of_model_file(&model_file()).unwrap();
    let config = "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 16, \"n_head\": 2, \"n_positions\": 12, \"vocab_size\": 256, \
                  \"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-05, \"other\": []}";
    let file = model_file();
    let file = SafeTensors::deserialize(&file).unwrap();
    let views = file.tensors().into_iter().map(|(name, view)| {
        let shape = view.shape().to_vec();
        (name.replace("transformer.", prefix), TensorView::new(Dtype::F32, shape, view.data()).unwrap())
    });
    let views: Vec<_> = views.collect();
    let files: Vec<Vec<u8>> = views
        .chunks(views.len().div_ceil(file_count))
        .map(|views| safetensors::serialize(views.to_vec(), None).unwrap())
        .collect();
    assert_eq!(files.len(), file_count);
    let found = BaseModel::of_folder(&change(config), &files).map_err(|error| error.to_string())?;
    assert_eq!(found, base);
    Ok(found)
}

#[test]
fn folders_of_other_libraries_are_read() {
    of_folder(str::to_owned, "transformer.", 1).unwrap();
    of_folder(str::to_owned, "", 1).unwrap();
    of_folder(str::to_owned, "transformer.", 3).unwrap();
    let error = |from: &str, to: &str| of_folder(|config| config.replace(from, to), "", 1).unwrap_err();
    assert!(error("gpt2", "bert").contains("model_type \"bert\", which cannot be used here"));
    assert!(error("gelu_new", "relu").contains("activation_function \"relu\""));
    assert!(error("1e-05", "0.1").contains("layer_norm_epsilon 0.1"));
    assert!(
        error("\"n_positions\": 12", "\"n_positions\": 13")
            .contains("`transformer.wpe.weight` has the shape")
    );
    assert!(error("\"n_layer\": 2", "\"n_layer\": 3").contains("`transformer.h.2.ln_1.weight` is missing"));
    assert!(error("\"n_layer\"", "\"layers\"").contains("config.json cannot be read"));
}

#[test]
fn an_index_lists_files_of_its_folder() {
    let index = r#"{"metadata": {"total_size": 9}, "weight_map": {"b": "2.safetensors", "a": "1.safetensors", "c": "1.safetensors"}}"#;
    let files = indexed_files(index).unwrap();
    assert_eq!(files.into_iter().collect::<Vec<_>>(), ["1.safetensors", "2.safetensors"]);
    let error = indexed_files(&index.replace("1.", "../1.")).unwrap_err().to_string();
    assert!(error.contains("`../1.safetensors` is in another folder"), "{error}");
    assert!(indexed_files("{}").unwrap_err().to_string().contains("copy the folder again"));
}

#[test]
fn damaged_files_are_refused_in_words() {
    let data = prepared().all().unwrap().into_owned();
    let found = |bytes: &[u8]| PreparedText::find("f", &bytes.into());
    assert_eq!(found(b"a text").unwrap(), None);
    for length in (0..2000).step_by(7) {
        let _ = found(&data[..length]);
    }
    assert!(found(&data[..data.len() - 1]).unwrap_err().to_string().contains("it ends too early"));
    let foreign = found(&model_file()).unwrap_err().to_string();
    assert!(foreign.contains("without a text"), "{foreign}");
    let error = |text: &str| {
        resolve(&RunFile::parse(text).unwrap(), "book.safetensors", prepared()).unwrap_err().to_string()
    };
    for (from, to, words) in [
        ("context = 8", "context = 13", "sees at most 12 tokens at once"),
        ("lora = 2", "lora = 0", "`model.lora` is 0; allowed: a rank of 1 to 4096"),
        ("lora = 2", "width = 32", "the model in the data file has 16, not 32: leave the key out"),
        ("lora = 2", "lora_alpha = 2.0", "give a rank with `lora`"),
    ] {
        let error = error(&LORA.replace(from, to));
        assert!(error.contains(words), "{error}");
    }
    let run = RunFile::parse(&LORA.replace("safetensors", "txt")).unwrap();
    let error = resolve(&run, "book.txt", book()).unwrap_err().to_string();
    assert!(error.contains("adapters need a model that was trained before"), "{error}");
}

#[test]
fn tokens_of_a_tokenizer_are_numbers() {
    let tokens: Vec<u32> = (0..400).map(|index| index * 7 % 300).collect();
    let text = TextTokens::Numbers { tokens: &tokens, vocabulary: 300, tokenizer: b"{}" };
    let data = DataBytes::from(prepare(text, None).unwrap());
    let settings = "epochs = 1\nbatch = 8\n[data]\nfile = \"t.safetensors\"\n[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 8\nheads = 2\ncontext = 6";
    let specification = of(settings, "t.safetensors", &data);
    let task = task(&specification, &data);
    let count = specification.manifest().parameter_count();
    let manifest = specification.manifest();
    let table = manifest.tensors().find(|(tensor, _)| tensor.name == "transformer.wte.weight");
    assert_eq!(table.unwrap().0.shape, [300, 8]);
    let (mut parameters, mut gradient) = (vec![0.0; count], vec![0.0; count]);
    task.initial(1, &mut parameters);
    let loss = task.gradient(&parameters, &[0, 5], &mut gradient) / 2.0;
    assert!((loss - 300_f64.ln()).abs() < 0.1, "{loss}");
    let prepared = PreparedText::find("t", &data).unwrap().unwrap();
    assert_eq!(prepared.tokenizer(&data).unwrap().as_deref(), Some(&b"{}"[..]));
    // A token that the vocabulary does not have would be outside of a table.
    let far = TextTokens::Numbers { tokens: &[1, 2, 300, 4], vocabulary: 300, tokenizer: b"{}" };
    let far = DataBytes::from(prepare(far, None).unwrap());
    let error = PreparedText::find("t", &far).unwrap().unwrap().tokens("t", &far).unwrap_err().to_string();
    assert!(error.contains("it has the token 300 of a vocabulary of 300"), "{error}");
    let base = BaseModel::of_model_file(&model_file()).unwrap();
    let error = prepare(text, Some(&base)).unwrap_err().to_string();
    assert!(error.contains("a vocabulary of 256, where the text has 300 different tokens"), "{error}");
}
