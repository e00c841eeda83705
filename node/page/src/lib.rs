//! Pages: HTML files for looking rather than reading, each with its pictures inside.
//!
//! A page opens from a disk, prints, and follows the reader's choice of light or dark; it loads nothing. Its pictures are made
//! of the marks in [`svg`] along the axes in [`axis`]. [`comparison`] is a whole page, of runs that were simulated or were real.
//!
//! # Not here
//! The report of a simulated run, which is the simulator's own and made of the same parts.

#![forbid(unsafe_code)]

use std::fmt::Write;

use self::svg::Escaped;

pub mod axis;
pub mod comparison;
pub mod pairing;
pub mod svg;

/// A page as far as the start of its body. `style` is CSS beyond what all pages have.
#[must_use]
pub fn head(title: &str, style: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n",
        Escaped(title)
    )
}

/// Adds the command that makes the page again, if there is one.
pub fn reproduce_with(page: &mut String, command: &str) {
    if !command.is_empty() {
        add(page, format_args!("<p class=\"again\">Again: <code>{}</code></p>\n", Escaped(command)));
    }
}

/// Adds a section: its title, a sentence on how to read it, and its markup.
pub fn section(page: &mut String, title: &str, how: &str, body: &str) {
    add(page, format_args!("<section>\n<h2>{title}</h2>\n<p class=\"how\">{how}</p>\n{body}</section>\n"));
}

/// Adds markup as it is.
pub fn add(page: &mut String, markup: std::fmt::Arguments<'_>) {
    page.write_fmt(markup).expect("a string takes any text");
}

const STYLE: &str = include_str!("style.css");
