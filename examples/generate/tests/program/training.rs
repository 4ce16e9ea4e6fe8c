//! Trains, tunes, merges and quantizes, and reads what comes of it.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::anyhow;
use burn::backend::Flex;
use burn_fp8_serve::CacheType;
use burn_fp8_serve::lora::LoraConfig;
use burn_fp8_serve::train::{Course, Plan, Tuning, held_out_loss, train, tune};
use examples_common::testing::{Program, has, number};
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::{parsed, with_model};

/// Trainings in one process share a generator of random numbers.
static ALONE: Mutex<()> = Mutex::new(());

fn built_in(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("model").join(file)
}

/// What lies beside the weights of the model that is committed is what the command writes today.
#[test]
fn the_built_in_model_is_what_is_written() {
    let program = Program::new(env!("CARGO_BIN_EXE_generate"));
    program.succeeds("train --out new --steps 0");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    {
        assert!(fs::read(built_in(file)).expect(file) == program.read(&format!("new/{file}")));
    }
    let size = fs::metadata(built_in("model.safetensors")).expect("it is there").len();
    assert_eq!(size, program.read("new/model.safetensors").len() as u64);
}

/// The model that is committed is as good as its training says, and a cache in bf16 or FP8 hardly changes that.
#[test]
fn the_built_in_model_is_what_was_trained() {
    let training = fs::read(built_in("training.json")).expect("a training");
    let training: Value = serde_json::from_slice(&training).expect("JSON");
    let bible = Path::new(env!("CARGO_MANIFEST_DIR")).join("../char-lm/data/kjv.txt.gz");
    let mut text = String::new();
    let read = GzDecoder::new(fs::File::open(bible).expect("it is there"));
    io::BufReader::new(read).read_to_string(&mut text).expect("the text");
    let context = number(&training, "context") as usize;
    let losses = [
        ("written", CacheType::F32),
        ("written_with_a_bf16_cache", CacheType::Bf16),
        ("written_with_an_fp8_cache", CacheType::Fp8),
    ];
    let [exact, bf16, fp8] = losses.map(|(name, cache)| {
        let found = held_out_loss::<Flex>(&built_in(""), &text, context, cache);
        let (found, tokens) = found.expect("a loss");
        assert_eq!(json!(tokens), training["tokens"]["held_out"]);
        let expected = number(&training["held_out_loss"], name);
        // Codes that are rounded the other way, on another CPU.
        assert!((found - expected).abs() < 1e-3 * expected, "{name}: {found} for {expected}");
        found
    });
    for rounded in [bf16, fp8] {
        assert!((rounded - exact).abs() < 5e-3 * exact, "{rounded} for {exact}");
        assert_ne!(rounded, exact);
    }
    let size: u64 = fs::read_dir(built_in(""))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").metadata().expect("its size").len())
        .sum();
    assert!(size < 2_000_000, "{size} bytes");
}

/// What is trained is written, with what it learnt from, and writes.
#[test]
fn a_model_is_trained_and_writes() {
    let program = Program::new(env!("CARGO_BIN_EXE_generate"));
    let line = |index: usize| format!("line {index} says {}\n", index * index % 977);
    program.write("text.txt", (0..2_100).map(line).collect::<String>());
    let run = "train text.txt --steps 12 --batch 2 --context 32 --seed 3";
    let trained = |out: &str| parsed(&program.succeeds(&format!("{run} --out {out}")).0);
    let training = trained("new");
    let loss = |kind: &str| number(&training["held_out_loss"], kind);
    // 6.9 is that of guessing among 1,024 tokens.
    assert!(loss("written") < 6.5, "{training}");
    assert!((loss("written") - loss("trained_in_fp8")).abs() < 5e-3, "{training}");
    assert_ne!(loss("trained_in_fp8"), loss("trained_in_f32"), "products were in FP8");
    assert!((loss("written") - loss("trained_in_f32")).abs() < 5e-2, "{training}");
    assert_eq!(program.json("new/training.json"), training);
    // The head is the embedding: it has no tensor, and loaders must not look for its scales.
    let ignored = &program.json("new/config.json")["quantization_config"]["ignore"];
    assert_eq!(*ignored, json!(["lm_head", "model.embed_tokens"]));
    let (text, about) = program.succeeds("new --prompt line --tokens 5 --ignore-end");
    assert!(text.starts_with("line"));
    has(&about, &["28 layers, E4M3", "per channel", "per token"]);
    // The same seed, the same model.
    assert_eq!(trained("again")["held_out_loss"], training["held_out_loss"]);
    assert_eq!(program.read("again/model.safetensors"), program.read("new/model.safetensors"));
}

/// An adapter learns a text that the model knows nothing of, and changes what is written; the model stays as it is.
#[test]
fn adapters_are_trained_beside_the_model() {
    let program = with_model("qwen3_channel");
    let model = program.read("model/model.safetensors");
    program.write("text.txt", "the cat sat on the mat\n".repeat(100));
    let run =
        "tune model text.txt --out adapter --steps 30 --batch 4 --context 16 --rank 4 --rate 0.01";
    let tuning = parsed(&program.succeeds(run).0);
    let loss = |when: &str| number(&tuning["held_out_loss"], when);
    assert!(loss("after") < 0.5 * loss("before"), "{tuning}");
    // 3 layers of 7 matrices, each with 4 × (inputs + outputs) numbers: q, k, v, o, gate, up, down.
    let sides = [128 + 192, 128 + 96, 128 + 96, 192 + 128, 128 + 352, 128 + 352, 352 + 128];
    let weights = 3 * 4 * sides.iter().sum::<usize>();
    assert_eq!(
        tuning["adapters"],
        json!({ "layers": 21, "weights": weights, "rank": 4, "alpha": 16.0 })
    );
    assert_eq!(program.read("model/model.safetensors"), model);
    let config = program.json("adapter/adapter_config.json");
    assert_eq!((&config["r"], &config["base_model_name_or_path"]), (&json!(4), &json!("model")));

    let write = "model --prompt the --tokens 12 --greedy --ignore-end --json";
    let text = |run: &str| parsed(&program.succeeds(run).0)["rows"][0]["text"].to_string();
    let tuned = text(&format!("{write} --adapter adapter"));
    assert_ne!(tuned, text(write));
    has(&tuned, &["cat sat on"]);

    // Merged, it is a model of its own. Quantized anew it is nearly the same.
    let merged = program.succeeds("merge model adapter --out merged").0;
    has(&merged, &["merged is the model"]);
    has(&text(&write.replace("model", "merged")), &["cat sat on"]);
    assert_eq!(program.read("merged/tokenizer.json"), program.read("model/tokenizer.json"));
    program.fails("merge model adapter --out merged", &["merged is there already"]);

    // All weights, in f32; adapters come near that.
    let full =
        "tune model text.txt --out full --full --steps 30 --batch 4 --context 16 --rate 0.001";
    let full = parsed(&program.succeeds(full).0);
    assert_eq!(full["held_out_loss"]["before"], tuning["held_out_loss"]["before"]);
    assert!(number(&full["held_out_loss"], "after") < 0.5 * loss("before"), "{full}");
    has(&text(&write.replace("model", "full")), &["cat"]);
    program.fails("tune model text.txt --out full --full", &["full is there already"]);
    program.fails("tune model text.txt --out x --full --rank 4", &["--full", "--rank"]);

    // Embedding and norms beside the adapters, which are loaded and merged, too.
    let whole = format!("{run} --whole embed_tokens,norm").replace("--out adapter", "--out whole");
    let further = parsed(&program.succeeds(&whole).0);
    assert!(number(&further["held_out_loss"], "after") < loss("after"), "{further}");
    let config = program.json("whole/adapter_config.json");
    let modules = config["modules_to_save"].as_array().expect("modules").iter();
    for module in ["embed_tokens", "norm", "q_norm", "input_layernorm"] {
        assert!(modules.clone().any(|name| name == module), "{config}");
    }
    has(&text(&format!("{write} --adapter whole")), &["cat sat on"]);
    has(&text(&format!("{write} --adapter whole --head fp8")), &["cat sat on"]);
    program.succeeds("merge model whole --out merged_whole");
    has(&text(&write.replace("model", "merged_whole")), &["cat sat on"]);
    // As PEFT trains an embedding by itself: the head stays as it was, and is not the embedding any more.
    let file = program.read("whole/adapter_model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&file).expect("tensors").tensors();
    let tensors = tensors.into_iter().filter(|(name, _)| !name.ends_with("lm_head.weight"));
    let file = safetensors::serialize(tensors, None).expect("tensors");
    program.write("whole/adapter_model.safetensors", file);
    let untied = text(&format!("{write} --adapter whole"));
    program.succeeds("merge model whole --out untied");
    assert_eq!(program.json("untied/config.json")["tie_word_embeddings"], json!(false));
    assert_eq!(text(&write.replace("model", "untied")), untied);
    program.ends(&format!("{run} --whole c_attn"), &["c_attn", "model.embed_tokens"]);
    program.fails("tune model text.txt --out x --full --whole norm", &["--full", "--whole"]);

    let some = format!("{run} --layers q_proj,v_proj").replace("--out adapter", "--out some");
    assert_eq!(parsed(&program.succeeds(&some).0)["adapters"]["layers"], json!(6));
    program.ends(&format!("{run} --layers c_attn"), &["c_attn", "q_proj"]);
    program.ends(&run.replace("rank 4", "rank 0"), &["model.layers.0", "rank is 0"]);
    // Another kind of adapter, which PEFT would take from the model's weights first.
    program
        .edit("adapter/adapter_config.json", |config| config["init_lora_weights"] = json!("pissa"));
    let words = ["init_lora_weights", "pissa"];
    program.fails("model --prompt the --adapter adapter", &words);
    program.fails("merge model adapter --out changed", &words);
    program.ends(&run.replace("rate 0.01", "rate 1e30"), &["diverges", "--rate"]);
    let other = with_model("llama_block");
    program.edit("adapter/adapter_config.json", |config| config["init_lora_weights"] = json!(true));
    other.copy(&program.path("adapter"), "adapter");
    other.ends("model --prompt the --adapter adapter", &["another model"]);
    other.fails("model --prompt the --adapter none", &["none", "adapter_config.json"]);
}

/// A model is quantized anew by each scheme, and writes what it wrote; where none is asked for it is the one that the model's numbers come from, which leaves no noise.
#[test]
fn a_model_is_quantized_by_the_best_scheme() {
    let write = "--prompt the --tokens 8 --greedy --ignore-end --json --activations high";
    for (golden, best) in
        [("qwen3_channel", "channel"), ("mistral_tensor", "tensor"), ("llama_block", "block")]
    {
        let program = with_model(golden);
        let tokens = |folder: &str| {
            let written = parsed(&program.succeeds(&format!("{folder} {write}")).0);
            written["rows"][0]["tokens"].as_array().expect("tokens").clone()
        };
        let ranked = program.succeeds("quantize model --out best").0;
        let first = ranked.lines().next().expect("a line");
        assert!(first.starts_with(&format!("{best}: ")), "{golden}: {ranked}");
        has(&ranked, &["channel: ", "tensor: ", "block: ", "mxfp8: ", "best is the model in FP8"]);
        assert_eq!(tokens("best"), tokens("model"), "{golden}");
        program.fails("quantize model --out best", &["best is there already"]);
    }
    let program = with_model("qwen3_channel");
    for (scheme, words) in
        [("channel", "per channel"), ("tensor", "per tensor"), ("block", "128"), ("mxfp8", "MXFP8")]
    {
        let printed = program.succeeds(&format!("quantize model --scheme {scheme} --out {scheme}"));
        assert!(!printed.0.contains("dB"), "{printed:?}");
        let about = program.succeeds(&format!("{scheme} --prompt the --tokens 4")).1;
        has(&about, &["21 layers", words]);
    }
}

/// A training that ends early, as a killed one does, and is resumed: the same adapters as of one that went through.
#[test]
fn an_interrupted_training_goes_on() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = with_model("qwen3_channel");
    program.write("text.txt", "the cat sat on the mat\n".repeat(100));
    let plan = |out: &str, resume| Tuning {
        model: program.path("model"),
        text: program.path("text.txt"),
        out: program.path(out),
        lora: Some(LoraConfig::new(4).with_alpha(8.0).with_dropout(0.2)),
        layers: vec!["q_proj".into(), "down_proj".into()],
        whole: vec!["embed_tokens".into(), "input_layernorm".into()],
        course: Course { steps: 40, batch: 2, context: 16, rate: 0.01, seed: 5 },
        save_every: 20,
        resume,
    };
    let through = tune::<Flex>(&plan("whole", false), |_| (), |_, _| Ok(())).unwrap();
    let until_31 = |step, _| match step {
        31 => Err(anyhow!("the lights went out")),
        _ => Ok(()),
    };
    let error = tune::<Flex>(&plan("parts", false), |_| (), until_31).unwrap_err();
    assert!(error.to_string().contains("the lights went out"));
    // Twenty steps were written.
    let adapters = "adapter_model.safetensors";
    let whole = program.read(&format!("whole/{adapters}"));
    assert_ne!(program.read(&format!("parts/{adapters}")), whole);
    let mut steps = vec![];
    let note = |step, _| {
        steps.push(step);
        Ok(())
    };
    let resumed = tune::<Flex>(&plan("parts", true), |_| (), note).unwrap();
    assert_eq!(steps, [21, 31, 40]);
    assert_eq!(resumed.losses, through.losses, "of all steps");
    assert_eq!(program.read(&format!("parts/{adapters}")), whole);

    // It has ended: there is nothing to go on from. Nor with other settings, nor from a damaged file.
    let fails = |plan: &Tuning, words: &[&str]| {
        let error = format!("{:#}", tune::<Flex>(plan, |_| (), |_, _| Ok(())).unwrap_err());
        has(&error, words);
    };
    // Whoever cannot have a picture is told before the training, which writes nothing.
    let undrawn = "tune model text.txt --out undrawn --picture text.txt/losses.svg";
    program.fails(undrawn, &["cannot write", "text.txt/losses.svg"]);
    assert!(!program.path("undrawn").exists());
    fails(&plan("parts", true), &["nothing to resume", "parts", "--resume"]);
    tune::<Flex>(&plan("parts", false), |_| (), until_31).unwrap_err();
    let other = Tuning { layers: vec!["q_proj".into()], ..plan("parts", true) };
    fails(&other, &["layers", "down_proj", "--resume"]);
    program.write("other.txt", "the cat sat on the hat\n".repeat(100));
    fails(
        &Tuning { text: program.path("other.txt"), ..plan("parts", true) },
        &["text", "--resume"],
    );
    let saved = program.read("parts/resume.bin");
    // Steps that nobody could have done.
    let text = String::from_utf8_lossy(&saved[..saved.iter().position(|b| *b == b'\n').unwrap()]);
    let forged = text.replace("\"done\":20", "\"done\":4000000000000");
    assert_ne!(forged, text);
    let forged = [forged.as_bytes(), &saved[text.len()..]].concat();
    program.write("parts/resume.bin", &forged);
    fails(&plan("parts", true), &["resume.bin is damaged"]);
    for length in [0, 10, saved.len() / 2, saved.len() - 1] {
        program.write("parts/resume.bin", &saved[..length]);
        fails(&plan("parts", true), &["resume.bin is damaged"]);
    }
    program.write("parts/resume.bin", &saved);
    tune::<Flex>(&plan("parts", true), |_| (), |_, _| Ok(())).unwrap();
    assert_eq!(program.read(&format!("parts/{adapters}")), whole);

    // All weights: what it needs to go on lies beside the folder of the model, and is gone at the end.
    let all =
        |out, resume| Tuning { lora: None, layers: vec![], whole: vec![], ..plan(out, resume) };
    tune::<Flex>(&all("full", false), |_| (), |_, _| Ok(())).unwrap();
    tune::<Flex>(&all("full_parts", false), |_| (), until_31).unwrap_err();
    assert!(program.path("full_parts.training/resume.bin").exists());
    tune::<Flex>(&all("full_parts", true), |_| (), |_, _| Ok(())).unwrap();
    let weights = |folder: &str| program.read(&format!("{folder}/model.safetensors"));
    assert_eq!(weights("full_parts"), weights("full"));
    assert!(!program.path("full_parts.training").exists());
    fails(&all("full", true), &["full is there already"]);
    fails(&all("other", true), &["nothing to resume", "other.training"]);
    assert!(!program.path("other.training").exists());
    // Nor does one that fails before anything is written leave a folder.
    let texts = Tuning { text: program.path("none.txt"), ..plan("deep/new", false) };
    fails(&texts, &["none.txt"]);
    let first = tune::<Flex>(&plan("deep/new", false), |_| (), |_, _| Err(anyhow!("no light")));
    assert!(first.unwrap_err().to_string().contains("no light"));
    assert!(!program.path("deep").exists());
    // Nobody else's files are removed.
    std::fs::create_dir_all(program.path("kept.training")).unwrap();
    program.write("kept.training/notes.txt", "mine");
    tune::<Flex>(&all("kept", false), |_| (), |_, _| Ok(())).unwrap();
    assert_eq!(program.read("kept.training/notes.txt"), b"mine");
    assert!(!program.path("kept.training/resume.bin").exists());
}

/// The folder is taken by somebody else meanwhile: what was trained is not lost.
#[test]
fn what_cannot_be_written_is_kept_elsewhere() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = with_model("qwen3_channel");
    program.write("text.txt", "the cat sat on the mat\n".repeat(2_100));
    let kept = |error: anyhow::Error, file: &str| {
        let error = format!("{error:#}");
        let (_, rest) = error.split_once("what was trained is in ").expect(&error);
        let folder = Path::new(rest.split_once(", as").expect(&error).0);
        assert!(folder.join(file).exists(), "{error}");
        std::fs::remove_dir_all(folder).expect("removed");
        error
    };
    let course = Course { steps: 2, batch: 1, context: 16, rate: 0.01, seed: 5 };
    let taken = |name: &str| {
        std::fs::create_dir_all(program.path(name)).expect("made");
        program.write(&format!("{name}/model.safetensors"), "of somebody else");
    };
    let text = "the cat sat on the mat\n".repeat(2_100);
    let config = serde_json::from_slice(&fs::read(built_in("config.json")).unwrap()).unwrap();
    let plan = Plan { text, out: program.path("new"), config, course };
    let error = train::<Flex>(&plan, |_, _| taken("new")).unwrap_err();
    has(&kept(error, "model.safetensors"), &["there already"]);
    assert_eq!(program.read("new/model.safetensors"), b"of somebody else");

    let plan = |out: &str, lora| Tuning {
        model: program.path("model"),
        text: program.path("text.txt"),
        out: program.path(out),
        lora,
        layers: vec![],
        whole: vec![],
        course,
        save_every: 100,
        resume: false,
    };
    let in_the_way = |step: usize, taken: &dyn Fn()| {
        if step == 1 {
            taken();
        }
        Ok(())
    };
    let full =
        tune::<Flex>(&plan("full", None), |_| (), |step, _| in_the_way(step, &|| taken("full")));
    has(&kept(full.unwrap_err(), "model.safetensors"), &["there already"]);
    let file = || program.write("adapter", "a file where the folder would be");
    let lora = Some(LoraConfig::new(4));
    let adapters = tune::<Flex>(&plan("adapter", lora), |_| (), |step, _| in_the_way(step, &file));
    kept(adapters.unwrap_err(), "adapter_model.safetensors");
}

/// A disk that has no room for the model: files of this process may not be longer than so many blocks.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_found_out_before_a_training() {
    let program = Program::new(env!("CARGO_BIN_EXE_generate"));
    let run = format!(
        "trap '' XFSZ; ulimit -f 1000; exec {} train --out new --steps 100000 --shape small",
        env!("CARGO_BIN_EXE_generate")
    );
    let mut command = Command::new("sh");
    let output = command.current_dir(program.path("")).args(["-c", &run]).output().expect("sh");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    has(&stderr, &["cannot write", "bytes to new"]);
    assert!(!program.has("new"));
}
