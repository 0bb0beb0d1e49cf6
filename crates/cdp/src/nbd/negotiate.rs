//! The first phase of a connection, in which client and server agree on an export ("Handshake").

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use super::catalog::{Catalog, Entry, Slot};
use super::export::Context;
use super::input::{Input, Received};
use super::transport::Transport;
use super::wire::option::{self, ContextRequest, InfoRequest, OptionHeader, OptionRequest};
use super::wire::option_reply::{self, OptionReply, info, kind};
use super::wire::{self, Malformed, NAME_BYTES_MAX, handshake_flag};

/// Longest negotiation.
pub const NEGOTIATION_TIME_MAX: Duration = Duration::from_mins(1);

/// Most options of one negotiation.
pub const OPTIONS_MAX: usize = 1000;

/// Most bytes of replies that wait until the client has got them.
const REPLIES_BYTES_MAX: usize = 64 << 10;

/// The reason why a connection ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client violates the protocol.
    Malformed(Malformed),
    /// The connection fails.
    Io(io::Error),
    /// The server refuses to go on.
    Refused(String),
}

impl Failure {
    /// Returns true if the client just went away, as clients do.
    pub(crate) fn is_departure(&self) -> bool {
        let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        matches!(self, Self::Io(error) if kinds.contains(&error.kind()))
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => write!(f, "the client sent {malformed}"),
            Self::Io(error) if error.kind() == io::ErrorKind::TimedOut => f.write_str("the client took too long"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Refused(reason) => f.write_str(reason),
        }
    }
}

/// Something that turns a stream into an encrypted one.
pub(crate) trait StartTls: fmt::Debug + Send + Sync {
    /// Does the server's part of the handshake of TLS.
    fn start(&self, below: Box<dyn Transport>) -> io::Result<Box<dyn Transport>>;
}

/// A connection that is ready for requests.
#[derive(Debug)]
pub(crate) struct Negotiated {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) slot: Slot,
    pub(crate) is_structured: bool,
    /// Selected metadata contexts, in the order of [`Context::ALL`].
    pub(crate) contexts: [bool; 2],
}

/// Negotiates with a client; none if the client ends the negotiation.
pub(crate) fn negotiate(
    transport: Box<dyn Transport>,
    input: &mut Input,
    catalog: &Catalog,
    tls: Option<&dyn StartTls>,
) -> Result<Option<Negotiated>, Failure> {
    input.set_limit(&*transport, Some(NEGOTIATION_TIME_MAX))?;
    let negotiation = Negotiation {
        transport,
        input,
        catalog,
        tls,
        is_encrypted: false,
        sends_zeroes: true,
        is_structured: false,
        selected: None,
        replies: Vec::new(),
    };
    negotiation.run()
}

/// Metadata contexts that a client has selected.
struct Selected {
    entry: Arc<Entry>,
    contexts: [bool; 2],
}

/// Next step after an option.
enum Next {
    Option,
    StartTls,
    Transmission(Slot),
    End,
}

struct Negotiation<'a> {
    transport: Box<dyn Transport>,
    input: &'a mut Input,
    catalog: &'a Catalog,
    tls: Option<&'a dyn StartTls>,
    is_encrypted: bool,
    /// The reply to `EXPORT_NAME` ends with zeros.
    sends_zeroes: bool,
    is_structured: bool,
    selected: Option<Selected>,
    /// Replies to the current option.
    replies: Vec<u8>,
}

impl Negotiation<'_> {
    fn run(mut self) -> Result<Option<Negotiated>, Failure> {
        self.replies.extend(wire::encode_greeting(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES));
        self.send()?;
        let mut flags = [0; 4];
        if !self.read(&mut flags)? {
            return Ok(None);
        }
        let flags = wire::decode_client_flags(flags)?;
        self.sends_zeroes = flags & handshake_flag::NO_ZEROES == 0;
        let mut data = Vec::new();
        for _ in 0..OPTIONS_MAX {
            let mut header = [0; option::HEADER_BYTES];
            if !self.read(&mut header)? {
                return Ok(None);
            }
            let header = OptionHeader::decode(&header)?;
            data.resize(header.len as usize, 0);
            if !data.is_empty() && !self.read(&mut data)? {
                return Ok(None);
            }
            let next = self.answer(header.option, &data)?;
            self.send()?;
            match next {
                Next::Option => {}
                Next::StartTls => self = self.start_tls()?,
                Next::Transmission(slot) => return self.finish(slot).map(Some),
                Next::End => {
                    self.transport.end();
                    return Ok(None);
                }
            }
        }
        Err(Failure::Refused(format!("the client sent more than {OPTIONS_MAX} options")))
    }

    /// Fills `into`; false if the client has ended the stream.
    fn read(&mut self, into: &mut [u8]) -> Result<bool, Failure> {
        Ok(self.input.read(&*self.transport, into)? == Received::All)
    }

    fn send(&mut self) -> io::Result<()> {
        self.transport.send(&mut [IoSlice::new(&self.replies)])?;
        self.replies.clear();
        Ok(())
    }

    fn finish(self, slot: Slot) -> Result<Negotiated, Failure> {
        self.input.set_limit(&*self.transport, None)?;
        // Contexts of another export mean nothing ("SET_META_CONTEXT").
        let contexts = match self.selected {
            Some(selected) if Arc::ptr_eq(&selected.entry, slot.entry()) => selected.contexts,
            _ => [false; 2],
        };
        Ok(Negotiated { transport: self.transport, slot, is_structured: self.is_structured, contexts })
    }

    /// Encrypts the rest of the negotiation. An attacker between client and server can insert options before TLS starts:
    /// nothing that was received or agreed before counts.
    fn start_tls(self) -> io::Result<Self> {
        let tls = self.tls.expect("STARTTLS was acknowledged");
        self.input.discard();
        let transport = tls.start(self.transport)?;
        Ok(Self { transport, is_encrypted: true, is_structured: false, selected: None, ..self })
    }

    /// Answers an option.
    fn answer(&mut self, option: u32, data: &[u8]) -> Result<Next, Failure> {
        let decoded = OptionRequest::decode(option, data);
        // "FORCEDTLS mode"
        if self.tls.is_some() && !self.is_encrypted {
            match decoded {
                Ok(OptionRequest::StartTls | OptionRequest::Abort) => {}
                Err(_) if option == option::code::STARTTLS => {}
                _ if option == option::code::EXPORT_NAME => {
                    return Err(Failure::Refused(String::from("the client wants to go on without TLS")));
                }
                _ => return Ok(self.refuse(option, kind::ERR_TLS_REQD, "TLS is required")),
            }
        }
        let request = match decoded {
            Ok(request) => request,
            // "EXPORT_NAME" has no reply for errors.
            Err(malformed) if option == option::code::EXPORT_NAME => return Err(malformed.into()),
            Err(malformed) => return Ok(self.refuse(option, kind::ERR_INVALID, malformed.what)),
        };
        match request {
            OptionRequest::ExportName(name) => return self.export_name(name),
            OptionRequest::Abort => {
                OptionReply::Ack.encode(option, &mut self.replies);
                return Ok(Next::End);
            }
            OptionRequest::StartTls => return Ok(self.accept_tls(option)),
            OptionRequest::List => {
                for entry in self.catalog.entries() {
                    let (name, description) = (entry.named.name.as_bytes(), entry.named.description.as_bytes());
                    OptionReply::Server { name, description }.encode(option, &mut self.replies);
                    self.send_some()?;
                }
            }
            OptionRequest::Info(request) | OptionRequest::Go(request) => return Ok(self.info(option, &request)),
            OptionRequest::StructuredReply => self.is_structured = true,
            OptionRequest::ListMetaContext(request) | OptionRequest::SetMetaContext(request) => {
                return Ok(self.contexts(option, &request));
            }
            OptionRequest::Unknown => return Ok(self.refuse(option, kind::ERR_UNSUP, "unknown option")),
        }
        OptionReply::Ack.encode(option, &mut self.replies);
        Ok(Next::Option)
    }

    /// Sends the replies so far if they are long.
    fn send_some(&mut self) -> io::Result<()> {
        if REPLIES_BYTES_MAX <= self.replies.len() { self.send() } else { Ok(()) }
    }

    fn refuse(&mut self, option: u32, kind: u32, message: &str) -> Next {
        OptionReply::Error { kind, message: message.as_bytes() }.encode(option, &mut self.replies);
        Next::Option
    }

    fn accept_tls(&mut self, option: u32) -> Next {
        if self.tls.is_none() {
            return self.refuse(option, kind::ERR_POLICY, "the server has no certificate");
        }
        if self.is_encrypted {
            return self.refuse(option, kind::ERR_INVALID, "TLS has started");
        }
        OptionReply::Ack.encode(option, &mut self.replies);
        Next::StartTls
    }

    fn export_name(&mut self, name: &[u8]) -> Result<Next, Failure> {
        let Some(entry) = self.catalog.find(name) else {
            return Err(Failure::Refused(format!("the client wants {}, which does not exist", shown(name))));
        };
        let Some(slot) = self.catalog.connect(entry) else {
            return Err(Failure::Refused(self.too_many()));
        };
        let (size, flags) = (entry.named.export.size(), entry.flags(self.is_structured));
        self.replies.extend(option_reply::encode_export_name_reply(size, flags));
        if self.sends_zeroes {
            self.replies.extend([0; option_reply::EXPORT_NAME_ZEROES]);
        }
        Ok(Next::Transmission(slot))
    }

    fn too_many(&self) -> String {
        format!("there are {} connections to this export already", self.catalog.limit())
    }

    /// Answers `INFO` and `GO`.
    fn info(&mut self, option: u32, request: &InfoRequest<'_>) -> Next {
        let Some(entry) = self.catalog.find(request.name) else {
            return self.refuse(option, kind::ERR_UNKNOWN, "there is no such export");
        };
        let mut next = Next::Option;
        if option == option::code::GO {
            match self.catalog.connect(entry) {
                Some(slot) => next = Next::Transmission(slot),
                None => return self.refuse(option, kind::ERR_POLICY, &self.too_many()),
            }
        }
        let export = &entry.named.export;
        let (size, flags) = (export.size(), entry.flags(self.is_structured));
        OptionReply::Export { size, flags }.encode(option, &mut self.replies);
        let wants = |wanted| request.wanted().any(|info| info == wanted);
        if wants(info::NAME) {
            OptionReply::Name(entry.named.name.as_bytes()).encode(option, &mut self.replies);
        }
        if wants(info::DESCRIPTION) {
            OptionReply::Description(entry.named.description.as_bytes()).encode(option, &mut self.replies);
        }
        if wants(info::BLOCK_SIZE) {
            let sizes = export.block_sizes();
            let (minimum, preferred, maximum) = (sizes.minimum, sizes.preferred, sizes.maximum);
            OptionReply::BlockSize { minimum, preferred, maximum }.encode(option, &mut self.replies);
        }
        OptionReply::Ack.encode(option, &mut self.replies);
        next
    }

    /// Answers `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
    fn contexts(&mut self, option: u32, request: &ContextRequest<'_>) -> Next {
        if !self.is_structured {
            return self.refuse(option, kind::ERR_INVALID, "metadata contexts need structured replies");
        }
        let is_set = option == option::code::SET_META_CONTEXT;
        if is_set {
            self.selected = None;
        }
        let Some(entry) = self.catalog.find(request.name) else {
            return self.refuse(option, kind::ERR_UNKNOWN, "there is no such export");
        };
        let mut contexts = [false; 2];
        for (context, is_selected) in Context::ALL.into_iter().zip(&mut contexts) {
            let name = context.name();
            let is_wanted = request.queries().any(|query| matches(query, name, is_set));
            if entry.has_context(context) && (is_wanted || (!is_set && request.count == 0)) {
                *is_selected = true;
                // "LIST_META_CONTEXT": numbers are assigned by a selection only.
                let id = if is_set { context.id() } else { 0 };
                OptionReply::MetaContext { id, name: name.as_bytes() }.encode(option, &mut self.replies);
            }
        }
        if is_set {
            self.selected = Some(Selected { entry: Arc::clone(entry), contexts });
        }
        OptionReply::Ack.encode(option, &mut self.replies);
        Next::Option
    }
}

/// Returns true if a query names the context; a list also answers queries for a namespace, such as `base:`.
fn matches(query: &[u8], name: &str, is_set: bool) -> bool {
    let namespace = &name[..=name.find(':').expect("names have a namespace")];
    query == name.as_bytes() || (!is_set && query == namespace.as_bytes())
}

/// Shows a name of the client in a message.
fn shown(name: &[u8]) -> String {
    let name = &name[..name.len().min(NAME_BYTES_MAX)];
    format!("the export \"{}\"", name.escape_ascii())
}
