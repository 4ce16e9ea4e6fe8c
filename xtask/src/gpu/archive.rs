//! A folder as one compressed archive, in a format that every Linux unpacks without installing anything.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Writes `folder` as `name` into a gzipped tar archive and returns its size in bytes.
pub fn write(archive: &Path, folder: &Path, name: &str) -> Result<u64> {
    if let Some(parent) = archive.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let what = || format!("cannot write {}", archive.display());
    let file = BufWriter::new(File::create(archive).with_context(what)?);
    let mut builder = tar::Builder::new(GzEncoder::new(file, Compression::best()));
    // Owner and times of this machine are nobody's business.
    builder.mode(tar::HeaderMode::Deterministic);
    builder.append_dir_all(name, folder).with_context(what)?;
    let gzip = builder.into_inner().with_context(what)?;
    gzip.finish().and_then(|mut file| file.flush()).with_context(what)?;
    Ok(fs::metadata(archive).with_context(what)?.len())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::write;

    #[test]
    fn an_archive_unpacks_with_tar_and_keeps_what_is_executable() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("staged");
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/program"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(folder.join("bin/program"), Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("MANIFEST"), "revision\tx\n").unwrap();
        let archive = place.path().join("made/later.tar.gz");
        let bytes = write(&archive, &folder, "name").unwrap();
        assert_eq!(bytes, fs::metadata(&archive).unwrap().len());
        let status =
            Command::new("tar").arg("xzf").arg(&archive).current_dir(place.path()).status();
        assert!(status.unwrap().success());
        let unpacked = place.path().join("name");
        assert_eq!(fs::read_to_string(unpacked.join("MANIFEST")).unwrap(), "revision\tx\n");
        let mode = fs::metadata(unpacked.join("bin/program")).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111);
    }
}
