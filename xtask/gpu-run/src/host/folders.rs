//! Folders that may hold a CUDA toolkit or a part of one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::host::root::Root;
use crate::process;

/// Where pip puts NVIDIA's wheels, one line each.
const WHEELS: &str = "import importlib.util
spec = importlib.util.find_spec('nvidia')
print(*(spec.submodule_search_locations if spec else []), sep='\\n')";

/// Parts of CUDA that belong together: one toolkit, or wheels of one major version.
pub type Family = Vec<PathBuf>;

/// All of them, the best first; pip's wheels last.
pub struct Folders {
    pub families: Vec<Family>,
}

impl Folders {
    pub fn find(root: &Root, python: &Path) -> Self {
        let chosen = std::env::var_os("CUDA_PATH").filter(|path| !path.is_empty());
        // Programs are started in another folder.
        let chosen = chosen.map(|path| std::path::absolute(&path).unwrap_or(path.into()));
        let mut versions = children(&root.at("usr/local"));
        versions.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("cuda-12") || name.starts_with("cuda-13")
        });
        // Containers on some hosts get the driver's libraries in the last of these.
        let toolkits = [root.at("usr/local/cuda"), root.at("opt/cuda")]
            .into_iter()
            .chain(versions)
            .chain([root.at("usr"), root.at("usr/local/nvidia")])
            .filter(|path| path.is_dir());
        let mut families: Vec<Family> =
            chosen.iter().cloned().chain(toolkits).map(|folder| vec![folder]).collect();
        // Whoever sets CUDA_PATH to the folder of one wheel has its siblings there, too.
        let of_chosen = chosen
            .as_deref()
            .and_then(Path::parent)
            .filter(|parent| parent.file_name().is_some_and(|name| name == "nvidia"));
        let mut places: Vec<PathBuf> = of_chosen.into_iter().map(Path::to_path_buf).collect();
        places.extend(wheels(python));
        places.dedup();
        families.extend(of_wheels(&places));
        Self { families }
    }

    /// Each folder once.
    pub fn all(&self) -> impl Iterator<Item = &Path> {
        self.families.iter().flatten().map(PathBuf::as_path)
    }
}

/// The places of the Python package `nvidia`, which all wheels share.
fn wheels(python: &Path) -> Vec<PathBuf> {
    let mut command = Command::new(python);
    command.args(["-c", WHEELS]);
    let output = process::output(&mut command, Duration::from_secs(60));
    let text = output.ok().filter(|output| output.ended.is_ok()).map(|output| output.text);
    text.unwrap_or_default().lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
}

/// Wheels of CUDA 13 and later share a folder, as `nvidia/cu13`; those of CUDA 12 have one each, as `nvidia/cuda_runtime`.
fn of_wheels(places: &[PathBuf]) -> Vec<Family> {
    let folders: Vec<PathBuf> = places.iter().flat_map(|place| children(place)).collect();
    let mut shared: Vec<(String, Family)> = vec![];
    let mut single = Family::new();
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_shared =
            name.strip_prefix("cu").is_some_and(|version| version.parse::<u32>().is_ok());
        match shared.iter_mut().find(|(known, _)| *known == name) {
            Some((_, family)) => family.push(folder),
            None if is_shared => shared.push((name, vec![folder])),
            None => single.push(folder),
        }
    }
    let mut families: Vec<Family> = shared.into_iter().map(|(_, family)| family).collect();
    if !single.is_empty() {
        families.push(single);
    }
    families
}

/// The folders in a folder, sorted.
fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::of_wheels;

    #[test]
    fn wheels_of_one_major_version_belong_together() {
        let place = tempfile::tempdir().unwrap();
        let (user, system) = (place.path().join("user"), place.path().join("system"));
        for folder in
            ["user/cu13", "user/cublas", "system/cuda_runtime", "system/cuda_nvcc", "system/cu13"]
        {
            fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        let families = of_wheels(&[user.clone(), system.clone()]);
        assert_eq!(
            families,
            [
                vec![user.join("cu13"), system.join("cu13")],
                vec![user.join("cublas"), system.join("cuda_nvcc"), system.join("cuda_runtime")]
            ]
        );
    }
}
