//! The server for clients of protected volumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use onefold_cdp::log::Log;
use onefold_cdp::nbd::NamedExport;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::serve::{Limits, Server};
use onefold_cdp::nbd::tls::{Certificates, Tls};
use onefold_cdp::volume::{Group, ProtectedVolume};

use crate::args::cdp::ServeArgs;
use crate::commands::cdp::group_file::GroupFile;
use crate::commands::cdp::sockets;
use crate::files;

/// Name of the socket for clients, unless addresses are given.
const SOCKET: &str = "nbd";

/// Lets a server listen for clients of the volumes; returns its sockets and addresses, too.
pub(super) fn start_server(
    args: &ServeArgs,
    directory: &Path,
    (file, group): (&GroupFile, &Arc<Group>),
    log: Log,
) -> Result<(Server, Vec<PathBuf>, Vec<String>)> {
    let mut exports = Vec::with_capacity(file.volumes.len());
    for (number, volume) in (0..).zip(&file.volumes) {
        let export: Arc<dyn Export> = Arc::new(ProtectedVolume::new(Arc::clone(group), number));
        let description = volume.origin.display().to_string();
        exports.push(NamedExport { name: volume.name.clone(), description, export });
    }
    let mut server = Server::new(exports, Limits::default(), tls(args)?, log)?;
    let default = [format!("unix:{}", directory.join(SOCKET).display())];
    let addresses = if args.listen.is_empty() { &default[..] } else { &args.listen };
    let left = sockets::listen(&mut server, addresses)?;
    Ok((server, left, addresses.to_vec()))
}

fn tls(args: &ServeArgs) -> Result<Option<Tls>> {
    let read = |path: &PathBuf| files::read_certificates(path);
    let (Some(chain), Some(key)) = (&args.tls_certificate, &args.tls_key) else { return Ok(None) };
    let (chain, key) = (read(chain)?, read(key)?);
    let authorities = args.tls_client_authority.as_ref().map(read).transpose()?;
    let certificates =
        Certificates { chain: &chain, key: &key, client_authorities: authorities.as_ref().map(|bytes| &bytes[..]) };
    Ok(Some(Tls::new(&certificates).context("the certificates of the server")?))
}
