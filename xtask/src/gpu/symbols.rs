//! Which C library a program needs, by the versions of the symbols that it imports.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::Endianness;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader, Sym};

/// What GPU hosts have at least: glibc of August 2021, as on Ubuntu 22.04 or Rocky Linux 9.
const NEWEST: [u32; 2] = [2, 34];

/// A symbol that a program imports, with the version that it asks for, as `GLIBC_2.34`.
struct Import {
    symbol: String,
    version: String,
}

/// Fails, naming them, if a program needs symbols that the C library of a GPU host may not have.
pub fn check(program: &Path, name: &str) -> Result<()> {
    let what = || format!("cannot read which symbols {} imports", program.display());
    let bytes = fs::read(program).with_context(what)?;
    let newer = newer(&imports(&bytes).with_context(what)?, NEWEST);
    if newer.is_empty() {
        return Ok(());
    }
    let [major, minor] = NEWEST;
    bail!(
        "{name} needs symbols that are newer than GLIBC_{major}.{minor}: {}. A GPU host may not have them: build on a system with an \
         older glibc, or do without the dependency that imports them",
        newer.join(", ")
    )
}

/// What is newer than a version of glibc, as `arc4random of GLIBC_2.36`.
fn newer(imports: &[Import], newest: [u32; 2]) -> Vec<String> {
    imports
        .iter()
        .filter(|import| glibc(&import.version).is_some_and(|version| version > newest))
        .map(|import| format!("{} of {}", import.symbol, import.version))
        .collect()
}

/// The numbers of a version like `GLIBC_2.34`; a third one, as in `GLIBC_2.2.5`, is of versions long past.
fn glibc(version: &str) -> Option<[u32; 2]> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
}

/// All imports that ask for a version.
fn imports(bytes: &[u8]) -> Result<Vec<Import>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let Some(versions) = sections.versions(endian, bytes)? else { return Ok(vec![]) };
    let symbols = sections.symbols(endian, bytes, SHT_DYNSYM)?;
    let mut imports = vec![];
    for (index, symbol) in symbols.enumerate() {
        if !symbol.is_undefined(endian) {
            continue;
        }
        if let Some(version) = versions.version(versions.version_index(endian, index).into())? {
            let symbol = symbol.name(endian, symbols.strings())?;
            imports.push(Import {
                symbol: String::from_utf8_lossy(symbol).into_owned(),
                version: String::from_utf8_lossy(version.name()).into_owned(),
            });
        }
    }
    Ok(imports)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::process::Command;

    use crate::repository;

    use super::{Import, check, imports, newer};

    #[test]
    fn newer_symbols_are_named_with_their_version() {
        let import =
            |symbol: &str, version: &str| Import { symbol: symbol.into(), version: version.into() };
        let imports = [
            import("memcpy", "GLIBC_2.14"),
            import("stat", "GLIBC_2.33"),
            import("__libc_start_main", "GLIBC_2.34"),
            import("free", "GLIBC_2.2.5"),
            import("arc4random", "GLIBC_2.36"),
            import("_Unwind_Resume", "GCC_3.0"),
            import("later", "GLIBC_3.0"),
        ];
        assert_eq!(newer(&imports, [2, 34]), ["arc4random of GLIBC_2.36", "later of GLIBC_3.0"]);
    }

    /// The linker's own tool reads the same of this program.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    fn imports_are_those_that_objdump_lists() {
        let program = std::env::current_exe().unwrap();
        let output = Command::new("objdump").arg("-T").arg(&program).output();
        let output = output.expect("objdump comes with the linker: install binutils");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let listed: BTreeSet<(String, String)> = text
            .lines()
            .filter(|line| line.contains("*UND*"))
            .filter_map(|line| {
                let (before, symbol) = line.rsplit_once(' ')?;
                let version = before.split_whitespace().next_back()?;
                let version = version.trim_start_matches('(').trim_end_matches(')');
                version.contains('_').then(|| (symbol.to_owned(), version.to_owned()))
            })
            .collect();
        assert!(listed.iter().any(|(symbol, _)| symbol == "memcpy"), "{text}");
        let read: BTreeSet<(String, String)> = imports(&fs::read(&program).unwrap())
            .unwrap()
            .into_iter()
            .map(|import| (import.symbol, import.version))
            .collect();
        assert_eq!(read, listed);
    }

    #[test]
    fn a_file_that_is_no_program_is_named() {
        let error =
            format!("{:#}", check(&repository::root().join("Cargo.toml"), "some").unwrap_err());
        assert!(error.contains("cannot read which symbols"), "{error}");
    }
}
