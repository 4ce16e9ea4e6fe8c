//! Runs the program and reads what it prints.

mod inspect;
mod training;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use examples_common::testing::{Program, has, list, number};
use serde_json::{Value, json};

/// The program, with a model of the goldens in its folder.
fn with_model(model: &str) -> Program {
    let program = Program::new(env!("CARGO_BIN_EXE_generate"));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../crates/burn-fp8-serve/tests/golden")
        .join(model);
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

/// transformers takes such a head, too; what is made of the model has it, and says so.
#[test]
fn a_head_that_is_not_the_embedding_is_kept() {
    let program = with_model("mistral_tensor");
    let write = "--prompt word --tokens 8 --greedy --ignore-end --json --activations high";
    let tokens = |folder: &str| {
        let (text, about) = program.succeeds(&format!("{folder} {write}"));
        (parsed(&text)["rows"][0]["tokens"].clone(), about)
    };
    let (expected, about) = tokens("model");
    assert!(!about.contains("lm_head"), "{about}");
    program.edit("model/config.json", |config| config["tie_word_embeddings"] = json!(true));
    let (found, about) = tokens("model");
    assert_eq!(found, expected);
    has(&about, &["warning: ", "lm_head", "tie_word_embeddings"]);
    let (_, about) = program.succeeds("quantize model --scheme tensor --out quantized");
    has(&about, &["warning: ", "lm_head"]);
    assert_eq!(program.json("quantized/config.json")["tie_word_embeddings"], json!(false));
    let (found, about) = tokens("quantized");
    assert_eq!(found, expected);
    assert!(!about.contains("lm_head"), "{about}");
    // What learns beside it learns from its losses.
    program.write("text.txt", "the cat sat on the mat\n".repeat(40));
    let tune = "tune model text.txt --out adapter --steps 1 --batch 1 --context 8 --layers q_proj";
    let (tied, about) = program.succeeds(tune);
    has(&about, &["warning: ", "lm_head"]);
    program.edit("model/config.json", |config| config["tie_word_embeddings"] = json!(false));
    let (untied, _) = program.succeeds(tune);
    assert_eq!(parsed(&tied)["held_out_loss"], parsed(&untied)["held_out_loss"]);
}

/// The names that AMD, ModelOpt, vLLM and compressed-tensors have for them.
#[test]
fn scales_of_a_cache_are_told() {
    let program = with_model("llama_block");
    let run = "model --prompt word --tokens 6 --greedy --ignore-end --json";
    let (expected, about) = program.succeeds(run);
    assert!(!about.contains("scales for keys"), "{about}");
    let original = program.read("model/model.safetensors");
    for names in [
        &["self_attn.kv_scale"][..],
        &["self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"],
        &["self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"],
        &["self_attn.k_scale", "self_attn.v_scale", "self_attn.q_scale"],
        &["self_attn.q_proj.output_scale", "self_attn.prob_output_scale"],
    ] {
        let file = safetensors::SafeTensors::deserialize(&original).expect("tensors");
        let scale = 0.5f32.to_le_bytes();
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &scale);
        let view = view.expect("a scale");
        let scales = names.iter().map(|name| (format!("model.layers.1.{name}"), view.clone()));
        let file = safetensors::serialize(file.tensors().into_iter().chain(scales), None);
        program.write("model/model.safetensors", file.expect("tensors"));
        let (found, about) = program.succeeds(run);
        assert_eq!(parsed(&found)["rows"], parsed(&expected)["rows"]);
        let count = format!("{} scales for keys and values", names.len());
        has(&about, &["warning: ", &count, "model.layers.1.self_attn", "--cache fp8"]);
    }
}

#[test]
fn a_file_says_how_long_texts_are() {
    let program = with_model("llama_block");
    let run = "model --prompt word --greedy --ignore-end --json";
    let row = |run: &str, json: Value| {
        program.write("model/generation_config.json", json.to_string());
        let (text, about) = program.succeeds(run);
        let tokens = list(&parsed(&text)["rows"][0]["tokens"]).len();
        (tokens, number(&parsed(&text)["prefill"], "tokens") as usize, about)
    };
    let (tokens, prompt, _) = row(run, json!({ "max_length": 20 }));
    assert_eq!(tokens + prompt, 20);
    // New tokens are counted where both are there, and where the command line counts them.
    assert_eq!(row(run, json!({ "max_length": 20, "max_new_tokens": 3 })).0, 3);
    assert_eq!(row(&format!("{run} --tokens 30"), json!({ "max_length": 9 })).0, 30);
    let all: Vec<u32> = (0..384).collect();
    let ends =
        json!({ "eos_token_id": all, "min_new_tokens": 4, "max_time": 2, "sequence_bias": [] });
    let (_, _, about) = row(run, ends);
    has(&about, &["max_time is not known here"]);
    assert!(!about.contains("sequence_bias"), "{about}");
    program.write("model/generation_config.json", r#"{ "max_length": 1 }"#);
    program.ends(run, &["max_length", "--tokens"]);
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
    program.ends(chat, &["it takes more than 52000 steps"]);
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
    // Found out before the text is read, which is not there.
    program.write("file", "");
    program.fails("train none.txt --out file/new", &["cannot write to file/new"]);
    program.fails("tune none none.txt --out file/new", &["cannot write to file/new"]);
    program.fails("quantize none --out file/new", &["cannot write to file/new"]);
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

/// Who has no model yet is told how to get one.
#[test]
fn models_of_the_hub_are_fetched_first() {
    let program = Program::new(env!("CARGO_BIN_EXE_generate"));
    program.write("text.txt", "a line\n");
    let id = "Qwen/Qwen3-0.6B-FP8";
    let words = ["hf download Qwen/Qwen3-0.6B-FP8 --local-dir Qwen3-0.6B-FP8"];
    program.fails(&format!("{id} --chat"), &words);
    program.fails(&format!("tune {id} text.txt --out new"), &words);
    program.fails(&format!("quantize {id} --out new"), &words);
    program.fails(&format!("inspect {id}"), &words);
    program.fails(&format!("export {id} --out new"), &words);
    program.fails("Qwen3-0.6B-FP8 --chat", &["hf download OWNER/Qwen3-0.6B-FP8"]);
    let (text, _) = fed(&program, "--chat --tokens 4 --ignore-end", "And God said\n");
    assert!(!text.trim().is_empty());
}

/// What a model in bf16 cannot do, and what to do then.
#[test]
fn models_that_are_not_quantized() {
    let program = with_model("llama_block");
    // Its layers as numbers: there is no other model here.
    program.succeeds("quantize model --scheme channel --out fp8");
    let config = |config: &mut Value| {
        _ = config.as_object_mut().expect("an object").remove("quantization_config")
    };
    program.edit("fp8/config.json", config);
    let file = program.read("fp8/model.safetensors");
    let file = safetensors::SafeTensors::deserialize(&file).expect("tensors");
    let zeros = vec![0; 4 << 20];
    let tensors = file.tensors().into_iter().filter(|(name, _)| !name.ends_with("weight_scale"));
    let plain = tensors.map(|(name, view)| match view.dtype() {
        safetensors::Dtype::F8_E4M3 => {
            let bytes = &zeros[..2 * view.data().len()];
            let shape = view.shape().to_vec();
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape, bytes);
            (name, view.expect("a matrix"))
        }
        _ => (name, view),
    });
    let file = safetensors::serialize(plain, None).expect("tensors");
    program.write("fp8/model.safetensors", file);
    program.write("text.txt", "the cat sat on the mat\n".repeat(40));
    let words = ["no layer in FP8", "generate quantize fp8 --out", "--full"];
    program.fails("tune fp8 text.txt --out new", &words);
    let words = ["no layer in FP8", "generate quantize fp8 --out"];
    program.ends("inspect fp8", &words);
    program.ends("export fp8 --out new", &words);
    assert!(!program.has("new"));
    let (_, about) = program.succeeds("fp8 --prompt word --tokens 2");
    has(&about, &["products: none in FP8"]);
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
