//! Servers for tests.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use onefold_cdp::log::Log;
use onefold_cdp::nbd::NamedExport;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::nbd::serve::{Limits, Server};
use onefold_cdp::nbd::tls::Tls;
use tempfile::TempDir;

/// A server on a socket in a directory of its own.
pub(crate) struct Fixture {
    pub(crate) server: Server,
    pub(crate) directory: TempDir,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    /// Serves exports under their names.
    pub(crate) fn of(exports: Vec<(&str, Arc<dyn Export>)>, limits: Limits) -> Self {
        Self::with(exports, limits, None)
    }

    /// Serves exports, encrypted if there are certificates.
    pub(crate) fn with(exports: Vec<(&str, Arc<dyn Export>)>, limits: Limits, tls: Option<Tls>) -> Self {
        let directory = TempDir::new().unwrap();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&messages);
        let log = Log::new(move |line| heard.lock().unwrap().push(line.to_owned()));
        let named = exports.into_iter().map(|(name, export)| {
            let (name, description) = (String::from(name), format!("{name} of a test"));
            NamedExport { name, description, export }
        });
        let mut server = Server::new(named.collect(), limits, tls, log).unwrap();
        server.listen(UnixListener::bind(directory.path().join("socket")).unwrap()).unwrap();
        Self { server, directory, messages }
    }

    /// Serves one export.
    pub(crate) fn one(export: Arc<dyn Export>) -> Self {
        Self::of(vec![("volume", export)], Limits::default())
    }

    /// Serves a file, and returns its path.
    pub(crate) fn file(len: u64) -> (Self, PathBuf) {
        let origin = tempfile::NamedTempFile::new().unwrap();
        origin.as_file().set_len(len).unwrap();
        let export = FileExport::open(origin.path(), Access::ReadWrite, Log::none()).unwrap();
        let fixture = Self::one(Arc::new(export));
        let path = fixture.path("origin");
        // The export has the file open under its other name.
        std::fs::hard_link(origin.path(), &path).unwrap();
        (fixture, path)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The address that programs take.
    pub(crate) fn uri(&self) -> String {
        uri_of(&self.socket())
    }

    pub(crate) fn messages(&self) -> Vec<String> {
        self.messages.lock().unwrap().clone()
    }

    /// Waits until no connection is left.
    pub(crate) fn wait_until_idle(&self) {
        wait_for("the end of all connections", || self.server.connections() == 0);
    }
}

pub(crate) fn uri_of(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

/// Waits for a condition, ten seconds at most.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited in vain for {what}");
}
