//! Standard output and standard error of the commands: all that they print goes through here.
//!
//! Text of others cannot steer the terminal: a character that moves the cursor, reorders text or
//! hides is written as JSON writes it (`\u001b`), which leaves the value of JSON output as it is. A
//! reader who leaves ends the command without a word, as SIGPIPE ends other programs.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use thiserror::Error;

/// Exit code that a shell has for a program which SIGPIPE (13) ended.
const READER_LEFT: u8 = 128 + 13;

/// Standard output cannot be written.
#[derive(Debug, Error)]
#[error("cannot write to standard output; the rest of the output is lost")]
pub struct PrintError(#[from] io::Error);

impl PrintError {
    /// Whether nobody reads standard output any more.
    fn is_reader_gone(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

/// Exit code of a command whose output nobody reads any more; `None` for any other error.
pub(super) fn code_without_reader(error: &anyhow::Error) -> Option<ExitCode> {
    let print = error.downcast_ref::<PrintError>()?;
    (print.is_reader_gone()).then(|| ExitCode::from(READER_LEFT))
}

/// Prints one line: a line break within the text is shown, not made.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => { $crate::cli::print_line(format_args!($($text)*)) };
}

/// Prints text of several lines. Parts of others go through `visible` first.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::cli::print_lines(format_args!($($text)*)) };
}

/// Writes one line to standard error. A failure could be reported nowhere.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::cli::complain(format_args!($($text)*)) };
}

pub(crate) use {errln, out, outln};

/// For `outln!`.
pub fn print_line(text: fmt::Arguments<'_>) -> Result<(), PrintError> {
    let line = format!("{}\n", visible(&text.to_string()));
    write(&mut io::stdout().lock(), &line)
}

/// For `out!`.
pub fn print_lines(text: fmt::Arguments<'_>) -> Result<(), PrintError> {
    write(&mut io::stdout().lock(), &visible_lines(&text.to_string()))
}

/// For `errln!`.
pub fn complain(text: fmt::Arguments<'_>) {
    complain_lines(&format!("{}\n", visible(&text.to_string())));
}

/// Writes text of several lines to standard error.
pub(super) fn complain_lines(text: &str) {
    let _ = write(&mut io::stderr().lock(), &visible_lines(text));
}

fn write(to: &mut impl Write, text: &str) -> Result<(), PrintError> {
    let result = to.write_all(text.as_bytes()).and_then(|()| to.flush());
    result.map_err(PrintError)
}

/// Whether there is somebody to ask.
pub(super) fn may_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks on the terminal; anything but a yes is a no.
pub(super) fn is_yes(question: &str) -> Result<bool> {
    complain_lines(&format!("{} [y/N] ", visible(question)));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Text as one line that cannot steer a terminal.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, steers)
}

/// Like `visible`, with its line breaks.
pub(super) fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| letter != '\n' && steers(letter))
}

/// True for characters that move a cursor or set a terminal (C0, DEL, C1), reorder text, break
/// lines, or hide. The joiners U+200C and U+200D are none: scripts and emoji need them.
fn steers(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut output = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            plain if !is_escaped(plain) => output.push(plain),
            '\n' => output.push_str("\\n"),
            '\r' => output.push_str("\\r"),
            '\t' => output.push_str("\\t"),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(output, "\\u{unit:04x}");
                }
            }
        }
    }
    Cow::Owned(output)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// A text of a stranger: clears the screen, sets the clipboard, and adds a line of another.
    const STRANGE: &str = "hi \u{1b}[2J\u{9b}2J\u{1b}]52;c;aGk=\u{7}\n1: I owe you\r\t\u{7f}";

    #[test]
    fn text_of_others_steers_no_terminal() {
        let expected = r"hi \u001b[2J\u009b2J\u001b]52;c;aGk=\u0007\n1: I owe you\r\t\u007f";
        assert_eq!(visible(STRANGE), expected);
        assert_eq!(
            visible("\u{202e}a\u{2066}b\u{2028}"),
            r"\u202ea\u2066b\u2028"
        );
        assert_eq!(
            visible("\u{200b}\u{feff}\u{e0041}"),
            r"\u200b\ufeff\udb40\udc41"
        );
        assert_eq!(visible_lines("a\nb\u{9b}\r\n"), "a\nb\\u009b\\r\n");
    }

    #[test]
    fn no_control_character_is_left() {
        let all: String = ('\0'..=char::MAX).collect();
        assert!(!visible(&all).contains(char::is_control));
        assert_eq!(visible_lines(&all).matches(char::is_control).count(), 1);
    }

    #[test]
    fn words_of_all_scripts_stay_as_they_are() {
        for text in [
            "grüß dich",
            "שלום",
            "می\u{200c}خواهم",
            "👩\u{200d}👩\u{200d}👧 ❤\u{fe0f}",
            "ありがとう",
            "a \\n b",
        ] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn json_keeps_its_value() {
        let all: String = ('\0'..=char::MAX).collect();
        for text in [STRANGE, all.as_str()] {
            let json = serde_json::to_string(text).expect("JSON");
            let visible_json = visible(&json);
            assert!(!visible_json.contains(steers));
            let back: Value = serde_json::from_str(&visible_json).expect("JSON");
            assert_eq!(back.as_str(), Some(text));
        }
    }

    #[test]
    fn only_a_reader_who_left_ends_a_command_quietly() {
        let print = |kind: ErrorKind| anyhow::Error::from(PrintError(kind.into()));
        let error = print(ErrorKind::BrokenPipe);
        assert!(code_without_reader(&error).is_some());
        assert!(code_without_reader(&error.context("at the end")).is_some());
        assert!(code_without_reader(&print(ErrorKind::StorageFull)).is_none());
        // A connection that broke is no reader of standard output.
        let broken = io::Error::from(ErrorKind::BrokenPipe);
        assert!(code_without_reader(&broken.into()).is_none());
    }
}
