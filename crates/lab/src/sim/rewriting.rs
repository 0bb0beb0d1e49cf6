//! Ways of rewriting, by name.

use anyhow::{Result, bail, ensure};
use onefold_engine::backup::rewriting::{Capping, ContextBased, History, Rewriting, Selective};

use crate::sim::containers::ContainerRule;

/// Chunks of the window, as in destor.
const WINDOW_CHUNKS: usize = 1024;
/// Containers that a segment of capping refers to, as in destor's sample configuration.
const CAPPING_CONTAINERS: usize = 14;

/// Which duplicates are stored again.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rewrite {
    /// Those in containers of which the version before used little.
    pub history: Option<History>,
    window: Option<Window>,
}

/// Those that a window of the stream shows to be fragmented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Window {
    Selective,
    ContextBased,
    Capping,
}

impl Rewrite {
    /// Reads `none`, or ways with plus signs between them: `har+capping`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rewrite = Self::default();
        for part in text.split('+') {
            let (history, window) = match part.trim() {
                "none" if text.trim() == "none" => continue,
                "none" => bail!("--rewrite {text}: none stands alone"),
                "har" => (Some(History::DEFAULT), None),
                "har-paper" => (Some(History::PAPER), None),
                "cfl" => (None, Some(Window::Selective)),
                "cbr" => (None, Some(Window::ContextBased)),
                "capping" => (None, Some(Window::Capping)),
                other => {
                    bail!(
                        "--rewrite: {other:?} is no way of rewriting: take none, cfl, cbr, capping, har or har-paper, or har with \
                         one of the first, as in har+capping"
                    )
                }
            };
            let is_free =
                (history.is_none() || rewrite.history.is_none()) && (window.is_none() || rewrite.window.is_none());
            ensure!(
                is_free,
                "--rewrite {text}: take one of cfl, cbr and capping, and one of har and har-paper, at most"
            );
            rewrite.history = rewrite.history.or(history);
            rewrite.window = rewrite.window.or(window);
        }
        Ok(rewrite)
    }

    /// Returns what decides over a window of the stream, if anything does.
    pub fn policy(&self, rule: &ContainerRule) -> Option<Box<dyn Rewriting>> {
        let bytes = rule.bytes();
        Some(match self.window? {
            Window::Selective => Box::new(Selective::new(bytes)),
            Window::ContextBased => Box::new(ContextBased::new(WINDOW_CHUNKS, bytes)),
            Window::Capping => Box::new(Capping::new(WINDOW_CHUNKS, CAPPING_CONTAINERS)),
        })
    }
}
