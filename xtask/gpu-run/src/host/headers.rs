//! The headers that CubeCL's kernels include, in one folder.

use std::fmt::{Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::host::folders::Family;
use crate::host::libraries::{Library, link};
use crate::host::search::Search;
use crate::host::version::{Version, wheel};

/// A header, by its path in `include/`.
struct Header {
    path: &'static str,
    /// Where else it may be, from CUDA 13 on.
    or: Option<&'static str>,
    /// The wheel that has it, without what CUDA 12 appends.
    wheel: &'static str,
    /// The same for CUDA 12, where that is another one.
    wheel_12: &'static str,
}

const RUNTIME: &str = "nvidia-cuda-runtime";
const CCCL: &str = "nvidia-cuda-cccl";

const fn of_runtime(path: &'static str) -> Header {
    Header { path, or: None, wheel: RUNTIME, wheel_12: RUNTIME }
}

/// What kernels include, and what that includes from other wheels; those of one wheel one after the other.
const HEADERS: [Header; 8] = [
    of_runtime("cuda_runtime.h"),
    of_runtime("cuda_fp16.h"),
    of_runtime("cuda_bf16.h"),
    of_runtime("cuda_fp8.h"),
    of_runtime("mma.h"),
    of_runtime("cooperative_groups.h"),
    Header {
        path: "crt/host_defines.h",
        or: None,
        wheel: "nvidia-cuda-crt",
        wheel_12: "nvidia-cuda-nvcc",
    },
    Header { path: "cuda/barrier", or: Some("cccl/cuda/barrier"), wheel: CCCL, wheel_12: CCCL },
];

impl Header {
    fn is_in(&self, folder: &Path) -> bool {
        let include = folder.join("include");
        std::iter::once(self.path).chain(self.or).any(|path| include.join(path).exists())
    }

    fn wheel(&self, cuda: Option<Version>) -> String {
        let is_12 = cuda.is_some_and(|version| version.major == 12);
        wheel(if is_12 { self.wheel_12 } else { self.wheel }, cuda)
    }
}

/// Headers that programs compile kernels with.
#[derive(Clone, Debug)]
pub struct Headers {
    /// The folders that have them.
    pub from: Family,
    /// The CUDA that they are of, if they say so.
    pub version: Option<Version>,
}

impl Display for Headers {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&listed(&self.from))?;
        self.version.map_or(Ok(()), |version| write!(formatter, ", CUDA {version}"))
    }
}

/// Finds a toolkit, or wheels that together are one, and makes programs use it.
///
/// # Errors
/// If links to headers cannot be made.
pub fn find(
    search: &mut Search,
    nvrtc: Option<&Library>,
    driver: Option<Version>,
) -> Result<Option<Headers>> {
    let major = nvrtc.and_then(Library::major);
    let families = &search.folders.families;
    let complete = || families.iter().filter(|family| lacks(family).is_empty());
    let fits = |family: &&Family| match (major, version_of(family)) {
        (Some(major), Some(version)) => version.major == major,
        _ => true,
    };
    let Some(family) = complete().find(fits).or_else(|| complete().next()) else {
        let version = nvrtc.and_then(|library| library.version).or(driver);
        need(search, version);
        return Ok(None);
    };
    let whole = family.iter().find(|folder| HEADERS.iter().all(|header| header.is_in(folder)));
    let from = whole.map_or_else(|| with_some(family), |folder| vec![folder.clone()]);
    let folder = match &from[..] {
        [folder] => folder.clone(),
        several => {
            let gathered = search.links.path().join("cuda");
            for folder in several {
                gather(&folder.join("include"), &gathered.join("include"))?;
            }
            gathered
        }
    };
    search.environment.set("CUDA_PATH", &folder);
    let headers = Headers { version: version_of(&from), from };
    if let (Some(major), Some(version)) = (major, headers.version)
        && major != version.major
    {
        search.note(format!(
            "NVRTC is of CUDA {major}, the headers in {} are of CUDA {version}: kernels may not compile",
            listed(&headers.from)
        ));
    }
    Ok(Some(headers))
}

/// The folders of a family that have a header at all.
fn with_some(family: &Family) -> Family {
    let has_some = |folder: &&PathBuf| HEADERS.iter().any(|header| header.is_in(folder));
    family.iter().filter(has_some).cloned().collect()
}

/// The headers that no folder of a family has.
fn lacks(family: &Family) -> Vec<&'static Header> {
    HEADERS.iter().filter(|header| !family.iter().any(|folder| header.is_in(folder))).collect()
}

/// What the headers of a family say of themselves.
fn version_of(family: &Family) -> Option<Version> {
    family.iter().find_map(|folder| {
        let text = fs::read_to_string(folder.join("include/cuda_runtime_api.h")).ok()?;
        let number = text.lines().find_map(|line| line.strip_prefix("#define CUDART_VERSION"))?;
        number.trim().parse().ok().map(Version::from_define)
    })
}

/// Names what is missing where most is there already, and the wheels that have it, which are to be of `cuda` unless the headers that
/// are there are of another.
fn need(search: &mut Search, cuda: Option<Version>) {
    let some = search.folders.families.iter().map(with_some).filter(|family| !family.is_empty());
    let family = some.min_by_key(|family| lacks(family).len()).unwrap_or_default();
    let lacking = lacks(&family);
    let names: Vec<&str> = lacking.iter().map(|header| header.path).collect();
    let version = version_of(&family).or(cuda);
    let mut wheels: Vec<String> = lacking.iter().map(|header| header.wheel(version)).collect();
    wheels.dedup();
    let includes: Family = family.iter().map(|folder| folder.join("include")).collect();
    let there = match (&includes[..], std::env::var("CUDA_PATH")) {
        ([], Ok(path)) if !path.is_empty() => format!("CUDA_PATH is {path} and no folder has"),
        ([], _) => "no folder has".to_owned(),
        _ => format!("{} lacks", listed(&includes)),
    };
    search.need(
        "CUDA headers",
        format!(
            "CubeCL's kernels include them and stop without: {there} {}; install the CUDA toolkit and set CUDA_PATH to its folder, \
             or: pip install {}",
            names.join(" "),
            wheels.join(" ")
        ),
    );
}

/// Folders in one text.
fn listed(folders: &Family) -> String {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    names.join(" + ")
}

/// Links what is in a folder into another one, folder by folder where both have one of the same name.
fn gather(from: &Path, into: &Path) -> Result<()> {
    let what = || format!("cannot gather the headers of {}", from.display());
    for entry in fs::read_dir(from).with_context(what)? {
        let path: PathBuf = entry.with_context(what)?.path();
        let at = into.join(path.file_name().unwrap_or_default());
        if !at.exists() {
            link(&at, &path)?;
        } else if path.is_dir() {
            // The link of another folder becomes a folder with links to what that one has.
            if let Ok(other) = fs::read_link(&at) {
                fs::remove_file(&at).with_context(what)?;
                gather(&other, &at)?;
            }
            gather(&path, &at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{HEADERS, Header, Version, gather};

    #[test]
    fn folders_of_the_same_name_are_joined() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        };
        for name in ["a/one.h", "a/crt/one.h", "b/two.h", "b/crt/two.h", "b/one.h", "c/crt/three.h"]
        {
            file(name);
        }
        let into = place.path().join("all");
        for from in ["a", "b", "c"] {
            gather(&place.path().join(from), &into).unwrap();
        }
        let read = |name: &str| fs::read_to_string(into.join(name)).unwrap();
        assert_eq!(read("one.h"), "a/one.h");
        assert_eq!(read("two.h"), "b/two.h");
        assert_eq!(read("crt/one.h"), "a/crt/one.h");
        assert_eq!(read("crt/two.h"), "b/crt/two.h");
        assert_eq!(read("crt/three.h"), "c/crt/three.h");
        assert!(!place.path().join("a/crt/two.h").exists());
    }

    #[test]
    fn the_wheel_of_a_header_depends_on_the_major_version() {
        let wheel = |path, cuda| {
            let header = HEADERS.iter().find(|header| header.path == path).unwrap();
            Header::wheel(header, Version::parse(cuda))
        };
        assert_eq!(wheel("crt/host_defines.h", "12.4"), "'nvidia-cuda-nvcc-cu12==12.4.*'");
        assert_eq!(wheel("crt/host_defines.h", "13.0"), "'nvidia-cuda-crt==13.0.*'");
        assert_eq!(wheel("cuda/barrier", "12.4"), "'nvidia-cuda-cccl-cu12==12.4.*'");
    }
}
