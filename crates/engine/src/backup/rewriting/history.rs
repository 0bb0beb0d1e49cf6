//! History-aware rewriting: which containers the next backup of a series does not refer to (Fu et al., USENIX ATC 2014).

use crate::types::ContainerId;

/// Bounds of what is stored again because of the backup before.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct History {
    /// A container is sparse if a backup uses less than this share of its bytes.
    pub utilization: f64,
    /// Share of the backup's bytes that may be stored again; from 1 on, all.
    pub limit: f64,
}

impl History {
    /// The bounds of Fu et al. (USENIX ATC 2014).
    pub const DEFAULT: Self = Self { utilization: 0.5, limit: 0.05 };
    /// The bounds of the figures of Fu et al. (FAST 2015).
    pub const PAPER: Self = Self { utilization: 0.4, limit: 1.0 };

    /// Returns the sparse containers of a backup that the next one stores again, those with fewest bytes first. `used` has the bytes
    /// that the backup refers to of each container, once for each reference.
    pub fn sparse(&self, used: &[(ContainerId, u64)], container_bytes: u64) -> Vec<ContainerId> {
        let sparse = used.iter().copied().filter(|(_, bytes)| self.is_sparse(*bytes, container_bytes)).collect();
        self.within_limit(sparse, used.iter().map(|(_, bytes)| bytes).sum())
    }

    /// Returns true if a backup that refers to `used` of a container's bytes uses too few of them.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a container are far below 2^53")]
    pub fn is_sparse(&self, used: u64, container_bytes: u64) -> bool {
        (used as f64) < self.utilization * container_bytes as f64
    }

    /// Returns the sparse containers that a backup of `all` bytes stores again, those with fewest used bytes first.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a backup are far below 2^53")]
    pub fn within_limit(&self, mut sparse: Vec<(ContainerId, u64)>, all: u64) -> Vec<ContainerId> {
        sparse.sort_unstable_by_key(|&(container, bytes)| (bytes, container));
        let mut sum = 0;
        let fits = |(_, bytes): &(ContainerId, u64)| {
            sum += bytes;
            1.0 <= self.limit || sum as f64 <= self.limit * all as f64
        };
        sparse.into_iter().take_while(fits).map(|(container, _)| container).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::rewriting::tests::container;

    #[test]
    fn the_containers_with_fewest_bytes_are_taken_up_to_the_limit() {
        let used: Vec<_> = (0..).map(container).zip([50, 400, 700, 10, 399, 1200, 60, 500]).collect();
        let sparse = |utilization, limit| -> Vec<u32> {
            let sparse = History { utilization, limit }.sparse(&used, 1000);
            sparse.into_iter().map(|container| container.ordinal).collect()
        };
        assert_eq!(sparse(0.4, 1.0), [3, 0, 6, 4]);
        assert_eq!(sparse(0.5, 1.0), [3, 0, 6, 4, 1]);
        // 3,319 bytes: 10 and 50 are 1.8%, with 60 3.6%, with 399 15.6%.
        assert_eq!(sparse(0.5, 0.02), [3, 0]);
        assert_eq!(sparse(0.5, 0.05), [3, 0, 6]);
        assert_eq!(sparse(0.5, 0.2), [3, 0, 6, 4]);
        assert_eq!(sparse(0.5, 0.0), []);
        assert_eq!(History::DEFAULT.sparse(&[], 1000), []);
    }
}
