//! Reading a log, within limits.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use burn_fp8_core::text::shown;

use super::{Header, LogError};
use crate::Observations;

/// The longest line, in bytes. Those written have some thousands.
const MAX_LINE: usize = 1 << 18;
/// The largest number of lines.
const MAX_LINES: usize = 1 << 24;

/// Reads a log. A last line that was cut off, as a killed run leaves it, is left out, and [`Observations::cut_line`] says so.
///
/// # Errors
/// [`LogError`], naming the file, the line and what is wrong with it.
pub fn read(path: &Path) -> Result<Observations, LogError> {
    let io = |reason| LogError::Io { action: "read", path: path.into(), reason };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let mut line = Vec::new();
    let mut observations: Option<Observations> = None;
    for number in 1.. {
        let malformed = |reason| LogError::Malformed { path: path.into(), line: number, reason };
        line.clear();
        // Bounded while reading: a file need not have lines.
        let read =
            (&mut reader).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line).map_err(io)?;
        if read == 0 {
            break;
        }
        if number > MAX_LINES {
            return Err(malformed(format!("more than {MAX_LINES} lines; sample fewer steps")));
        }
        if line.len() > MAX_LINE {
            return Err(malformed(format!(
                "longer than {MAX_LINE} bytes: this is no log of an observatory"
            )));
        }
        let is_whole = line.ends_with(b"\n");
        match &mut observations {
            None => observations = Some(Observations::new(header(&line).map_err(malformed)?)),
            Some(observations) => match serde_json::from_slice(&line) {
                Ok(entry) => observations.push(entry).map_err(malformed)?,
                Err(_) if !is_whole => observations.cut_line = Some(number),
                Err(error) => return Err(malformed(one_line(&error))),
            },
        }
    }
    let empty = || "empty; the first line of a log is its header".into();
    observations.ok_or_else(|| LogError::Malformed { path: path.into(), line: 1, reason: empty() })
}

fn header(line: &[u8]) -> Result<Header, String> {
    let header: Header = serde_json::from_slice(line)
        .map_err(|error| format!("no header of an observatory's log: {}", one_line(&error)))?;
    header.check()?;
    Ok(header)
}

/// serde's own line number is always 1 here.
fn one_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    // Names of the file itself may be in it, with whatever they hold.
    format!("{} (column {})", shown(what, 200), error.column())
}
