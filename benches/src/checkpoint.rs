//! Opening a published checkpoint of 8.6 GB: a sparse file, so that nothing but what is read takes memory or time.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::Path;

use burn_fp8::checkpoint::Checkpoint;
use serde_json::{Map, Value, json};

use crate::harness::{Options, Side};
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "checkpoint";

/// Layers of 4096×4096, 16.8 MB each.
const LAYERS: usize = 512;

/// What opening may take, in milliseconds.
const LIMIT: f64 = 1000.0;

/// Compares opening with reading the header alone, and with the time that it may take. The table says what was read.
pub fn run(options: &Options) -> Vec<Row> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let bytes = write(folder.path()).expect("a sparse file");
    let path = folder.path().join("model.safetensors");
    let before = bytes_read();
    let checkpoint = Checkpoint::open(folder.path()).expect("written for this");
    let read = bytes_read().zip(before).map(|(after, before)| after - before);
    assert_eq!(checkpoint.layers().len(), LAYERS);

    let mut open = || drop(black_box(Checkpoint::open(folder.path()).expect("opened before")));
    let mut parse = || drop(black_box(header(&path)));
    let read = read.map_or(String::new(), |read| format!(", {} kB read", read.div_ceil(1000)));
    let name = format!("open {:.1} GB, {LAYERS} layers{read}", bytes as f64 / 1e9);
    let subject = Side::new(&name, &mut open);
    let reference = Side::new("header parsed by serde_json", &mut parse);
    let row = options.compare((GROUP, 1, None), subject, reference);
    let in_time = row.beside("a second", LIMIT, Some(1.0));
    vec![row, in_time]
}

/// A model as DeepSeek publishes it. Returns the bytes of its file.
fn write(folder: &Path) -> std::io::Result<u64> {
    let quantization = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    let config = json!({ "quantization_config": quantization });
    fs::write(folder.join("config.json"), config.to_string())?;
    let (mut tensors, mut end) = (Map::new(), 0);
    for layer in 0..LAYERS {
        let mut add = |name: &str, dtype: &str, shape: &[u64], bytes: u64| {
            let offsets = [end, end + bytes];
            end += bytes;
            let tensor = json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
            tensors.insert(format!("model.layers.{layer}.mlp.up_proj.{name}"), tensor);
        };
        add("weight", "F8_E4M3", &[4096, 4096], 4096 * 4096);
        add("weight_scale_inv", "F32", &[32, 32], 4 * 32 * 32);
    }
    let header = Value::Object(tensors).to_string();
    let mut file = File::create(folder.join("model.safetensors"))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let bytes = 8 + header.len() as u64 + end;
    file.set_len(bytes)?;
    Ok(bytes)
}

/// The header of a safetensors file, as any reader has to parse it.
fn header(path: &Path) -> Value {
    let mut file = File::open(path).expect("it was written");
    let mut length = [0; 8];
    file.read_exact(&mut length).expect("a length");
    let mut header = vec![0; u64::from_le_bytes(length) as usize];
    file.read_exact(&mut header).expect("a header");
    serde_json::from_slice(&header).expect("JSON")
}

/// The bytes that this process has read from files so far, where the system tells.
fn bytes_read() -> Option<u64> {
    let io = fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}
