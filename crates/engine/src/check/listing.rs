//! The names of all containers, quarantined ones among them.

use std::collections::BTreeMap;

use crate::check::CheckRequest;
use crate::check::findings::Findings;
use crate::check::objects::ADVICE_DIRECTORY;
use crate::error::Result;
use crate::object::names::{ContainerName, ObjectName, Prefix};
use crate::object::store::{Detail, Listed};
use crate::store::Store;
use crate::store::container_set::{ContainerSetBuilder, Containers};

/// Lists the containers. Adds those that are quarantined to `quarantined`, each with the number of its finding, and reports names
/// that are no container's.
pub(super) fn list_containers(
    store: &Store,
    request: &CheckRequest,
    findings: &mut Findings,
    quarantined: &mut BTreeMap<ContainerName, usize>,
) -> Result<Containers> {
    let mut builder = ContainerSetBuilder::new(&store.host, &request.scratch);
    let mut unknown = Vec::new();
    let mut problem = None;
    let listed = store.objects.list(Prefix::Containers, Detail::Names, &mut |page| {
        for Listed { name, len, .. } in page {
            match name {
                Ok(ObjectName::Container(name)) => problem = problem.take().or(builder.push(&name, len).err()),
                Ok(ObjectName::Quarantined(name)) => {
                    let object = store.display(ObjectName::Quarantined(name));
                    quarantined.insert(name, findings.add_quarantined(object));
                }
                Ok(other) => unknown.push(other.to_string()),
                Err(name) => unknown.push(name),
            }
        }
        problem.clone().map_or(Ok(()), Err)
    });
    // A full disk of temporary files says nothing about the repository.
    if let Some(problem) = problem {
        return Err(problem);
    }
    if let Err(error) = listed {
        findings.add_error(store.display(Prefix::Containers), &error, ADVICE_DIRECTORY);
    }
    for key in unknown {
        findings.unknown_file(store.display(&key), "has no container's name");
    }
    Ok(builder.finish()?.into())
}
