//! What went wrong once, each with its story.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::backup::Monitor;
use onefold_engine::io::Access;
use onefold_engine::object::names::ContainerKind;

use crate::integration::support::{Ask, Notes, SMALL, World, containers, newest, noise, tree};

/// A copy of a repository was interrupted: one data container ended in the middle. A new host read its directory, which
/// stands at the front and was whole, and believed that all its chunks were there. The next backup stored nothing,
/// reported success and named no damage. A container that is shorter than its directory says is named and not referred
/// to; what it held is stored again, so that moving the damaged one away is all that is left to do.
#[test]
fn a_container_that_is_cut_short_is_not_referred_to_by_a_new_index() {
    let world = World::new(41);
    let store = world.create(SMALL).unwrap();
    let source = tree(12);
    source.put_file(Path::new("/d/more"), &noise(77, 90_000));
    world.backup(&store, &source, &Ask::default()).unwrap();
    let all = containers(&store);
    let data = all.iter().find(|container| container.name.kind == ContainerKind::Data).unwrap();
    let file = world.repo().open(&data.name.path(), Access::ReadWrite).unwrap();
    file.set_len(file.len().unwrap() / 2).unwrap();
    file.sync().unwrap();
    let index = Path::new("index");
    for entry in world.cache().list(index).unwrap() {
        world.cache().remove(&index.join(entry.name)).unwrap();
    }
    let notes = Arc::new(Notes::default());
    let monitor = Arc::clone(&notes) as Arc<dyn Monitor>;
    world.backup(&store, &source, &Ask { with_parent: true, monitor, ..Ask::default() }).unwrap();
    let said = notes.failures.lock().unwrap().join("\n");
    assert!(said.contains(&store.display(data.name)), "{said}");
    world.repo().rename(&data.name.path(), &PathBuf::from(format!("{}.bad", data.name.path().display()))).unwrap();
    let (_, snapshot) = newest(&store).unwrap().unwrap();
    let (restored, report) = world.restore(&store, &snapshot).unwrap();
    assert_eq!(report.failures, 0);
    assert_eq!(source.diff(&restored), Vec::<String>::new());
}
