//! Findings from files.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::findings::Findings;
use crate::report::check::check;

/// Most bytes that the files of a report may have together. It bounds the memory of a report, which is at most about 60 times as
/// much (measured with tables of one digit in each cell): 1 GiB.
pub const INPUT_BYTES_MAX: u64 = 16 << 20;

/// Reads findings from files, in their order, and checks that they hold together.
///
/// A file is JSON of findings, of a list of them, or several of either one after the other. Errors name the file and the position
/// in it.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Findings>> {
    read_within(paths, INPUT_BYTES_MAX)
}

fn read_within(paths: &[PathBuf], bytes_max: u64) -> Result<Vec<Findings>> {
    let mut left = bytes_max;
    let mut all = Vec::new();
    for path in paths {
        let bytes = read_bytes(path, left).with_context(|| path.display().to_string())?;
        left = left.saturating_sub(bytes.len() as u64);
        all.extend(parse(&bytes).with_context(|| path.display().to_string())?);
    }
    Ok(all)
}

fn read_bytes(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    let mebibytes = INPUT_BYTES_MAX >> 20;
    ensure!(bytes.len() as u64 <= bytes_max, "too long: the files of a report have at most {mebibytes} MiB together");
    Ok(bytes)
}

/// Reads findings from the JSON of a file.
pub fn parse(bytes: &[u8]) -> Result<Vec<Findings>> {
    let mut all = Vec::new();
    for found in serde_json::Deserializer::from_slice(bytes).into_iter::<Found>() {
        for findings in found?.0 {
            check(&findings).with_context(|| format!("findings {}", all.len() + 1))?;
            all.push(findings);
        }
    }
    ensure!(!all.is_empty(), "there are no findings in it");
    Ok(all)
}

/// Findings, or a list of them. An untagged enum would lose the position of an error.
struct Found(Vec<Findings>);

impl<'de> Deserialize<'de> for Found {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(OneOrMany)
    }
}

struct OneOrMany;

impl<'de> Visitor<'de> for OneOrMany {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("findings or a list of findings")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Found, A::Error> {
        Findings::deserialize(MapAccessDeserializer::new(map)).map(|findings| Found(vec![findings]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Found, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    fn refusal(bytes: &[u8]) -> String {
        format!("{:#}", parse(bytes).unwrap_err())
    }

    #[test]
    fn one_a_list_and_several_after_one_another_are_read_alike() {
        let findings = example::findings();
        let one = serde_json::to_string(&findings).unwrap();
        assert_eq!(parse(one.as_bytes()).unwrap(), vec![findings.clone()]);
        let text = format!("{one}\n[{one}, {one}]\n{one}");
        assert_eq!(parse(text.as_bytes()).unwrap(), vec![findings; 4]);
    }

    #[test]
    fn a_point_that_was_not_measured_survives_as_null() {
        let mut findings = example::findings();
        findings.plots[0].series[0].points[1] = (20.0, f64::NAN);
        let text = serde_json::to_string(&findings).unwrap();
        assert!(text.contains("[20.0,null]"), "{text}");
        let read = parse(text.as_bytes()).unwrap();
        assert!(read[0].plots[0].series[0].points[1].1.is_nan());
        assert_eq!(serde_json::to_string(&read[0]).unwrap(), text);
    }

    #[test]
    fn what_is_no_findings_is_refused_with_its_place() {
        let one = serde_json::to_string(&example::findings()).unwrap();
        assert_eq!(refusal(b""), "there are no findings in it");
        assert_eq!(refusal(b"[]"), "there are no findings in it");
        assert_eq!(
            refusal(b"7"),
            "invalid type: integer `7`, expected findings or a list of findings at line 1 column 1"
        );
        assert_eq!(refusal(b"[\n {}]"), "missing field `experiment` at line 2 column 3");
        assert_eq!(refusal(b"\xff"), "expected value at line 1 column 1");
        let cut = refusal(&one.as_bytes()[..one.len() - 1]);
        assert!(cut.starts_with("EOF while parsing an object at line 1 column"), "{cut}");
        let cell = refusal(one.replace("1234567", "true").as_bytes());
        assert!(cell.starts_with("data did not match any variant of untagged enum Cell at line 1 column"), "{cell}");
        let huge = refusal(one.replace("1234567", "1e400").as_bytes());
        assert!(huge.starts_with("number out of range at line 1 column"), "{huge}");
        let second = refusal(format!("{one}{}", one.replace("[4,", "[4,4,")).as_bytes());
        let wanted =
            "findings 2: experiment \"example\": table 1, \"Time by threshold\": row 1 has 5 cells for 4 columns";
        assert_eq!(second, wanted);
        let deep = refusal(format!("{{\"tables\":[{{\"rows\":{}", "[".repeat(1 << 20)).as_bytes());
        assert!(deep.starts_with("recursion limit exceeded at line 1 column"), "{deep}");
    }

    #[test]
    fn files_are_read_in_order_up_to_a_limit_together() {
        let directory = tempfile::tempdir().unwrap();
        let one = serde_json::to_string(&example::findings()).unwrap();
        let paths = ["a.json", "b.json"].map(|name| directory.path().join(name));
        std::fs::write(&paths[0], &one).unwrap();
        std::fs::write(&paths[1], one.replace("\"example\"", "\"other\"")).unwrap();
        let len = one.len() as u64;
        let read = read_within(&paths, 2 * len).unwrap();
        assert_eq!(read.iter().map(|findings| &*findings.experiment).collect::<Vec<_>>(), ["example", "other"]);
        let refused = format!("{:#}", read_within(&paths, 2 * len - 3).unwrap_err());
        assert!(refused.contains("b.json: too long"), "{refused}");
        let missing = format!("{:#}", super::read(&[directory.path().join("c.json")]).unwrap_err());
        assert!(missing.contains("c.json: No such file"), "{missing}");
    }
}
