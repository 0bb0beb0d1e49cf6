//! `cargo xtask book`: the manual and the documents about the internals as web pages, built by mdBook.
//!
//! Pages are in different directories and link to each other by their paths there, so the links also work in the checkout.
//! This module copies the pages into one directory and translates the links.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::checkout::Checkout;
use crate::command::{cargo, run_tool, succeed};

/// The version of mdBook to install if it is missing.
const MDBOOK_VERSION: &str = "0.5.4";

/// Directory of the manual's pages.
const MANUAL: &str = "docs/manual/src/";

/// The list of chapters.
const SUMMARY: &str = "docs/manual/src/SUMMARY.md";

/// The chapter under which all decision records are listed.
const DECISIONS: &str = "docs/decisions/README.md";

/// Builds the book below `target`.
pub(crate) fn run(checkout: &Checkout) -> Result<()> {
    let program = std::env::current_exe().context("find the build directory")?;
    let target = program.parent().and_then(Path::parent).context("find the build directory")?;
    let book = target.join("book");
    stage(checkout, &book)?;
    run_tool(Command::new(mdbook(target)?).arg("build").arg(&book))?;
    let pages = book.join("book");
    let broken = broken_links(&pages)?;
    ensure!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    println!("built {}", pages.join("index.html").display());
    Ok(())
}

/// Returns mdBook from the search path, or from below `target` after installing it there.
fn mdbook(target: &Path) -> Result<PathBuf> {
    let is_there = |program: &Path| Command::new(program).arg("--version").output().is_ok();
    let tools = target.join("tools");
    let installed = tools.join("bin/mdbook");
    if is_there(Path::new("mdbook")) {
        return Ok(PathBuf::from("mdbook"));
    }
    if !is_there(&installed) {
        println!("installing mdBook {MDBOOK_VERSION} into {}; this takes some minutes", tools.display());
        let install = ["install", "mdbook", "--locked", "--no-default-features", "--version", MDBOOK_VERSION, "--root"];
        succeed(cargo(target, &install).arg(&tools), "cargo install mdbook")?;
    }
    Ok(installed)
}

/// Writes the sources of the book.
fn stage(checkout: &Checkout, book: &Path) -> Result<()> {
    let source = book.join("src");
    if book.exists() {
        std::fs::remove_dir_all(book).with_context(|| format!("remove {}", book.display()))?;
    }
    let staged: BTreeMap<&str, String> =
        checkout.paths.iter().filter_map(|path| Some((path.as_str(), page_of(path)?))).collect();
    for (path, page) in &staged {
        let to = source.join(page);
        std::fs::create_dir_all(to.parent().context("a page lies in a directory")?)?;
        match checkout.file(path).filter(|_| is_page(path)) {
            None => std::fs::copy(checkout.root.join(path), &to).map(|_| ()),
            Some(file) => {
                let text = if *path == SUMMARY { with_decisions(checkout) } else { file.text.clone() };
                let page = rewrite(&text, |link| translate(&staged, path, link));
                std::fs::write(&to, page)
            }
        }
        .with_context(|| format!("write {}", to.display()))?;
    }
    let configuration = checkout.file("docs/manual/book.toml").context("docs/manual/book.toml is missing")?;
    std::fs::write(book.join("book.toml"), &configuration.text).context("write book.toml")
}

fn is_page(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == "md")
}

/// Returns the path of a file in the book; none for files that are not part of it.
fn page_of(path: &str) -> Option<String> {
    let page = match path {
        "ARCHITECTURE.md" => "architecture.md",
        _ => path.strip_prefix(MANUAL).or_else(|| path.strip_prefix("docs/"))?,
    };
    let page = page.replace("README.md", "index.md");
    (is_page(path) || page.starts_with("images/")).then_some(page)
}

/// Returns the list of chapters, with the decision records below their chapter.
fn with_decisions(checkout: &Checkout) -> String {
    let summary = checkout.file(SUMMARY).map_or("", |file| &file.text);
    let is_record = |path: &str| path.starts_with("docs/decisions/") && path != DECISIONS;
    let records = checkout.files.iter().filter(|file| is_record(&file.path)).map(|file| {
        let title = file.text.lines().next().unwrap_or_default().trim_start_matches("# ");
        format!("  - [{title}](../../../{})\n", file.path)
    });
    let records: String = records.collect();
    summary.split_inclusive('\n').fold(String::new(), |mut whole, line| {
        whole.push_str(line);
        if line.contains("decisions/README.md") {
            whole.push_str(&records);
        }
        whole
    })
}

/// A link after translation.
#[derive(Debug, PartialEq, Eq)]
enum Translated {
    /// The new target.
    To(String),
    /// The target is not part of the book: only the text remains.
    Dropped,
}

/// Translates a link on the page at `path`.
fn translate(staged: &BTreeMap<&str, String>, path: &str, link: &str) -> Translated {
    let (file, anchor) = link.find('#').map_or((link, ""), |at| link.split_at(at));
    if link.contains("://") || file.is_empty() {
        return Translated::To(link.to_owned());
    }
    let mut names: Vec<&str> = path.split('/').collect();
    names.pop();
    for name in file.split('/') {
        match name {
            ".." => drop(names.pop()),
            "." | "" => {}
            _ => names.push(name),
        }
    }
    let (Some(page), Some(own)) = (staged.get(names.join("/").as_str()), staged.get(path)) else {
        return Translated::Dropped;
    };
    Translated::To(format!("{}{page}{anchor}", "../".repeat(own.matches('/').count())))
}

/// Translates the links `[text](target)` of a page, but not those in fenced blocks.
fn rewrite(text: &str, translate: impl Fn(&str) -> Translated) -> String {
    let mut page = String::with_capacity(text.len());
    let mut fenced = false;
    for line in text.split_inclusive('\n') {
        fenced ^= line.trim_start().starts_with("```");
        if fenced { page.push_str(line) } else { rewrite_line(line, &translate, &mut page) }
    }
    page
}

fn rewrite_line(line: &str, translate: &impl Fn(&str) -> Translated, page: &mut String) {
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, after)) = after.split_once(')') else { break };
        match (translate(target), before.rfind('[')) {
            (Translated::Dropped, Some(start)) => {
                page.push_str(&before[..start]);
                page.push_str(&before[start + 1..]);
            }
            // The text of the link begins on the previous line: leave the link unchanged.
            (Translated::Dropped, None) => page.extend([before, "](", target, ")"]),
            (Translated::To(target), _) => page.extend([before, "](", &target, ")"]),
        }
        rest = after;
    }
    page.push_str(rest);
}

/// Returns the links of built pages to missing files.
fn broken_links(pages: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let mut left = vec![pages.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|end| end == "html") && !path.ends_with("404.html") {
                let html = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
                let targets = html.split("href=\"").skip(1).filter_map(|rest| rest.split(['"', '#']).next());
                let files = targets.filter(|target| !target.is_empty() && !target.contains(':'));
                let missing = files.filter(|target| !directory.join(target).exists());
                broken.extend(missing.map(|target| format!("{}: {target}", path.display())));
            }
        }
    }
    if !pages.join("index.html").is_file() {
        bail!("mdbook built no index.html in {}", pages.display());
    }
    Ok(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_pages_into_the_book() {
        let paths = [
            "docs/manual/src/a.md",
            "docs/lab.md",
            "docs/decisions/0001-x.md",
            "docs/decisions/README.md",
            "ARCHITECTURE.md",
            "docs/images/b.svg",
        ];
        let staged: BTreeMap<&str, String> =
            paths.iter().map(|path| (*path, page_of(path).expect("belongs to the book"))).collect();
        let cases = [
            ("docs/manual/src/a.md", "../../lab.md#points", Translated::To("lab.md#points".into())),
            ("docs/manual/src/a.md", "../../../ARCHITECTURE.md", Translated::To("architecture.md".into())),
            ("docs/decisions/0001-x.md", "../manual/src/a.md", Translated::To("../a.md".into())),
            ("docs/lab.md", "decisions/README.md", Translated::To("decisions/index.md".into())),
            ("ARCHITECTURE.md", "docs/images/b.svg", Translated::To("images/b.svg".into())),
            ("docs/lab.md", "../crates/cli/Cargo.toml", Translated::Dropped),
            ("docs/lab.md", "#points", Translated::To("#points".into())),
            ("docs/lab.md", "https://example.org/a.md", Translated::To("https://example.org/a.md".into())),
        ];
        for (page, link, expected) in cases {
            assert_eq!(translate(&staged, page, link), expected, "{link} on {page}");
        }
        assert_eq!((page_of("docs/results/x.json"), page_of("README.md"), page_of("xtask/a.md")), (None, None, None));
    }

    #[test]
    fn only_links_outside_of_fenced_blocks_are_rewritten() {
        let text = "a [b](c) [d](e), `f`\n```sh\n[g](c)\n```\n![h](e)\n";
        let page = rewrite(text, |link| if link == "c" { Translated::Dropped } else { Translated::To("x".into()) });
        assert_eq!(page, "a b [d](x), `f`\n```sh\n[g](c)\n```\n![h](x)\n");
    }
}
