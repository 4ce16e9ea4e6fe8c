//! The torch that is compared with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::host::search::Search;
use crate::process;

const ASK: &str = r#"import torch, numpy; assert torch.cuda.is_available(), "it sees no GPU"; print(torch.__version__)"#;

/// A torch that sees the GPU.
pub struct Torch {
    /// The Python that has it.
    pub python: PathBuf,
    pub version: String,
}

pub fn find(search: &mut Search, python: &Path) -> Option<Torch> {
    let phases = "(phases accuracy and peers)";
    let name = python.display();
    let Ok(python) = which::which(python) else {
        search.note(format!("no {name}: nothing is compared with torch {phases}"));
        return None;
    };
    let mut command = Command::new(&python);
    command.args(["-c", ASK]);
    search.environment.apply(&mut command);
    match process::output(&mut command, Duration::from_secs(120)) {
        Ok(output) if output.ended.is_ok() => {
            let version = output.text.trim().lines().next_back().unwrap_or_default().to_owned();
            return Some(Torch { python, version });
        }
        Ok(output) => {
            let last = output.text.trim().lines().next_back().unwrap_or_default().to_owned();
            let why = if last.is_empty() { output.ended.to_string() } else { last };
            search.note(format!(
                "{name} has no usable torch: nothing is compared with it {phases}: {why}"
            ));
        }
        Err(error) => search.note(format!(
            "{name} cannot be started: nothing is compared with torch {phases}: {error}"
        )),
    }
    None
}
