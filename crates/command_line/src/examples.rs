// SPDX-License-Identifier: Apache-2.0
//! Examples for the help of each command.

use clap::Command;

/// Adds each example, a whole line, to the help of the command that it uses.
pub fn add_to(program: Command, examples: &[&str]) -> Command {
    examples.iter().fold(program, |command, example| {
        add_one(command, &mut example.split(' ').skip(1), example)
    })
}

/// Adds one example to the command that the first words name.
fn add_one<'a>(
    command: Command,
    words: &mut impl Iterator<Item = &'a str>,
    example: &str,
) -> Command {
    if !command.has_subcommands() {
        return show(command, example);
    }
    let name = words.next().unwrap_or_default();
    let does_both = command.is_args_conflicts_with_subcommands_set();
    match command.find_subcommand(name) {
        Some(_) => command.mut_subcommand(name, |inner| add_one(inner, words, example)),
        None if does_both && name.starts_with('-') => show(command, example),
        None => panic!("no command has the example {example}"),
    }
}

fn show(command: Command, example: &str) -> Command {
    let shown = format!("Example: {example}");
    let shown = match command.get_after_help() {
        Some(text) => format!("{text}\n\n{shown}"),
        None => shown,
    };
    command.after_help(shown)
}

/// Panics if an example is no valid command line, or a command that is shown has none. Those of
/// `with_own_help` need none.
pub fn check(program: &Command, examples: &[&str], with_own_help: &[&str]) {
    for example in examples {
        let parsed = program.clone().try_get_matches_from(example.split(' '));
        assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
    }
    let start = format!("Example: {} ", program.get_name());
    let mut found = Vec::new();
    helps(&mut add_to(program.clone(), examples), &mut found);
    for (name, help) in found {
        let has_own = with_own_help.contains(&name.as_str());
        assert!(has_own || help.contains(&start), "{name} has no example");
    }
}

/// Collects the help of each visible command that has no subcommands.
fn helps(command: &mut Command, found: &mut Vec<(String, String)>) {
    let name = command.get_name().to_owned();
    let does_both = command.is_args_conflicts_with_subcommands_set();
    if !command.has_subcommands() || does_both {
        let help = command.clone().render_help().to_string();
        found.push((name, help));
    }
    let shown = command.get_subcommands_mut();
    for inner in shown.filter(|inner| !inner.is_hide_set()) {
        helps(inner, found);
    }
}
