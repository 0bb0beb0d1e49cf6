//! A medium that remembers every store, flush and fence, and shows what could be left after a crash at any of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use onefold_engine::Result;

use crate::mapped::medium::{LINE_BYTES, Medium, WORD_BYTES};
use crate::stream::Random;

/// One thing that was done to a medium, or said about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A word was stored.
    Store { word: usize, value: u64 },
    /// A line was flushed, by its number.
    Flush { line: usize },
    /// All flushed lines are durable.
    Fence,
    /// So many words exist.
    Grow { words: usize },
    /// Who tests has reached a step.
    Mark(usize),
}

#[derive(Debug, Default)]
struct Tape {
    now: Vec<u64>,
    events: Vec<Event>,
}

/// The medium: a handle, of which the test keeps another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Tape>>);

fn word_of(offset: u64) -> usize {
    assert!(offset.is_multiple_of(WORD_BYTES as u64), "offset {offset} is not that of a word");
    usize::try_from(offset).unwrap() / WORD_BYTES
}

impl Recorder {
    /// Starts with words that are durable.
    pub(crate) fn of(words: Vec<u64>) -> Self {
        Self(Arc::new(Mutex::new(Tape { now: words, events: Vec::new() })))
    }

    fn with<T>(&self, access: impl FnOnce(&mut Tape) -> T) -> T {
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that the test has reached a step.
    pub(crate) fn mark(&self, step: usize) {
        self.with(|tape| tape.events.push(Event::Mark(step)));
    }

    /// Returns what was done so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.with(|tape| tape.events.clone())
    }

    /// Returns what a program sees at the moment.
    pub(crate) fn words(&self) -> Vec<u64> {
        self.with(|tape| tape.now.clone())
    }
}

impl Medium for Recorder {
    fn len(&self) -> u64 {
        self.with(|tape| (tape.now.len() * WORD_BYTES) as u64)
    }

    fn copy_out(&self, offset: u64, words: &mut [u64]) {
        let start = word_of(offset);
        self.with(|tape| words.copy_from_slice(&tape.now[start..start + words.len()]));
    }

    fn store(&mut self, offset: u64, word: u64) {
        self.write(offset, &[word]);
    }

    fn write(&mut self, offset: u64, words: &[u64]) {
        self.with(|tape| {
            for (word, &value) in (word_of(offset)..).zip(words) {
                tape.now[word] = value;
                tape.events.push(Event::Store { word, value });
            }
        });
    }

    fn flush(&mut self, offset: u64, len: u64) {
        let lines = offset / LINE_BYTES as u64..(offset + len).div_ceil(LINE_BYTES as u64);
        self.with(|tape| {
            tape.events.extend(lines.map(|line| Event::Flush { line: usize::try_from(line).unwrap() }));
        });
    }

    fn fence(&mut self) -> Result<()> {
        self.with(|tape| tape.events.push(Event::Fence));
        Ok(())
    }

    fn grow(&mut self, len: u64) -> Result<()> {
        let words = usize::try_from(len.div_ceil(LINE_BYTES as u64)).unwrap() * LINE_BYTES / WORD_BYTES;
        self.with(|tape| {
            if tape.now.len() < words {
                tape.now.resize(words, 0);
                tape.events.push(Event::Grow { words });
            }
        });
        Ok(())
    }

    /// Leaves rubbish where a real medium may leave anything.
    fn release(&mut self, offset: u64, len: u64) {
        let rubbish = vec![0xdead_dead_dead_dead; usize::try_from(len).unwrap() / WORD_BYTES];
        self.write(offset, &rubbish);
    }

    fn will_need(&self, _offset: u64) {}
}

/// A store that a crash may lose.
#[derive(Clone, Copy, Debug)]
struct Unfenced {
    word: usize,
    value: u64,
    is_flushed: bool,
}

/// What is durable while events are played back, and what may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Playback {
    durable: Vec<u64>,
    unfenced: Vec<Unfenced>,
}

impl Playback {
    /// Starts with words that are durable.
    pub(crate) fn of(words: Vec<u64>) -> Self {
        Self { durable: words, unfenced: Vec::new() }
    }

    /// Carries out an event.
    pub(crate) fn play(&mut self, event: &Event) {
        const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES;
        match *event {
            Event::Store { word, value } => self.unfenced.push(Unfenced { word, value, is_flushed: false }),
            Event::Flush { line } => {
                let of_line = self.unfenced.iter_mut().filter(|store| store.word / LINE_WORDS == line);
                of_line.for_each(|store| store.is_flushed = true);
            }
            Event::Fence => {
                // A later store to a word takes an earlier one along: the line as a whole was written.
                for store in self.unfenced.iter().filter(|store| store.is_flushed) {
                    self.durable[store.word] = store.value;
                }
                self.unfenced.retain(|store| !store.is_flushed);
            }
            Event::Grow { words } => self.durable.resize(words.max(self.durable.len()), 0),
            Event::Mark(_) => {}
        }
    }

    /// Returns how many stores a crash may lose.
    pub(crate) fn unfenced(&self) -> usize {
        self.unfenced.len()
    }

    /// Returns what is left if the first so many unfenced stores arrived, and no others.
    pub(crate) fn with_prefix(&self, count: usize) -> Vec<u64> {
        let mut words = self.durable.clone();
        self.unfenced.iter().take(count).for_each(|store| words[store.word] = store.value);
        words
    }

    /// Returns what is left if of every word some number of its unfenced stores arrived, drawn at random.
    pub(crate) fn with_subset(&self, random: &mut Random) -> Vec<u64> {
        let mut words = self.durable.clone();
        let mut by_word: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        self.unfenced.iter().for_each(|store| by_word.entry(store.word).or_default().push(store.value));
        for (word, values) in by_word {
            let arrived = usize::try_from(random.below(values.len() as u64 + 1)).unwrap();
            if let Some(last) = arrived.checked_sub(1) {
                words[word] = values[last];
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_flushed_and_then_fenced_survives_for_certain() {
        let mut recorder = Recorder::default();
        recorder.grow(128).unwrap();
        recorder.store(0, 1);
        recorder.flush(0, 8);
        recorder.store(8, 2);
        recorder.fence().unwrap();
        recorder.store(64, 3);
        recorder.store(64, 4);
        let mut playback = Playback::default();
        recorder.events().iter().for_each(|event| playback.play(event));
        assert_eq!(playback.unfenced(), 3);
        let shown = |words: &[u64]| (words[0], words[1], words[8]);
        assert_eq!(shown(&playback.with_prefix(0)), (1, 0, 0));
        assert_eq!(shown(&playback.with_prefix(2)), (1, 2, 3));
        assert_eq!(shown(&playback.with_prefix(3)), shown(&recorder.words()));
        let mut random = Random::new(1);
        let seen: std::collections::BTreeSet<_> = (0..100).map(|_| shown(&playback.with_subset(&mut random))).collect();
        assert_eq!(seen.len(), 6, "two states of one word, three of the other");
        assert!(seen.iter().all(|(first, ..)| *first == 1));
    }
}
