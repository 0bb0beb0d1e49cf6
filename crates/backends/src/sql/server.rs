//! Connections to a server, and the statements of a store.

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use mysql::prelude::{FromRow, Queryable};
use mysql::{Conn, FromRowError, Opts, OptsBuilder, Params, Row, Statement, Value};
use onefold_engine::error::{Error, Result};
use onefold_engine::io::background::on_another_thread;
use onefold_engine::kv::{Entry, KEY_LEN, Key, Ordinal, Position};

/// Keys of one lookup statement, and rows of one insertion: a statement is prepared for each number, and the last batch is
/// filled up or divided.
const LOOKUP_SIZES: [usize; 4] = [1, 16, 256, 1024];
const INSERT_SIZES: [usize; 4] = [1000, 100, 10, 1];

/// Keys of one statement that reads all of a range.
const SCANNED_MAX: usize = 10_000;

/// Attempts to connect, and the wait before the second; each further wait is four times as long.
const TRIES: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Longest wait for an answer of the server.
const ANSWER_SECONDS_MAX: u64 = 120;
/// Longest wait for a connection.
const CONNECT_SECONDS_MAX: u64 = 10;

/// Time without a statement after which the server closes the connection: a month.
const IDLE_SECONDS_MAX: u64 = 30 * 24 * 60 * 60;

/// Longest name of a store.
const NAME_LEN_MAX: usize = 40;

/// A server, and the name of a store in its database.
#[derive(Clone, Debug)]
pub(super) struct Server {
    options: Opts,
    /// Address for messages, without user and password.
    address: String,
    name: String,
}

impl Server {
    pub(super) fn new(url: &str, name: &str) -> Result<Self> {
        let is_plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        if name.is_empty() || NAME_LEN_MAX < name.len() || !name.chars().all(is_plain) {
            let rule = format!("a name of a store has 1 to {NAME_LEN_MAX} letters a to z, digits and underscores");
            return Err(Error::invalid(format!("{name:?}: {rule}")));
        }
        // The address may have a password, so that no message repeats it.
        let options = Opts::from_url(url).map_err(|error| Error::invalid(format!("address of a server: {error}")))?;
        let Some(database) = options.get_db_name() else {
            return Err(Error::invalid("address of a server: it names no database: mysql://USER@HOST/DATABASE"));
        };
        let address = match options.get_socket() {
            Some(socket) => format!("{socket}, database {database}"),
            None => format!("{}:{}, database {database}", options.get_ip_or_hostname(), options.get_tcp_port()),
        };
        let wait = Some(Duration::from_secs(ANSWER_SECONDS_MAX));
        let options = OptsBuilder::from_opts(options)
            .read_timeout(wait)
            .write_timeout(wait)
            .tcp_connect_timeout(Some(Duration::from_secs(CONNECT_SECONDS_MAX)));
        Ok(Self { options: options.into(), address, name: name.to_owned() })
    }

    /// Returns the error for a request that failed.
    pub(super) fn error(&self, reason: &str) -> Error {
        Error::Server { address: self.address.clone(), reason: reason.to_owned() }
    }

    fn failed(&self, error: &mysql::Error) -> Error {
        self.error(&error.to_string())
    }

    fn table(&self) -> String {
        format!("onefold_entries_{}", self.name)
    }

    /// Connects, in several attempts.
    pub(super) fn connect(&self) -> Result<Connection> {
        let mut wait = FIRST_WAIT;
        for _ in 1..TRIES {
            match on_another_thread(|| self.try_connect()) {
                Err(mysql::Error::IoError(_)) => std::thread::sleep(wait),
                done => return done.map_err(|error| self.failed(&error)),
            }
            wait *= 4;
        }
        on_another_thread(|| self.try_connect()).map_err(|error| self.failed(&error))
    }

    fn try_connect(&self) -> mysql::Result<Connection> {
        let mut conn = Conn::new(self.options.clone())?;
        // Readers see what the writer has not committed. The session's writes are one transaction from checkpoint to checkpoint.
        conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")?;
        // A backup may have nothing to write for long.
        conn.query_drop(format!("SET SESSION wait_timeout = {IDLE_SECONDS_MAX}"))?;
        Ok(Connection { server: self.clone(), conn, lookups: Vec::new(), insertions: Vec::new() })
    }
}

/// State of a store at its last checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) epoch: u64,
    pub(super) generation: u64,
}

/// An open connection.
pub(super) struct Connection {
    server: Server,
    conn: Conn,
    /// Prepared lookups and insertions, by the index of their size.
    lookups: Vec<Statement>,
    insertions: Vec<Statement>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.server.address).finish_non_exhaustive()
    }
}

impl Connection {
    fn run<T: Send>(&mut self, run: impl FnOnce(&mut Conn) -> mysql::Result<T> + Send) -> Result<T> {
        on_another_thread(|| run(&mut self.conn)).map_err(|error| self.server.failed(&error))
    }

    /// Takes the store for this connection. Fails if another one has it.
    pub(super) fn lock(&mut self) -> Result<()> {
        let name = format!("onefold.{}", self.server.name);
        let found: Option<Option<i64>> = self.run(|conn| conn.exec_first("SELECT GET_LOCK(?, 10)", (name,)))?;
        if found.flatten() == Some(1) {
            return Ok(());
        }
        Err(self.server.error(&format!("the store {} is in use by another index", self.server.name)))
    }

    /// Makes an empty store, in place of the one that had its name.
    pub(super) fn create(&mut self, epoch: u64) -> Result<()> {
        let table = self.server.table();
        let name = self.server.name.clone();
        self.run(|conn| {
            conn.query_drop(
                "CREATE TABLE IF NOT EXISTS onefold_stores (name VARBINARY(64) PRIMARY KEY, epoch BIGINT UNSIGNED NOT NULL, \
                 generation BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
            )?;
            conn.exec_drop("DELETE FROM onefold_stores WHERE name = ?", (&name,))?;
            conn.query_drop(format!("DROP TABLE IF EXISTS {table}"))?;
            conn.query_drop(format!(
                "CREATE TABLE {table} (k BINARY({KEY_LEN}) PRIMARY KEY, ordinal INT UNSIGNED NOT NULL, \
                 position BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB"
            ))?;
            conn.exec_drop("INSERT INTO onefold_stores VALUES (?, ?, 0)", (&name, epoch))
        })
    }

    /// Returns the state of the store; `None` if there is none.
    pub(super) fn state(&mut self) -> Result<Option<State>> {
        let (table, name) = (self.server.table(), self.server.name.clone());
        let found: Option<(u64, u64)> = self.run(|conn| {
            let query = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
                         AND table_name IN (?, 'onefold_stores')";
            let tables: Option<u64> = conn.exec_first(query, (table,))?;
            if tables != Some(2) {
                return Ok(None);
            }
            conn.exec_first("SELECT epoch, generation FROM onefold_stores WHERE name = ?", (name,))
        })?;
        Ok(found.map(|(epoch, generation)| State { epoch, generation }))
    }

    /// Begins the transaction that the next [`Connection::commit`] ends.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.run(|conn| conn.query_drop("START TRANSACTION"))
    }

    /// Commits everything inserted as the checkpoint of a generation, and begins the next transaction.
    pub(super) fn commit(&mut self, generation: u64) -> Result<()> {
        let name = self.server.name.clone();
        self.run(|conn| {
            conn.exec_drop("UPDATE onefold_stores SET generation = ? WHERE name = ?", (generation, name))?;
            conn.query_drop("COMMIT")
        })?;
        self.begin()
    }

    /// Returns true if the server answers on this connection.
    pub(super) fn is_alive(&mut self) -> bool {
        on_another_thread(|| self.conn.ping()).is_ok()
    }

    /// Returns the entries of keys.
    pub(super) fn look_up(&mut self, keys: &[Key]) -> Result<HashMap<Key, Entry>> {
        let mut found = HashMap::with_capacity(keys.len());
        let largest = LOOKUP_SIZES[LOOKUP_SIZES.len() - 1];
        for batch in keys.chunks(largest) {
            let statement = self.lookup_for(batch.len())?;
            let filler = batch.last().into_iter().cycle();
            let size = usize::from(statement.num_params());
            let values = batch.iter().chain(filler).take(size).map(|key| Value::Bytes(key.0.to_vec())).collect();
            self.run(|conn| {
                for row in conn.exec_iter(&statement, Params::Positional(values))? {
                    let (key, ordinal, position) = from_row(row?)?;
                    let key = Key(key);
                    found.insert(key, Entry { key, ordinal: Ordinal(ordinal), position: Position(position) });
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    fn lookup_for(&mut self, keys: usize) -> Result<Statement> {
        if self.lookups.is_empty() {
            let table = self.server.table();
            for size in LOOKUP_SIZES {
                let marks = vec!["?"; size].join(",");
                let query = format!("SELECT k, ordinal, position FROM {table} WHERE k IN ({marks})");
                let statement = self.run(|conn| conn.prep(query))?;
                self.lookups.push(statement);
            }
        }
        let index = LOOKUP_SIZES.iter().position(|size| keys <= *size).unwrap_or(LOOKUP_SIZES.len() - 1);
        Ok(self.lookups[index].clone())
    }

    /// Inserts entries; each replaces that of the same key.
    pub(super) fn insert(&mut self, mut entries: &[Entry]) -> Result<()> {
        if self.insertions.is_empty() {
            let table = self.server.table();
            for size in INSERT_SIZES {
                let marks = vec!["(?,?,?)"; size].join(",");
                let query = format!(
                    "INSERT INTO {table} VALUES {marks} ON DUPLICATE KEY UPDATE ordinal = VALUES(ordinal), position = VALUES(position)"
                );
                let statement = self.run(|conn| conn.prep(query))?;
                self.insertions.push(statement);
            }
        }
        for (index, size) in INSERT_SIZES.into_iter().enumerate() {
            while size <= entries.len() {
                let (batch, rest) = entries.split_at(size);
                let values = batch.iter().flat_map(|entry| {
                    [
                        Value::Bytes(entry.key.0.to_vec()),
                        Value::UInt(entry.ordinal.0.into()),
                        Value::UInt(entry.position.0),
                    ]
                });
                let (statement, values) = (self.insertions[index].clone(), values.collect());
                self.run(|conn| conn.exec_drop(&statement, Params::Positional(values)))?;
                entries = rest;
            }
        }
        Ok(())
    }

    /// Calls `each` with every key whose head is in a range.
    pub(super) fn keys_in(&mut self, heads: &RangeInclusive<u64>, each: &mut dyn FnMut(&Key)) -> Result<()> {
        let (mut first, mut last) = ([0; KEY_LEN], [u8::MAX; KEY_LEN]);
        first[..8].copy_from_slice(&heads.start().to_be_bytes());
        last[..8].copy_from_slice(&heads.end().to_be_bytes());
        let query =
            format!("SELECT k FROM {} WHERE k BETWEEN ? AND ? ORDER BY k LIMIT {SCANNED_MAX}", self.server.table());
        loop {
            let rows: Vec<Row> = self.run(|conn| conn.exec(&query, (first.to_vec(), last.to_vec())))?;
            let count = rows.len();
            for row in rows {
                let (key,) = from_row(row).map_err(|error| self.server.failed(&error))?;
                first = key;
                each(&Key(key));
            }
            // The last key comes a second time, which is allowed.
            if count < SCANNED_MAX {
                return Ok(());
            }
        }
    }
}

/// Converts a row. Fails if the table has other columns.
fn from_row<T: FromRow>(row: Row) -> mysql::Result<T> {
    T::from_row_opt(row).map_err(|FromRowError(row)| {
        let columns = row.columns_ref().iter().map(|column| column.name_str().into_owned()).collect::<Vec<_>>();
        mysql::Error::from(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a row of its table cannot be read: columns {}", columns.join(", ")),
        ))
    })
}
