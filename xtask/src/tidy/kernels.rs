//! The compiled kernels are those of the sources, by the checksum that they record.

use super::Finding;
use crate::checkout::Checkout;
use crate::kernels::image::{Image, PATH};
use crate::kernels::sources::Sources;

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let finding = |message: String| vec![Finding::new(PATH, 0, message)];
    let sources = match Sources::of(checkout) {
        Ok(sources) => sources,
        Err(error) => return finding(format!("{error:#}")),
    };
    let file = match std::fs::read(checkout.root.join(PATH)) {
        Ok(file) => file,
        Err(error) => return finding(format!("{error}; run `cargo xtask kernels`")),
    };
    compare(&file, &sources.checksum)
}

fn compare(file: &[u8], checksum: &str) -> Vec<Finding> {
    match Image::sources_of(file) {
        Ok(recorded) if recorded == checksum => Vec::new(),
        Ok(_) => vec![Finding::new(PATH, 0, "is of other sources; run `cargo xtask kernels`")],
        Err(error) => vec![Finding::new(PATH, 0, format!("{error:#}"))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_other_sources_are_reported() {
        let file = b"onefold kernels 1\nsources abc\nend\n";
        assert!(compare(file, "abc").is_empty());
        assert_eq!(compare(file, "abd").len(), 1);
        assert_eq!(compare(b"", "abc").len(), 1);
        assert_eq!(check(&Checkout::of(&[])).len(), 1);
    }
}
