//! What is wrong with the arrows: circles, and arrows upwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use super::floors::Floors;
use super::graph::{Graph, Taken};

/// A rule that the sources break. `Display` names both ends, the line, the names taken, and what to do.
#[derive(Debug)]
pub enum Violation {
    /// Files of a package that import each other in a circle.
    FileCircle { package: String, files: usize, arrows: Vec<Arrow> },
    /// Rooms on one floor that import each other in a circle.
    RoomCircle { package: String, rooms: Vec<String>, arrows: Vec<Arrow> },
    /// An import from a higher floor.
    Upwards(Arrow),
    /// A room or a package that the table of floors does not name.
    NoFloor { what: String, files: usize },
}

/// An import of one file from another, or from another crate.
#[derive(Clone, Debug)]
pub struct Arrow {
    pub from: Place,
    pub to: Place,
    pub taken: Taken,
}

/// One end of an arrow.
#[derive(Clone, Debug)]
pub struct Place {
    /// A path, or the name of a crate.
    pub name: String,
    /// The room, or nothing for a crate.
    pub room: Option<String>,
    pub floor: Option<usize>,
}

/// All violations, circles of files first.
pub fn check(graphs: &[Graph], floors: &Floors) -> Vec<Violation> {
    let mut violations = vec![];
    violations.extend(graphs.iter().flat_map(|graph| file_circles(graph, floors)));
    violations.extend(graphs.iter().flat_map(|graph| room_circles(graph, floors)));
    violations.extend(graphs.iter().flat_map(|graph| without_floor(graph, floors)));
    violations.extend(graphs.iter().flat_map(|graph| upwards(graph, floors)));
    violations.extend(crates_upwards(graphs, floors));
    violations
}

fn place(graph: &Graph, floors: &Floors, file: usize) -> Place {
    let file = &graph.files[file];
    Place {
        name: file.path.display().to_string(),
        room: Some(file.room.clone()),
        floor: floors.of_room(&graph.package, &file.room),
    }
}

/// The arrows of a package that `keep` lets through.
fn arrows(graph: &Graph, floors: &Floors, keep: impl Fn(usize, usize) -> bool) -> Vec<Arrow> {
    let kept = graph.arrows.iter().filter(|((from, to), _)| keep(*from, *to));
    kept.map(|((from, to), taken)| Arrow {
        from: place(graph, floors, *from),
        to: place(graph, floors, *to),
        taken: taken.clone(),
    })
    .collect()
}

fn file_circles(graph: &Graph, floors: &Floors) -> Vec<Violation> {
    let circle = |files: BTreeSet<usize>| Violation::FileCircle {
        package: graph.package.clone(),
        files: files.len(),
        arrows: arrows(graph, floors, |from, to| files.contains(&from) && files.contains(&to)),
    };
    circles(graph.arrows.keys().copied()).into_iter().map(circle).collect()
}

/// Rooms on different floors are left out: of a circle through them the arrow upwards is reported.
fn room_circles(graph: &Graph, floors: &Floors) -> Vec<Violation> {
    let room = |file: usize| graph.files[file].room.as_str();
    let floor = |file: usize| floors.of_room(&graph.package, room(file));
    let is_level = |from: usize, to: usize| {
        room(from) != room(to) && floor(from).is_some() && floor(from) == floor(to)
    };
    let level = graph.arrows.keys().filter(|(from, to)| is_level(*from, *to));
    let circle = |rooms: BTreeSet<&str>| Violation::RoomCircle {
        package: graph.package.clone(),
        rooms: rooms.iter().map(ToString::to_string).collect(),
        arrows: arrows(graph, floors, |from, to| {
            is_level(from, to) && rooms.contains(room(from)) && rooms.contains(room(to))
        }),
    };
    circles(level.map(|(from, to)| (room(*from), room(*to)))).into_iter().map(circle).collect()
}

/// The sets of nodes that reach each other, larger than one.
fn circles<N: petgraph::graphmap::NodeTrait>(
    edges: impl Iterator<Item = (N, N)>,
) -> Vec<BTreeSet<N>> {
    let graph = DiGraphMap::<N, ()>::from_edges(edges);
    let mut circles: Vec<BTreeSet<N>> = tarjan_scc(&graph)
        .into_iter()
        .filter(|component| component.len() > 1)
        .map(|component| component.into_iter().collect())
        .collect();
    circles.sort();
    circles
}

fn without_floor(graph: &Graph, floors: &Floors) -> Vec<Violation> {
    let mut missing = BTreeMap::<String, usize>::new();
    if floors.of_crate(&graph.package).is_none() {
        missing.insert(format!("package {}", graph.package), graph.files.len());
    }
    for file in &graph.files {
        let has_floors = floors.rooms_of(&graph.package).is_some();
        if has_floors && floors.of_room(&graph.package, &file.room).is_none() {
            let room = format!("room {} of {}", file.room, graph.package);
            *missing.entry(room).or_default() += 1;
        }
    }
    missing.into_iter().map(|(what, files)| Violation::NoFloor { what, files }).collect()
}

fn upwards(graph: &Graph, floors: &Floors) -> Vec<Violation> {
    let all = arrows(graph, floors, |_, _| true);
    all.into_iter().filter(Arrow::is_upwards).map(Violation::Upwards).collect()
}

fn crates_upwards(graphs: &[Graph], floors: &Floors) -> Vec<Violation> {
    let all = graphs.iter().flat_map(|graph| {
        graph.outward.iter().map(|((from, library), taken)| Arrow {
            from: Place {
                name: graph.files[*from].path.display().to_string(),
                room: None,
                floor: floors.of_crate(&graph.package),
            },
            to: Place {
                name: library.clone(),
                room: None,
                floor: graphs
                    .iter()
                    .find(|graph| graph.library.as_ref() == Some(library))
                    .and_then(|graph| floors.of_crate(&graph.package)),
            },
            taken: taken.clone(),
        })
    });
    all.filter(Arrow::is_upwards).map(Violation::Upwards).collect()
}

impl Arrow {
    pub fn is_upwards(&self) -> bool {
        matches!((self.from.floor, self.to.floor), (Some(from), Some(to)) if from < to)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let room = self.room.as_ref().map(|room| format!("room {room}"));
        let floor = self.floor.map(|floor| format!("floor {floor}"));
        let place: Vec<String> = room.into_iter().chain(floor).collect();
        write!(f, "{} ({})", self.name, place.join(", "))
    }
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken: Vec<String> =
            self.taken.iter().map(|(name, line)| format!("{name} in line {line}")).collect();
        write!(f, "{} takes from {}: {}", self.from, self.to, taken.join(", "))
    }
}

const UPWARDS: &str =
    "move what is taken down to the importing floor or below it, or move the import up";
const FILES: &str = "move what several of them need into a file that imports none of them";
const ROOMS: &str = "of two rooms on one floor only one may import the other: move what both need below them, or give the importing room a \
    floor above";

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, arrows: &[Arrow]| {
            arrows.iter().try_for_each(|arrow| write!(f, "\n    {arrow}"))
        };
        match self {
            Self::FileCircle { package, files, arrows } => {
                write!(f, "circle of {files} files in {package}; {FILES}:")?;
                list(f, arrows)
            }
            Self::RoomCircle { package, rooms, arrows } => {
                write!(f, "circle of the rooms {} in {package}; {ROOMS}:", rooms.join(", "))?;
                list(f, arrows)
            }
            Self::Upwards(arrow) => write!(f, "arrow upwards; {UPWARDS}:\n    {arrow}"),
            Self::NoFloor { what, files } => write!(
                f,
                "{what} ({files} files) lies on no floor; move it into a room that has one, or name it in xtask/src/layers/floors.rs"
            ),
        }
    }
}
