//! Lists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A list with an upper limit.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "{T}List")]
pub struct List<T> {
    pub items: Vec<T>,
    /// Number of further items, which the answer leaves out.
    pub truncated: u64,
}

impl<T> List<T> {
    /// The first `limit` items, and the number of the rest.
    pub fn of(all: impl IntoIterator<Item = T>, limit: usize) -> List<T> {
        let mut all = all.into_iter();
        List {
            items: all.by_ref().take(limit).collect(),
            truncated: all.count() as u64,
        }
    }

    /// The same list with all items left out.
    #[must_use]
    pub fn count_only(&self) -> List<T> {
        List {
            items: Vec::new(),
            truncated: self.total(),
        }
    }

    /// Number of items in all.
    pub fn total(&self) -> u64 {
        self.items.len() as u64 + self.truncated
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(items: Vec<T>) -> List<T> {
        List {
            items,
            truncated: 0,
        }
    }
}

/// Some items of a list, and where it goes on.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Cursor for parameter `after` of the next request; null at the end.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_counts_what_it_leaves_out() {
        let list = List::of(1..=5, 3);
        assert_eq!((&list.items[..], list.truncated), (&[1, 2, 3][..], 2));
        assert_eq!(list.total(), 5);
        assert_eq!(list.count_only(), List::of(1..=5, 0));
        let json = serde_json::to_string(&list).expect("JSON");
        assert_eq!(json, r#"{"items":[1,2,3],"truncated":2}"#);
        assert_eq!(List::from(vec![7]), List::of([7], 9));
    }
}
