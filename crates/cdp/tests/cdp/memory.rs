//! A volume in memory, which can be slow and can fail.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use onefold_cdp::nbd::export::{Context, Export, Fua, StatusExtents, ZeroOptions};
use onefold_cdp::nbd::wire::{Errno, allocation_flag, dirty_flag, export_flag};

/// The unit of holes and dirt.
pub(crate) const BLOCK: usize = 4096;

#[derive(Debug)]
pub(crate) struct MemoryExport {
    pub(crate) bytes: Mutex<Vec<u8>>,
    dirty: Mutex<BTreeSet<usize>>,
    /// While it is closed, all calls wait.
    gate: Mutex<bool>,
    opened: Condvar,
    /// Calls that wait at the gate or run.
    pub(crate) running: AtomicUsize,
    pub(crate) most_running: AtomicUsize,
    /// Changes that had to be durable, and the options of zeros, in order.
    pub(crate) durable: AtomicUsize,
    pub(crate) zeros: Mutex<Vec<ZeroOptions>>,
    pub(crate) flags: u16,
    pub(crate) is_prompt: bool,
}

impl MemoryExport {
    pub(crate) fn new(len: usize) -> Self {
        let flags = export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::SEND_TRIM
            | export_flag::SEND_WRITE_ZEROES
            | export_flag::SEND_CACHE
            | export_flag::CAN_MULTI_CONN;
        Self {
            bytes: Mutex::new(vec![0; len]),
            dirty: Mutex::default(),
            gate: Mutex::new(true),
            opened: Condvar::new(),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            durable: AtomicUsize::new(0),
            zeros: Mutex::default(),
            flags,
            is_prompt: true,
        }
    }

    pub(crate) fn set_open(&self, is_open: bool) {
        *self.gate.lock().unwrap() = is_open;
        self.opened.notify_all();
    }

    /// Runs a call behind the gate.
    fn run<T>(&self, call: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        let gate = self.gate.lock().unwrap();
        drop(self.opened.wait_while(gate, |is_open| !*is_open).unwrap());
        let result = call(&mut self.bytes.lock().unwrap());
        self.running.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn fill(&self, range: Range<u64>, fua: Fua, with: impl FnOnce(&mut [u8])) {
        self.durable.fetch_add(usize::from(fua == Fua::Yes), Ordering::SeqCst);
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        self.dirty.lock().unwrap().extend(range.start / BLOCK..range.end.div_ceil(BLOCK));
        self.run(|bytes| with(&mut bytes[range]));
    }
}

impl Export for MemoryExport {
    fn size(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn flags(&self) -> u16 {
        self.flags
    }

    fn has_context(&self, _context: Context) -> bool {
        true
    }

    fn is_prompt(&self) -> bool {
        self.is_prompt
    }

    fn finds_holes_quickly(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let start = usize::try_from(offset).unwrap();
        self.run(|bytes| into.copy_from_slice(&bytes[start..start + into.len()]));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), Errno> {
        self.fill(offset..offset + data.len() as u64, fua, |bytes| bytes.copy_from_slice(data));
        Ok(())
    }

    fn write_zeroes(&self, range: Range<u64>, options: ZeroOptions) -> Result<(), Errno> {
        self.zeros.lock().unwrap().push(options);
        self.fill(range, options.fua, |bytes| bytes.fill(0));
        Ok(())
    }

    fn trim(&self, range: Range<u64>, fua: Fua) -> Result<(), Errno> {
        self.fill(range, fua, |bytes| bytes.fill(0));
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        self.run(|_| Ok(()))
    }

    fn cache(&self, _range: Range<u64>) -> Result<(), Errno> {
        Ok(())
    }

    fn block_status(&self, range: Range<u64>, context: Context, extents: &mut StatusExtents) -> Result<(), Errno> {
        let (bytes, dirty) = (self.bytes.lock().unwrap(), self.dirty.lock().unwrap());
        let mut at = range.start;
        while at < range.end {
            let block = usize::try_from(at).unwrap() / BLOCK;
            let end = range.end.min(((block + 1) * BLOCK) as u64);
            let flags = match context {
                Context::Dirty if dirty.contains(&block) => dirty_flag::DIRTY,
                Context::Dirty => 0,
                Context::Allocation => {
                    let block = &bytes[block * BLOCK..((block + 1) * BLOCK).min(bytes.len())];
                    let is_hole = block.iter().all(|byte| *byte == 0);
                    if is_hole { allocation_flag::HOLE | allocation_flag::ZERO } else { 0 }
                }
            };
            if !extents.push(end - at, flags) {
                break;
            }
            at = end;
        }
        Ok(())
    }
}
