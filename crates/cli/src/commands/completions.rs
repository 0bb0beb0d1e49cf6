//! `completions` and `man`: the command line as shells and manuals want it.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Arguments;
use crate::args::inspect::{CompletionsArgs, GenerateArgs};
use crate::exit::MEANINGS;
use crate::files;
use crate::output::Output;
use crate::settings::ENVIRONMENT;

/// Name of the command, which shells complete.
const NAME: &str = "onefold";

/// Writes a shell's completions to standard output.
pub(crate) fn write(output: &Output, args: &CompletionsArgs) -> Result<()> {
    Ok(output.bytes(&script(args.shell))?)
}

/// Writes completions and manual pages where the options say.
pub(crate) fn generate(output: &Output, args: &GenerateArgs) -> Result<()> {
    let shells = [
        (Shell::Bash, &args.bash_completion),
        (Shell::Fish, &args.fish_completion),
        (Shell::Zsh, &args.zsh_completion),
        (Shell::PowerShell, &args.powershell_completion),
    ];
    for (shell, path) in shells {
        match path.as_deref() {
            None => {}
            Some(path) if path == Path::new("-") => write(output, &CompletionsArgs { shell })?,
            Some(path) => {
                let script = script(shell);
                files::write_page(path, &script).with_context(|| format!("write {}", path.display()))?;
                output.note(&format!("wrote {}", path.display()));
            }
        }
    }
    args.man.as_deref().map_or(Ok(()), |directory| write_pages(output, directory))
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), NAME, &mut script);
    script
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
pub(crate) fn write_pages(output: &Output, directory: &Path) -> Result<()> {
    files::create_directories_for_all(directory).with_context(|| format!("create {}", directory.display()))?;
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        let shown = |below: &&clap::Command| below.get_name() != "help" && !below.is_hide_set();
        left.extend(command.get_subcommands().filter(shown).cloned());
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
