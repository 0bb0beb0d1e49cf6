//! Indexes of several hosts whose entries are in a real cluster of Redis.

use std::collections::HashSet;

use onefold_backends::redis::RedisSpec;
use onefold_engine::identify::{Index, IndexState, Order, Schedule};
use onefold_engine::types::{ContainerId, RepositoryId};

use crate::redis_cluster::RedisCluster;
use crate::source::{BATCH_CHUNKS, Source, fingerprint, stream};

fn host(cluster: &RedisCluster) -> Source {
    let kind = RedisSpec::new(&cluster.url(), RepositoryId([1; 16]), 0).unwrap();
    let memory_bytes = kind.memory_bytes();
    let mut source = Source::new(kind, memory_bytes, Schedule::Lazy { threshold: 512 });
    // Chunks of other hosts are in no filter of this one.
    source.options.order = Order::Unfiltered;
    source
}

/// Takes what other hosts have recorded, and records the rest. Returns how many containers were taken, and how many recorded.
fn attach(source: &Source, index: &mut Index) -> (usize, usize) {
    let mut live: Vec<ContainerId> = source.containers.keys().copied().collect();
    live.sort_unstable();
    let missing: Vec<(ContainerId, u64)> = index.attach(&live).unwrap().into_iter().map(|id| (id, 1)).collect();
    let taken = index.take_shared(&missing).unwrap();
    let taken = taken.into_iter().filter(|taken| *taken).count();
    (taken, source.attach(index))
}

#[test]
fn two_hosts_store_each_chunk_once_and_read_no_directory_of_each_other() {
    let cluster = RedisCluster::start();
    let (mut first, mut second) = (host(&cluster), host(&cluster));
    for session in 0..4_u8 {
        let (own, other) = if session % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let (mut index, _) = own.open().unwrap();
        let (taken, recorded) = attach(own, &mut index);
        assert_eq!(recorded, 0);
        assert!((0 < taken) == (0 < session), "session {session}: {taken}");
        own.back_up(&mut index, session, &stream(session.into()), |_| {});
        assert_eq!((own.twice, index.degraded()), (0, None));
        index.close().unwrap();
        other.containers.clone_from(&own.containers);
        other.stored.clone_from(&own.stored);
    }
    let expected: HashSet<_> = (0..4).flat_map(stream).map(fingerprint).collect();
    assert_eq!(first.stored, expected);
}

#[test]
fn a_node_that_is_killed_costs_its_share_of_duplicates_and_a_sentence() {
    let mut cluster = RedisCluster::start();
    let mut source = host(&cluster);
    let (mut index, _) = source.open().unwrap();
    attach(&source, &mut index);
    source.back_up(&mut index, 0, &stream(0), |_| {});
    index.close().unwrap();
    let stored = source.stored.len();
    // The same chunks again, in the opposite order, while a node dies.
    let mut again = stream(0);
    again.reverse();
    let (mut index, _) = source.open().unwrap();
    attach(&source, &mut index);
    source.back_up(&mut index, 1, &again, |sequence| {
        if sequence == 4 * BATCH_CHUNKS {
            cluster.kill(1);
        }
    });
    assert!(0 < source.twice && source.twice < stored / 2, "{} of {stored}", source.twice);
    let reason = index.degraded().unwrap();
    assert!(reason.contains("redis://127.0.0.1"), "{reason}");
    assert!(index.close().is_ok(), "a degraded index keeps its last checkpoint");
    // Without the node a backup goes on, and marks nothing.
    let (mut index, _) = source.open().unwrap();
    attach(&source, &mut index);
    assert!(index.degraded().is_some());
    let twice = source.twice;
    source.back_up(&mut index, 2, &stream(0), |_| {});
    assert!(source.twice - twice < stored / 2);
    drop(index);
    // The node comes back empty. All hosts record everything again, and nothing is stored twice from then on.
    cluster.restart(1);
    let (mut index, state) = source.open().unwrap();
    assert!(matches!(&state, IndexState::Rebuilt(reason) if reason.contains("another state")), "{state:?}");
    assert_eq!(attach(&source, &mut index), (0, source.containers.len()));
    let twice = source.twice;
    source.back_up(&mut index, 3, &stream(0), |_| {});
    assert_eq!((source.twice, index.degraded()), (twice, None));
    index.close().unwrap();
    let mut other = host(&cluster);
    other.containers.clone_from(&source.containers);
    let (mut index, _) = other.open().unwrap();
    assert_eq!(attach(&other, &mut index), (source.containers.len(), 0));
}

#[test]
fn a_node_that_comes_back_as_it_was_before_is_noticed_by_the_host_that_entered_more() {
    let mut cluster = RedisCluster::start();
    let (mut source, mut other) = (host(&cluster), host(&cluster));
    for session in 0..2_u8 {
        let (mut index, _) = source.open().unwrap();
        attach(&source, &mut index);
        source.back_up(&mut index, session, &stream(session.into()), |_| {});
        index.close().unwrap();
        if session == 0 {
            cluster.dump(1);
        }
    }
    other.containers.clone_from(&source.containers);
    let (mut index, _) = other.open().unwrap();
    assert_eq!(attach(&other, &mut index), (source.containers.len(), 0));
    index.close().unwrap();
    cluster.kill(1);
    cluster.restart(1);
    let (mut index, state) = source.open().unwrap();
    assert!(matches!(&state, IndexState::Rebuilt(reason) if reason.contains("newer")), "{state:?}");
    // The marks of before prove nothing, also not to other hosts.
    assert_eq!(attach(&source, &mut index), (0, source.containers.len()));
    source.back_up(&mut index, 2, &[stream(0), stream(1)].concat(), |_| {});
    assert_eq!((source.twice, index.degraded()), (0, None));
    index.close().unwrap();
    let (mut index, state) = other.open().unwrap();
    assert!(matches!(&state, IndexState::Rebuilt(reason) if reason.contains("another state")), "{state:?}");
    assert_eq!(attach(&other, &mut index), (source.containers.len(), 0));
}

#[test]
fn a_cluster_that_is_away_is_an_error_at_the_start() {
    let mut cluster = RedisCluster::start();
    (0..3).for_each(|node| cluster.kill(node));
    let error = host(&cluster).open().map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("redis://127.0.0.1"), "{error}");
}
