//! Command line of the program.

mod all;
mod audit;
mod certs;
mod chat;
mod config;
mod connection;
mod daemon;
mod desk;
mod dlq;
mod doctor;
mod drain;
mod edges;
mod group;
mod keys;
mod kick;
mod listen;
mod numbers;
mod reload;
mod repair;
#[cfg(feature = "cluster")]
mod schema;
mod send;
#[cfg(feature = "cluster")]
mod serve;
mod table;
mod terminal;
mod token;
#[cfg(feature = "cluster")]
mod topics;
mod trace;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
#[cfg(feature = "cluster")]
use backend::discovery::Role;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

pub use self::connection::Trust;
pub use self::numbers::{seconds, whole};
use self::terminal::{PrintError, errln};
pub use self::terminal::{complain, print_line, print_lines};
pub use self::token::sign_own;
use crate::compose::{Around, Bare};
use crate::settings::{SettingsError, environment};

/// Instant messaging that loses nothing it accepted, and shows what became of it.
#[derive(Debug, Parser)]
#[command(
    name = "packetboat",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    /// Settings file (TOML). Also: environment PACKETBOAT_SECTION__KEY, which wins over the file.
    #[arg(long, global = true, env = "PACKETBOAT_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run boat, station, carrier and horn in one process.
    All(all::All),
    /// Hold client connections, as part of a cluster.
    #[cfg(feature = "cluster")]
    #[command(after_help = serve::BOAT_EXAMPLES)]
    Boat(serve::Member),
    /// Admit sessions and accept messages, as part of a cluster.
    #[cfg(feature = "cluster")]
    #[command(after_help = serve::STATION_EXAMPLES)]
    Station(serve::Member),
    /// Deliver accepted messages, as part of a cluster.
    #[cfg(feature = "cluster")]
    #[command(after_help = serve::CARRIER_EXAMPLES)]
    Carrier(serve::Member),
    /// Notify absent users, as part of a cluster.
    #[cfg(feature = "cluster")]
    #[command(after_help = serve::HORN_EXAMPLES)]
    Horn(serve::Member),
    /// Create or check the topics of the log.
    #[cfg(feature = "cluster")]
    Topics(topics::Topics),
    /// Create, migrate or check the tables of the stores.
    #[cfg(feature = "cluster")]
    Schema(schema::Schema),
    /// Print a development token.
    Token(token::TokenArgs),
    /// Send messages; one JSON line for each.
    Send(send::Send),
    /// Receive messages; one JSON line for each.
    Listen(listen::Listen),
    /// Chat in the terminal.
    Chat(chat::ChatCommand),
    /// Create a group, and manage its members.
    Group(group::Group),
    /// Inspect dead letters, and redrive them.
    Dlq(dlq::Dlq),
    /// Drain a boat, cancel a drain, or list boats.
    Drain(drain::Drain),
    /// End the sessions of a user, and revoke tokens.
    Kick(kick::Kick),
    /// Print the history of one message.
    Trace(trace::Trace),
    /// Check an installation, or one user: problems, and remedies.
    Doctor(doctor::Doctor),
    /// Repair a data directory whose journal is damaged.
    Repair(repair::Repair),
    /// Account for every accepted message, and name missing ones.
    Audit(audit::Audit),
    /// Issue certificates for services, for section identity.
    Certs(certs::Certs),
    /// Create and rotate the keys of session tickets, for station.tickets.
    Keys(keys::KeysArgs),
    /// Show or check the settings.
    Config(config::Config),
}

/// Format of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    Table,
    Json,
}

/// Runs one command to its end.
pub fn run(cli: Cli) -> Result<ExitCode> {
    run_around(cli, &Bare)
}

/// Like `run`, with the services' external parts decorated by `around`.
pub fn run_around(cli: Cli, around: &dyn Around) -> Result<ExitCode> {
    check_environment()?;
    let file = cli.config.as_deref();
    match cli.command {
        Command::All(command) => command.run(file, around),
        #[cfg(feature = "cluster")]
        Command::Boat(command) => command.run(Role::Boat, file, around),
        #[cfg(feature = "cluster")]
        Command::Station(command) => command.run(Role::Station, file, around),
        #[cfg(feature = "cluster")]
        Command::Carrier(command) => command.run(Role::Carrier, file, around),
        #[cfg(feature = "cluster")]
        Command::Horn(command) => command.run(Role::Horn, file, around),
        #[cfg(feature = "cluster")]
        Command::Topics(command) => on_runtime(command.run(file)),
        #[cfg(feature = "cluster")]
        Command::Schema(command) => on_runtime(command.run(file)),
        Command::Token(command) => command.run(file),
        Command::Send(command) => on_runtime(command.run(file)),
        Command::Listen(command) => on_runtime(command.run(file)),
        Command::Chat(command) => on_runtime(command.run(file)),
        Command::Group(command) => on_runtime(command.run(file)),
        Command::Dlq(command) => on_runtime(command.run(file)),
        Command::Drain(command) => on_runtime(command.run(file)),
        Command::Kick(command) => on_runtime(command.run(file)),
        Command::Trace(command) => on_runtime(command.run(file)),
        Command::Doctor(command) => on_runtime(command.run(file)),
        Command::Repair(command) => command.run(file),
        Command::Audit(command) => on_runtime(command.run(file)),
        Command::Certs(command) => command.run(),
        Command::Keys(command) => command.run(),
        Command::Config(command) => on_runtime(command.run(file)),
    }
}

/// Refuses variables of the environment that are neither settings nor flags.
pub fn check_environment() -> Result<(), SettingsError> {
    environment::check(set_variables(), &variables(&Cli::command()))
}

/// Environment variables, as far as they are text.
fn set_variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Variables that flags are read from.
fn variables(command: &clap::Command) -> BTreeSet<String> {
    let own = (command.get_arguments()).filter_map(|flag| flag.get_env()?.to_str());
    let mut variables: BTreeSet<_> = own.map(str::to_owned).collect();
    for command in command.get_subcommands() {
        variables.append(&mut self::variables(command));
    }
    variables
}

fn on_runtime(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(command);
    // A blocked read of the terminal must not delay the end.
    runtime.shutdown_background();
    result
}

/// Shows help, the version, or a mistake of usage; the exit code is clap's.
pub fn show_usage(program: &str, usage: &clap::Error) -> ExitCode {
    match usage.print() {
        Err(error) if !usage.use_stderr() => fail(program, &PrintError::from(error).into()),
        _ => u8::try_from(usage.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

/// Says why a command of `program` failed. A reader of its output who left needs no words.
pub fn fail(program: &str, error: &anyhow::Error) -> ExitCode {
    if let Some(code) = terminal::code_without_reader(error) {
        return code;
    }
    if error.chain().any(|cause| cause.is::<SettingsError>()) {
        // A line for each problem.
        terminal::complain_lines(&format!("{program}: {error:#}\n"));
    } else {
        errln!("{program}: {error:#}");
    }
    exit_code(error)
}

/// Exit code: 3 for errors that a restart does not mend (invalid settings, an installation of two
/// numbers), 1 for everything else (usage errors are clap's 2).
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let is_final = |cause: &(dyn std::error::Error + 'static)| {
        let start = cause.downcast_ref::<station::StartError>();
        cause.is::<SettingsError>()
            || matches!(start, Some(station::StartError::Installations { .. }))
    };
    if error.chain().any(is_final) {
        ExitCode::from(3)
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_number_that_cannot_be_meant_is_a_mistake_of_usage() {
        let largest = u64::MAX.to_string();
        let send = [
            "packetboat",
            "send",
            "--user",
            "1",
            "--to",
            "2",
            "--timeout",
            &largest,
            "x",
        ];
        let usage = Cli::try_parse_from(send).expect_err("out of bounds");
        assert_eq!(usage.exit_code(), 2, "{usage}");
    }

    #[test]
    fn each_command_ends_its_help_with_examples() {
        let mut cli = Cli::command();
        for command in cli.get_subcommands_mut() {
            let name = command.get_name().to_owned();
            let help = command.render_long_help().to_string();
            let examples = help.split("Examples:").nth(1).unwrap_or_default();
            let count = examples.matches("packetboat ").count();
            assert!(count >= 2, "`{name} --help` ends with {count} examples");
        }
    }
}
