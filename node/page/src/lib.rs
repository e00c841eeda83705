//! Pages: self-contained HTML files with SVG pictures.
//!
//! A page opens from disk, can be printed, follows the browser's light or dark mode, and loads nothing. Its pictures consist of the
//! marks in [`svg`] along the axes in [`axis`]. [`comparison`] is a complete page, for simulated and for real runs;
//! [`sweep`] is another one, for the trials of a sweep.
//!
//! # Not here
//! The report of a simulated run: it is part of the simulator, and uses the same marks and axes.

#![forbid(unsafe_code)]

use std::fmt::Write;

use self::svg::Escaped;

pub mod axis;
pub mod comparison;
mod frame;
pub mod pairing;
pub mod svg;
pub mod sweep;

/// The start of a page, up to the beginning of its body. `style` is CSS in addition to the common one.
#[must_use]
pub fn head(title: &str, style: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n",
        Escaped(title)
    )
}

/// Adds the command that reproduces the page; does nothing if it is empty.
pub fn reproduce_with(page: &mut String, command: &str) {
    if !command.is_empty() {
        add(page, format_args!("<p class=\"again\">Reproduce with: <code>{}</code></p>\n", Escaped(command)));
    }
}

/// Adds a section with its title, a sentence on how to read it, and its markup.
pub fn section(page: &mut String, title: &str, how: &str, body: &str) {
    add(page, format_args!("<section>\n<h2>{title}</h2>\n<p class=\"how\">{how}</p>\n{body}</section>\n"));
}

/// Adds markup without escaping.
pub fn add(page: &mut String, markup: std::fmt::Arguments<'_>) {
    page.write_fmt(markup).expect("writing to a string succeeds");
}

const STYLE: &str = include_str!("style.css");
