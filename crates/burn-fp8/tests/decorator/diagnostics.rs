//! What the compiler says of a backend that burn-fp8 does not know.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::says;

const BEGINNING: &str = "use burn::backend::{Autodiff, Flex};
    use burn::tensor::Tensor;
    use burn_fp8::engine::Fp8Engine;
    use burn_fp8::{Fp8Backend, Fp8Matmul};
    pub fn tensor<B: burn::tensor::backend::Backend>(_: Tensor<B, 2>) {}
    pub fn model<B: Fp8Matmul>() {}
    pub fn codes<B: Fp8Engine>() {}
    /// It may be Burn's own behind a feature that burn-fp8 was not told of, that of another Burn, or `Dispatch`: to the compiler all are types that burn-fp8 does
    /// not know.
    pub struct NotKnown;";

/// Runs the compiler that made this program, without making code.
fn compile(source: &str, libraries: [&Path; 2]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("program.rs");
    std::fs::write(&path, format!("{BEGINNING}\n{source}")).expect("written");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "-L"]);
    rustc.arg(format!("dependency={}", libraries[0].parent().expect("a folder").display()));
    for (name, library) in ["burn", "burn_fp8"].iter().zip(libraries) {
        rustc.args(["--extern", &format!("{name}={}", library.display())]);
    }
    rustc.arg("--out-dir").arg(folder.path()).arg(path).output().expect("rustc starts")
}

/// The libraries of this name that lie beside this program, the newest first.
fn built(name: &str) -> Vec<PathBuf> {
    let program = std::env::current_exe().expect("a test is a program");
    let folder = program.parent().expect("a folder");
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let is_it = |path: &PathBuf| {
        let file = path.file_name().expect("a file").to_string_lossy();
        file.starts_with(&format!("lib{name}-")) && file.ends_with(".rlib")
    };
    let mut found: Vec<_> = entries.map(|entry| entry.path()).filter(is_it).collect();
    found.sort_by_key(|path| path.metadata().and_then(|data| data.modified()).expect("a time"));
    found.reverse();
    found
}

#[test]
fn a_backend_that_is_not_known_is_told_what_to_do() {
    // Cargo keeps libraries of other features and versions in the same folder: those are meant with which this compiles.
    let control = "pub fn one(x: Tensor<Fp8Backend<Autodiff<Flex>>, 2>) {
        tensor(x);
        model::<Fp8Backend<Flex>>();
    }";
    let [burn, fp8] = ["burn", "burn_fp8"].map(built);
    let pairs = fp8.iter().flat_map(|fp8| burn.iter().map(move |burn| [&**burn, &**fp8]));
    let libraries = pairs
        .into_iter()
        .find(|libraries| compile(control, *libraries).status.success())
        .expect("this program has been linked with both");

    for (source, unknown) in [
        ("pub fn f(x: Tensor<Fp8Backend<NotKnown>, 2>) {}", "NotKnown"),
        ("pub fn f(x: Tensor<Fp8Backend<Autodiff<NotKnown>>, 2>) {}", "Autodiff<NotKnown>"),
        ("pub fn f() { model::<NotKnown>(); }", "NotKnown"),
        ("pub fn f() { model::<Fp8Backend<NotKnown>>(); }", "Fp8Backend<NotKnown>"),
        ("pub fn f() { model::<Autodiff<NotKnown>>(); }", "Autodiff<NotKnown>"),
        ("pub fn f() { codes::<NotKnown>(); }", "NotKnown"),
    ] {
        let output = compile(source, libraries);
        assert!(!output.status.success(), "{source}");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        let message = format!("error[E0277]: burn-fp8 does not know the backend `{unknown}`");
        says(
            said,
            [
                message.as_str(),
                "needs the feature of its name in burn-fp8, too",
                "`cargo tree -d` lists what the project has twice",
                "`burn::Dispatch` hides its tensors",
                "`Fp8Backend<Autodiff<Flex>>`",
            ],
        );
    }
}
