//! What flushes cost, and what becomes durable without them.

use super::*;

#[test]
fn records_become_durable_without_a_flush() {
    let disk = world();
    let host = Arc::new(SimHost::new(1));
    let group = open_on(&disk, Arc::clone(&host) as Arc<dyn Host>, OPTIONS, origins(&disk).unwrap()).unwrap().0;
    let volume = ProtectedVolume::new(Arc::clone(&group), 0);
    volume.write(USED.start, &[1; 100], Fua::No).unwrap();
    group.maintain().unwrap();
    assert_eq!(group.journal().status().durable, Lsn(1));
    host.sleep(UNSYNCED_AGE);
    group.maintain().unwrap();
    assert_eq!(group.journal().status().durable, Lsn(2));
    let calls = disk.calls();
    host.sleep(UNSYNCED_AGE);
    group.maintain().unwrap();
    assert_eq!(disk.calls(), calls, "there is nothing to sync");
    let image = disk.crash(CrashMode::LoseUnsynced);
    assert_eq!(open(&image, 2, Durability::Both).unwrap().1.journal.next, Lsn(2));
}
