//! Syncs of volumes, which requests share.
//!
//! One sync of a volume runs at a time. Requests that arrive meanwhile need the next one, and share it. A thread of the group carries syncs
//! out, so that a request can sync the journal at the same time.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use onefold_engine::error::{Error, Result};

use crate::nbd::export::Export;
use crate::nbd::wire::Errno;

#[derive(Debug, Default)]
struct State {
    /// Syncs that have begun, and the last one that has succeeded.
    begun: u64,
    done: u64,
    is_syncing: bool,
    /// The first failure: a sync is never tried again.
    failed: Option<Errno>,
}

/// Syncs of one volume.
#[derive(Debug)]
struct VolumeSyncs {
    origin: Arc<dyn Export>,
    state: Mutex<State>,
    changed: Condvar,
}

impl VolumeSyncs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sync that covers everything that was written before this call.
    fn wanted(&self) -> u64 {
        self.lock().begun + 1
    }

    /// Returns when a sync has ended; carries it out if nobody else does.
    fn finish(&self, wanted: u64) -> Result<(), Errno> {
        let mut state = self.lock();
        loop {
            if wanted <= state.done {
                return Ok(());
            }
            if let Some(errno) = state.failed {
                return Err(errno);
            }
            if state.is_syncing {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_syncing = true;
            state.begun += 1;
            let number = state.begun;
            drop(state);
            let outcome = self.origin.flush();
            state = self.lock();
            state.is_syncing = false;
            match outcome {
                Ok(()) => state.done = number,
                Err(errno) => state.failed = Some(errno),
            }
            self.changed.notify_all();
        }
    }
}

/// A sync that was handed to the thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    volume: usize,
    number: u64,
}

/// Syncs of the volumes of a group, and the thread that carries them out. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Syncs {
    volumes: Arc<Vec<VolumeSyncs>>,
    thread: Option<(Sender<Wanted>, JoinHandle<()>)>,
}

impl Syncs {
    pub(super) fn new(origins: &[Arc<dyn Export>]) -> Result<Self> {
        let of = |origin: &Arc<dyn Export>| VolumeSyncs {
            origin: Arc::clone(origin),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let volumes: Arc<Vec<VolumeSyncs>> = Arc::new(origins.iter().map(of).collect());
        let (sender, wanted) = channel::<Wanted>();
        let of_thread = Arc::clone(&volumes);
        let work = move || {
            for Wanted { volume, number } in wanted {
                if let Some(syncs) = of_thread.get(volume) {
                    // Whoever wants it gets the outcome.
                    let _ignored = syncs.finish(number);
                }
            }
        };
        let thread = std::thread::Builder::new().name("volume sync".to_owned()).spawn(work);
        let thread =
            thread.map_err(|error| Error::invalid(format!("a thread for syncs cannot be started: {error}")))?;
        Ok(Self { volumes, thread: Some((sender, thread)) })
    }

    /// Begins a sync of a volume, or joins the next one.
    pub(super) fn begin(&self, volume: usize) -> Wanted {
        let number = self.volumes.get(volume).map_or(0, VolumeSyncs::wanted);
        let wanted = Wanted { volume, number };
        if let Some((sender, _)) = &self.thread {
            // Without the thread, whoever wants the sync carries it out.
            let _ignored = sender.send(wanted);
        }
        wanted
    }

    /// Returns when a sync has ended.
    pub(super) fn finish(&self, wanted: Wanted) -> Result<(), Errno> {
        self.volumes.get(wanted.volume).map_or(Err(Errno::Io), |syncs| syncs.finish(wanted.number))
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // It has panicked if a volume has, and that was seen by whoever waited.
            let _ignored = thread.join();
        }
    }
}
