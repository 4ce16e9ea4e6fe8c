//! What is wrong with the arrows: circles, and arrows upwards.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::{DiGraphMap, NodeTrait};

use super::floors::Floors;
use super::graph::{Graph, Taken};

const UPWARDS: &str =
    "move what is taken down to the importing floor or below it, or move the import up";
const FILES: &str = "move what several of them need into a file that imports none of them";
const ROOMS: &str = "of two rooms on one floor only one may import the other: move what both need below them, or give the importing room a \
    floor above";
const NO_FLOOR: &str = "move it into a room that has one, or name it in xtask/src/layers/floors.rs";

/// All rules that the sources break. Each text names both ends, the line, the names taken, and what to do.
pub fn check(graphs: &[Graph], floors: &Floors) -> Vec<String> {
    let houses: Vec<House> = graphs.iter().map(|graph| House { graph, floors }).collect();
    let mut violations = vec![];
    violations.extend(houses.iter().flat_map(House::file_circles));
    violations.extend(houses.iter().flat_map(House::room_circles));
    violations.extend(houses.iter().flat_map(House::without_floor));
    violations.extend(houses.iter().flat_map(House::upwards));
    violations.extend(houses.iter().flat_map(House::packages_upwards));
    violations
}

/// A package on its floors.
struct House<'a> {
    graph: &'a Graph,
    floors: &'a Floors,
}

impl House<'_> {
    fn room(&self, file: usize) -> &str {
        &self.graph.files[file].room
    }

    fn floor(&self, file: usize) -> Option<usize> {
        self.floors.of_room(&self.graph.package, self.room(file))
    }

    fn place(&self, file: usize) -> String {
        let floor = self.floor(file).map(|floor| format!(", floor {floor}")).unwrap_or_default();
        format!("{} (room {}{floor})", self.graph.files[file].path.display(), self.room(file))
    }

    /// The arrows that `keep` lets through, a line each.
    fn arrows(&self, keep: impl Fn(usize, usize) -> bool) -> Vec<String> {
        let kept = self.graph.arrows.iter().filter(|((from, to), _)| keep(*from, *to));
        kept.map(|((from, to), taken)| arrow(&self.place(*from), &self.place(*to), taken)).collect()
    }

    fn file_circles(&self) -> Vec<String> {
        let circle = |files: BTreeSet<usize>| {
            let arrows = self.arrows(|from, to| files.contains(&from) && files.contains(&to));
            let (files, package) = (files.len(), &self.graph.package);
            format!("circle of {files} files in {package}; {FILES}:{}", arrows.concat())
        };
        circles(self.graph.arrows.keys().copied()).into_iter().map(circle).collect()
    }

    /// Rooms on different floors are left out: of a circle through them the arrow upwards is reported.
    fn room_circles(&self) -> Vec<String> {
        let is_level = |from, to| {
            self.room(from) != self.room(to)
                && self.floor(from).is_some()
                && self.floor(from) == self.floor(to)
        };
        let circle = |rooms: BTreeSet<&str>| {
            let arrows = self.arrows(|from, to| {
                is_level(from, to) && [from, to].iter().all(|file| rooms.contains(self.room(*file)))
            });
            let (package, rooms) = (&self.graph.package, Vec::from_iter(rooms).join(", "));
            format!("circle of the rooms {rooms} in {package}; {ROOMS}:{}", arrows.concat())
        };
        let level = self.graph.arrows.keys().filter(|(from, to)| is_level(*from, *to));
        let edges = level.map(|(from, to)| (self.room(*from), self.room(*to)));
        circles(edges).into_iter().map(circle).collect()
    }

    fn without_floor(&self) -> Vec<String> {
        let Self { graph: Graph { package, files, .. }, floors } = self;
        let mut missing = BTreeMap::<String, usize>::new();
        if floors.of_crate(package).is_none() {
            missing.insert(format!("package {package}"), files.len());
        }
        for file in 0..files.len() {
            if floors.rooms_of(package).is_some() && self.floor(file).is_none() {
                let room = format!("room {} of {package}", self.room(file));
                *missing.entry(room).or_default() += 1;
            }
        }
        let text = |(what, files)| format!("{what} ({files} files) lies on no floor; {NO_FLOOR}");
        missing.into_iter().map(text).collect()
    }

    fn upwards(&self) -> Vec<String> {
        let all = self.arrows(|from, to| {
            matches!((self.floor(from), self.floor(to)), (Some(from), Some(to)) if from < to)
        });
        all.into_iter().map(|arrow| format!("arrow upwards; {UPWARDS}:{arrow}")).collect()
    }

    fn packages_upwards(&self) -> Vec<String> {
        let Self { graph: Graph { package, imports, .. }, floors } = self;
        let upwards = imports.iter().filter_map(|import| {
            let (from, to) = (floors.of_crate(package)?, floors.of_crate(import)?);
            (from < to).then(|| {
                format!("\n    {package} (floor {from}) is built with {import} (floor {to})")
            })
        });
        upwards.map(|arrow| format!("arrow upwards; {UPWARDS}:{arrow}")).collect()
    }
}

fn arrow(from: &str, to: &str, taken: &Taken) -> String {
    let taken = taken.iter().map(|(name, line)| format!("{name} in line {line}"));
    format!("\n    {from} takes from {to}: {}", taken.collect::<Vec<_>>().join(", "))
}

/// The sets of nodes that reach each other, larger than one.
fn circles<N: NodeTrait>(edges: impl Iterator<Item = (N, N)>) -> Vec<BTreeSet<N>> {
    let components = tarjan_scc(&DiGraphMap::<N, ()>::from_edges(edges)).into_iter();
    let mut circles: Vec<BTreeSet<N>> =
        components.filter(|component| component.len() > 1).map(BTreeSet::from_iter).collect();
    circles.sort();
    circles
}
