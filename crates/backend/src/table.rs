//! Hash tables that grow with a crowd, and shrink when it has gone.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Room up to which a table is left as it is.
const SMALL: usize = 64;
/// Least share of a table's room in use: one part in this many.
const SPARSE: usize = 8;

/// Returns a crowd's memory once the crowd has gone; call it after removals. Entries move once only
/// an eighth of the room is in use.
pub fn shrink<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    if table.capacity() > SMALL && table.len() < table.capacity() / SPARSE {
        table.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_leaves_no_room_behind() {
        let mut table: HashMap<_, _> = (0..1000).map(|number| (number, number)).collect();
        let mut moves = 0;
        for number in 0..1000 {
            assert_eq!(table.remove(&number), Some(number));
            let old_capacity = table.capacity();
            shrink(&mut table);
            moves += usize::from(table.capacity() < old_capacity);
            let max_capacity = SMALL.max(SPARSE * (table.len() + 1));
            let room = table.capacity();
            assert!(room <= max_capacity, "{room} for {}", table.len());
        }
        // Entries move seldom: once an eighth is left.
        assert!((1..=3).contains(&moves), "{moves}");
    }

    #[test]
    fn a_small_table_keeps_its_room() {
        let mut table = HashMap::with_capacity(40);
        let room = table.capacity();
        assert!(room <= SMALL);
        table.insert(1, 1);
        shrink(&mut table);
        assert_eq!(table.capacity(), room);
    }
}
