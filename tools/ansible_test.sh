#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
#
# ansible_test.sh sanity|units [arguments]: runs ansible-test on the collection.
#
# ansible-test looks at physical paths, so a link does not do: it gets a copy of what the tarball
# holds, plus the tests that belong to it. It lives in a home of its own under .cache.
set -euo pipefail
cd "$(dirname "$0")/.."
command=$1
shift

cache=$PWD/.cache/ansible-test
copy=$cache/ansible_collections/barewright/metal
venv=$(cd "${VENV:-.cache/venv}" && pwd)

# Files of the checkout, new ones too, that are really there.
files() {
  git ls-files -z --cached --others --exclude-standard -- "$@" |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done
}

rm -rf "$copy"
mkdir -p "$copy" "$cache/home"
{
  files . ':!.ci' ':!Makefile' ':!ansible.cfg' ':!constraints.txt' ':!demo' ':!docs' ':!molecule' \
    ':!pyproject.toml' ':!runner_service' ':!tests' ':!tools' ':!virtual_rack'
  files tests/config.yml tests/conftest.py tests/unit/plugins
} | tar --create --null --files-from=- | tar --extract --directory "$copy"
# ansible-test wants a list of its own for each ansible-core; ours is the same for all.
core=$("$venv/bin/python" -c 'from ansible.release import __version__ as v; print(".".join(v.split(".")[:2]))')
mkdir -p "$copy/tests/sanity"
grep -v '^#' tests/sanity/ignore.txt >"$copy/tests/sanity/ignore-$core.txt"
# ansible-test asks git which files there are; its own repository keeps it from asking the outer one.
git -C "$copy" init --quiet
git -C "$copy" add --all

# ansible-test bootstraps pip in its virtual environments with a script from a download server of its
# own. Python brings a pip; from there on all comes from the machine's package index.
requirements=$("$venv/bin/python" -c 'import ansible_test; print(ansible_test.__path__[0])'
)/_internal/python_requirements.py
mkdir -p "$cache/home/.ansible/test/cache"
sed -n "s/.*pip='\([0-9.]*\)'.*/\1/p" "$requirements" | while read -r version; do
  echo 'import ensurepip; ensurepip.bootstrap()' \
    >"$cache/home/.ansible/test/cache/get_pip_${version//./_}.py"
done
# Only errors of pip are worth a line.
mkdir -p "$cache/home/.pip" "$cache/home/.config"
printf '[global]\nquiet = 2\n' >"$cache/home/.pip/pip.conf"
# Where the user told pip of a package index, pip under the other home still has to know.
config=${XDG_CONFIG_HOME:-$HOME/.config}/pip
[ ! -e "$config" ] || ln -sfn "$config" "$cache/home/.config/pip"

# sanity wants versions of tools that only ansible-test knows; units are to see the packages that
# everything else here is tested with.
options=()
[ "$command" = units ] || options=(--requirements --venv)

cd "$copy"
# No shims of version managers: they answer for Pythons that are not there.
exec env HOME="$cache/home" PATH="$venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" \
  ansible-test "$command" --color no "${options[@]}" "$@"
