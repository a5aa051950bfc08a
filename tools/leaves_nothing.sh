#!/usr/bin/env bash
# Runs a command and fails if it changes the checkout: files that git does not ignore, and ignored ones outside the
# folders of tools.
#
#     tools/leaves_nothing.sh make test
set -euo pipefail

# Hidden entries of the root belong to tools (.venv, .mypy_cache, .hypothesis, ...), as do these folders.
TOOLS='^!! (\.[^/]+/?|build/)$|__pycache__/$|\.egg-info/$'

state() {
    git status --porcelain --untracked-files=all --ignored=matching | { grep -vE "$TOOLS" || true; }
}

if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    echo "not a git checkout: what the command leaves behind is not checked"
    exec "$@"
fi
before=$(state)
"$@"
after=$(state)
if [ "$before" != "$after" ]; then
    echo "the command changed the checkout (< before, > after):" >&2
    diff <(echo "$before") <(echo "$after") | grep '^[<>] .' >&2
    exit 1
fi
