//! The control socket of a group that is served: a request of one line of JSON, and an answer of one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files;

/// Name of the socket in the group's directory.
const SOCKET: &str = "control";
/// Most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 4096;
/// How long a client may take to send its request, or to take its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Serialize, Deserialize, Debug)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub(super) enum Request {
    /// For the state.
    Status,
    /// For a checkpoint.
    Checkpoint,
    /// For a comparison of the volumes with their history. It may take hours.
    Scan {
        /// True if differences are recorded.
        record: bool,
    },
    /// For a name of the present moment.
    Mark {
        /// The name.
        name: String,
    },
}

/// An answer.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Done(Value),
    Failed(String),
}

/// Listens until the process ends. Each request is answered on a thread of its own.
pub(super) fn listen(
    directory: &Path,
    answer: Arc<dyn Fn(Request) -> Result<Value> + Send + Sync>,
) -> Result<ControlSocket> {
    let path = directory.join(SOCKET);
    // The lock of the group is held, so nobody listens there.
    files::remove_left_socket(&path);
    let listener = UnixListener::bind(&path).with_context(|| format!("listen at {}", path.display()))?;
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            let serve = move || {
                // A client that went away needs no answer.
                let _ignored = serve(&stream, &*answer);
            };
            let _ignored = std::thread::Builder::new().name("control request".to_owned()).spawn(serve);
        }
    };
    std::thread::Builder::new().name("control".to_owned()).spawn(accept).context("start a thread")?;
    Ok(ControlSocket(path))
}

/// The socket; removed when this is dropped.
#[derive(Debug)]
pub(super) struct ControlSocket(PathBuf);

impl Drop for ControlSocket {
    fn drop(&mut self) {
        files::remove_socket(&self.0);
    }
}

fn serve(stream: &UnixStream, answer: &dyn Fn(Request) -> Result<Value>) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let outcome = serde_json::from_str(&line).map_err(anyhow::Error::from).and_then(answer);
    let answer = match outcome {
        Ok(value) => Answer::Done(value),
        Err(error) => Answer::Failed(format!("{error:#}")),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    Ok((&mut &*stream).write_all(&text)?)
}

/// Returns true if a process answers requests for a group.
pub(super) fn is_served(directory: &Path) -> bool {
    UnixStream::connect(directory.join(SOCKET)).is_ok()
}

/// Asks the process that serves a group.
pub(super) fn ask(directory: &Path, request: &Request) -> Result<Value> {
    let path = directory.join(SOCKET);
    let stream = UnixStream::connect(&path)
        .with_context(|| format!("{}: the group is not served; `onefold cdp serve` does", directory.display()))?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    (&mut &stream).write_all(&text)?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    match serde_json::from_str(&line).context("the answer of the process that serves the group")? {
        Answer::Done(value) => Ok(value),
        Answer::Failed(reason) => Err(anyhow!(reason)),
    }
}
