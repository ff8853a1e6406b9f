//! `packetboat dlq edit`: changes the content of a letter, in an editor or from a file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use operator::dead_letters::routes::LookQuestion;
use operator::dead_letters::{EditResult, Envelope, LetterChange};

use super::{LETTERS, show, tables};
use crate::cli::Output;
use crate::cli::desk::Desk;
use crate::cli::terminal::{errln, is_yes, may_ask, visible, visible_lines};

/// Editor used if the environment names none.
const EDITOR: &str = "vi";

#[derive(Clone, Debug, Args)]
pub(super) struct Edit {
    /// Letter to edit.
    id: String,
    /// Reason, recorded with the edit.
    #[arg(long)]
    why: String,
    /// File with the whole envelope as JSON, instead of an editor.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    /// Drop fields that this program does not know.
    #[arg(long)]
    drop_unknown: bool,
}

impl Edit {
    pub(super) async fn run(self, desk: &Desk, output: Output) -> Result<ExitCode> {
        let path = format!("{LETTERS}/{}/envelope", self.id);
        let reason = self.why.clone();
        let envelope: Envelope = desk.post(&path, &LookQuestion { why: reason }).await?;
        if let Some(reason) = &envelope.locked {
            bail!("{}: {reason}", self.id);
        }
        let initial_text = render_page(&envelope);
        let mut text = initial_text.clone();
        let draft = loop {
            text = match &self.file {
                Some(file) => std::fs::read_to_string(file)
                    .with_context(|| format!("reading {}", file.display()))?,
                None => in_editor(&text)?,
            };
            if text == initial_text {
                errln!("Nothing changed.");
                return Ok(ExitCode::SUCCESS);
            }
            match self.change(desk, &envelope, &text, true).await {
                Ok(draft) => break draft,
                Err(error) if self.file.is_none() && may_ask() => {
                    errln!("{error:#}");
                    if !is_yes("Open the editor again?")? {
                        return Ok(ExitCode::FAILURE);
                    }
                }
                Err(error) => return Err(error),
            }
        };
        if draft.diff.is_empty() {
            errln!("Nothing changed.");
            return Ok(ExitCode::SUCCESS);
        }
        if !self.yes {
            tables::changed(&draft)?;
            if !may_ask() {
                bail!("nothing was changed: confirm with --yes when there is no terminal");
            }
            if !is_yes("Keep this edit?")? {
                return Ok(ExitCode::FAILURE);
            }
        }
        let result = self.change(desk, &envelope, &text, false).await?;
        show(output, &result, tables::changed)
    }

    async fn change(
        &self,
        desk: &Desk,
        envelope: &Envelope,
        text: &str,
        dry_run: bool,
    ) -> Result<EditResult> {
        let change = LetterChange {
            base: envelope.version.clone(),
            envelope: without_remarks(text),
            why: self.why.clone(),
            dry_run,
            drop_unknown: self.drop_unknown,
        };
        desk.post(&format!("{LETTERS}/{}/edit", self.id), &change)
            .await
    }
}

/// Text of the editor: remarks, then the envelope.
fn render_page(envelope: &Envelope) -> String {
    let mut remarks = vec![format!(
        "{}, a {}. Lines that begin with # are ignored.",
        envelope.letter, envelope.schema
    )];
    if let Some(reason) = &envelope.flaw {
        remarks.push(format!("A carrier would refuse it as it is: {reason}"));
    }
    for field in &envelope.unknown_fields {
        remarks.push(format!("Unknown field {field}; see --drop-unknown."));
    }
    if let Some(raw) = &envelope.raw {
        remarks.push(
            "The bytes cannot be decoded. Write a complete envelope to replace them:".to_owned(),
        );
        remarks.push(raw.clone());
    }
    // A line break within a remark would make its rest a part of the envelope.
    let remarks = remarks
        .iter()
        .map(|remark| format!("# {}\n", visible(remark)));
    remarks.collect::<String>() + &visible_lines(envelope.text.as_deref().unwrap_or("{}")) + "\n"
}

/// Blanks remarks line by line, so that an error names the line that the operator sees.
fn without_remarks(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| if line.starts_with('#') { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

fn in_editor(text: &str) -> Result<String> {
    // Readable by its owner only, and removed after the edit.
    let mut file = tempfile::Builder::new().suffix(".json").tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    let set = |name: &str| std::env::var(name).ok().filter(|editor| !editor.is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR"));
    open(&editor.unwrap_or_else(|| EDITOR.to_owned()), file.path())?;
    // Read by path: many editors replace the file.
    std::fs::read_to_string(file.path()).context("reading the edited file")
}

/// Runs the editor, which may carry arguments, as in `code --wait`.
fn open(editor: &str, file: &Path) -> Result<()> {
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or(EDITOR);
    let status = Command::new(program).args(words).arg(file).status();
    let status =
        status.with_context(|| format!("starting {program} (VISUAL, EDITOR or --file)"))?;
    if !status.success() {
        bail!("{program} exited with {status}: nothing was changed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_leave_their_lines_empty() {
        assert_eq!(without_remarks("# a\n{\n# b\n}\n"), "\n{\n\n}");
    }

    #[test]
    fn an_editor_that_fails_does_nothing() {
        let file = Path::new("/nowhere");
        assert!(open("false", file).is_err());
        assert!(open("no-such-editor-anywhere", file).is_err());
        assert!(open("true --wait", file).is_ok());
    }
}
