//! For tests: programs that are run, and results that are committed. All of it panics where something is not as it has to be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

/// A built program with a folder of its own, which it runs in: names on its command line are those of files there. The folder goes with it.
pub struct Program {
    path: &'static str,
    folder: TempDir,
}

impl Program {
    /// The program at `env!("CARGO_BIN_EXE_NAME")`, with an empty folder.
    pub fn new(path: &'static str) -> Self {
        Self { path, folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Whether there is a file or a folder of this name.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Writes a file.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// Copies a folder of files; it gets this name.
    pub fn copy(&self, from: &Path, name: &str) {
        fs::create_dir_all(self.path(name)).expect("made");
        for entry in fs::read_dir(from).expect("a folder") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), self.path(name).join(entry.file_name())).expect("copied");
        }
    }

    /// The bytes of a file.
    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The text of a file.
    pub fn text(&self, name: &str) -> String {
        utf8(self.read(name))
    }

    /// The JSON of a file.
    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Changes a file of JSON.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut value = self.json(name);
        change(&mut value);
        self.write(name, value.to_string());
    }

    /// Removes a file, or a folder with all that is in it.
    pub fn remove(&self, name: &str) {
        let path = self.path(name);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// The program with these arguments, which blanks separate.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(self.path);
        command.current_dir(self.folder.path()).args(arguments.split_whitespace());
        command
    }

    /// Runs it.
    pub fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    /// Runs it; what it prints on stdout and on stderr.
    #[track_caller]
    pub fn succeeds(&self, arguments: &str) -> (String, String) {
        let output = self.run(arguments);
        let stderr = utf8(output.stderr);
        assert!(output.status.success(), "{arguments}: {stderr}");
        (utf8(output.stdout), stderr)
    }

    /// Runs it; what it prints on stdout.
    #[track_caller]
    pub fn prints(&self, arguments: &str) -> String {
        let (stdout, stderr) = self.succeeds(arguments);
        assert!(stderr.is_empty(), "{arguments}: {stderr}");
        stdout
    }

    /// Runs it, which ends with exit code 2; what it says on stderr.
    #[track_caller]
    pub fn ends(&self, arguments: &str, words: &[&str]) -> String {
        is_error(&self.run(arguments), arguments, words)
    }

    /// Runs it, which ends with exit code 2, and says nothing but one line that has these words.
    #[track_caller]
    pub fn fails(&self, arguments: &str, words: &[&str]) {
        self.fails_in(&[], arguments, words);
    }

    /// The same with environment variables.
    #[track_caller]
    pub fn fails_in(&self, environment: &[(&str, &str)], arguments: &str, words: &[&str]) {
        let mut command = self.command(arguments);
        let output = command.envs(environment.iter().copied()).output().expect("it starts");
        let stderr = is_error(&output, arguments, words);
        assert_eq!(stderr.lines().count(), 1, "{arguments}: one line: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments}: nothing on stdout");
    }
}

#[track_caller]
fn is_error(output: &Output, arguments: &str, words: &[&str]) -> String {
    let stderr = utf8(output.stderr.clone());
    assert_eq!(output.status.code(), Some(2), "{arguments}: {stderr}");
    let last = stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && last.len() < 600, "{arguments}: {stderr}");
    assert!(!stderr.contains("panicked"), "{arguments}: {stderr}");
    has(last, words);
    stderr
}

fn utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

/// Checks that a text has all of these words.
#[track_caller]
pub fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "`{word}` is missing in: {text}");
    }
}

/// A number of a JSON object.
#[track_caller]
pub fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} is a number in {value}"))
}

/// The elements of a JSON list.
#[track_caller]
pub fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list: {value}"))
}

/// Set, tables and pictures are written instead of compared.
const RENDER: &str = "RENDER_RESULTS";

/// The folder `results` of a package: tables and pictures are compared with what their JSON gives, or written anew from it.
pub struct Results(PathBuf);

impl Results {
    /// Of the package of this manifest folder: `env!("CARGO_MANIFEST_DIR")`.
    pub fn of(manifest_folder: &str) -> Self {
        Self(Path::new(manifest_folder).join("results"))
    }

    /// Whether tables and pictures are written instead of compared.
    pub fn renders() -> bool {
        std::env::var_os(RENDER).is_some()
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The text of a file.
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A file of JSON.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> T {
        serde_json::from_str(&self.text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Checks that a document says this, each line break a space: a sentence may have one anywhere.
    #[track_caller]
    pub fn say(&self, document: &str, sentence: &str) {
        let text = self.text(document).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(sentence), "results/{document} does not say: {sentence}");
    }

    /// Compares a file with what it has to be.
    #[track_caller]
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
    #[track_caller]
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
