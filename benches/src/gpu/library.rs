//! Which cuBLASLt a program has loaded. torch may bring one of its own, with other algorithms.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};
use burn_fp8::Capability;
use serde::Serialize;
use serde_json::Value;

/// As the peers' scripts write it, under `cublaslt`.
#[derive(Serialize)]
pub struct Library {
    path: Option<String>,
    version: Option<String>,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".into());
        write!(f, "cuBLASLt {}, {}", or_none(&self.version), or_none(&self.path))
    }
}

/// That of this process, after the capability of the device has been asked for.
pub fn loaded(capability: &Capability) -> Result<Library> {
    let maps = fs::read_to_string("/proc/self/maps").context("cannot read /proc/self/maps")?;
    let version = match capability {
        Capability::Native(device) => Some(device.cublaslt.clone()),
        _ => None,
    };
    Ok(Library { path: mapped(&maps), version })
}

/// The first file of this name among what is mapped into a process.
fn mapped(maps: &str) -> Option<String> {
    let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    maps.lines().filter_map(path).find(|path| path.contains("/libcublasLt.so"))
}

/// What a report is to warn of: that the products of `ours` and of `peer`, as in their JSON, are not those of the same library.
pub fn difference(ours: &Value, peer: &Value, script: &str) -> Option<String> {
    let version = |library: &Value| match &library["version"] {
        // 10000 major + 100 minor + patch.
        Value::Number(number) => {
            let number = number.as_u64()?;
            Some(format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
        }
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    let (ours_is, peer_is) = (version(ours)?, version(&peer["cublaslt"])?);
    (ours_is != peer_is).then(|| {
        format!(
            "cuBLASLt differs: {ours_is} ({}) here, {peer_is} ({}) in torch by {script}; a difference of speed or error may be theirs",
            ours["path"].as_str().unwrap_or("?"),
            peer["cublaslt"]["path"].as_str().unwrap_or("?"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{difference, mapped};
    use serde_json::json;

    #[test]
    fn the_mapped_file_is_found() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 12   /usr/lib/libc.so.6\n7f02-7f03 rw-p 00000000 00:00 0\n\
                    7f04-7f05 r--p 00000000 08:01 13   /opt/a b/libcublasLt.so.13.4.1\n";
        assert_eq!(mapped(maps).unwrap(), "/opt/a b/libcublasLt.so.13.4.1");
        assert_eq!(mapped("7f02-7f03 rw-p 00000000 00:00 0\n"), None);
    }

    #[test]
    fn another_version_is_told() {
        let ours = json!({"path": "/a", "version": "13.4.1"});
        let peer = |version: u32| json!({"cublaslt": {"path": "/b", "version": version}});
        assert_eq!(difference(&ours, &peer(130_401), "x"), None);
        let text = difference(&ours, &peer(120_804), "x").unwrap();
        assert!(text.contains("13.4.1 (/a)") && text.contains("12.8.4 (/b)"), "{text}");
        assert_eq!(difference(&ours, &json!(null), "x"), None);
    }
}
