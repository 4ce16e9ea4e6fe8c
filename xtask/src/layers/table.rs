//! The house in figures: rooms, files, lines and arrows of each package.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::floors::Floors;
use super::graph::Graph;

/// What one room is and imports.
#[derive(Default)]
struct Room<'a> {
    files: usize,
    lines: usize,
    /// Rooms that it imports, and by how many imports of files.
    arrows: BTreeMap<&'a str, usize>,
}

/// A table of each package, from the top floor down.
pub fn table(graphs: &[Graph], floors: &Floors) -> String {
    let mut graphs: Vec<&Graph> = graphs.iter().collect();
    graphs.sort_by_key(|graph| (Reverse(floors.of_crate(&graph.package)), &graph.package));
    graphs.into_iter().map(|graph| package(graph, floors)).collect()
}

fn package(graph: &Graph, floors: &Floors) -> String {
    let mut rooms = BTreeMap::<&str, Room>::new();
    for file in &graph.files {
        let room = rooms.entry(&file.room).or_default();
        room.files += 1;
        room.lines += file.lines;
    }
    for (from, to) in graph.arrows.keys() {
        let (from, to) = (&graph.files[*from].room, &graph.files[*to].room);
        if from != to {
            *rooms.entry(from).or_default().arrows.entry(to).or_default() += 1;
        }
    }
    let floor = |room: &str| floors.of_room(&graph.package, room);
    let imports = Vec::from_iter(graph.imports.iter().cloned()).join(", ");
    let mut text = format!(
        "\n{} (floor {}): {} rooms, {} files, {} lines; {} imports between files, {} arrows between rooms; \
         imports {}\n  floor  room             files  lines  imports from rooms (files by files)\n",
        graph.package,
        floors.of_crate(&graph.package).map_or("?".to_string(), |floor| floor.to_string()),
        rooms.len(),
        graph.files.len(),
        graph.files.iter().map(|file| file.lines).sum::<usize>(),
        graph.arrows.len(),
        rooms.values().map(|room| room.arrows.len()).sum::<usize>(),
        if imports.is_empty() { "no package of the workspace" } else { &imports },
    );
    let mut order: Vec<(&str, Room)> = rooms.into_iter().collect();
    order.sort_by_key(|(name, _)| (Reverse(floor(name)), *name));
    for (name, Room { files, lines, arrows }) in order {
        let arrows = arrows.into_iter().map(|(to, count)| format!("{to} ({count})"));
        let arrows = arrows.collect::<Vec<_>>().join(" ");
        let floor = floor(name).map_or("-".to_string(), |floor| floor.to_string());
        let line = format!("  {floor:>5}  {name:<16} {files:>5} {lines:>6}  {arrows}");
        text += line.trim_end();
        text.push('\n');
    }
    text
}
