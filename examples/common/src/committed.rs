//! For tests: results that are committed. Tables and pictures are compared with what their JSON gives, or written anew from it.

use std::fs;
use std::path::PathBuf;

/// Set, tables and pictures are written instead of compared.
const RENDER: &str = "RENDER_RESULTS";

/// The folder `results` of a package.
pub struct Results {
    /// Its path.
    folder: PathBuf,
}

impl Results {
    /// Of the package of this manifest folder: `env!("CARGO_MANIFEST_DIR")`.
    pub fn of(manifest_folder: &str) -> Self {
        Self { folder: PathBuf::from(manifest_folder).join("results") }
    }

    /// Whether tables and pictures are written instead of compared.
    pub fn renders() -> bool {
        std::env::var_os(RENDER).is_some()
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The text of a file.
    ///
    /// # Panics
    /// Where it cannot be read.
    pub fn text(&self, name: &str) -> String {
        let path = self.path(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Compares a file with what it has to be.
    ///
    /// # Panics
    /// Where it is something else.
    pub fn check(&self, name: &str, expected: &str) {
        if Self::renders() {
            return fs::write(self.path(name), expected).expect("written");
        }
        assert!(
            self.text(name) == expected,
            "results/{name} is not what its JSON gives: {RENDER}=1 cargo test -p PACKAGE writes it"
        );
    }

    /// Compares the part of a Markdown file between `<!-- part -->` and `<!-- end of part -->` with what it has to be.
    ///
    /// # Panics
    /// Where it is something else, or the file has no such part.
    pub fn check_part(&self, name: &str, part: &str, expected: &str) {
        let text = self.text(name);
        let [begin, end] = [format!("<!-- {part} -->\n"), format!("<!-- end of {part} -->")];
        let Some((before, (_, after))) = text
            .split_once(&begin)
            .and_then(|(before, rest)| Some((before, rest.split_once(&end)?)))
        else {
            panic!("results/{name} has no part between {begin}and {end}");
        };
        self.check(name, &format!("{before}{begin}{}\n{end}{after}", expected.trim_end()));
    }
}
