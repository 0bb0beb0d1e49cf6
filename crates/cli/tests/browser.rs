//! A real browser, Chromium without a window, driven through the protocol of its developer tools.
//!
//! Messages are JSON, each ended by a zero byte, and go through pipes: the browser reads its third and writes its fourth
//! descriptor.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait for one answer; a machine that does much else starts a browser slowly.
const ANSWER_TIME_MAX: Duration = Duration::from_mins(1);

/// Longest wait for the end of a browser.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    session: Value,
    /// Number of the last request.
    number: u64,
    /// What the page did, in order.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser with an empty page.
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null"])
            .arg(find())
            .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-sync"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let requests = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let (send, messages) = channel();
        thread::spawn(move || {
            for message in answers.split(0) {
                // A browser that is ended may end within a message.
                let Some(message) = message.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) else { return };
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            requests,
            messages,
            session: Value::Null,
            number: 0,
            events: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].clone();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Asks the browser to do something, and returns its answer.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        let mut request = json!({"method": method, "params": parameters});
        if !self.session.is_null() {
            request["sessionId"] = self.session.clone();
        }
        self.send(request).unwrap();
        loop {
            let mut message = self.next(method);
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// Opens a file, and waits until it is loaded.
    #[track_caller]
    pub(crate) fn open(&mut self, path: &Path) {
        let before = self.events.len();
        let opened = self.call("Page.navigate", &json!({"url": format!("file://{}", path.display())}));
        assert!(opened["errorText"].is_null(), "{opened}");
        while !self.events[before..].iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.next("load");
            self.events.push(event);
        }
        // The event may have been the empty page's; and what the page did until now comes before the answer.
        self.wait_for("document.readyState === 'complete'");
    }

    /// Returns what an expression of the page comes to; of a promise, what it brings.
    #[track_caller]
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let question = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", &question);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression of the page is true.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.evaluate(expression) != json!(true) {
            assert!(start.elapsed() < ANSWER_TIME_MAX, "{expression}: not so, {:?}", self.complaints());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns what a page should not make the browser say: messages of the console, exceptions, reports of the browser.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        const COMPLAINTS: [&str; 3] = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        self.events.iter().filter(|event| COMPLAINTS.iter().any(|method| event["method"] == *method)).collect()
    }

    /// Returns the addresses that the page asked for, itself first.
    pub(crate) fn requested(&self) -> Vec<&str> {
        let requests = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        requests.map(|event| event["params"]["request"]["url"].as_str().unwrap()).collect()
    }

    fn send(&mut self, mut request: Value) -> io::Result<()> {
        self.number += 1;
        request["id"] = self.number.into();
        let mut bytes = serde_json::to_vec(&request)?;
        bytes.push(0);
        self.requests.write_all(&bytes)
    }

    fn next(&mut self, what: &str) -> Value {
        self.messages.recv_timeout(ANSWER_TIME_MAX).unwrap_or_else(|error| panic!("{what}: no answer: {error}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends with all its processes, so that its profile can be removed. It may have ended by itself; a test that fails says more than
        // this could.
        let _sent = self.send(json!({"method": "Browser.close"}));
        let start = Instant::now();
        while start.elapsed() < END_TIME_MAX && self.messages.recv_timeout(END_TIME_MAX).is_ok() {}
        let _ended = self.process.kill();
        let _ended = self.process.wait();
    }
}

/// Returns the browser: what the variable `CHROMIUM` names, or the first that is found on the path.
fn find() -> PathBuf {
    if let Some(named) = env::var_os("CHROMIUM").filter(|named| !named.is_empty()) {
        return named.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut found = names.iter().flat_map(|name| env::split_paths(&path).map(move |directory| directory.join(name)));
    found
        .find(|program| program.is_file())
        .expect("there is no Chromium to open a report in: install it, name it by the variable CHROMIUM, or run ./test")
}
