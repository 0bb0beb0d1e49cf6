//! Encrypted connections: certificates by OpenSSL, and clients of which some use another library for TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use onefold_cdp::nbd::serve::Limits;
use onefold_cdp::nbd::tls::{Certificates, Tls};
use onefold_cdp::nbd::wire::option::{InfoRequest, OptionHeader, code};
use onefold_cdp::nbd::wire::option_reply::{self, OptionReplyHeader, kind};
use onefold_cdp::nbd::wire::request::{Request, command, flag};
use onefold_cdp::nbd::wire::{Errno, export_flag};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::client::Client;
use crate::fixture::{Fixture, wait_for};
use crate::memory::MemoryExport;
use crate::programs::{run, try_run};

const MIB: usize = 1 << 20;

/// Makes an authority `ca-cert.pem`, and certificates `server-cert.pem` and `client-cert.pem` by it.
fn certificates() -> TempDir {
    const SCRIPT: &str = "set -e; cd \"$1\"; new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $new -keyout ca-key.pem -out ca-cert.pem -days 30 -subj /CN=authority
        for name in server client; do
            openssl req $new -keyout $name-key.pem -out $name.csr -subj /CN=$name
            echo 'subjectAltName=DNS:localhost,IP:127.0.0.1' >extensions
            openssl x509 -req -in $name.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 30 \
                -extfile extensions -out $name-cert.pem
        done";
    let directory = TempDir::new().unwrap();
    run("sh", &["-c", SCRIPT, "script", directory.path().to_str().unwrap()]);
    directory
}

fn server(directory: &Path, with_clients: bool) -> Tls {
    let read = |name: &str| fs::read(directory.join(name)).unwrap();
    let (chain, key, authority) = (read("server-cert.pem"), read("server-key.pem"), read("ca-cert.pem"));
    let client_authorities = with_clients.then_some(&authority[..]);
    Tls::new(&Certificates { chain: &chain, key: &key, client_authorities }).unwrap()
}

fn fixture(tls: Tls) -> (Fixture, Arc<MemoryExport>) {
    let export = Arc::new(MemoryExport::new(8 * MIB));
    (Fixture::with(vec![("volume", export.clone())], Limits::default(), Some(tls)), export)
}

/// Starts TLS on a connection that has sent `STARTTLS`, with a certificate of the client or without.
fn encrypt(client: Client, directory: &Path, name: Option<&str>) -> Client<StreamOwned<ClientConnection, UnixStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(directory.join("ca-cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match name {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(directory.join(format!("{name}-cert.pem"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(directory.join(format!("{name}-key.pem"))).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    Client { stream: StreamOwned::new(session, client.stream), size: 0, flags: 0 }
}

#[test]
fn nothing_is_served_before_tls_has_started() {
    let directory = certificates();
    let (fixture, _) = fixture(server(directory.path(), false));
    let mut client = Client::connect(&fixture.socket());
    for option in (3..12).filter(|option| *option != code::STARTTLS) {
        assert_eq!(client.option(option, &[])[0].0, kind::ERR_TLS_REQD, "{option}");
    }
    assert_eq!(client.option(code::STARTTLS, &[1])[0].0, kind::ERR_INVALID, "malformed");
    client.send_option(code::EXPORT_NAME, b"volume");
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    let mut client = Client::connect(&fixture.socket());
    assert_eq!(client.option(code::ABORT, &[]), [(kind::ACK, Vec::new())]);
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn options_that_were_sent_in_plain_with_starttls_are_forgotten() {
    let directory = certificates();
    let (fixture, _) = fixture(server(directory.path(), false));
    let mut client = Client::connect(&fixture.socket());
    let option = |option| OptionHeader { option, len: 0 }.encode();
    let injected = [code::STARTTLS, code::STRUCTURED_REPLY, code::LIST].map(option).concat();
    client.stream.write_all(&injected).unwrap();
    let mut header = [0; option_reply::HEADER_BYTES];
    client.stream.read_exact(&mut header).unwrap();
    let expected = OptionReplyHeader { option: code::STARTTLS, kind: kind::ACK, len: 0 };
    assert_eq!(OptionReplyHeader::decode(&header), Ok(expected));
    let mut client = encrypt(client, directory.path(), None);
    let mut data = Vec::new();
    InfoRequest::encode(b"", &[], &mut data);
    // The replies are to this option: the client checks it.
    let answers = client.option(code::INFO, &data);
    assert_eq!(answers.len(), 2);
    assert_eq!(client.option(code::STARTTLS, &[])[0].0, kind::ERR_INVALID, "once only");
    client.go("").unwrap();
    assert_eq!(client.flags & export_flag::SEND_DF, 0, "structured replies were asked for in plain");
    client.write(0, 0, b"encrypted").unwrap();
}

#[test]
fn long_and_many_requests_pass_through_tls() {
    let directory = certificates();
    let (fixture, export) = fixture(server(directory.path(), false));
    let mut client = Client::connect(&fixture.socket());
    client.option(code::STARTTLS, &[]);
    let mut client = encrypt(client, directory.path(), None);
    client.option(code::STRUCTURED_REPLY, &[]);
    client.go("").unwrap();
    let data: Vec<u8> = (0..4 * MIB + 3).map(|at| (at % 253) as u8).collect();
    client.write(flag::FUA, 1, &data).unwrap();
    assert!(export.bytes.lock().unwrap()[1..=data.len()] == data);
    assert!(client.read(1, data.len() as u32).unwrap() == data);
    for cookie in 0..50 {
        client.send(Request { flags: 0, command: command::READ, cookie, offset: cookie, len: 1000 }, &[]);
    }
    for _ in 0..50 {
        let reply = client.reply();
        let start = reply.cookie as usize;
        let bytes = reply.outcome.unwrap().bytes(reply.cookie, 1000);
        assert!(bytes == export.bytes.lock().unwrap()[start..start + 1000]);
    }
    assert_eq!(client.read(u64::MAX, 1), Err(Errno::Invalid));
    client.send(Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, len: 0 }, &[]);
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "with the end of TLS, which the library demands");
    fixture.wait_until_idle();
    assert_eq!(fixture.messages()[..], [""; 0]);
}

#[test]
fn a_client_without_the_certificate_that_the_server_demands_is_refused() {
    let directory = certificates();
    let (fixture, _) = fixture(server(directory.path(), true));
    let start = |directory: &Path, name: Option<&str>| {
        let mut client = Client::connect(&fixture.socket());
        client.option(code::STARTTLS, &[]);
        let mut client = encrypt(client, directory, name);
        client.stream.write_all(&OptionHeader { option: code::LIST, len: 0 }.encode()).unwrap();
        client.stream.read(&mut [0; 20])
    };
    assert_eq!(start(directory.path(), Some("client")).unwrap(), 20);
    assert!(start(directory.path(), None).is_err());
    wait_for("the message", || fixture.messages().len() == 1);
    // A certificate of another authority; this server's one is trusted, so that the server is the one that refuses.
    let other = certificates();
    fs::copy(directory.path().join("ca-cert.pem"), other.path().join("ca-cert.pem")).unwrap();
    assert!(start(other.path(), Some("client")).is_err());
    wait_for("the message", || fixture.messages().len() == 2);
    assert!(fixture.messages().iter().all(|message| message.contains("connection closed")), "{:?}", fixture.messages());
}

#[test]
fn nonsense_instead_of_a_handshake_closes_the_connection() {
    let directory = certificates();
    let (fixture, _) = fixture(server(directory.path(), false));
    let mut client = Client::connect(&fixture.socket());
    client.option(code::STARTTLS, &[]);
    client.stream.write_all(&[0x20; 4000]).unwrap();
    let _ = client.stream.read_to_end(&mut Vec::new());
    fixture.wait_until_idle();
    assert_eq!(fixture.messages().len(), 1, "{:?}", fixture.messages());
}

#[test]
fn damaged_certificates_are_errors() {
    let directory = certificates();
    let read = |name: &str| fs::read(directory.path().join(name)).unwrap();
    let (chain, key, other) = (read("server-cert.pem"), read("server-key.pem"), read("client-key.pem"));
    for (chain, key, authorities) in
        [(&key, &key, None), (&chain, &chain, None), (&chain, &other, None), (&chain, &key, Some(&key[..]))]
    {
        assert!(Tls::new(&Certificates { chain, key, client_authorities: authorities }).is_err());
    }
}

#[test]
fn programs_connect_with_tls_over_the_network() {
    let directory = certificates();
    let (mut fixture, export) = fixture(server(directory.path(), true));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    fixture.server.listen(listener).unwrap();
    let uri = format!("nbds://localhost:{port}/volume?tls-certificates={}", directory.path().display());
    assert!(run("nbdinfo", &[&uri]).contains("protocol: newstyle-fixed with TLS, using structured packets"));
    let source = fixture.path("source");
    let data: Vec<u8> = (0..8 * MIB).map(|at| (at % 249) as u8).collect();
    fs::write(&source, &data).unwrap();
    run("nbdcopy", &["--connections=4", source.to_str().unwrap(), &uri]);
    assert!(*export.bytes.lock().unwrap() == data);
    let copy = fixture.path("copy");
    run("nbdcopy", &["--connections=4", &uri, copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == data);
    assert!(!try_run("nbdinfo", &[&format!("nbd://localhost:{port}/volume")]).0, "without TLS");
    fixture.wait_until_idle();
    assert_eq!(fixture.messages()[..], [""; 0]);
}
