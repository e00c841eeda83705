# The everyday commands; `just` lists them. Everything works without `just` too: see CONTRIBUTING.md.

_default:
    @just --list

# Check everything, change nothing.
verify:
    .ci/run

# Format, and let clippy mend what it can. The only command that writes to the sources.
fix:
    cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all
