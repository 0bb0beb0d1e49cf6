//! The same bytes come out however stages are run.

use onefold_engine::backup::Budget;
use onefold_engine::identify::Schedule;
use onefold_engine::pipeline::Driver;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::testing::sim::SimHost;
use onefold_engine::types::Fingerprint;

use crate::integration::support::{Ask, OpenContainer, SMALL, World, change, containers, copy, noise, tree};

/// Seeds of the inline driver's order.
const SEEDS: u64 = if cfg!(feature = "slow") { 12 } else { 3 };

/// A driver by its name.
type Named = (String, Box<dyn Fn() -> Driver>);

fn drivers() -> Vec<Named> {
    let inline = (0..SEEDS).map(|seed| {
        (format!("inline, seed {seed}"), Box::new(move || Driver::inline(seed)) as Box<dyn Fn() -> Driver>)
    });
    let threaded = [1, 2, 5].map(|threads| {
        (format!("{threads} threads"), Box::new(move || Driver::threads(threads)) as Box<dyn Fn() -> Driver>)
    });
    inline.chain(threaded).collect()
}

fn budgets() -> [(&'static str, Budget); 5] {
    let usual = Ask::default().budget;
    let tiny = Budget {
        blocks_in_flight: 1,
        cut_ahead: 1,
        regions_in_flight: 1,
        containers_sealing: 1,
        containers_writing: 1,
        barrier_containers: 1,
        pending_bytes: 2000,
        references_in_flight: 8,
        walk_shares: 1,
        ..usual
    };
    [
        ("usual", usual),
        ("tiny", tiny),
        ("cut ahead, chunks copied by workers", Budget { cut_ahead: 3, ..usual }),
        ("a barrier after each container", Budget { barrier_containers: 1, ..usual }),
        ("few pending bytes", Budget { pending_bytes: 700, references_in_flight: 50, ..usual }),
    ]
}

/// A source of several blocks and many files, with a file that fills more than one block.
fn sources() -> [MemTree; 2] {
    let first = tree(if cfg!(feature = "slow") { 60 } else { 24 });
    first.put_file("/d/large".as_ref(), &noise(77, 2_400_000));
    let second = copy(&first);
    change(&second);
    let mut large = noise(77, 2_400_000);
    large.splice(1_000_000..1_000_000, noise(78, 999));
    second.put_file("/d/large".as_ref(), &large);
    [first, second]
}

#[test]
fn every_driver_packs_the_same_containers_and_the_same_trees() {
    let sources = sources();
    let empty = World::new(3);
    empty.create(SMALL).unwrap();
    let mut trees: Option<Vec<Fingerprint>> = None;
    for schedule in [Schedule::Eager, Schedule::Lazy { threshold: 7 }, Schedule::Lazy { threshold: 32 }] {
        for (budget_name, budget) in budgets() {
            let mut expected: Option<Vec<OpenContainer>> = None;
            for (name, driver) in drivers() {
                let case = format!("{name}, {schedule:?}, budget {budget_name}");
                // The same randomness gives sessions the same ids, so that containers can be compared to the byte.
                let world = World::with(empty.disk.fork(), SimHost::new(4));
                let store = world.open().unwrap();
                let built: Vec<Fingerprint> = sources
                    .iter()
                    .map(|source| {
                        let filter_bytes = Some(1 << 10);
                        let ask = Ask {
                            driver: driver(),
                            schedule,
                            budget,
                            filter_bytes,
                            with_parent: true,
                            ..Ask::default()
                        };
                        world.backup(&store, source, &ask).unwrap().report.snapshot.tree
                    })
                    .collect();
                // Neither driver, schedule nor budget shows in a tree.
                assert_eq!(trees.get_or_insert_with(|| built.clone()), &built, "{case}");
                let packed = containers(&store);
                let Some(expected) = &expected else {
                    assert!(packed.len() > 30, "{case}: {} containers", packed.len());
                    expected = Some(packed);
                    continue;
                };
                assert_eq!(expected.len(), packed.len(), "{case}");
                for (expected, packed) in expected.iter().zip(&packed) {
                    assert_eq!(expected.name.id.ordinal, packed.name.id.ordinal, "{case}");
                    assert!(expected == packed, "{case}: container {} differs", packed.name.id.ordinal);
                }
            }
        }
    }
}
