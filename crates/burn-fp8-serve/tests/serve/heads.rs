//! Heads that are the embedding, or not: what transformers 5.24 finds out by comparing both tensors (`tie_weights`).

use std::fs;

use burn::backend::Flex;
use burn_fp8_serve::{Decoder, Inputs};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::*;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A golden's model that says whether its head is the embedding, and has each tensor under the names that `names` gives.
fn changed(model: &str, tied: bool, names: impl Fn(&str) -> Vec<String>) -> TempDir {
    let new = TempDir::new().expect("a folder");
    let read = |file| fs::read(folder(model).join(file)).expect("a golden file");
    let mut config: Value = serde_json::from_slice(&read("config.json")).expect("JSON");
    config["tie_word_embeddings"] = json!(tied);
    fs::write(new.path().join("config.json"), config.to_string()).expect("written");
    let file = read("model.safetensors");
    let file = SafeTensors::deserialize(&file).expect("safetensors");
    let mut tensors = vec![];
    for (name, view) in file.tensors() {
        tensors.extend(names(&name).into_iter().map(|name| (name, view.clone())));
    }
    let file = safetensors::serialize(tensors, None).expect("safetensors");
    fs::write(new.path().join("model.safetensors"), file).expect("written");
    new
}

#[track_caller]
fn writes_as_the_golden(folder: &TempDir, model: &str) -> Decoder<Flex> {
    let decoder = load_from::<Flex>(folder.path(), Inputs::High);
    let expected = Expected::read(model);
    let found = logits(&decoder, &[expected.tokens("short")]);
    let difference = difference(&found, &expected.logits("short", ""));
    assert!(difference < 1e-5, "{model}: {difference:.1e}");
    decoder
}

#[test]
fn a_head_of_its_own_is_taken_where_the_configuration_says_otherwise() {
    for model in ["llama_block", "mistral_tensor"] {
        let folder = changed(model, true, |name| vec![name.to_owned()]);
        let decoder = writes_as_the_golden(&folder, model);
        assert!(!decoder.config().tied);
        let [warning] = decoder.warnings() else { panic!("{:?}", decoder.warnings()) };
        assert!(warning.contains("lm_head") && warning.contains("tie_word_embeddings"));
    }
}

#[test]
fn a_head_that_is_the_embedding_is_held_once() {
    for model in ["qwen2_mxfp8", "qwen3_channel"] {
        let bytes = load::<Flex>(model, Inputs::High).bytes();
        let both = |name: &str| match name {
            EMBEDDING => vec![EMBEDDING.to_owned(), HEAD.to_owned()],
            name => vec![name.to_owned()],
        };
        let head_alone = |name: &str| match name {
            EMBEDDING => vec![HEAD.to_owned()],
            name => vec![name.to_owned()],
        };
        for folder in [changed(model, true, both), changed(model, true, head_alone)] {
            let decoder = writes_as_the_golden(&folder, model);
            assert!(decoder.config().tied);
            assert_eq!((decoder.bytes(), decoder.warnings().len()), (bytes, 0));
        }
    }
}
