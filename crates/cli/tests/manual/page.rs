//! A page of Markdown, as far as its links and commands go.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Languages of fenced blocks that are not commands.
const LANGUAGES: [&str; 6] = ["ini", "json", "rust,no_run", "text", "toml", "vectors"];

/// Beginnings of commands that a test must not run: they change the machine, take minutes, or need a server that goes on. The tests of
/// volumes run those of `cdp`.
const NOT_RUN: [&str; 25] = [
    "./quickstart",
    "./test",
    "apt-get",
    "cargo",
    "cd onefold",
    "crontab",
    "dpkg",
    "git clone",
    "journalctl",
    "loginctl",
    "onefold cdp checkpoint",
    "onefold cdp export",
    "onefold cdp history",
    "onefold cdp mark",
    "onefold cdp receive",
    "onefold cdp restore",
    "onefold cdp scan",
    "onefold cdp serve",
    "onefold cdp status",
    "onefold cdp thin",
    "onefold lab paper",
    "onefold lab scaling --scratch",
    "qemu-system-x86_64",
    "rustup",
    "systemctl",
];

/// A page.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// Path from the root of the checkout.
    pub(super) path: PathBuf,
    /// Links and images to other files, or to headings.
    pub(super) links: Vec<Link>,
    /// Anchors of the headings.
    pub(super) anchors: BTreeSet<String>,
    /// Commands, in order.
    pub(super) blocks: Vec<Block>,
    /// Whether commands begin with a repository that has a snapshot.
    pub(super) has_repository: bool,
    /// What is wrong with the page itself.
    pub(super) problems: Vec<String>,
}

/// A link.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) line: usize,
    pub(super) target: String,
}

/// A fenced block of commands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) line: usize,
    /// The exit code that the block ends with.
    pub(super) code: i32,
    pub(super) text: String,
}

impl Page {
    /// Reads a page.
    ///
    /// A block of `sh` is run, one of `sh,exit=N` has to end with that code, and one of `sh,no-run` may hold a few
    /// simple commands only. A comment that begins with `sandbox` holds commands that prepare the sandbox; `sandbox: empty`
    /// says that the page begins without a repository.
    pub(super) fn parse(path: &Path, text: &str) -> Self {
        let mut page = Self { path: path.to_path_buf(), has_repository: true, ..Self::default() };
        let mut gathered = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(Link { line, target: dest_url.into_string() });
                }
                Event::Start(Tag::Heading { .. } | Tag::HtmlBlock | Tag::CodeBlock(_)) => {
                    gathered = Some((line, String::new()));
                }
                Event::Text(part) | Event::Code(part) | Event::Html(part) => {
                    if let Some((_, gathered)) = &mut gathered {
                        gathered.push_str(&part);
                    }
                }
                Event::End(TagEnd::Heading(_)) => page.anchor(&gathered.take().unwrap().1),
                Event::End(TagEnd::HtmlBlock) => {
                    let (line, html) = gathered.take().unwrap();
                    page.html(line, &html);
                }
                Event::End(TagEnd::CodeBlock) => {
                    let (line, code) = gathered.take().unwrap();
                    page.code(line, fence_info(&text[range]), code);
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor of a heading, as GitHub and mdBook make it.
    fn anchor(&mut self, heading: &str) {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
        let slug: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let names = std::iter::once(slug.clone()).chain((1..).map(|number| format!("{slug}-{number}")));
        let free = names.into_iter().find(|name| !self.anchors.contains(name));
        self.anchors.extend(free);
    }

    fn html(&mut self, line: usize, html: &str) {
        let comment = html.trim().strip_prefix("<!--").and_then(|html| html.strip_suffix("-->")).map(str::trim);
        match comment {
            Some("sandbox: empty") => self.has_repository = false,
            Some(comment) => {
                if let Some(script) = comment.strip_prefix("sandbox\n") {
                    self.blocks.push(Block { line, code: 0, text: format!("{script}\n") });
                }
            }
            None => {
                for attribute in ["src=\"", "srcset=\"", "href=\""] {
                    let values = html.split(attribute).skip(1).filter_map(|rest| rest.split('"').next());
                    self.links.extend(values.map(|target| Link { line, target: target.to_owned() }));
                }
            }
        }
    }

    fn code(&mut self, line: usize, info: &str, text: String) {
        let code = match info {
            "sh" => Some(0),
            "sh,no-run" => {
                let wrong = text.lines().filter(|line| !may_stay_unrun(line));
                let place = self.path.display();
                self.problems.extend(wrong.map(|command| format!("{place}:{line}: `{command}` must be run")));
                return;
            }
            _ => info.strip_prefix("sh,exit=").and_then(|code| code.parse().ok()),
        };
        if let Some(code) = code {
            self.blocks.push(Block { line, code, text });
        } else if !LANGUAGES.contains(&info) {
            self.problems.push(format!("{}:{line}: a block of `{info}`", self.path.display()));
        } else if text.lines().any(|line| line.trim_start_matches("$ ").starts_with("onefold ")) {
            self.problems.push(format!("{}:{line}: a command in a block of `{info}`", self.path.display()));
        }
    }
}

/// Returns what stands after the fence; an indented block has nothing.
fn fence_info(block: &str) -> &str {
    match Parser::new(block).next() {
        Some(Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_)))) => {
            block.lines().next().unwrap_or_default().trim_start_matches(['`', '~']).trim()
        }
        _ => "",
    }
}

/// Returns true if a line is a comment or a simple command that a test must not run.
fn may_stay_unrun(line: &str) -> bool {
    let command = line.trim().trim_start_matches("sudo ");
    let command = command.split(" #").next().unwrap_or_default();
    let words: Vec<&str> = command.split_whitespace().collect();
    let begins = |beginning: &&str| words.starts_with(&beginning.split(' ').collect::<Vec<_>>());
    let is_simple = !command.contains(['|', ';', '&', '$', '`', '>', '<']);
    command.is_empty() || command.starts_with('#') || (is_simple && NOT_RUN.iter().any(begins))
}

#[test]
fn links_headings_and_blocks_of_a_page_are_found() {
    let text = "# One `two`, three!\n\n## One\n\n## One\n\n[a](b.md#c) ![d](e.svg)\n\n<img src=\"f.svg\">\n\n\
        ```sh\necho 1\n```\n\n```sh,exit=3\nfalse\n```\n\n<!-- sandbox\nmkdir x\n-->\n\n```text\nplain\n```\n";
    let page = Page::parse(Path::new("p.md"), text);
    assert_eq!(page.anchors.iter().collect::<Vec<_>>(), ["one", "one-1", "one-two-three"]);
    let links: Vec<_> = page.links.iter().map(|link| (link.line, link.target.as_str())).collect();
    assert_eq!(links, [(7, "b.md#c"), (7, "e.svg"), (9, "f.svg")]);
    let blocks: Vec<_> = page.blocks.iter().map(|block| (block.line, block.code, block.text.as_str())).collect();
    assert_eq!(blocks, [(11, 0, "echo 1\n"), (15, 3, "false\n"), (19, 0, "mkdir x\n")]);
    assert!(page.problems.is_empty() && page.has_repository);
    assert!(!Page::parse(Path::new("p.md"), "<!-- sandbox: empty -->\n").has_repository);
}

#[test]
fn a_command_cannot_hide_from_being_run() {
    for (text, problem) in [
        ("```sh,no-run\nonefold init\n```\n", "p.md:1: `onefold init` must be run"),
        ("```sh,no-run\nsudo apt-get update && onefold init\n```\n", "must be run"),
        ("```console\n$ onefold init\n```\n", "p.md:1: a block of `console`"),
        ("text\n\n```\nonefold init\n```\n", "p.md:3: a block of ``"),
        ("    onefold init\n", "a block of ``"),
        ("```text\n$ onefold init\n```\n", "a command in a block of `text`"),
    ] {
        let page = Page::parse(Path::new("p.md"), text);
        assert!(page.problems.iter().any(|found| found.contains(problem)), "{text}: {:?}", page.problems);
    }
    let fine =
        "```sh,no-run\n# comment\nsudo apt-get install gcc   # why\ncargo install --locked --path crates/cli\n```\n";
    assert!(Page::parse(Path::new("p.md"), fine).problems.is_empty());
}
