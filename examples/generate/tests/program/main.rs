//! Runs the program and reads what it prints.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::anyhow;
use burn::backend::Flex;
use burn_fp8::nn::LoraConfig;
use examples_common::testing::{Program, has, list, number};
use generate::train::{Course, Tuning, tune};
use serde_json::{Value, json};

/// The program, with a model of the goldens in its folder.
fn with_model(model: &str) -> Program {
    let program = Program::new(env!("CARGO_BIN_EXE_generate"));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model);
    program.copy(&golden, "model");
    program
}

/// Runs it with a text on standard input; what it prints on stdout and stderr.
fn fed(program: &Program, arguments: &str, input: &str) -> (String, String) {
    let mut command = program.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let stderr = text(output.stderr);
    assert!(output.status.success(), "{arguments}: {stderr}");
    (text(output.stdout), stderr)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_prompt_is_continued() {
    let program = with_model("llama_block");
    let run = "model --prompt beginning --tokens 12 --ignore-end";
    let (text, about) = program.succeeds(run);
    assert!(text.starts_with("beginning") && text.ends_with('\n'), "{text}");
    assert!(text.trim_end().len() > "beginning".len());
    has(&about, &["E4M3", "3 layers", "1.1 MB of weights", "12 tokens", "a second", "cache"]);
    assert_eq!(program.succeeds(run).0, text, "the same seed");
    let others = (1..4).map(|seed| program.succeeds(&format!("{run} --seed {seed}")).0);
    assert!(others.into_iter().any(|other| other != text), "another seed");
    let (from_stdin, _) = fed(&program, "model --prompt - --tokens 12 --ignore-end", "beginning");
    assert_eq!(from_stdin, text);
}

#[test]
fn json_says_what_happened() {
    let program = with_model("qwen3_channel");
    let run = "model --prompt one --prompt another --tokens 6 --greedy --ignore-end --json";
    let (text, _) = program.succeeds(run);
    let together = parsed(&text);
    let rows = list(&together["rows"]);
    assert_eq!(rows.len(), 2);
    for (row, prompt) in rows.iter().zip(["one", "another"]) {
        assert_eq!((&row["prompt"], &row["ended"]), (&json!(prompt), &json!("tokens")));
        assert_eq!(list(&row["tokens"]).len(), 6);
        let alone = format!("model --prompt {prompt} --tokens 6 --greedy --ignore-end --json");
        let alone = parsed(&program.succeeds(&alone).0);
        assert_eq!((&alone["rows"][0]["text"], &row["text"].is_string()), (&row["text"], &true));
    }
    assert_eq!(number(&together["decode"], "tokens"), 10.0);
    assert!(number(&together["decode"], "seconds") > 0.0);
    assert!(number(&together, "weight_bytes") > 600_000.0);
    assert!(!list(&together["kernels"]).is_empty());
    // Keys and values in f32 take twice as much.
    let bytes = number(&together, "cache_bytes");
    let exact = parsed(&program.succeeds(&format!("{run} --cache f32")).0);
    assert_eq!(number(&exact, "cache_bytes"), 2.0 * bytes);
    assert_eq!((&together["cache"], &exact["cache"]), (&json!("bf16"), &json!("f32")));
    // NdArray has no bf16: the program says what it holds.
    let (_, about) = program.succeeds("model --prompt one --tokens 2 --backend ndarray");
    has(&about, &["in f32"]);
    // A row that has ended does not keep the others from going on.
    let long = "a".repeat(509);
    let run = format!("model --prompt {long} --prompt one --tokens 9 --greedy --ignore-end --json");
    let uneven = parsed(&program.succeeds(&run).0);
    let [first, second] = [0, 1].map(|row| uneven["rows"][row]["ended"].clone());
    assert_eq!((first, second), (json!("positions"), json!("tokens")));
    // Several prompts are printed one after the other.
    let run = "model --prompt one --prompt another --tokens 6 --greedy --ignore-end";
    has(&program.succeeds(run).0, &["one", "\n\nanother"]);
}

#[test]
fn a_conversation_goes_on() {
    let program = with_model("qwen2_mxfp8");
    let options = "--tokens 5 --greedy --ignore-end";
    let (text, about) = fed(&program, &format!("model --chat {options} --json"), "hello\nagain\n");
    let answers: Vec<Value> = text.lines().map(parsed).collect();
    assert_eq!(answers.len(), 2);
    assert_eq!(about.matches("a second").count(), 4, "{about}");
    // Only what is new goes through the model.
    let prefill = |answer: &Value| number(&answer["prefill"], "tokens");
    assert!(prefill(&answers[1]) < 2.0 * prefill(&answers[0]), "{text}");
    // One answer, the same as the first.
    let (text, _) = program.succeeds(&format!("model --chat --prompt hello {options} --json"));
    assert_eq!(parsed(&text)["rows"], answers[0]["rows"]);
    let told = format!("model --chat --system brief --prompt hello {options} --json");
    let told = parsed(&program.succeeds(&told).0);
    assert!(prefill(&told) > prefill(&answers[0]));
}

#[test]
fn a_text_ends_where_it_is_told_to() {
    let program = with_model("mistral_tensor");
    let run = "model --prompt word --tokens 20 --greedy --ignore-end --json";
    let whole = parsed(&program.succeeds(run).0)["rows"][0].clone();
    let text = whole["text"].as_str().expect("a text");
    let stop = text.split_whitespace().next_back().expect("a word");
    let place = text.find(stop).expect("it is there");
    let cut = parsed(&program.succeeds(&format!("{run} --stop {stop}")).0)["rows"][0].clone();
    assert_eq!((&cut["text"], &cut["ended"]), (&json!(text[..place]), &json!("stopped")));
}

/// What was written stays, with the speed; so many tokens are written in no other way.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_what_is_written() {
    let program = with_model("llama_block");
    program
        .edit("model/config.json", |config| config["max_position_embeddings"] = json!(1_000_000));
    let run = "model --prompt beginning --tokens 900000 --ignore-end";
    let mut command = program.command(run);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // The prompt is printed when Ctrl-C is listened to, and a little later there are tokens.
    let mut first = [0; 24];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("a text");
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    let output = child.wait_with_output().expect("it ends");
    let about = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{about}");
    has(&about, &["tokens, ", "a second", "cache"]);
    assert!(!about.contains("900000 tokens"));
}

#[test]
fn the_head_in_fp8_takes_less_memory() {
    let program = with_model("llama_block");
    let run = "model --prompt word --tokens 3 --json";
    let bytes = |run: &str| number(&parsed(&program.succeeds(run).0), "weight_bytes");
    let (own, fp8) = (bytes(run), bytes(&format!("{run} --head fp8")));
    // 384 × 192 elements: one byte instead of two, and a scale for each row.
    assert_eq!(own - fp8, 384.0 * 192.0 - 384.0 * 4.0);
}

#[test]
fn inputs_may_stay_as_they_are() {
    let program = with_model("mistral_tensor");
    let run = "model --prompt word --tokens 3 --json --activations";
    let kernels = |run: &str| parsed(&program.succeeds(run).0)["kernels"].to_string();
    assert!(kernels(&format!("{run} high")).contains("only the weight is in FP8"));
    assert!(!kernels(&format!("{run} file")).contains("only the weight is in FP8"));
}

#[test]
fn other_models_are_refused_by_name() {
    let program = with_model("llama_block");
    let original = program.read("model/config.json");
    let refused = |change: &dyn Fn(&mut Value), words: &[&str]| {
        program.edit("model/config.json", change);
        program.fails("model --prompt word", words);
        program.write("model/config.json", &original);
    };
    let set =
        |key: &'static str, value: Value| move |config: &mut Value| config[key] = value.clone();
    refused(&set("model_type", json!("mixtral")), &["mixtral", "llama, mistral, qwen2, qwen3"]);
    refused(&set("model_type", Value::Null), &["no model_type"]);
    refused(&set("hidden_act", json!("gelu")), &["hidden_act", "gelu"]);
    refused(&|config| config["rope_scaling"]["rope_type"] = json!("yarn"), &["yarn", "llama3"]);
    refused(&|config| config["rope_scaling"]["factor"] = Value::Null, &["no factor"]);
    refused(&set("num_key_value_heads", json!(4)), &["4 does not divide", "6"]);
    refused(&set("head_dim", json!(33)), &["33 wide", "even"]);
    refused(&set("hidden_size", json!(-1)), &["hidden_size is -1"]);
    refused(&set("num_hidden_layers", json!(4)), &["model.layers.3"]);
    refused(&set("num_hidden_layers", json!(2)), &["model.layers.2", "do not belong together"]);
    refused(&set("attention_bias", json!(true)), &["q_proj has no bias"]);
    refused(&set("vocab_size", json!(385)), &["embed_tokens", "[384, 192]", "[385, 192]"]);
    refused(&set("vocab_size", json!(100)), &["token 383", "ends at 99"]);
    refused(&set("eos_token_id", json!("end")), &["eos_token_id", "end"]);
}

#[test]
fn damaged_files_are_named() {
    let program = with_model("llama_block");
    let run = "model --prompt word";
    let damage = |file: &str, content: &str, run: &str, words: &[&str]| {
        let original = program.has(file).then(|| program.read(file));
        program.write(file, content);
        program.fails(run, words);
        match original {
            Some(original) => program.write(file, original),
            None => program.remove(file),
        }
    };
    damage("model/tokenizer.json", "{", run, &["tokenizer.json is damaged"]);
    damage("model/generation_config.json", "[", run, &["generation_config.json", "no JSON"]);
    let sampling = r#"{"do_sample": true, "top_p": 1.5}"#;
    damage(
        "model/generation_config.json",
        sampling,
        run,
        &["generation_config.json", "top-p is 1.5"],
    );
    let chat = "model --chat --prompt word";
    damage("model/tokenizer_config.json", "{}", chat, &["no chat template", "--chat"]);
    let template = "model/chat_template.jinja";
    damage(template, "{% for", chat, &["chat template cannot be read", "line 1"]);
    program.remove("model/tokenizer.json");
    program.fails(run, &["tokenizer.json is missing"]);
}

/// What a template raises comes after the model was loaded: a line about that is before it.
#[test]
fn templates_that_raise_or_do_not_end() {
    let program = with_model("llama_block");
    let chat = "model --chat --prompt word";
    program.write("model/chat_template.jinja", "{{ raise_exception('no such role') }}");
    program.ends(chat, &["refuses this conversation", "no such role"]);
    let endless =
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}";
    program.write("model/chat_template.jinja", endless);
    program.ends(chat, &["it does not end"]);
    program.write("model/chat_template.jinja", "");
    program.ends(chat, &["the prompt is empty"]);
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    let program = with_model("llama_block");
    let mut file = program.read("model/model.safetensors");
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).expect("a header");
    let name = "model.layers.1.post_attention_layernorm.weight";
    let start = header[name]["data_offsets"][0].as_u64().expect("a place") as usize;
    // The last byte of a bf16: infinity, or NaN.
    file[8 + length + start + 1] = 0x7F;
    file[8 + length + start] = 0xC0;
    program.write("model/model.safetensors", file);
    program.ends("model --prompt word", &[name, "not finite"]);
}

#[test]
fn what_cannot_be_asked_for() {
    let program = with_model("llama_block");
    program.fails("model", &["nothing to do", "--prompt", "--chat"]);
    program.fails("train", &["--out"]);
    program.fails("train --out model", &["model is there already"]);
    program.fails("train --out new --rate 0", &["learning rate is 0"]);
    program.fails("train none.txt --out new", &["cannot read none.txt"]);
    program.write("short.txt", "a line\n".repeat(19));
    program.fails("train short.txt --out new", &["19 lines", "20 are needed"]);
    program.write("short.txt", "a line\n".repeat(21));
    program.fails("train short.txt --out new", &["tokens", "context of 128"]);
    assert!(!program.has("new"), "nothing was made");
    program.fails("none --prompt word", &["none"]);
    program.fails("model --chat --prompt a --prompt b", &["one beginning"]);
    program.fails("model --prompt word --system x", &["--chat"]);
    program.fails("model --prompt word --tokens 0", &["--tokens"]);
    program.fails("model --prompt word --temperature -1", &["temperature"]);
    program.fails("model --prompt word --top-p 0", &["top-p is 0"]);
    program.fails("model --prompt word --min-p 2", &["min-p is 2"]);
    program.fails("model --prompt word --greedy --top-k 3", &["--greedy", "--top-k"]);
    let long = "word".repeat(1200);
    let words = ["tokens", "the model has 512 positions"];
    program.ends(&format!("model --prompt {long}"), &words);
    let (_, stderr) = fed(&program, "model --chat", "\n");
    has(&stderr, &["3 layers"]);
}

/// One command, on a fresh machine.
#[test]
fn a_model_is_built_in() {
    let program = Program::new(env!("CARGO_BIN_EXE_generate"));
    let (text, about) = program.succeeds("--tokens 24 --greedy");
    assert!(text.starts_with("In the beginning"), "{text}");
    has(&about, &["compressed-tensors", "per channel", "4 layers"]);
    // It has learnt English of 1611, not bytes.
    let words = text.split_whitespace().skip(3);
    let words: Vec<_> = words.map(|word| word.trim_matches(|c: char| !c.is_alphabetic())).collect();
    let known = ["the", "of", "and", "that", "in", "to", "his", "LORD", "was", "a", "he"];
    assert!(words.iter().filter(|word| known.contains(word)).count() >= 3, "{text}");
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
    program.succeeds(&format!("{write} --adapter whole"));
    program.fails("merge model whole --out untied", &["head", "config.json"]);
    program.ends(&format!("{run} --whole c_attn"), &["c_attn", "model.embed_tokens"]);
    program.fails("tune model text.txt --out x --full --whole norm", &["--full", "--whole"]);

    let some = format!("{run} --layers q_proj,v_proj").replace("--out adapter", "--out some");
    assert_eq!(parsed(&program.succeeds(&some).0)["adapters"]["layers"], json!(6));
    program.ends(&format!("{run} --layers c_attn"), &["c_attn", "q_proj"]);
    program.ends(&run.replace("rank 4", "rank 1000"), &["model.layers.0", "rank is 1000"]);
    program.ends(&run.replace("rate 0.01", "rate 1e30"), &["diverges", "--rate"]);
    let other = with_model("llama_block");
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
        picture: Some(program.path("losses.svg")),
    };
    tune::<Flex>(&plan("whole", false), |_, _| Ok(())).unwrap();
    let until_31 = |step, _| match step {
        31 => Err(anyhow!("the lights went out")),
        _ => Ok(()),
    };
    let error = tune::<Flex>(&plan("parts", false), until_31).unwrap_err();
    assert!(error.to_string().contains("the lights went out"));
    let picture = program.read("losses.svg");
    program.remove("losses.svg");
    // Twenty steps were written.
    let adapters = "adapter_model.safetensors";
    let whole = program.read(&format!("whole/{adapters}"));
    assert_ne!(program.read(&format!("parts/{adapters}")), whole);
    let mut steps = vec![];
    let note = |step, _| {
        steps.push(step);
        Ok(())
    };
    tune::<Flex>(&plan("parts", true), note).unwrap();
    assert_eq!(steps, [21, 31, 40]);
    assert_eq!(program.read("losses.svg"), picture, "of all steps");
    assert_eq!(program.read(&format!("parts/{adapters}")), whole);

    // It has ended: there is nothing to go on from. Nor with other settings, nor from a damaged file.
    let fails = |plan: &Tuning, words: &[&str]| {
        let error = format!("{:#}", tune::<Flex>(plan, |_, _| Ok(())).unwrap_err());
        has(&error, words);
    };
    // Whoever cannot have a picture is told before the training, which writes nothing.
    let picture = Some(program.path("nowhere/losses.svg"));
    fails(&Tuning { picture, ..plan("undrawn", false) }, &["cannot write", "nowhere/losses.svg"]);
    assert!(!program.path("undrawn").exists());
    fails(&plan("parts", true), &["nothing to resume", "parts", "--resume"]);
    tune::<Flex>(&plan("parts", false), until_31).unwrap_err();
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
    tune::<Flex>(&plan("parts", true), |_, _| Ok(())).unwrap();
    assert_eq!(program.read(&format!("parts/{adapters}")), whole);

    // All weights: what it needs to go on lies beside the folder of the model, and is gone at the end.
    let all =
        |out, resume| Tuning { lora: None, layers: vec![], whole: vec![], ..plan(out, resume) };
    tune::<Flex>(&all("full", false), |_, _| Ok(())).unwrap();
    tune::<Flex>(&all("full_parts", false), until_31).unwrap_err();
    assert!(program.path("full_parts.training/resume.bin").exists());
    tune::<Flex>(&all("full_parts", true), |_, _| Ok(())).unwrap();
    let weights = |folder: &str| program.read(&format!("{folder}/model.safetensors"));
    assert_eq!(weights("full_parts"), weights("full"));
    assert!(!program.path("full_parts.training").exists());
    fails(&all("full", true), &["full is there already"]);
    fails(&all("other", true), &["nothing to resume", "other.training"]);
    assert!(!program.path("other.training").exists());
    // Nobody else's files are removed.
    std::fs::create_dir_all(program.path("kept.training")).unwrap();
    program.write("kept.training/notes.txt", "mine");
    tune::<Flex>(&all("kept", false), |_, _| Ok(())).unwrap();
    assert_eq!(program.read("kept.training/notes.txt"), b"mine");
    assert!(!program.path("kept.training/resume.bin").exists());
}
