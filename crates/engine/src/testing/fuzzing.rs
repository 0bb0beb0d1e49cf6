//! Entry points for fuzzing: every decoder of the format, as a function of bytes.
//!
//! The fuzz targets in `fuzz/` and the replay of their corpus on stable Rust call the same functions. Each must return
//! for any input, without a panic and with memory in proportion to the input. What it decodes it encodes again, and
//! panics where that loses anything: such a panic is a bug here, never the input's.
//!
//! Keys and repository are those of the test vectors in `docs/format.md`, so that the vectors are valid inputs.

use std::path::Path;
use std::sync::Arc;

use crate::codec::{Decoded, Reader};
use crate::compress::{Algorithm, Compressor};
use crate::container::directory::{Directory, Form, Side};
use crate::container::reader::{ContainerReader, inspect};
use crate::container::seal::region_aad;
use crate::container::trailer::Trailer;
use crate::crypto::{Domain, Keys, MasterKey, ObjectKey, TAG_LEN};
use crate::io::Disk;
use crate::kv::sealed::{Seal, SealedReader, SealedWriter};
use crate::object::header::{HEADER_LEN, Header, ObjectType};
use crate::object::names::{ContainerKind, ContainerName, ObjectName};
use crate::object::slot::{decode_slot, encode_slot};
use crate::object::{Config, FormatVersion, open_small};
use crate::recipe::{HintTable, decode_hints, decode_segment};
use crate::similarity::index::Sampling;
use crate::similarity::saved::{SimilarRegions, SimilarRegionsLimits};
use crate::snapshot::collection::CollectionBody;
use crate::snapshot::format::decode_commit;
use crate::snapshot::{CommitBody, ManifestEncoder, SessionBody, decode_manifest};
use crate::testing::sim::SimDisk;
use crate::tree::format::{TreeNode, decode_node};
use crate::types::{ContainerId, RegionId, RepositoryId, SessionId};

/// A function to be called with arbitrary bytes.
pub type Target = fn(&[u8]);

/// All targets by name. A name is also that of the fuzz target and of the directory of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("config", config),
    ("slot", slot),
    ("header", header),
    ("small_object", small_object),
    ("directory", directory),
    ("trailer", trailer),
    ("container", container),
    ("container_parts", container_parts),
    ("region", region),
    ("recipe", recipe),
    ("hints", hints),
    ("tree_node", tree_node),
    ("commit", commit),
    ("session", session),
    ("collection", collection),
    ("manifest", manifest),
    ("names", names),
    ("similar_regions", similar_regions),
];

/// Longest plaintext of a region that the targets accept, so that memory stays in proportion.
pub const REGION_BYTES_LIMIT: u32 = 64 << 10;
const OBJECT: &str = "fuzzed";

/// Runs a target by name; false if there is none.
pub fn run(target: &str, bytes: &[u8]) -> bool {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    found.map(|(_, function)| function(bytes)).is_some()
}

fn repository() -> RepositoryId {
    RepositoryId(u128::to_be_bytes(0x2021_2223_2425_2627_2829_2a2b_2c2d_2e2f))
}

fn session_id() -> SessionId {
    SessionId(u128::to_be_bytes(0x3031_3233_3435_3637_3839_3a3b_3c3d_3e3f))
}

fn keys() -> Keys {
    let mut master = MasterKey([0; 32]);
    master.0.iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
    Keys::derive(&master, repository())
}

fn config(bytes: &[u8]) {
    if let Ok(config) = Config::decode(OBJECT, bytes) {
        let keys = keys();
        let again = config.encode(&keys);
        // The MAC and the checksum over it are the input's own; the fields before them must come back.
        assert!(again.iter().zip(bytes).take(160).all(|(again, byte)| again == byte), "a config comes back");
        let _either = Config::authenticate(OBJECT, bytes, &keys);
    }
}

fn slot(bytes: &[u8]) {
    if let Ok((repository, slot)) = decode_slot(OBJECT, bytes) {
        assert_eq!(encode_slot(repository, &slot), bytes);
    }
}

fn header(bytes: &[u8]) {
    if let Ok(header) = Header::decode(OBJECT, bytes) {
        assert!(bytes.starts_with(&header.encode()), "a header comes back");
        let _either = header.key(OBJECT, &keys());
    }
}

fn small_object(bytes: &[u8]) {
    let keys = keys();
    for object_type in
        [ObjectType::Session, ObjectType::Commit, ObjectType::Forget, ObjectType::Collection, ObjectType::Manifest]
    {
        let _either = open_small(&keys, OBJECT, object_type, (repository(), None), bytes.to_vec());
    }
}

fn form_of(code: u8) -> Form {
    let format = if code & 4 == 0 { FormatVersion::V1 } else { FormatVersion::V2 };
    let kind = if code & 1 == 0 { ContainerKind::Data } else { ContainerKind::Metadata };
    Form { format, kind, side: if code & 2 == 0 { Side::Front } else { Side::Back } }
}

/// A byte for format, kind and side, then the plaintext.
fn directory(bytes: &[u8]) {
    let Some((&code, bytes)) = bytes.split_first() else { return };
    let form = form_of(code);
    if let Ok(directory) = Directory::decode(bytes, form, REGION_BYTES_LIMIT) {
        assert_eq!(directory.encode(form), bytes);
    }
}

const SIMILAR_LIMITS: SimilarRegionsLimits = SimilarRegionsLimits { sampling: Sampling::one_in(1), bytes: 8 << 10 };

/// The index of similar regions of a host, without its checksum.
fn similar_regions(bytes: &[u8]) {
    let file = SimDisk::new().create(Path::new(OBJECT)).expect("a new disk");
    file.write_at(0, bytes).expect("a disk without faults");
    let seal = Seal { len: bytes.len() as u64, checksum: blake3::hash(bytes).into() };
    let mut reader = SealedReader::front_of(file, OBJECT.into(), seal);
    if let Ok(regions) = SimilarRegions::read(&mut reader, OBJECT, repository(), SIMILAR_LIMITS) {
        regions.regions.all().for_each(|number| assert!(regions.regions.id(number).is_some()));
        let again = written(&regions);
        let file = SimDisk::new().create(Path::new(OBJECT)).expect("a new disk");
        file.write_at(0, &again).expect("a disk without faults");
        let seal = Seal { len: again.len() as u64, checksum: blake3::hash(&again).into() };
        let mut reader = SealedReader::front_of(file, OBJECT.into(), seal);
        let read = SimilarRegions::read(&mut reader, OBJECT, repository(), SIMILAR_LIMITS).expect("what was written");
        assert_eq!(written(&read), again, "an index comes back");
    }
}

fn written(regions: &SimilarRegions) -> Vec<u8> {
    let file = SimDisk::new().create(Path::new(OBJECT)).expect("a new disk");
    let mut writer = SealedWriter::create(Arc::clone(&file)).expect("a disk without faults");
    regions.write(&mut writer, repository()).expect("a disk without faults");
    let Seal { len, .. } = writer.finish().expect("a disk without faults");
    let mut bytes = vec![0; usize::try_from(len).expect("a short file")];
    file.read_at(0, &mut bytes).expect("a disk without faults");
    bytes
}

/// Returns an index of some regions, as a host keeps it without the checksum.
pub fn an_index_of_similar_regions() -> Vec<u8> {
    let mut similar = SimilarRegions::new(SIMILAR_LIMITS);
    let mut last = Vec::new();
    for ordinal in 0..3 {
        let container = ContainerId { session: session_id(), ordinal };
        let id = RegionId { container, region: ordinal + 1 };
        let depth = u8::try_from(ordinal).unwrap_or(0);
        let number = similar.regions.enter(id, 9000, (&last, depth)).expect("an empty index");
        similar.anchors.enter(number, &[u64::from(ordinal) << 40, 7 << 50]);
        similar.taken.insert(container);
        last.push(number);
    }
    written(&similar)
}

fn trailer(bytes: &[u8]) {
    if let Ok(trailer) = Trailer::decode(bytes) {
        let (again, _) = trailer.encode(&blake3::Hasher::new());
        assert!(again.iter().zip(bytes).take(24).all(|(again, byte)| again == byte), "a trailer comes back");
    }
}

/// A whole container, under the name that its header gives it.
fn container(bytes: &[u8]) {
    let Ok(header) = Header::decode(OBJECT, bytes) else { return };
    let kind = match header.object_type {
        ObjectType::DataContainer => ContainerKind::Data,
        _ => ContainerKind::Metadata,
    };
    let id = ContainerId { session: header.session, ordinal: header.ordinal };
    read_container(ContainerName { id, kind, checksum: [0; 32] }, bytes);
}

/// The plaintext of a container's parts, to be sealed here: what a holder of the keys could have written. A byte for
/// format and kind; the front and the back directory with a 16-bit length each; four numbers of the trailer; the regions.
fn container_parts(bytes: &[u8]) {
    let Ok(parts) = Parts::decode(bytes) else { return };
    let id = ContainerId { session: session_id(), ordinal: 3 };
    read_container(ContainerName { id, kind: parts.form.kind, checksum: [0; 32] }, &parts.seal(id));
}

struct Parts<'a> {
    /// Of the front directory.
    form: Form,
    front: &'a [u8],
    back: &'a [u8],
    trailer: Trailer,
    regions: Reader<'a>,
}

impl<'a> Parts<'a> {
    fn decode(bytes: &'a [u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let form = Form { side: Side::Front, ..form_of(reader.u8()?) };
        let front_len = reader.u16()?;
        let front = reader.bytes(front_len.into())?;
        let back_len = reader.u16()?;
        let back = reader.bytes(back_len.into())?;
        let trailer = Trailer {
            front_len: reader.u32()?,
            back_offset: reader.u32()?,
            back_len: reader.u32()?,
            regions_len: reader.u32()?,
        };
        Ok(Self { form, front, back, trailer, regions: reader })
    }

    fn seal(self, id: ContainerId) -> Vec<u8> {
        let Parts { form, front, back, trailer, mut regions } = self;
        let object_type = match form.kind {
            ContainerKind::Data => ObjectType::DataContainer,
            ContainerKind::Metadata => ObjectType::MetadataContainer,
        };
        let salt = [7; 32];
        let key = ObjectKey::derive(&keys(), object_type.purpose(), &salt, repository(), object_type.code());
        let header = Header {
            format: form.format,
            object_type,
            repository: repository(),
            session: id.session,
            ordinal: id.ordinal,
            key_epoch: 0,
            salt,
            commitment: *key.commitment(),
            sealed_len: crate::codec::len_u32(front.len() + TAG_LEN),
        };
        let header = header.encode();
        let mut out = [&header[..], front].concat();
        key.seal(Domain::FrontDirectory, 0, &header, &mut out, HEADER_LEN);
        let directory = Directory::decode(front, form, REGION_BYTES_LIMIT).unwrap_or_default();
        for (counter, entry) in (0..).zip(&directory.regions) {
            let start = out.len();
            let stored_len = (entry.sealed_len as usize).saturating_sub(TAG_LEN);
            let Ok(stored) = regions.bytes(stored_len) else { break };
            out.extend_from_slice(stored);
            key.seal(Domain::Region, counter, &region_aad(form.format, &header, entry), &mut out, start);
        }
        let start = out.len();
        out.extend_from_slice(back);
        key.seal(Domain::BackDirectory, 0, &header, &mut out, start);
        let (trailer, _) = trailer.encode(blake3::Hasher::new().update(&out));
        out.extend_from_slice(&trailer);
        out
    }
}

const PREFIX: &[u8] = b"onefold stores everything once";

fn read_container(name: ContainerName, bytes: &[u8]) {
    let ends = (bytes.len() as u64, bytes, bytes);
    let Ok(whole) = inspect(&keys(), repository(), name, REGION_BYTES_LIMIT, ends) else { return };
    let reader = whole.reader;
    let (mut compressor, mut plain) = (Compressor::default(), Vec::new());
    for number in 0..crate::codec::len_u32(reader.directory.regions.len()) {
        let Some(mut sealed) = sealed_region(&reader, number, bytes) else { continue };
        // Bases that another container would hold.
        if reader.open_region(number, PREFIX, &mut sealed, &mut compressor, &mut plain).is_err() {
            continue;
        }
        for chunk in reader.chunks_of(number) {
            let position = reader.position(chunk).expect("chunks of a region have a place");
            let (start, len) = (position.offset as usize, position.len as usize);
            assert!(plain.get(start..start + len).is_some(), "a region holds the chunks that its directory lists");
        }
    }
    for chunk in reader.directory.chunks.iter().take(16) {
        if let Some(fingerprint) = chunk.fingerprint {
            assert!(reader.find(&fingerprint).is_some(), "chunks are found by name");
        }
    }
}

fn sealed_region(reader: &ContainerReader, number: u32, bytes: &[u8]) -> Option<Vec<u8>> {
    let (offset, len) = reader.region_range(number)?;
    let offset = usize::try_from(offset).ok()?;
    Some(bytes.get(offset..offset.checked_add(len as usize)?)?.to_vec())
}

/// A byte for the compression, two for the length, then the stored bytes.
fn region(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let (Ok(code), Ok(len)) = (reader.u8(), reader.u16()) else { return };
    let Some(algorithm) = Algorithm::from_code(code % 4) else { return };
    let stored = reader.bytes(reader.remaining()).unwrap_or_default();
    let (mut compressor, mut plain) = (Compressor::default(), Vec::new());
    let is_whole = match algorithm {
        Algorithm::ZstdBased => compressor.decompress_against(PREFIX, stored, len.into(), &mut plain),
        algorithm => compressor.decompress(algorithm, stored, len.into(), &mut plain),
    };
    if is_whole {
        assert_eq!(plain.len(), usize::from(len));
    }
}

fn recipe(bytes: &[u8]) {
    if let Ok(recipe) = decode_segment(bytes) {
        let mut again = Vec::new();
        recipe.encode(&mut again);
        assert_eq!(again, bytes);
        assert!(recipe.chunk_count() <= recipe.items.len());
    }
}

/// Two bytes for the number of references, then the hints.
fn hints(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    // A caller has decoded the references themselves, 33 bytes each: their number is in proportion to its input.
    let Ok(references) = reader.u16().map(|references| references % 4096) else { return };
    let encoded = reader.bytes(reader.remaining()).unwrap_or_default();
    if let Ok(hints) = decode_hints(encoded, references.into()) {
        let (mut table, mut again) = (HintTable::default(), Vec::new());
        table.extend(hints.iter().copied());
        table.encode(&mut again);
        assert_eq!(decode_hints(&again, references.into()), Ok(hints));
    }
}

fn tree_node(bytes: &[u8]) {
    let Ok(node) = decode_node(bytes) else { return };
    let _bounded = node.chunk_count();
    if let TreeNode::Entries(entries) = &node {
        let mut again = vec![0];
        crate::codec::put_varint(&mut again, entries.len() as u64);
        for entry in entries {
            entry.encode(&mut again);
            let _bounded = (entry.size(), entry.metadata());
        }
        assert_eq!(decode_node(&again).as_ref(), Ok(&node));
    }
}

fn commit(bytes: &[u8]) {
    if let Ok(body) = decode_commit(bytes) {
        let again: Decoded<CommitBody> = decode_commit(&body.encode());
        assert_eq!(again, Ok(body));
    }
}

fn session(bytes: &[u8]) {
    if let Ok(body) = SessionBody::decode(bytes) {
        assert_eq!(SessionBody::decode(&body.encode()), Ok(body));
    }
}

fn collection(bytes: &[u8]) {
    if let Ok(body) = CollectionBody::decode(bytes) {
        assert_eq!(CollectionBody::decode(&body.encode()), Ok(body));
    }
}

fn manifest(bytes: &[u8]) {
    let mut containers = Vec::new();
    if decode_manifest(bytes, &mut |id, share| containers.push((id, share))).is_ok() {
        let mut encoder = ManifestEncoder::new();
        for (id, share) in &containers {
            encoder.push(*id, *share);
        }
        let body = encoder.finish().expect("a manifest is not longer when it is encoded again").split_off(HEADER_LEN);
        let mut again = Vec::new();
        decode_manifest(&body, &mut |id, share| again.push((id, share))).expect("an encoded manifest is decoded");
        assert_eq!(again, containers);
    }
}

/// A name of an object, or in a directory of a session's containers.
fn names(bytes: &[u8]) {
    let Ok(name) = std::str::from_utf8(bytes) else { return };
    if let Some(object) = ObjectName::parse(name) {
        assert_eq!(object.to_string(), name, "a name comes back");
    }
    if let Some(container) = ContainerName::parse(session_id(), name) {
        assert!(container.path().ends_with(name), "a name comes back");
    }
}
