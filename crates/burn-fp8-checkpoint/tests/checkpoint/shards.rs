//! Checkpoints of several files.

use std::fs;
use std::path::Path;

use burn_fp8_checkpoint::Checkpoint;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::common::{Tensor, assert_says, golden, refusal, tensors, write_tensors};
use crate::declared::warning;

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A golden checkpoint whose weights are in one shard and whose scales and the rest are in another.
fn split(folder: &Path) -> Map<String, Value> {
    let source = golden("fp8_block");
    fs::copy(source.join("config.json"), folder.join("config.json")).unwrap();
    let all = tensors(&source.join("model.safetensors"));
    let (weights, rest): (Vec<Tensor>, _) =
        all.into_iter().partition(|(name, ..)| name.ends_with("proj.weight"));
    write_tensors(&folder.join(SHARDS[0]), &weights);
    write_tensors(&folder.join(SHARDS[1]), &rest);
    let place = |shard: &str, tensors: &[Tensor]| {
        let names = tensors.iter().map(|(name, ..)| (name.clone(), json!(shard)));
        names.collect::<Vec<_>>()
    };
    [place(SHARDS[0], &weights), place(SHARDS[1], &rest)].concat().into_iter().collect()
}

fn open(folder: &Path, map: &Map<String, Value>) -> Result<Checkpoint, String> {
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    Checkpoint::open(folder).map_err(|error| error.to_string())
}

fn refused(folder: &Path, map: &Map<String, Value>, words: &[&str]) {
    assert_says(open(folder, map).map(drop).unwrap_err(), words);
}

#[test]
fn shards_are_read_as_one() {
    let folder = TempDir::new().unwrap();
    let map = split(folder.path());
    let checkpoint = open(folder.path(), &map).unwrap();
    let whole = Checkpoint::open(golden("fp8_block")).unwrap();
    assert_eq!(checkpoint.layers(), whole.layers());
    assert_eq!(checkpoint.tensors(), whole.tensors());
    assert!(checkpoint.warnings().is_empty());
    for info in whole.layers() {
        assert_eq!(checkpoint.linear(&info.name).unwrap(), whole.linear(&info.name).unwrap());
    }
    checkpoint.verify().unwrap();
}

#[test]
fn a_shard_alone_is_refused_with_the_remedy() {
    let folder = TempDir::new().unwrap();
    split(folder.path());
    for shard in SHARDS {
        assert_says(refusal(folder.path().join(shard)), &[shard, "open the folder"]);
    }
}

#[test]
fn names_of_shards_lead_nowhere_else() {
    let folder = TempDir::new().unwrap();
    let map = split(folder.path());
    fs::copy(folder.path().join(SHARDS[0]), folder.path().join("x")).unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    split(&inner);
    let absolute = folder.path().join("x").to_str().unwrap().to_owned();
    for name in
        ["../x", "/etc/x", &absolute, "", ".", "..", "a/../x", "a\\x", "C:x", "./x", "x/", "x\0"]
    {
        let mut map = map.clone();
        map.insert("model.layers.0.mlp.up_proj.weight".into(), json!(name));
        refused(&inner, &map, &["index.json", "found the shard", "plain names of files"]);
    }
}

#[test]
fn an_index_of_another_checkpoint_is_refused() {
    let folder = TempDir::new().unwrap();
    let map = split(folder.path());
    let index = "index.json";

    let third = "model-00003-of-00003.safetensors";
    for (tensor, shard, words) in [
        (
            "lm_head.bias",
            json!(SHARDS[1]),
            &[index, "`lm_head.bias`", "in no shard", SHARDS[1]][..],
        ),
        ("lm_head.weight", json!(SHARDS[0]), &[index, "`lm_head.weight`", SHARDS[0], SHARDS[1]]),
        ("lm_head.weight", json!(third), &[third, "cannot read"]),
        ("lm_head.weight", json!(2), &[index, "invalid type", "weight_map"]),
    ] {
        let mut other = map.clone();
        other.insert(tensor.into(), shard);
        refused(folder.path(), &other, words);
    }

    let mut other = map.clone();
    other.remove("lm_head.weight");
    let checkpoint = open(folder.path(), &other).unwrap();
    assert_says(warning(&checkpoint), &["`lm_head.weight`"]);
}

#[test]
fn a_tensor_twice_is_refused() {
    let folder = TempDir::new().unwrap();
    let map = split(folder.path());
    let text = json!({ "weight_map": map }).to_string();
    let text = text.replacen('{', "{\"metadata\":null,", 1);
    let twice = text.replace(
        "\"lm_head.weight\":",
        &format!("\"lm_head.weight\":\"{}\",\"lm_head.weight\":", SHARDS[0]),
    );
    fs::write(folder.path().join("model.safetensors.index.json"), twice).unwrap();
    assert_says(refusal(folder.path()), &["`lm_head.weight`", "twice"]);

    let all = tensors(&golden("fp8_block").join("model.safetensors"));
    write_tensors(&folder.path().join(SHARDS[1]), &all);
    refused(folder.path(), &map, &["`model.layers.0.mlp.down_proj.weight`", SHARDS[0], SHARDS[1]]);
}
