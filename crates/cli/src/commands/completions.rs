//! `completions` and `man`: the command line as shells and manuals want it.

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::Arguments;
use crate::args::inspect::{CompletionsArgs, ManArgs};
use crate::exit::MEANINGS;
use crate::files;
use crate::output::Output;
use crate::settings::ENVIRONMENT;

/// Name of the command, which shells complete.
const NAME: &str = "onefold";

/// Writes a shell's completions to standard output.
pub(crate) fn write(output: &Output, typed: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(typed.shell, &mut Arguments::command(), NAME, &mut script);
    Ok(output.bytes(&script)?)
}

/// Returns the sections that every page has, in roff.
fn tables() -> String {
    let mut text = String::from(".SH ENVIRONMENT\n");
    for (name, meaning) in ENVIRONMENT {
        text.extend([".TP\n\\fB", name, "\\fR\n", meaning, "\n"]);
    }
    text += ".SH \"EXIT STATUS\"\n";
    for (code, meaning) in MEANINGS {
        text.extend([".TP\n\\fB", &(code as u8).to_string(), "\\fR\n", meaning, "\n"]);
    }
    text
}

/// Writes a manual page for each command.
pub(crate) fn write_pages(output: &Output, typed: &ManArgs) -> Result<()> {
    let directory = &typed.directory;
    files::create_directories_for_all(directory).with_context(|| format!("create {}", directory.display()))?;
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().filter(|below| below.get_name() != "help").cloned());
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        let path = directory.join(format!("{name}.1"));
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        page.extend(tables().into_bytes());
        files::write_page(&path, &page).with_context(|| format!("write {}", path.display()))?;
        output.note(&format!("wrote {}", path.display()));
    }
    Ok(())
}
