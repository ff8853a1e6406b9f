//! An older carrier: it lost its partitions to another one, and learns that only at its next poll.
//! Until then it goes on writing its batch, with the heads it remembers.

use crate::world::World;
use crate::writer::Batch;

impl World {
    /// Gives the partitions to a new carrier, while the one so far may still be writing.
    pub(crate) fn rebalance(&mut self) {
        let (life, heads) = (self.carrier.life, std::mem::take(&mut self.carrier.heads));
        if self.carrier.is_writing {
            self.older_heads.insert(life, heads);
        }
        self.crash_carrier();
    }

    /// One step of the older carrier of this life.
    pub(crate) fn older_step(&mut self, life: u32, batch: Box<Batch>) {
        let Some(mut heads) = self.older_heads.remove(&life) else {
            return;
        };
        std::mem::swap(&mut self.carrier.heads, &mut heads);
        self.is_older = true;
        self.write_step(batch);
        self.is_older = false;
        std::mem::swap(&mut self.carrier.heads, &mut heads);
        self.older_heads.insert(life, heads);
    }
}
