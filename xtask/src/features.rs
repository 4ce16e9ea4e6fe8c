//! Burn is compiled once for all programs: the second command finds what the first one has built.
//!
//! Cargo keeps what it builds by the features of a crate and of all that it depends on. Where two programs ask for other features of one crate deep
//! below, `cargo run -p` of the second compiles all of Burn anew, which takes minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use cargo_metadata::DependencyKind;

use crate::repository::{packages, root};
use crate::steps::cargo;
use crate::suite::{ALL_BACKENDS, BURN_0_23, DISTRIBUTED, FEW, NO_BACKEND, TESTED};

/// What every program of the repository depends on that shares a build of Burn.
const SHARED: &str = "examples-common";

/// What depends on it is built twice, not more often: programs that train by Burn's `Learner` ask for more of it. It only exports other crates.
const FACE: &str = "burn v0.21.";

/// A crate with its version and features, as `cargo tree` writes it.
type Crate = String;

/// What each crate of a program depends on.
type Tree = BTreeMap<Crate, BTreeSet<Crate>>;

#[test]
fn all_programs_share_one_build_of_burn() {
    let programs = programs();
    let has = |name: &str| programs.iter().any(|program| program == name);
    assert!(has("burn-fp8-bench") && has("digits"), "{programs:?}");

    // By name and version, and features where it may have several: what it is built of, and the program that builds it so.
    let mut built = BTreeMap::<String, (BTreeSet<Crate>, &str)>::new();
    let (mut differ, mut faces) = (BTreeSet::new(), BTreeSet::new());
    for program in &programs {
        let tree = tree("normal,build", &["-p", program]);
        faces.extend(tree.keys().filter(|name| name.starts_with(FACE)).cloned());
        for of_burn in tree.keys().filter(|name| name.starts_with("burn")) {
            let of = reached_from(of_burn, &tree);
            let without_features = of_burn.split(" [").next().expect("the first part");
            let face = of.iter().find(|name| name.starts_with(FACE));
            let name =
                face.map_or(without_features.to_owned(), |face| format!("{of_burn}, {face}"));
            let (first, by) = built.entry(name).or_insert((of.clone(), program));
            differ.extend(first.difference(&of).map(|name| format!("{by} builds {name}")));
            differ.extend(of.difference(first).map(|name| format!("{program} builds {name}")));
        }
    }
    assert!(faces.len() <= 2, "{faces:?}");
    assert!(built.keys().any(|name| name.starts_with("burn-tensor ")), "{:?}", built.keys());
    assert!(
        differ.is_empty(),
        "these programs compile Burn, or a crate of ours, each for itself; let all ask for the same features in examples/common/Cargo.toml, or in that of char-lm for crates of burn-train:\n{}",
        Vec::from_iter(differ).join("\n")
    );
}

#[test]
fn what_the_suite_has_built_of_other_peoples_crates_serves_its_smaller_sets() {
    let (normal, with_tests) = ("normal,build", "normal,build,dev");
    let all = tree(normal, &["--workspace", "--features", ALL_BACKENDS]);
    let tested = tree(with_tests, &["--workspace", "--features", TESTED]);
    for (set, of) in [
        (tree(normal, &[FEW, NO_BACKEND].concat()), &all),
        (tree(normal, &[FEW, DISTRIBUTED].concat()), &all),
        (tree(with_tests, &BURN_0_23), &tested),
    ] {
        let is_own = |name: &str| {
            ["burn", "cubecl", "shared-features "].iter().any(|own| name.starts_with(own))
        };
        let (found, other): (Vec<_>, Vec<_>) =
            set.keys().filter(|name| !is_own(name)).partition(|name| of.contains_key(*name));
        assert!(other.is_empty(), "ask for these in xtask/features/Cargo.toml: {other:?}");
        assert!(found.len() > 100, "{found:?}");
    }
}

/// What the device for unmodified models needs, Burn's remote backend brings: the layers do without.
#[test]
fn layers_on_burn_0_22_bring_no_network() {
    let of = |arguments: &[&str]| {
        let tree = tree("normal,build", &[&["-p", "digits-next"], arguments].concat());
        let is_of_network = |name: &&str| ["axum", "iroh", "rustls", "tokio"].contains(name);
        tree.keys().map(|name| first_word(name)).filter(is_of_network).count()
    };
    assert_eq!((of(&[]), of(&["--features", "device"])), (0, 4));
}

fn programs() -> Vec<String> {
    let packages = packages().unwrap().into_iter().filter(|package| {
        let mut normal = package.dependencies.iter().filter(|it| it.kind == DependencyKind::Normal);
        normal.any(|dependency| dependency.name == SHARED)
    });
    packages.map(|package| package.name.to_string()).collect()
}

fn first_word(name: &str) -> &str {
    name.split(' ').next().expect("the first part")
}

/// What cargo builds of a selection, by these kinds of dependencies.
fn tree(kinds: &str, selection: &[&str]) -> Tree {
    let arguments = ["tree", "--locked", "--prefix", "depth", "-f", " {p} [{f}]", "-e", kinds];
    let mut command = Command::new(cargo());
    let run = command.args(arguments).args(selection).current_dir(root()).output().unwrap();
    assert!(run.status.success(), "cargo tree: {}", String::from_utf8_lossy(&run.stderr));
    let mut tree = Tree::new();
    let mut above = Vec::<Crate>::new();
    // Empty ones part the packages of a selection.
    let lines = String::from_utf8(run.stdout).unwrap();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (depth, name) = line.split_once(' ').expect("a depth and a crate");
        // Marked where it has been listed already.
        let name = name.trim_end_matches(" (*)").to_owned();
        above.truncate(depth.parse().expect("a depth"));
        if let Some(parent) = above.last() {
            tree.get_mut(parent).expect("listed above").insert(name.clone());
        }
        tree.entry(name.clone()).or_default();
        above.push(name);
    }
    tree
}

fn reached_from(name: &Crate, tree: &Tree) -> BTreeSet<Crate> {
    let mut reached = BTreeSet::new();
    let mut next = vec![name];
    while let Some(name) = next.pop() {
        if reached.insert(name.clone()) {
            next.extend(&tree[name]);
        }
    }
    reached
}
