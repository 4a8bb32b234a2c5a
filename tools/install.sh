#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
#
# Installs what the commands of the Makefile need and says so before it does: Debian packages that
# are missing (as root or by sudo) and Python packages into the virtual environment $VENV.
# Does nothing, quickly, when all is there. ANSIBLE_CORE ("~=2.18.0") asks for another ansible-core
# than constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.cache/venv}
list=tools/debian-packages.txt
mkdir -p .cache
exec 9>.cache/install.lock
flock 9

say() { printf '%s\n' "$*"; }

# --- Debian packages ---------------------------------------------------------------------------

missing=()
# shellcheck disable=SC2046 # names of packages hold no spaces
installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' $(sed -n 's/^\([a-z0-9.+-]\+\) .*/\1/p' "$list") \
  2>/dev/null || true)"
while read -r package reason; do
  case $package in '' | '#'*) continue ;; esac
  case $installed in *" installed:$package "*) continue ;; esac
  [ ${#missing[@]} -gt 0 ] || say "Debian packages that are missing, and why they are needed:"
  printf '  %-23s %s\n' "$package" "$reason"
  missing+=("$package")
done <"$list"

if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "Only root may install them and sudo is not there. As root, run:" \
        "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
    # Without a terminal nobody can type a password.
    [ -t 0 ] || as_root+=(--non-interactive)
  fi
  say "Installing them now: ${as_root[*]:+${as_root[*]} }apt-get install ${missing[*]}"
  apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@"; }
  if ! { apt update && apt install --yes --no-install-recommends "${missing[@]}"; } </dev/null; then
    say "They could not be installed. As root, run:" \
      "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi

# --- Python packages ---------------------------------------------------------------------------

# Debian's own interpreter first: shims of version managers may point to one without venv.
base=
for candidate in /usr/bin/python3 python3; do
  if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
    2>/dev/null; then
    base=$candidate
    break
  fi
done
[ -n "$base" ] || { say "Python 3.11 or newer with its venv module is needed." >&2; exit 1; }

pins=constraints.txt
if [ -n "${ANSIBLE_CORE:-}" ]; then
  pins=.cache/constraints-${ANSIBLE_CORE//[^0-9.]/}.txt
  # resolvelib is what ansible-core's dependency resolver is tied to.
  { grep -vE '^(ansible-core|resolvelib)==' constraints.txt; echo "ansible-core$ANSIBLE_CORE"; } >"$pins"
fi
# The wanted state is what this hash covers; settings of tools in pyproject.toml are no part of it.
wanted=$({ sed '/^\[tool\./,$d' pyproject.toml; cat "$pins" tools/install.sh; "$base" -VV; } |
  sha256sum | cut -d' ' -f1)
stamp=$venv/.installed
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  say "Installing the Python packages of pyproject.toml, in the versions of $pins, into $venv"
  python=$venv/bin/python
  if [ "$("$python" -VV 2>/dev/null)" != "$("$base" -VV)" ]; then
    "$base" -m venv --clear "$venv"
  fi
  rm -f "$stamp"
  # pip knows the machine's package index, proxies and certificates from its own configuration; uv,
  # which does the rest of the work in seconds, is told the index.
  "$python" -m pip install --quiet --disable-pip-version-check -c "$pins" uv
  index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}
  [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true} "$python" -m uv pip install --quiet --python "$python" \
    --exact -c "$pins" -r pyproject.toml --all-extras
  # uv leaves no byte code; modules of collections are never imported the ordinary way.
  "$python" -m compileall -q -j 0 -x '/ansible_collections/' "$venv"/lib/python3.*/site-packages \
    >/dev/null || true
  printf '%s\n' "$wanted" >"$stamp"
fi

# Ansible finds the checkout as ansible_collections/barewright/metal.
link=.cache/collections/ansible_collections/barewright/metal
mkdir -p "${link%/*}"
[ -e "$link/galaxy.yml" ] || ln -sfn ../../../.. "$link"
