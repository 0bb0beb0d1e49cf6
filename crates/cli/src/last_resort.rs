//! End of the process after a panic, refused memory or a full stack. The process ends immediately with a sentence and exit
//! code 1, on any thread: the others would wait for that thread forever.
//!
//! The repository is then as after a crash: what was committed is there.

use std::io::{Cursor, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::SIGABRT;

use crate::exit::{self, Code};
use crate::output::say;

/// Whether programs read the messages.
static IS_JSON: AtomicBool = AtomicBool::new(false);
/// Whether the process is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Longest message that needs no memory.
const MESSAGE_BYTES_MAX: usize = 256;
/// Time that a second thread gives the first one to write its message.
const PATIENCE: Duration = Duration::from_secs(1);

/// First words of the panics of the standard library if a new thread gets no memory for its signal stack.
const SHORTAGES: [&str; 2] = ["failed to allocate an alternative stack", "failed to set up alternative stack"];

/// Installs the panic hook and the handler of SIGABRT.
pub(crate) fn prepare(is_json: bool) {
    IS_JSON.store(is_json, Ordering::Relaxed);
    std::panic::set_hook(Box::new(panicked));
    // The standard library aborts after it has said why, as when a stack is full. That is a failure like any other.
    let always = Arc::new(AtomicBool::new(true));
    let registered = signal_hook::flag::register_conditional_shutdown(SIGABRT, Code::Failed as i32, always);
    // Without the handler the exit code is another one, and nothing else.
    drop(registered);
}

/// Ends the process after a panic.
fn panicked(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no reason given");
    if SHORTAGES.iter().any(|shortage| text.starts_with(shortage)) {
        refused("a thread's stack");
    }
    wait_if_ending();
    let position = panic.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
    let message = format!("internal error{position}: {text}; what was stored before is intact; please report this");
    exit::report(Code::Failed, &message, IS_JSON.load(Ordering::Relaxed));
    let backtrace = std::backtrace::Backtrace::capture();
    if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
        say(backtrace.to_string().as_bytes());
    }
    signal_hook::low_level::exit(Code::Failed as i32);
}

/// Ends the process when the system refuses memory.
pub(crate) fn out_of_memory(bytes: usize) -> ! {
    let mut text = Cursor::new([0; 64]);
    // It fits: a number has 20 digits at most.
    let _fits = write!(text, "{bytes} bytes");
    let len = usize::try_from(text.position()).unwrap_or(0);
    refused(text.get_ref().get(..len).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or("memory"))
}

/// Reports the refused resource without using any memory.
fn refused(what: &str) -> ! {
    wait_if_ending();
    let mut message = Cursor::new([0; MESSAGE_BYTES_MAX]);
    let (before, after) = if IS_JSON.load(Ordering::Relaxed) {
        (r#"{"message_type":"exit_error","code":1,"message":""#, "\"}\n")
    } else {
        ("onefold: ", "\n")
    };
    let sentence = "out of memory: the system refused ";
    let advice = "; give less --memory, or more to the process";
    let _fits = write!(message, "{before}{sentence}{what}{advice}{after}");
    let len = usize::try_from(message.position()).unwrap_or(0);
    // If standard error is gone, nothing can be reported.
    let _ignored = rustix::io::write(rustix::stdio::stderr(), message.get_ref().get(..len).unwrap_or_default());
    signal_hook::low_level::exit(Code::Failed as i32)
}

/// Only one thread says why the process ends.
fn wait_if_ending() {
    if IS_ENDING.swap(true, Ordering::Relaxed) {
        std::thread::sleep(PATIENCE);
        signal_hook::low_level::exit(Code::Failed as i32);
    }
}
