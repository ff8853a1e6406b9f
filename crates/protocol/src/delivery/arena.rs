//! Values under small keys that are never reused.

/// Names one value for its lifetime: its slot, and the slot's use count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    index: u32,
    /// Starts at 1, so that no key is the number 0.
    round: u32,
}

impl Key {
    pub(super) fn number(self) -> u64 {
        u64::from(self.round) << 32 | u64::from(self.index)
    }

    pub(super) fn from_number(number: u64) -> Key {
        Key {
            index: number as u32,
            round: (number >> 32) as u32,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Arena<T> {
    slots: Vec<(u32, Option<T>)>,
    free_indexes: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Arena {
            slots: Vec::new(),
            free_indexes: Vec::new(),
        }
    }
}

impl<T> Arena<T> {
    pub(super) fn insert(&mut self, value: T) -> Key {
        let index = self.free_indexes.pop().unwrap_or_else(|| {
            self.slots.push((1, None));
            self.slots.len() as u32 - 1
        });
        let (round, slot) = &mut self.slots[index as usize];
        *slot = Some(value);
        Key {
            index,
            round: *round,
        }
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        match self.slots.get(key.index as usize) {
            Some((round, value)) if *round == key.round => value.as_ref(),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.index as usize) {
            Some((round, value)) if *round == key.round => value.as_mut(),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let (use_count, slot) = self.slots.get_mut(key.index as usize)?;
        if *use_count != key.round {
            return None;
        }
        let value = slot.take()?;
        *use_count = use_count.wrapping_add(1).max(1);
        self.free_indexes.push(key.index);
        Some(value)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free_indexes.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0u32..)
            .zip(&self.slots)
            .filter_map(|(index, (round, value))| {
                let key = Key {
                    index,
                    round: *round,
                };
                value.as_ref().map(|value| (key, value))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_never_opens_a_new_value() {
        let mut arena = Arena::default();
        let first = arena.insert("first");
        assert_eq!(arena.remove(first), Some("first"));
        let second = arena.insert("second");
        assert_ne!(first, second);
        assert_eq!(arena.get(first), None);
        assert_eq!(arena.remove(first), None);
        assert_eq!(Key::from_number(second.number()), second);
        assert_eq!(arena.get(second), Some(&"second"));
        assert_eq!(arena.len(), 1);
    }
}
