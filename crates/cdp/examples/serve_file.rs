//! Serves a file over NBD until standard input ends: `cargo run --release -p onefold-cdp --example serve_file FILE SOCKET`.
//!
//! `bench/nbd` measures it. The file is the default export, and writable unless `--read-only` follows. The socket is a path, or an
//! address such as `127.0.0.1:10809`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onefold_cdp::log::Log;
use onefold_cdp::nbd::NamedExport;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::nbd::serve::{Limits, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, socket, rest @ ..] = &arguments[..] else {
        return Err("usage: serve_file FILE SOCKET [--read-only]".into());
    };
    let access = if rest.iter().any(|option| option == "--read-only") { Access::ReadOnly } else { Access::ReadWrite };
    let log = Log::new(|line| eprintln!("{line}"));
    let export = Arc::new(FileExport::open(Path::new(file), access, log.clone())?);
    let named = NamedExport { name: String::from("file"), description: file.clone(), export };
    let mut server = Server::new(vec![named], Limits::default(), None, log)?;
    match socket.parse::<std::net::SocketAddr>() {
        Ok(address) => server.listen(TcpListener::bind(address)?)?,
        Err(_) => server.listen(UnixListener::bind(socket)?)?,
    }
    println!("serving {file}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop(Duration::from_secs(5));
    Ok(())
}
