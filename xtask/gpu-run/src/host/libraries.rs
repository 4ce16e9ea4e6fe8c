//! NVRTC and cuBLASLt: which ones programs are to load.

use std::fmt::{Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::host::root::Root;
use crate::host::search::Search;
use crate::host::version::{Version, wheel};
use crate::process;

/// Where a folder of CUDA has its libraries.
const PLACES: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu"];

/// A library that programs are to load.
#[derive(Clone, Debug)]
pub struct Library {
    /// Where it was found.
    found: PathBuf,
    /// The file itself, all links followed.
    pub file: PathBuf,
    /// The CUDA that it is of, where its name or its neighbours tell.
    pub version: Option<Version>,
}

impl Library {
    fn at(found: PathBuf) -> Self {
        let file = fs::canonicalize(&found).unwrap_or_else(|_| found.clone());
        let version = version_of(&file);
        Self { found, file, version }
    }

    /// The number after `.so.`.
    pub fn major(&self) -> Option<u32> {
        let name = self.found.file_name()?.to_str()?;
        name.split_once(".so.")?.1.split('.').next()?.parse().ok()
    }
}

impl Display for Library {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        self.version.map_or(Ok(()), |version| write!(formatter, ", CUDA {version}"))
    }
}

/// What was found of both.
pub struct Libraries {
    pub nvrtc: Option<Library>,
    pub cublaslt: Option<Library>,
}

/// Finds both and makes programs load them.
///
/// # Errors
/// If links to them cannot be made.
pub fn find(search: &mut Search, driver: Option<Version>) -> Result<Libraries> {
    let majors = majors(driver);
    let all = |search: &Search, name| {
        let of_major = |major: &u32| candidates(search, name, *major);
        majors.iter().flat_map(of_major).map(Library::at).collect::<Vec<_>>()
    };
    let named = |name: &str| {
        let majors: Vec<String> = majors.iter().map(u32::to_string).collect();
        format!("{name}.so.{{{}}}", majors.join(","))
    };

    let (newer, fitting): (Vec<Library>, Vec<Library>) =
        all(search, "libnvrtc").into_iter().partition(|library| is_newer(library.version, driver));
    let nvrtc = fitting.into_iter().next();
    match (&nvrtc, newer.first(), driver) {
        (Some(library), ..) => {
            if library.version.is_none() {
                search.note(format!(
                    "{} does not tell its version: kernels do not load if it is newer than the driver's CUDA",
                    library.file.display()
                ));
            }
        }
        (None, Some(library), Some(driver)) => search.need(
            format!("libnvrtc.so of CUDA {driver} or older"),
            format!(
                "{} is of CUDA {}, and the driver knows CUDA {driver} at most: it does not load the PTX that a newer NVRTC makes; \
                 pip install {}, or update the driver",
                library.file.display(),
                library.version.map_or_else(String::new, |version| version.to_string()),
                wheel("nvidia-cuda-nvrtc", Some(driver))
            ),
        ),
        (None, ..) => search.need(
            named("libnvrtc"),
            format!(
                "compiles CubeCL's kernels, and is to be no newer than the driver's CUDA; install the CUDA toolkit, or: pip install {}, \
                 or set LD_LIBRARY_PATH to its folder",
                wheel("nvidia-cuda-nvrtc", driver)
            ),
        ),
    }
    let cublaslt = all(search, "libcublasLt").into_iter().next();
    if cublaslt.is_none() {
        let wheel = match driver {
            Some(Version { major: 12, .. }) => "nvidia-cublas-cu12",
            _ => "nvidia-cublas",
        };
        search.need(
            named("libcublasLt"),
            format!(
                "multiplies in FP8; install the CUDA toolkit, or: pip install {wheel}, or set LD_LIBRARY_PATH to its folder"
            ),
        );
    }
    let links = search.links.path().join("lib");
    let environment = &mut search.environment;
    for (name, library) in [("libnvrtc.so", &nvrtc), ("libcublasLt.so", &cublaslt)] {
        if let Some(library) = library {
            environment
                .prepend("LD_LIBRARY_PATH", library.found.parent().unwrap_or(Path::new("/")));
            link(&links.join(name), &library.found)?;
        }
    }
    // Programs ask for the name without a version first: what lies elsewhere under that name would go before what was chosen.
    environment.prepend("LD_LIBRARY_PATH", &links);
    Ok(Libraries { nvrtc, cublaslt })
}

/// All files that are NAME.so.MAJOR, the best first.
pub fn candidates(search: &Search, name: &str, major: u32) -> Vec<PathBuf> {
    let file = format!("{name}.so.{major}");
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let chosen: Vec<PathBuf> =
        std::env::split_paths(&path).filter(|folder| folder.as_os_str() != "").collect();
    let places = search.folders.all().flat_map(|folder| PLACES.map(|place| folder.join(place)));
    chosen
        .into_iter()
        .chain(places)
        .map(|folder| folder.join(&file))
        .filter(|path| path.exists())
        .chain(cached(&search.root, &file))
        .collect()
}

/// Where the loader's cache has a library.
fn cached(root: &Root, file: &str) -> Vec<PathBuf> {
    let mut command = Command::new(root.at("sbin/ldconfig"));
    command.arg("-p");
    let output = process::output(&mut command, Duration::from_secs(30));
    let text = output.map(|output| output.text).unwrap_or_default();
    let of_line = |line: &str| {
        let (name, path) = line.trim().split_once(" => ")?;
        (name.split(' ').next() == Some(file)).then(|| PathBuf::from(path))
    };
    text.lines().filter_map(of_line).collect()
}

/// Major versions of libraries that are of use to the driver, the best first: what it does not know would be none.
fn majors(driver: Option<Version>) -> Vec<u32> {
    match driver.map(|version| version.major) {
        Some(12) => vec![12],
        Some(major) if major > 13 => vec![major, 13, 12],
        _ => vec![13, 12],
    }
}

fn is_newer(library: Option<Version>, driver: Option<Version>) -> bool {
    matches!((library, driver), (Some(library), Some(driver)) if library > driver)
}

/// The version in the name of a file, as `libnvrtc.so.12.4.127`, or else in that of its neighbour, `libnvrtc-builtins.so.12.4`: a
/// wheel names the major version alone.
fn version_of(file: &Path) -> Option<Version> {
    let name = file.file_name()?.to_str()?;
    let (stem, numbers) = name.split_once(".so.")?;
    if let Some(version) = Version::parse(numbers) {
        return Some(version);
    }
    let major = numbers.parse().ok()?;
    let prefix = format!("{stem}-builtins.so.");
    let entries = fs::read_dir(file.parent()?).ok()?.flatten();
    let mut versions: Vec<Version> = entries
        .filter_map(|entry| Version::parse(entry.file_name().to_str()?.strip_prefix(&prefix)?))
        .filter(|version| version.major == major)
        .collect();
    versions.dedup();
    // Neighbours of two versions tell nothing.
    match versions[..] {
        [version] => Some(version),
        _ => None,
    }
}

/// Makes a link, and the folders above it.
pub fn link(at: &Path, to: &Path) -> Result<()> {
    let what = || format!("cannot link {} to {}", at.display(), to.display());
    let to = std::path::absolute(to).with_context(what)?;
    fs::create_dir_all(at.parent().unwrap_or(at)).with_context(what)?;
    #[cfg(unix)]
    std::os::unix::fs::symlink(&to, at).with_context(what)?;
    #[cfg(not(unix))]
    anyhow::bail!("{}: only Linux is supported", what());
    #[cfg(unix)]
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Version, is_newer, majors, version_of};

    #[test]
    fn the_name_or_a_neighbour_tells_the_version() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            path
        };
        let version = |text| Version::parse(text);
        assert_eq!(version_of(&file("libnvrtc.so.12.4.127")), version("12.4"));
        let of_wheel = file("libnvrtc.so.13");
        assert_eq!(version_of(&of_wheel), None);
        file("libnvrtc-builtins.so.12.9");
        file("libnvrtc-builtins.alt.so.13.0");
        assert_eq!(version_of(&of_wheel), None);
        file("libnvrtc-builtins.so.13.0");
        assert_eq!(version_of(&of_wheel), version("13.0"));
        file("libnvrtc-builtins.so.13.1");
        assert_eq!(version_of(&of_wheel), None);
    }

    #[test]
    fn an_nvrtc_newer_than_the_driver_is_of_no_use() {
        for (library, driver, newer) in [
            ("12.4", "12.4", false),
            ("12.4", "13.0", false),
            ("12.9", "12.4", true),
            ("13.5", "13.0", true),
        ] {
            let is = is_newer(Version::parse(library), Version::parse(driver));
            assert_eq!(is, newer, "{library} for {driver}");
        }
        assert!(!is_newer(None, Version::parse("12.4")));
        assert!(!is_newer(Version::parse("13.5"), None));
    }

    #[test]
    fn libraries_of_a_newer_major_version_are_not_looked_for() {
        assert_eq!(majors(Version::parse("12.8")), [12]);
        assert_eq!(majors(Version::parse("13.0")), [13, 12]);
        assert_eq!(majors(Version::parse("14.1")), [14, 13, 12]);
        assert_eq!(majors(None), [13, 12]);
    }
}
