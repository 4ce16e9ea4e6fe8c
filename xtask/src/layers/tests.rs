//! On made-up trees: what fails, what passes, and which file an import is attributed to.

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

/// A package with these files in `src`, the first of them its root.
fn package(folder: &Path, name: &str, files: &[(&str, &str)]) -> Package {
    let source = folder.join(name).join("src");
    for (path, text) in files {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let library = Some((name.to_string(), source.join(files[0].0)));
    Package { name: name.to_string(), library, source, programs: vec![], imports: BTreeSet::new() }
}

fn graph(files: &[(&str, &str)]) -> Graph {
    let folder = TempDir::new().unwrap();
    Graph::read(package(folder.path(), "house", files), folder.path()).unwrap()
}

/// The imports between files, as "importing -> imported: names".
fn imports(files: &[(&str, &str)]) -> Vec<String> {
    let graph = graph(files);
    let path = |file: usize| {
        let path = graph.files[file].path.strip_prefix("house/src").unwrap();
        path.to_str().unwrap().to_string()
    };
    let arrow = |((from, to), taken): (&(usize, usize), &super::graph::Taken)| {
        let names: Vec<&str> = taken.keys().map(String::as_str).collect();
        format!("{} -> {}: {}", path(*from), path(*to), names.join(", "))
    };
    let mut imports: Vec<String> = graph.arrows.iter().map(arrow).collect();
    imports.sort();
    imports
}

fn violations(files: &[(&str, &str)]) -> Vec<String> {
    check(&[graph(files)], &FLOORS)
}

/// One rule is broken, whose text begins so.
#[track_caller]
fn assert_one(found: &[String], begin: &str) {
    assert!(matches!(found, [one] if one.starts_with(begin)), "{found:?}");
}

#[test]
fn clean_tree_passes() {
    let found = violations(&[
        (
            "lib.rs",
            "mod attic; mod cellar; mod garden; pub use attic::Attic; pub use cellar::Cellar;",
        ),
        ("attic.rs", "use crate::Cellar; pub struct Attic(Cellar);"),
        ("cellar/mod.rs", "mod shelf; pub use shelf::Shelf; pub struct Cellar(Shelf);"),
        ("cellar/shelf.rs", "pub struct Shelf;"),
        ("garden.rs", "use crate::cellar::Shelf; pub fn dig(_: Shelf) {}"),
    ]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn circle_of_two_files_fails_and_names_both_files_lines_and_names() {
    let found = violations(&[
        ("lib.rs", "mod cellar;"),
        ("cellar/mod.rs", "mod left; mod right;"),
        ("cellar/left.rs", "\nuse super::right::Right; pub struct Left;"),
        ("cellar/right.rs", "\n\nuse super::left::Left; pub struct Right;"),
    ]);
    assert_one(&found, "circle of 2 files in house");
    let text = &found[0];
    for part in [
        "house/src/cellar/left.rs (room cellar, floor 0) takes from house/src/cellar/right.rs (room cellar, floor 0): Right in line 2",
        "house/src/cellar/right.rs (room cellar, floor 0) takes from house/src/cellar/left.rs (room cellar, floor 0): Left in line 3",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn circle_through_re_exports_fails() {
    // Neither file names the other: each takes its name from the crate's root, one of them under another name.
    let found = violations(&[
        ("lib.rs", "mod cellar; pub use cellar::Left; pub use cellar::Renamed as Right;"),
        (
            "cellar/mod.rs",
            "mod left; mod right; pub use left::Left; pub use right::Real as Renamed;",
        ),
        ("cellar/left.rs", "use crate::Right; pub struct Left;"),
        ("cellar/right.rs", "pub struct Real(crate::Left);"),
    ]);
    assert_one(&found, "circle of 2 files in house");
}

#[test]
fn circle_through_a_name_that_is_handed_on_fails() {
    // Neither defines it: whoever takes it from `left` depends on `left`.
    let found = violations(&[
        ("lib.rs", "mod cellar;"),
        ("cellar/mod.rs", "mod left; mod right; mod stone;"),
        ("cellar/stone.rs", "pub const WIDTH: usize = 1;"),
        ("cellar/left.rs", "pub use super::stone::WIDTH; use super::right::Right;"),
        ("cellar/right.rs", "use super::left::WIDTH; pub struct Right([u8; WIDTH]);"),
    ]);
    assert_one(&found, "circle of 2 files in house");
    assert!(found[0].contains("left.rs (room cellar, floor 0): WIDTH in line 1"), "{found:?}");
}

#[test]
fn circle_through_super_fails() {
    // The parent works with what its child defines, and the child with what the parent defines.
    let found = violations(&[
        ("lib.rs", "mod cellar;"),
        ("cellar/mod.rs", "mod shelf; pub struct Cellar; pub fn fill() { shelf::fill() }"),
        ("cellar/shelf.rs", "use super::Cellar; pub fn fill() { let _ = Cellar; }"),
    ]);
    assert_one(&found, "circle of 2 files in house");
}

#[test]
fn circle_of_three_files_is_one_violation() {
    let found = violations(&[
        ("lib.rs", "mod cellar;"),
        ("cellar/mod.rs", "mod a; mod b; mod c;"),
        ("cellar/a.rs", "pub fn a() { super::b::b() }"),
        ("cellar/b.rs", "pub fn b() { super::c::c() }"),
        ("cellar/c.rs", "pub fn c() { super::a::a() }"),
    ]);
    assert_one(&found, "circle of 3 files in house");
}

#[test]
fn arrow_upwards_fails_and_says_what_to_do() {
    let found = violations(&[
        ("lib.rs", "mod attic; mod cellar;"),
        ("attic.rs", "pub struct Roof;"),
        ("cellar.rs", "fn stairs() -> crate::attic::Roof { todo!() }"),
    ]);
    assert_one(&found, "arrow upwards");
    let text = &found[0];
    assert!(
        text.contains("house/src/cellar.rs (room cellar, floor 0) takes from house/src/attic.rs (room attic, floor 1): Roof in line 1"),
        "{text}"
    );
    assert!(text.contains("move what is taken down"), "{text}");
}

#[test]
fn what_the_root_defines_lies_above_everything() {
    let found = violations(&[
        ("lib.rs", "mod cellar; pub struct House;"),
        ("cellar.rs", "use crate::House; pub struct Cellar(House);"),
    ]);
    assert_one(&found, "arrow upwards");
}

#[test]
fn lower_room_must_not_hand_on_what_lies_above() {
    let found = violations(&[
        ("lib.rs", "mod attic; mod cellar;"),
        ("attic.rs", "pub struct Roof;"),
        ("cellar.rs", "pub use crate::attic::Roof;"),
    ]);
    assert_one(&found, "arrow upwards");
}

#[test]
fn rooms_on_one_floor_import_in_one_direction_only() {
    let files = [
        ("lib.rs", "mod cellar; mod garden;"),
        ("cellar/mod.rs", "pub mod coal; pub mod wine;"),
        ("cellar/coal.rs", "pub struct Coal;"),
        ("cellar/wine.rs", "use crate::garden::grapes::Grapes;"),
        ("garden/mod.rs", "pub mod grapes; pub mod grill;"),
        ("garden/grapes.rs", "pub struct Grapes;"),
        ("garden/grill.rs", "use crate::cellar::coal::Coal;"),
    ];
    let found = violations(&files);
    assert_one(&found, "circle of the rooms cellar, garden in house");
    let one_way = files
        .into_iter()
        .map(|(path, text)| (path, if path == "garden/grill.rs" { "" } else { text }));
    assert!(violations(&one_way.collect::<Vec<_>>()).is_empty());
}

#[test]
fn rooms_and_packages_without_a_floor_are_named() {
    let found = violations(&[("lib.rs", "mod shed;"), ("shed.rs", "")]);
    assert_one(&found, "room shed of house (1 files) lies on no floor");
    let folder = TempDir::new().unwrap();
    let stranger = package(folder.path(), "stranger", &[("lib.rs", "")]);
    let graph = Graph::read(stranger, folder.path()).unwrap();
    let found = check(&[graph], &FLOORS);
    assert!(found[0].contains("package stranger"), "{found:?}");
}

#[test]
fn lower_package_must_not_be_built_with_a_higher_one() {
    let folder = TempDir::new().unwrap();
    let found = |name, import: &str| {
        let mut package = package(folder.path(), name, &[("lib.rs", "")]);
        package.imports.insert(import.to_string());
        check(&[Graph::read(package, folder.path()).unwrap()], &FLOORS)
    };
    assert!(found("house", "ground").is_empty());
    let found = found("ground", "house");
    assert_one(&found, "arrow upwards");
    assert!(found[0].contains("ground (floor 0) is built with house (floor 1)"), "{found:?}");
}

#[test]
fn tests_do_not_count() {
    let found = violations(&[
        ("lib.rs", "mod attic; mod cellar;"),
        ("attic.rs", "pub struct Roof;"),
        (
            "cellar/mod.rs",
            "#[cfg(test)] use crate::attic::Roof; #[cfg(test)] mod tests; \
             #[cfg(all(test, feature = \"x\"))] mod more { use crate::attic::Roof; }",
        ),
        ("cellar/tests.rs", "use crate::attic::Roof;"),
    ]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn condition_that_is_not_only_a_tests_counts() {
    let found = violations(&[
        ("lib.rs", "mod attic; mod cellar;"),
        ("attic.rs", "pub struct Roof;"),
        ("cellar.rs", "#[cfg(any(test, feature = \"x\"))] use crate::attic::Roof;"),
    ]);
    assert_one(&found, "arrow upwards");
}

#[test]
fn import_is_attributed_to_the_file_that_defines_the_name() {
    let found = imports(&[
        ("lib.rs", "mod cellar; mod garden; pub use cellar::*;"),
        (
            "cellar/mod.rs",
            "mod shelf; mod wine; pub use self::{shelf::Shelf, wine::Wine as Drink}; pub struct Door;",
        ),
        ("cellar/shelf.rs", "pub struct Shelf; impl Shelf { pub fn new() {} }"),
        ("cellar/wine.rs", "pub enum Wine { Red }"),
        (
            "garden.rs",
            "use crate::{cellar::{self, Door}, Drink}; fn f(_: Door, _: Drink) { cellar::Shelf::new(); crate::Drink::Red; }",
        ),
    ]);
    assert_eq!(
        found,
        [
            "garden.rs -> cellar/mod.rs: Door",
            "garden.rs -> cellar/shelf.rs: Shelf",
            "garden.rs -> cellar/wine.rs: Wine"
        ]
    );
}

#[test]
fn module_that_works_with_what_it_re_exports_imports_it() {
    let files = |body: &'static str| {
        [
            ("lib.rs", "mod cellar;"),
            ("cellar/mod.rs", body),
            ("cellar/shelf.rs", "pub struct Shelf; pub fn fill() {}"),
        ]
    };
    assert!(imports(&files("mod shelf; pub use shelf::{Shelf, fill};")).is_empty());
    let uses = "mod shelf; pub use shelf::{Shelf, fill}; fn f(_: Shelf) { fill() }";
    assert_eq!(imports(&files(uses)), ["cellar/mod.rs -> cellar/shelf.rs: Shelf, fill"]);
}

#[test]
fn globs_take_what_the_file_mentions() {
    let found = imports(&[
        ("lib.rs", "mod cellar; mod garden; mod attic;"),
        (
            "cellar/mod.rs",
            "mod shelf; mod wine; pub use shelf::*; pub use wine::*; pub trait Room {}",
        ),
        ("cellar/shelf.rs", "pub struct Shelf;"),
        ("cellar/wine.rs", "pub struct Wine;"),
        ("garden.rs", "use crate::cellar::*; fn f(_: Wine) {}"),
        ("attic.rs", "use crate::cellar::*; fn f() { x.method() }"),
    ]);
    assert_eq!(
        found,
        [
            "attic.rs -> cellar/mod.rs: *",
            "garden.rs -> cellar/mod.rs: *",
            "garden.rs -> cellar/wine.rs: Wine"
        ]
    );
}

#[test]
fn paths_in_macros_attributes_and_functions_count() {
    let found = imports(&[
        ("lib.rs", "mod cellar; mod garden;"),
        (
            "cellar.rs",
            "pub mod a { pub struct A; } pub fn b() {} pub fn c() {} pub fn d() {} pub struct E; macro_rules! m { () => {} } pub(crate) use m;",
        ),
        (
            "garden.rs",
            "fn f() { vec![crate::cellar::a::A]; use crate::cellar; println!(\"{}\", cellar::b()); }\n\
             #[serde(with = \"crate::cellar::c\")] struct S;\n\
             macro_rules! n { ($x:expr) => { $crate::cellar::d($x); use crate::cellar::{E}; } }\n\
             crate::cellar::m!();",
        ),
    ]);
    assert_eq!(found, ["garden.rs -> cellar.rs: A, E, b, c, d, m"]);
}

#[test]
fn macros_from_above_are_imports() {
    let found = imports(&[
        ("lib.rs", "mod cellar; mod garden;"),
        (
            "cellar/mod.rs",
            "macro_rules! table { () => {} } #[macro_export] macro_rules! open { () => {} } mod shelf;",
        ),
        ("cellar/shelf.rs", "table!();"),
        ("garden.rs", "fn f() { crate::open!(); }"),
    ]);
    assert_eq!(
        found,
        ["cellar/shelf.rs -> cellar/mod.rs: table", "garden.rs -> cellar/mod.rs: open"]
    );
}

#[test]
fn inline_modules_and_path_attributes_are_followed() {
    let found = imports(&[
        ("lib.rs", "mod cellar; #[path = \"elsewhere/grass.rs\"] mod garden;"),
        (
            "cellar.rs",
            "pub struct Cellar; mod inner { use super::Cellar; pub mod deep; pub use deep::Deep; }",
        ),
        ("cellar/inner/deep.rs", "use super::super::Cellar; pub struct Deep;"),
        ("elsewhere/grass.rs", "use crate::cellar::inner::Deep; mod weed; "),
        ("elsewhere/weed.rs", "use super::Deep;"),
    ]);
    assert_eq!(
        found,
        [
            "cellar/inner/deep.rs -> cellar.rs: Cellar",
            "elsewhere/grass.rs -> cellar/inner/deep.rs: Deep",
            "elsewhere/weed.rs -> cellar/inner/deep.rs: Deep",
            "elsewhere/weed.rs -> elsewhere/grass.rs: Deep"
        ]
    );
}

#[test]
fn names_from_outside_are_imports_only_of_the_file_that_hands_them_on() {
    let found = imports(&[
        ("lib.rs", "mod cellar; mod garden; use std::fmt::Display;"),
        ("cellar.rs", "use serde::Serialize; pub struct Cellar; pub(in crate::garden) fn f() {}"),
        // The root's imports are visible here, and come from other crates all the same.
        (
            "garden.rs",
            "use super::Display; use crate::cellar::Serialize; fn f<Cellar: Display>(cellar: u8) { cellar; }",
        ),
    ]);
    assert_eq!(found, ["garden.rs -> cellar.rs: Serialize"]);
}

#[test]
fn what_a_derive_makes_lies_where_it_is_derived() {
    let found = imports(&[
        ("lib.rs", "mod cellar; mod garden;"),
        ("cellar.rs", "#[derive(Module)] pub struct Cellar;"),
        ("garden.rs", "use crate::cellar::CellarRecord;"),
    ]);
    assert_eq!(found, ["garden.rs -> cellar.rs: CellarRecord"]);
}

#[test]
fn missing_module_is_an_error() {
    let folder = TempDir::new().unwrap();
    let house = package(folder.path(), "house", &[("lib.rs", "mod cellar;")]);
    let error = Graph::read(house, folder.path()).err().expect("no file holds the module");
    assert!(error.to_string().contains("declares `mod cellar;`"), "{error}");
}
