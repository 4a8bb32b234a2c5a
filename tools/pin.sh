#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
#
# Writes constraints.txt anew: the newest versions that fit together, for every Python from 3.11 on.
set -euo pipefail
cd "$(dirname "$0")/.."
pins=$("${VENV:-.cache/venv}/bin/python" -m uv pip compile --quiet --universal --python-version 3.11 \
  --no-header --no-annotate --all-extras pyproject.toml)
{
  cat <<END
# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
#
# The versions that \`make deps\` installs, of everything that pyproject.toml asks for and what
# that needs in turn. Written by tools/pin.sh (make pin).
END
  printf '%s\n' "$pins"
} >constraints.txt
