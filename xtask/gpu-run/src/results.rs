//! The output folder: what earlier runs left, facts of the host, the end of each phase, all of it in one file.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::host::{Machine, Root};

/// Everything in one file, to be carried away.
pub const PACKED: &str = "results.tar.gz";
const PHASES: &str = "phases.tsv";

/// What a run writes into its folder itself; programs of phases write there, too.
pub struct Results {
    folder: PathBuf,
    phases: File,
}

impl Results {
    /// Makes the folder, if need be, and removes what an earlier run left: it would be reported as this one's.
    pub fn begin(folder: &Path) -> Result<Self> {
        let what = || format!("cannot write {}", folder.display());
        fs::create_dir_all(folder).with_context(what)?;
        let folder = fs::canonicalize(folder).with_context(what)?;
        for entry in fs::read_dir(&folder).with_context(what)? {
            let path = entry.with_context(what)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match &*name {
                "accuracy" => fs::remove_dir_all(&path).with_context(what)?,
                name if is_of_a_run(name) => fs::remove_file(&path).with_context(what)?,
                _ => {}
            }
        }
        let phases = OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join(PHASES))
            .with_context(what)?;
        Ok(Self { folder, phases })
    }

    /// Where the results are, as an absolute path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a line of phase, status, seconds and log, separated by tabs.
    pub fn record(&mut self, phase: &str, status: &str, seconds: u64, log: &str) {
        let status = status.replace(['\t', '\n'], " ");
        if let Err(error) = writeln!(self.phases, "{phase}\t{status}\t{seconds}\t{log}") {
            eprintln!("note: cannot write {PHASES}: {error}");
        }
    }

    /// Writes lines of a name, a tab and a value: what the report says of the host.
    pub fn describe(&self, archive: &Path, machine: &Machine, command: &str) -> Result<()> {
        let mut text: String = facts(machine, command)
            .into_iter()
            .map(|(name, value)| format!("{name}\t{}\n", value.replace(['\t', '\n'], " ")))
            .collect();
        let manifest = archive.join("MANIFEST");
        text += &fs::read_to_string(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        let path = self.folder.join("host.tsv");
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Packs the folder into a file in it.
    pub fn pack(&self) -> Result<PathBuf> {
        let packed = self.folder.join(PACKED);
        let what = || format!("cannot pack {} into {PACKED}", self.folder.display());
        // It must not hold itself.
        let mut entries: Vec<PathBuf> = fs::read_dir(&self.folder)
            .with_context(what)?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()
            .with_context(what)?;
        entries.sort();
        let file = tempfile::Builder::new().tempfile_in(&self.folder).with_context(what)?;
        let gzip = GzEncoder::new(BufWriter::new(file.as_file()), Compression::default());
        let mut builder = tar::Builder::new(gzip);
        builder.follow_symlinks(false);
        for path in entries {
            let name = path.file_name().unwrap_or_default();
            if path.is_dir() {
                builder.append_dir_all(name, &path).with_context(what)?;
            } else {
                builder.append_path_with_name(&path, name).with_context(what)?;
            }
        }
        builder
            .into_inner()
            .and_then(GzEncoder::finish)
            .and_then(|mut file| file.flush())
            .with_context(what)?;
        let file = file.persist(&packed).with_context(what)?;
        readable(&file).with_context(what)?;
        Ok(packed)
    }
}

/// Whether a file is of one run alone; logs are replaced when their phase runs again.
fn is_of_a_run(name: &str) -> bool {
    let fixed = [
        PHASES,
        PACKED,
        "host.tsv",
        "device.json",
        "torch.json",
        "accuracy.json",
        "results.json",
        "table.txt",
        "table.md",
    ];
    fixed.contains(&name) || (name.starts_with("rows-") && name.ends_with(".json"))
}

/// A temporary file is its owner's alone; whoever fetches results may be another.
fn readable(file: &File) -> std::io::Result<()> {
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

fn facts(machine: &Machine, command: &str) -> Vec<(&'static str, String)> {
    fn or<T: ToString>(value: Option<T>, other: &str) -> String {
        value.map_or_else(|| other.to_owned(), |value| value.to_string())
    }
    let mut facts = vec![("command", command.to_owned()), ("date", now())];
    if let Some(device) = &machine.device {
        facts.extend([
            ("device", device.name.clone()),
            ("device, index and UUID", format!("{}, {}", device.index, device.uuid)),
            ("compute capability", device.capability.clone()),
            ("driver", device.driver.clone()),
        ]);
    }
    let visible = machine.environment.get("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    facts.extend([
        ("CUDA_VISIBLE_DEVICES", visible.to_string_lossy().into_owned()),
        ("CUDA of the driver", or(machine.driver, "unknown")),
        ("NVRTC", or(machine.nvrtc.as_ref(), "unknown")),
        ("cuBLASLt", or(machine.cublaslt.as_ref(), "unknown")),
        ("CUDA headers", or(machine.headers.as_ref(), "unknown")),
        ("torch", or(machine.torch.as_ref().map(|torch| &torch.version), "none")),
        ("compute-sanitizer", or(machine.sanitizer.as_ref().map(|path| path.display()), "none")),
        ("kernel", kernel()),
        ("processor", processor(&Root::from_environment())),
    ]);
    facts
}

fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let whole = now.replace_nanosecond(0).unwrap_or(now);
    whole.format(&Rfc3339).unwrap_or_default()
}

fn kernel() -> String {
    #[cfg(unix)]
    return rustix::system::uname().release().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    "unknown".to_owned()
}

fn processor(root: &Root) -> String {
    let text = fs::read_to_string(root.at("proc/cpuinfo")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", name.map_or("unknown", |(_, name)| name))
}
