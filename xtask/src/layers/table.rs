//! The house in figures: rooms, files, lines and arrows of each package.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

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
    let mut text = String::new();
    let mut graphs: Vec<&Graph> = graphs.iter().collect();
    graphs
        .sort_by_key(|graph| (std::cmp::Reverse(floors.of_crate(&graph.package)), &graph.package));
    for graph in graphs {
        package(&mut text, graph, floors).expect("a String takes all that is written");
    }
    text
}

fn package(text: &mut String, graph: &Graph, floors: &Floors) -> std::fmt::Result {
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
    let is_upwards = |from: &str, to: &str| matches!((floor(from), floor(to)), (Some(from), Some(to)) if from < to);
    let upwards: usize = rooms
        .iter()
        .flat_map(|(from, room)| room.arrows.keys().map(move |to| is_upwards(from, to)))
        .filter(|upwards| *upwards)
        .count();
    let libraries: BTreeSet<&str> =
        graph.outward.keys().map(|(_, library)| library.as_str()).collect();
    writeln!(
        text,
        "\n{} (floor {}): {} rooms, {} files, {} lines; {} imports between files, {} arrows between rooms, {upwards} of them upwards; imports {}",
        graph.package,
        floors.of_crate(&graph.package).map_or("?".to_string(), |floor| floor.to_string()),
        rooms.len(),
        graph.files.len(),
        graph.files.iter().map(|file| file.lines).sum::<usize>(),
        graph.arrows.len(),
        rooms.values().map(|room| room.arrows.len()).sum::<usize>(),
        if libraries.is_empty() {
            "no crate of the workspace".to_string()
        } else {
            libraries.into_iter().collect::<Vec<_>>().join(", ")
        },
    )?;
    let mut order: Vec<(&str, &Room)> = rooms.iter().map(|(name, room)| (*name, room)).collect();
    order.sort_by_key(|(name, _)| (std::cmp::Reverse(floor(name)), *name));
    writeln!(
        text,
        "  {:>5}  {:<16} {:>5} {:>6}  imports from rooms (files by files)",
        "floor", "room", "files", "lines"
    )?;
    for (name, room) in order {
        let arrows = room.arrows.iter().map(|(to, count)| {
            let upwards = if is_upwards(name, to) { ", upwards" } else { "" };
            format!("{to} ({count}{upwards})")
        });
        let floor = floor(name).map_or("-".to_string(), |floor| floor.to_string());
        let line = format!(
            "  {floor:>5}  {name:<16} {:>5} {:>6}  {}",
            room.files,
            room.lines,
            arrows.collect::<Vec<_>>().join(" ")
        );
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(())
}
