//! The fixture of most tests: a repository, a cache and a source, and runs of the command on them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use onefold_engine::backup::{AccessTimes, BackupOptions, BaseChoices, Budget, Comparison, Unchanged};
use onefold_engine::compress::Compression;
use onefold_engine::identify::{IndexOptions, IndexPreset};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::monitor::Silent;
use onefold_engine::object::ObjectStore;
use onefold_engine::object::directory::DirectoryStore;
use onefold_engine::pipeline::Driver;
use onefold_engine::random::SplitMix64;
use onefold_engine::repo::{BackupRequest, Cache, backup};
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{Unlock, open};
use onefold_engine::testing::mem_tree::MemTree;
use serde_json::Value;
use tempfile::TempDir;

/// A repository, a cache and a source in a temporary directory, which is removed at the end.
pub(crate) struct Fixture {
    directory: TempDir,
    password: Option<&'static str>,
}

impl Fixture {
    /// Makes a fixture with an unencrypted repository, which opens at once.
    pub(crate) fn new() -> Self {
        let fixture = Self::without_repository(None);
        fixture.run(["init", "--no-encryption", "-q"]).code(0);
        fixture
    }

    /// Makes a fixture with an encrypted repository.
    pub(crate) fn encrypted() -> Self {
        let fixture = Self::without_repository(Some("correct horse"));
        fixture.run(["init", "-q"]).code(0);
        fixture
    }

    /// Makes a fixture without a repository.
    pub(crate) fn without_repository(password: Option<&'static str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["source", "tmp"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory, password }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file of the source, and the directories that lead to it.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path("source").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Backs up `/` of a tree in memory, which can hold what no file system lets a test prepare, into the unencrypted
    /// repository.
    pub(crate) fn back_up(&self, tree: &MemTree) {
        let objects: Arc<dyn ObjectStore> =
            Arc::new(DirectoryStore::new(Arc::new(OsDisk::new(self.path("repository")))));
        let cache: Arc<dyn Disk> = Arc::new(OsDisk::new(self.path("tmp")));
        let host: Arc<dyn Host> = Arc::new(OsHost::new());
        let store = open(&objects, &host, Unlock::Unencrypted).unwrap();
        let request = BackupRequest {
            cache: &Cache { disk: Arc::clone(&cache), dir: PathBuf::new() },
            index: IndexOptions::for_memory(8 << 20),
            source: Arc::new(tree.clone()),
            options: BackupOptions {
                roots: vec!["/".into()],
                paths: vec![b"/".to_vec()],
                excludes: Arc::default(),
                exclude_texts: Vec::new(),
                tags: Vec::new(),
                hostname: "host".into(),
                username: "user".into(),
                uid: 0,
                gid: 0,
                time: None,
                parent: None,
                comparison: Comparison::Full,
                unchanged: Unchanged::Make,
                compression: Compression::Zstd(1),
                program: "onefold test".into(),
                preset: IndexPreset::default(),
                budget: Budget::of(64 << 20, 2),
                accelerator: None,
                scratch: Scratch { disk: Some(cache), dir: PathBuf::new() },
                similarity: None,
                access_times: AccessTimes::LeftOut,
                bases: BaseChoices::default(),
                rewriting: None,
            },
            heads: None,
            driver: Driver::inline(1),
            monitor: Arc::new(Silent),
        };
        assert_eq!(backup(&store, &request).unwrap().report.failures, 0);
    }

    /// Prepares a run in the fixture's directory. Only the variables that are set here are in its environment.
    pub(crate) fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onefold"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear()
            .env("ONEFOLD_REPOSITORY", self.path("repository"))
            .env("ONEFOLD_CACHE_DIR", self.path("cache"))
            // The smallest: the index then takes no time to open.
            .env("ONEFOLD_MEMORY", "64M")
            .env("TMPDIR", self.path("tmp"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(password) = self.password {
            command.env("ONEFOLD_PASSWORD", password);
        }
        command
    }

    /// Runs the command.
    pub(crate) fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Ran {
        Ran(self.command(arguments).output().unwrap())
    }

    /// Returns the id of the only repository whose cache is there.
    pub(crate) fn repository_id(&self) -> String {
        let names = fs::read_dir(self.path("cache")).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        let mut ids = names.into_iter().filter(|name| name != "CACHEDIR.TAG" && name != "pins");
        let id = ids.next().unwrap();
        assert_eq!(ids.next(), None);
        id
    }
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Ran(pub(crate) Output);

impl Ran {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.0.status.code(), Some(code), "stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        self
    }

    /// Asserts that standard error says something.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.stderr().contains(text), "{text:?} is not in: {}", self.stderr());
        self
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// Returns standard output as one JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.0.stdout).unwrap()
    }

    /// Returns the JSON messages of standard output, one a line.
    #[track_caller]
    pub(crate) fn messages(&self) -> Vec<Value> {
        self.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the last JSON message of standard error.
    #[track_caller]
    pub(crate) fn last_error(&self) -> Value {
        let stderr = self.stderr();
        serde_json::from_str(stderr.lines().last().unwrap()).unwrap_or_else(|error| panic!("{error}: {stderr}"))
    }
}

/// Returns every path below a directory with its bytes, sorted; directories have none.
pub(crate) fn contents(root: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let bytes = if path.is_dir() { None } else { Some(fs::read(&path).unwrap()) };
            found.push((path.strip_prefix(root).unwrap().to_path_buf(), bytes));
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns so many bytes that neither compress nor repeat, the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    (0..len.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).take(len).collect()
}
