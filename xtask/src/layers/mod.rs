//! Whether every import of the workspace runs downwards: no circle of files, no arrow from a lower floor to a higher one.

mod check;
mod floors;
mod graph;
mod names;
mod source;
mod table;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, TargetKind};

use crate::repository;
use floors::FLOORS;
use graph::{Graph, Package};

/// Fails with a list of all circles and arrows upwards. What is built for tests alone does not count.
pub fn run() -> Result<()> {
    let graphs = read()?;
    let violations = check::check(&graphs, &FLOORS);
    let files: usize = graphs.iter().map(|graph| graph.files.len()).sum();
    let imports: usize = graphs.iter().map(|graph| graph.arrows.len()).sum();
    if violations.is_empty() {
        println!("  {files} files, {imports} imports between them: no circle, no arrow upwards");
        return Ok(());
    }
    for violation in &violations {
        println!("{violation}\n");
    }
    bail!(
        "{} violations of the floors in xtask/src/layers/floors.rs ({files} files, {imports} imports between them)",
        violations.len()
    )
}

/// Prints the rooms of every package with their files, lines and arrows.
pub fn print_table() -> Result<()> {
    print!("{}", table::table(&read()?, &FLOORS));
    Ok(())
}

fn read() -> Result<Vec<Graph>> {
    let root = repository::root();
    packages()?.into_iter().map(|package| Graph::read(package, &root)).collect()
}

/// The packages of the workspace with their library and programs; tests, benchmarks and build scripts are no rooms.
fn packages() -> Result<Vec<Package>> {
    let package = |package: cargo_metadata::Package| {
        let roots = |kind: TargetKind| {
            let targets = package.targets.iter().filter(move |target| target.is_kind(kind.clone()));
            targets.map(|target| (target.name.replace('-', "_"), PathBuf::from(&target.src_path)))
        };
        let imports = package.dependencies.iter().filter(|dependency| {
            dependency.path.is_some() && dependency.kind != DependencyKind::Development
        });
        Package {
            name: package.name.to_string(),
            source: package.manifest_path.with_file_name("src").into(),
            library: roots(TargetKind::Lib).next(),
            programs: roots(TargetKind::Bin).map(|(_, path)| path).collect(),
            imports: imports.map(|dependency| dependency.name.clone()).collect(),
        }
    };
    Ok(repository::packages()?.into_iter().map(package).collect())
}
