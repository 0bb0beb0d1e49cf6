//! Devices in tables and claims: each stage of a paper that ran on a GPU has a row, also where there is no device.

use onefold_accel::device::{FaultKind, cuda};

use crate::findings::Cell;

/// Name of a device's rows.
pub(super) const TITLE: &str = "device";

/// In place of a number where there is no device.
const NO_DEVICE: &str = "no device";
/// In place of a number of a device that is there.
const NOT_MEASURED: &str = "not measured";

/// Returns why nothing was measured on a device, in a word and in a sentence.
pub(super) fn missing() -> (&'static str, String) {
    match cuda::list() {
        Err(fault) if fault.kind == FaultKind::Absent => (NO_DEVICE, format!("No device: {fault}. It was not judged.")),
        Err(fault) => (NO_DEVICE, format!("No device can be used: {fault}. It was not judged.")),
        Ok(devices) => {
            let names: Vec<_> = devices.iter().map(|device| &*device.name).collect();
            (NOT_MEASURED, format!("This version measures nothing on {}. It was not judged.", names.join(", ")))
        }
    }
}

/// Returns the cells of a row: the word, then nothing.
pub(super) fn cells(count: usize) -> impl Iterator<Item = Cell> {
    std::iter::once(Cell::Text(missing().0.to_owned())).chain(std::iter::repeat(Cell::Empty(()))).take(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_a_device_says_so_once() {
        let (word, sentence) = missing();
        let cells: Vec<_> = cells(3).collect();
        assert_eq!(cells, [Cell::Text(word.to_owned()), Cell::Empty(()), Cell::Empty(())]);
        assert!(sentence.ends_with("It was not judged."), "{sentence}");
        assert_eq!(word == NO_DEVICE, cuda::list().is_err());
    }
}
