//! Tables for people: columns without rules between them, a line for each row.

use std::fmt;

use comfy_table::{ContentArrangement, Table, presets};

use super::terminal::visible;

pub(super) struct TextTable(Table);

impl TextTable {
    pub(super) fn new(header: &[&str]) -> TextTable {
        let mut table = TextTable::without_header();
        table.0.set_header(header);
        table
    }

    fn without_header() -> TextTable {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        TextTable(table)
    }

    /// A table that breaks long cells at the width of the terminal.
    pub(super) fn new_wrapped() -> TextTable {
        let mut table = TextTable::without_header();
        (table.0).set_content_arrangement(ContentArrangement::Dynamic);
        table
    }

    /// Adds a row. Cells may hold text of other people: control characters in them are escaped.
    pub(super) fn row<const N: usize>(&mut self, cells: [impl AsRef<str>; N]) {
        let cells = cells.iter().map(|cell| visible(cell.as_ref()).into_owned());
        self.0.add_row(cells);
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_steers_no_terminal_and_begins_no_line() {
        let mut table = TextTable::new(&["id", "error"]);
        table.row(["a", "no \u{1b}[2J\nb   fine"]);
        let text = table.to_string();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(r"no \u001b[2J\nb   fine"), "{text}");
    }
}
