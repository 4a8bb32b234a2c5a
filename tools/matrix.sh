#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
#
# Runs units, unit and integration with the oldest ansible-core that the collection supports and
# with the newest that this machine's Python can run, each in a virtual environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

code=0
for core in '~=2.18.0' '>=2.18'; do
  venv=$PWD/.cache/matrix/venv-${core//[^0-9.]/}
  VENV=$venv ANSIBLE_CORE=$core tools/install.sh
  version=$("$venv/bin/python" -c 'from ansible.release import __version__; print(__version__)')
  printf '\n##### ansible-core %s\n' "$version"
  VENV=$venv ANSIBLE_CORE=$core tools/blocks.sh units unit integration || code=$?
done
exit "$code"
