//! A cache that gives memory back.

use crate::identify::exact::cache::{
    BLOCK_BYTES, Cache, FOUND_RECORDS_MIN, START_BYTES, Window, blocks_of, index, number,
};

impl Cache {
    /// Reduces the cache to `bytes` and frees the rest of its memory; the least recently used windows leave. Does nothing if
    /// the cache is not larger.
    pub(in crate::identify) fn shrink(&mut self, bytes: usize) {
        let per_block = if self.units_max.is_some() { BLOCK_BYTES + START_BYTES } else { BLOCK_BYTES };
        let capacity = blocks_of(bytes / per_block * BLOCK_BYTES);
        if self.capacity <= capacity {
            return;
        }
        // Rebuilding the buckets at the end is cheaper than removing entry by entry.
        self.buckets = Vec::new();
        self.overflow.clear();
        self.capacity = capacity;
        while let Some(oldest) = self.oldest.filter(|_| capacity < self.used) {
            self.evict(oldest);
        }
        self.move_forward();
        self.rebuild_buckets(self.buckets_wanted(self.used));
    }

    /// Moves the blocks beyond the capacity to free blocks before it, rebuilds the list of windows, and truncates both.
    fn move_forward(&mut self) {
        let mut windows: Vec<Window> = Vec::with_capacity(self.capacity);
        let mut free = 0;
        let mut next = self.oldest;
        while let Some(mut window) = next.map(|window| self.windows[index(window)]) {
            next = window.newer;
            let moved = number(windows.len());
            window.older = moved.checked_sub(1);
            window.newer = next.map(|_| moved + 1);
            // Its blocks in order; the window or the block before refers to each.
            let mut before: Option<u32> = None;
            let mut block = Some(window.block);
            while let Some(from) = block {
                let mut to = from;
                if self.capacity <= index(from) {
                    while self.blocks[free].len != 0 {
                        free += 1;
                    }
                    to = number(free);
                    self.blocks[free] = self.blocks[index(from)];
                    self.blocks[index(from)].len = 0;
                    match before {
                        Some(before) => self.blocks[index(before)].next = Some(to),
                        None => window.block = to,
                    }
                }
                self.blocks[index(to)].window = moved;
                before = Some(to);
                block = self.blocks[index(to)].next;
            }
            windows.push(window);
        }
        self.newest = windows.len().checked_sub(1).map(number);
        self.oldest = self.newest.map(|_| 0);
        // The newest of several comes last.
        let are_units = self.units_max.is_some();
        let is_found = |window: &Window| are_units || FOUND_RECORDS_MIN <= index(window.len);
        let found = windows.iter().zip(0..).filter(|(window, _)| is_found(window));
        self.starts = found.map(|(window, number)| (window.start.0, number)).collect();
        (self.windows, self.free_window) = (windows, None);
        self.blocks.truncate(self.capacity);
        self.blocks.shrink_to(self.capacity);
        self.free_block = None;
        for (free, block) in self.blocks.iter_mut().enumerate().filter(|(_, block)| block.len == 0) {
            block.next = self.free_block.replace(number(free));
        }
    }
}
