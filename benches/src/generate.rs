//! Text from a decoder in FP8, against llama.cpp, PyTorch, and reading what a token reads.

use std::hint::black_box;
use std::path::Path;

use burn::backend::Flex;
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8_cpu::slice;
use burn_fp8_serve::{Cache, CacheType, Config, Decoder, Head, LoadOptions};

use crate::harness::{Options, Side};
use crate::partner::{Partner, has_bf16};
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "generate";

/// Tokens in the cache before those that are measured.
const CONTEXT: usize = 128;

/// Tokens of a run, one by one.
const TOKENS: usize = 16;

/// Tokens of a prompt.
const PROMPT: usize = 512;

/// Rows that are decoded at once.
const BATCH: usize = 8;

/// Measures the model of a folder at each thread count: nothing without one.
pub fn run(options: &Options) -> Vec<Row> {
    let Some(folder) = &options.model else {
        eprintln!(
            "{GROUP}: not measured, --model gives no folder; `cargo run --release -p generate -- train --shape qwen3-0.6b --steps 0 --out FOLDER` writes one"
        );
        return vec![];
    };
    let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
    let config = Config::parse(checkpoint.config()).expect("a configuration");
    // As llama.cpp has it in eight bits, too.
    let load = LoadOptions { head: Head::Fp8, ..LoadOptions::default() };
    let decoder = Decoder::load(&checkpoint, config, load, &Default::default(), |_, _| ());
    let decoder = decoder.expect("a model");
    options.on_pools(|threads| measure(&decoder, folder, threads, options))
}

fn measure(decoder: &Decoder<Flex>, folder: &Path, threads: usize, options: &Options) -> Vec<Row> {
    let tokens = |count: usize| (1..=count as u32).collect::<Vec<_>>();
    let fill = |batch: usize| {
        let mut cache = decoder.cache(CacheType::Bf16, vec![0; batch]);
        decoder.forward(&vec![tokens(CONTEXT); batch], &mut cache, true).expect("positions");
        cache
    };
    let decode = |cache: &mut Cache<Flex>, batch: usize| {
        for token in 1..=TOKENS as u32 {
            let logits = decoder.forward(&vec![vec![token]; batch], cache, true);
            black_box(logits.expect("positions").into_data());
        }
        cache.truncate(CONTEXT);
    };
    let mut rows = vec![];
    let (mut one, mut many) = (fill(1), fill(BATCH));
    let bytes = TOKENS * (decoder.bytes() - decoder.embedding_bytes() + one.bytes());
    let memory = vec![1f32; bytes / TOKENS / 4];
    let mut read = || {
        for _ in 0..TOKENS {
            black_box(slice::amax(&memory));
        }
    };
    let name = format!("decode {TOKENS} tokens after {CONTEXT}");
    {
        let mut run = || decode(&mut one, 1);
        let subject = Side::new(&name, &mut run).with_bytes(bytes);
        let reference = Side::new("reading the bytes", &mut read).with_bytes(bytes);
        rows.push(options.compare((GROUP, threads, Some(0.85)), subject, reference));
        let task = format!("decode 1 {CONTEXT} {TOKENS}");
        rows.extend(beside_peers(options, folder, threads, (&name, &mut run), &task));
    }
    let batch = format!("batch {BATCH}, {name}");
    let mut run_many = || decode(&mut many, BATCH);
    let task = format!("decode {BATCH} {CONTEXT} {TOKENS}");
    rows.extend(beside_peers(options, folder, threads, (&batch, &mut run_many), &task));
    {
        // As many tokens one after the other.
        let mut run = || (0..BATCH).for_each(|_| decode(&mut one, 1));
        let (subject, reference) =
            (Side::new(&batch, &mut run_many), Side::new("one after the other", &mut run));
        rows.push(options.compare((GROUP, threads, Some(3.0)), subject, reference));
    }
    let prompt = tokens(PROMPT);
    let mut run = || {
        let mut cache = decoder.cache(CacheType::Bf16, vec![0]);
        black_box(
            decoder.forward(std::slice::from_ref(&prompt), &mut cache, true).expect("positions"),
        );
    };
    let (name, task) = (format!("prefill {PROMPT} tokens"), format!("prefill {PROMPT}"));
    rows.extend(beside_peers(options, folder, threads, (&name, &mut run), &task));
    rows
}

/// Each peer that its Python has, on the same shapes.
fn beside_peers(
    options: &Options,
    folder: &Path,
    threads: usize,
    (name, run): (&str, &mut dyn FnMut()),
    task: &str,
) -> Vec<Row> {
    let Some(python) = &options.python else { return vec![] };
    let config = folder.join("config.json");
    let row = |peer: &str| {
        let partner = Partner::generate(python, [peer, &config.to_string_lossy(), task], threads);
        let mut partner = partner.map_err(|error| eprintln!("{error}")).ok()?;
        let reference = partner.name.clone();
        let mut other = || partner.run();
        let (subject, reference) = (Side::new(name, run), Side::new(&reference, &mut other));
        let target = (peer == "llama.cpp").then_some(1.0);
        Some(options.compare((GROUP, threads, target), subject, reference))
    };
    let peers = match has_bf16() {
        true => &["llama.cpp", "torch"][..],
        false => &["llama.cpp"],
    };
    peers.iter().copied().filter_map(row).collect()
}
