//! The live containers of chunks that recipes refer to.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::Result;
use crate::recipe::{Recipe, RecipeItem};
use crate::store::MetadataReader;
use crate::store::container_set::RunCursor;
use crate::store::manifests::UsedBytes;
use crate::store::recipe_cursor::{FileExtent, HintedChunk, RecipeCursor};
use crate::store::view::{Near, View};
use crate::types::ContainerId;

/// Looks for the chunks of files in the containers that may be referred to.
#[derive(Debug)]
pub(crate) struct LiveChunks {
    /// These containers.
    view: View,
    /// The run of containers that was found last, so that most hints cost a comparison.
    near: RunCursor,
    /// The containers that hold the chunks of the deleted one that a hint named last.
    moved: Near,
    /// Containers that count as not live.
    shunned: Arc<BTreeSet<ContainerId>>,
}

impl LiveChunks {
    /// Looks in the containers of a view.
    pub(crate) fn new(view: View) -> Self {
        Self { view, near: RunCursor::default(), moved: Near::default(), shunned: Arc::default() }
    }

    /// Finds no chunk in these containers.
    pub(super) fn shun(&mut self, containers: &Arc<BTreeSet<ContainerId>>) {
        self.shunned = Arc::clone(containers);
    }

    /// Returns the live containers of the chunks that stand in a recipe itself; `None` if a chunk of the file is in no live
    /// container. `used` takes the containers of all of its chunks. `beat` is called for each.
    pub(crate) fn containers_of(
        &mut self,
        recipe: &Recipe,
        hints: &[Option<ContainerId>],
        reader: &mut MetadataReader,
        used: &mut UsedBytes,
        beat: &dyn Fn(),
    ) -> Result<Option<Vec<Option<ContainerId>>>> {
        let mut own = Vec::with_capacity(hints.len());
        if recipe.level == 0 {
            // The recipe of most files, whose chunks stand in it.
            let mut hints = hints.iter().copied().chain(std::iter::repeat(None));
            for item in &recipe.items {
                beat();
                let RecipeItem::Chunk(chunk) = *item else { continue };
                let hint = hints.next().flatten();
                let Some(container) = self.live_container(&HintedChunk { chunk, hint })? else { return Ok(None) };
                used.add(container, chunk.len);
                own.push(Some(container));
            }
            return Ok(Some(own));
        }
        let mut cursor = RecipeCursor::new(recipe, hints);
        while let Some(event) = cursor.next(reader)? {
            beat();
            if let FileExtent::Chunk(chunk) = event {
                let Some(container) = self.live_container(&chunk)? else { return Ok(None) };
                used.add(container, chunk.chunk.len);
            }
        }
        Ok(Some(own))
    }

    /// Returns the live container of a chunk, if it is known and not shunned.
    pub(crate) fn live_container(&mut self, chunk: &HintedChunk) -> Result<Option<ContainerId>> {
        Ok(self.find(chunk)?.filter(|container| !self.shunned.contains(container)))
    }

    fn find(&mut self, HintedChunk { chunk, hint }: &HintedChunk) -> Result<Option<ContainerId>> {
        let Some(container) = *hint else { return Ok(None) };
        loop {
            if self.view.containers().find_near(container, &mut self.near).is_some() {
                return Ok(Some(container));
            }
            if let Some((container, _)) = self.view.find_hinted(chunk, *hint, &mut self.moved)? {
                return Ok(Some(container));
            }
            // A dry run has no session that collections wait for.
            if !self.view.refresh()? {
                return Ok(None);
            }
            self.near = RunCursor::default();
        }
    }
}
