//! On made-up trees: what fails, what passes, and which file an import is attributed to.
//!
//! A tree is a text: a line for each file with its path in `src`, a colon and what it says, each of its ends of lines as `\n`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::check::check;
use super::floors::Floors;
use super::graph::{Graph, Package};

const FLOORS: Floors = Floors {
    crates: &[&["ground"], &["house"]],
    rooms: &[("house", &[&["cellar", "garden"], &["attic"], &["lib"]])],
};

/// A package with these files.
fn package(folder: &Path, name: &str, files: &str) -> Package {
    let source = folder.join(name).join("src");
    for line in files.trim().lines() {
        let (path, text) = line.split_once(':').unwrap();
        let path = source.join(path.trim());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("\\n", "\n")).unwrap();
    }
    let library = Some((name.to_string(), source.join("lib.rs")));
    Package { name: name.to_string(), library, source, programs: vec![], imports: BTreeSet::new() }
}

fn graph(files: &str) -> Graph {
    let folder = TempDir::new().unwrap();
    Graph::read(package(folder.path(), "house", files), folder.path()).unwrap()
}

/// The imports between files, as "importing -> imported: names".
#[track_caller]
fn assert_imports(files: &str, expected: &[&str]) {
    let graph = graph(files);
    let path = |file: usize| {
        let path = graph.files[file].path.strip_prefix("house/src").unwrap();
        path.to_str().unwrap().to_string()
    };
    let mut imports = vec![];
    for ((from, to), taken) in &graph.arrows {
        let names: Vec<&str> = taken.keys().map(String::as_str).collect();
        imports.push(format!("{} -> {}: {}", path(*from), path(*to), names.join(", ")));
    }
    imports.sort();
    assert_eq!(imports, expected);
}

/// What is wrong with a tree.
fn violations(files: &str) -> Vec<String> {
    check(&[graph(files)], &FLOORS)
}

/// One rule is broken, whose text begins so.
#[track_caller]
fn assert_one(files: &str, begin: &str) -> String {
    let found = violations(files);
    assert!(matches!(&found[..], [one] if one.starts_with(begin)), "{found:?}");
    found.concat()
}

#[track_caller]
fn assert_none(files: &str) {
    assert_eq!(violations(files), [""; 0]);
}

#[test]
fn clean_tree_passes() {
    assert_none(
        "lib.rs: mod attic; mod cellar; mod garden; pub use attic::Attic; pub use cellar::Cellar;
        attic.rs: use crate::Cellar; pub struct Attic(Cellar);
        cellar/mod.rs: mod shelf; pub use shelf::Shelf; pub struct Cellar(Shelf);
        cellar/shelf.rs: pub struct Shelf;
        garden.rs: use crate::cellar::Shelf; pub fn dig(_: Shelf) {}",
    );
}

#[test]
fn circle_of_two_files_fails_and_names_both_files_lines_and_names() {
    let text = assert_one(
        "lib.rs: mod cellar;
        cellar/mod.rs: mod left; mod right;
        cellar/left.rs:\\nuse super::right::Right; pub struct Left;
        cellar/right.rs:\\n\\nuse super::left::Left; pub struct Right;",
        "circle of 2 files in house",
    );
    for part in [
        "house/src/cellar/left.rs (room cellar, floor 0) takes from house/src/cellar/right.rs (room cellar, floor 0): Right in line 2",
        "house/src/cellar/right.rs (room cellar, floor 0) takes from house/src/cellar/left.rs (room cellar, floor 0): Left in line 3",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_breaks_one_rule_is_one_violation() {
    for (files, begin) in [
        // Neither file names the other: each takes its name from the crate's root, one of them under another name.
        (
            "lib.rs: mod cellar; pub use cellar::Left; pub use cellar::Renamed as Right;
            cellar/mod.rs: mod left; mod right; pub use left::Left; pub use right::Real as Renamed;
            cellar/left.rs: use crate::Right; pub struct Left;
            cellar/right.rs: pub struct Real(crate::Left);",
            "circle of 2 files in house",
        ),
        // The parent works with what its child defines, and the child with what the parent defines.
        (
            "lib.rs: mod cellar;
            cellar/mod.rs: mod shelf; pub struct Cellar; pub fn fill() { shelf::fill() }
            cellar/shelf.rs: use super::Cellar; pub fn fill() { let _ = Cellar; }",
            "circle of 2 files in house",
        ),
        (
            "lib.rs: mod cellar;
            cellar/mod.rs: mod a; mod b; mod c;
            cellar/a.rs: pub fn a() { super::b::b() }
            cellar/b.rs: pub fn b() { super::c::c() }
            cellar/c.rs: pub fn c() { super::a::a() }",
            "circle of 3 files in house",
        ),
        // What the root defines lies above everything.
        (
            "lib.rs: mod cellar; pub struct House;
            cellar.rs: use crate::House; pub struct Cellar(House);",
            "arrow upwards",
        ),
        // A lower room must not hand on what lies above.
        (
            "lib.rs: mod attic; mod cellar;
            attic.rs: pub struct Roof;
            cellar.rs: pub use crate::attic::Roof;",
            "arrow upwards",
        ),
    ] {
        assert_one(files, begin);
    }
}

#[test]
fn circle_through_a_name_that_is_handed_on_fails() {
    // `left` does not define it, but whoever takes it from there depends on `left`.
    let text = assert_one(
        "lib.rs: mod cellar;
        cellar/mod.rs: mod left; mod right; mod stone;
        cellar/stone.rs: pub const WIDTH: usize = 1;
        cellar/left.rs: pub use super::stone::WIDTH; use super::right::Right;
        cellar/right.rs: use super::left::WIDTH; pub struct Right([u8; WIDTH]);",
        "circle of 2 files in house",
    );
    assert!(text.contains("left.rs (room cellar, floor 0): WIDTH in line 1"), "{text}");
}

#[test]
fn arrow_upwards_fails_and_says_what_to_do() {
    let text = assert_one(
        "lib.rs: mod attic; mod cellar;
        attic.rs: pub struct Roof;
        cellar.rs: fn stairs() -> crate::attic::Roof { todo!() }",
        "arrow upwards; move what is taken down",
    );
    let arrow = "house/src/cellar.rs (room cellar, floor 0) takes from house/src/attic.rs (room attic, floor 1): Roof in line 1";
    assert!(text.contains(arrow), "{text}");
}

#[test]
fn rooms_on_one_floor_import_in_one_direction_only() {
    let files = "lib.rs: mod cellar; mod garden;
        cellar/mod.rs: pub mod coal; pub mod wine;
        cellar/coal.rs: pub struct Coal;
        cellar/wine.rs: use crate::garden::grapes::Grapes;
        garden/mod.rs: pub mod grapes; pub mod grill;
        garden/grapes.rs: pub struct Grapes;
        garden/grill.rs: use crate::cellar::coal::Coal;";
    assert_one(files, "circle of the rooms cellar, garden in house");
    assert_none(&files.replace("use crate::cellar::coal::Coal;", ""));
}

#[test]
fn rooms_and_packages_without_a_floor_are_named() {
    assert_one("lib.rs: mod shed;\nshed.rs:", "room shed of house (1 files) lies on no floor");
    let folder = TempDir::new().unwrap();
    let stranger = package(folder.path(), "stranger", "lib.rs:");
    let found = check(&[Graph::read(stranger, folder.path()).unwrap()], &FLOORS);
    assert!(found[0].contains("package stranger"), "{found:?}");
}

#[test]
fn lower_package_must_not_be_built_with_a_higher_one() {
    let folder = TempDir::new().unwrap();
    let found = |name, import: &str| {
        let mut package = package(folder.path(), name, "lib.rs:");
        package.imports.insert(import.to_string());
        check(&[Graph::read(package, folder.path()).unwrap()], &FLOORS).concat()
    };
    assert_eq!(found("house", "ground"), "");
    let found = found("ground", "house");
    assert!(found.contains("ground (floor 0) is built with house (floor 1)"), "{found}");
}

#[test]
fn tests_do_not_count_but_what_is_built_otherwise_too_does() {
    let files = "lib.rs: mod attic; mod cellar;
        attic.rs: pub struct Roof;
        cellar/mod.rs: #[cfg(test)] use crate::attic::Roof; #[cfg(test)] #[rustfmt::skip] mod tests; CONDITION
        cellar/tests.rs: use crate::attic::Roof;";
    let inside = "mod more { use crate::attic::Roof; }";
    for (condition, counts) in [
        ("all(test, feature = \"x\")", false),
        ("any(test, doctest)", false),
        ("any(test, feature = \"x\")", true),
        ("not(test)", true),
    ] {
        let files = files.replace("CONDITION", &format!("#[cfg({condition})] {inside}"));
        assert_eq!(violations(&files).len(), usize::from(counts), "{condition}");
    }
}

#[test]
fn import_is_attributed_to_the_file_that_defines_the_name() {
    assert_imports(
        "lib.rs: mod cellar; mod garden; pub use cellar::*;
        cellar/mod.rs: mod shelf; mod wine; pub use self::{shelf::Shelf, wine::Wine as Drink}; pub struct Door;
        cellar/shelf.rs: pub struct Shelf; impl Shelf { pub fn new() {} }
        cellar/wine.rs: pub enum Wine { Red }
        garden.rs: use crate::{cellar::{self, Door}, Drink}; fn f(_: Door, _: Drink) { cellar::Shelf::new(); crate::Drink::Red; }",
        &[
            "garden.rs -> cellar/mod.rs: Door",
            "garden.rs -> cellar/shelf.rs: Shelf",
            "garden.rs -> cellar/wine.rs: Wine",
        ],
    );
}

#[test]
fn module_that_works_with_what_it_re_exports_imports_it() {
    let files = "lib.rs: mod cellar;
        cellar/mod.rs: mod shelf; pub use shelf::{Shelf, fill};
        cellar/shelf.rs: pub struct Shelf; pub fn fill() {}";
    assert_imports(files, &[]);
    let uses = files.replace("fill};", "fill}; fn f(_: Shelf) { fill() }");
    assert_imports(&uses, &["cellar/mod.rs -> cellar/shelf.rs: Shelf, fill"]);
}

#[test]
fn globs_take_what_the_file_mentions() {
    assert_imports(
        "lib.rs: mod cellar; mod garden;
        cellar/mod.rs: mod shelf; mod wine; pub use shelf::*; pub use wine::*; pub trait Room {}
        cellar/shelf.rs: pub struct Shelf;
        cellar/wine.rs: pub struct Wine;
        garden.rs: use crate::cellar::*; fn f(_: Wine) {}",
        &["garden.rs -> cellar/mod.rs: *", "garden.rs -> cellar/wine.rs: Wine"],
    );
}

#[test]
fn paths_in_macros_attributes_and_functions_count() {
    assert_imports(
        "lib.rs: mod cellar; mod garden;
        cellar.rs: pub mod a { pub struct A; } pub fn b() {} pub fn c() {} pub fn d() {} pub struct E; macro_rules! m { () => {} } pub(crate) use m;
        garden.rs: fn f() { vec![crate::cellar::a::A]; use crate::cellar; println!(\"{}\", cellar::b()); } \
            #[serde(with = \"crate::cellar::c\")] struct S; \
            macro_rules! n { ($x:expr) => { $crate::cellar::d($x); use crate::cellar::{E}; } } crate::cellar::m!();",
        &["garden.rs -> cellar.rs: A, E, b, c, d, m"],
    );
}

#[test]
fn macros_from_above_are_imports() {
    assert_imports(
        "lib.rs: mod cellar; mod garden;
        cellar/mod.rs: macro_rules! table { () => {} } #[macro_export] macro_rules! open { () => {} } fn format() {} mod shelf;
        cellar/shelf.rs: table!(); const EMPTY: String = format!(\"\");
        garden.rs: fn f() { crate::open!(); }",
        &["cellar/shelf.rs -> cellar/mod.rs: table!", "garden.rs -> cellar/mod.rs: open"],
    );
}

#[test]
fn inline_modules_and_path_attributes_are_followed() {
    assert_imports(
        "lib.rs: mod cellar; #[path = \"elsewhere/grass.rs\"] mod garden;
        cellar.rs: pub struct Cellar; mod inner { use super::Cellar; pub mod deep; pub use deep::Deep; }
        cellar/inner/deep.rs: use super::super::Cellar; pub struct Deep;
        elsewhere/grass.rs: use crate::cellar::inner::Deep; mod weed;
        elsewhere/weed.rs: use super::Deep;",
        &[
            "cellar/inner/deep.rs -> cellar.rs: Cellar",
            "elsewhere/grass.rs -> cellar/inner/deep.rs: Deep",
            "elsewhere/weed.rs -> cellar/inner/deep.rs: Deep",
            "elsewhere/weed.rs -> elsewhere/grass.rs: Deep",
        ],
    );
}

/// The root's imports are visible below, and come from other crates all the same.
#[test]
fn names_from_outside_are_imports_only_of_the_file_that_hands_them_on() {
    assert_imports(
        "lib.rs: mod cellar; mod garden; use std::fmt::Display;
        cellar.rs: use serde::Serialize; pub struct Cellar; pub(in crate::garden) fn f() {}
        garden.rs: use super::Display; use crate::cellar::Serialize; fn f<Cellar: Display>(cellar: u8) { cellar; 0..cellar.f(); }",
        &["garden.rs -> cellar.rs: Serialize"],
    );
}

#[test]
fn what_a_derive_makes_lies_where_it_is_derived() {
    assert_imports(
        "lib.rs: mod cellar; mod garden;
        cellar.rs: #[derive(Module)] pub struct Cellar;
        garden.rs: use crate::cellar::CellarRecord;",
        &["garden.rs -> cellar.rs: CellarRecord"],
    );
}

#[test]
fn missing_module_is_an_error() {
    let folder = TempDir::new().unwrap();
    let house = package(folder.path(), "house", "lib.rs: mod cellar;");
    let error = Graph::read(house, folder.path()).err().expect("no file holds the module");
    assert!(error.to_string().contains("declares `mod cellar;`"), "{error}");
}
