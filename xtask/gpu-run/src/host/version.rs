//! Versions of CUDA.

use std::fmt::{Display, Formatter};

/// A version of CUDA: what a driver knows at most, what a library or headers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// The first two numbers of a text like `13.0` or `12.4.127`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split('.').map(|number| number.parse().ok());
        Some(Self { major: numbers.next()??, minor: numbers.next()?? })
    }

    /// What NVIDIA's headers define, as 12040 for 12.4.
    pub fn from_define(number: u32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl Display for Version {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// What `pip install` takes for a part of CUDA, for a shell: since CUDA 13 the major version is no part of a wheel's name.
///
/// The version is held at `cuda`: the newest wheel may be of a CUDA that the driver does not know.
pub fn wheel(name: &str, cuda: Option<Version>) -> String {
    match cuda {
        Some(Version { major: 12, minor }) => format!("'{name}-cu12==12.{minor}.*'"),
        Some(version) => format!("'{name}=={version}.*'"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Version, wheel};

    #[test]
    fn versions_are_read_and_ordered() {
        let version = |major, minor| Version { major, minor };
        assert_eq!(Version::parse("12.4.127"), Some(version(12, 4)));
        assert_eq!(Version::parse(" 13.0"), Some(version(13, 0)));
        assert_eq!(Version::parse("13"), None);
        assert_eq!(Version::parse("a.b"), None);
        assert_eq!(Version::from_define(12090), version(12, 9));
        assert!(version(12, 9) < version(13, 0) && version(12, 10) > version(12, 9));
    }

    #[test]
    fn wheels_are_named_as_nvidia_names_them() {
        let name = "nvidia-cuda-nvrtc";
        assert_eq!(wheel(name, Version::parse("12.4")), "'nvidia-cuda-nvrtc-cu12==12.4.*'");
        assert_eq!(wheel(name, Version::parse("13.0")), "'nvidia-cuda-nvrtc==13.0.*'");
        assert_eq!(wheel(name, None), name);
    }
}
