#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
#
# Runs targets of the Makefile one after the other, each a block ("NAME" or "NAME:TARGET"), and
# ends with a table of their seconds, whatever happened. A failed block does not stop the next ones,
# except those that stand on it. The exit code is that of the first block that failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# Which blocks make no sense after the failure of another one ("*": none does).
declare -A needed_by=([install]='*' [images]=' machine ')

declare -A seconds state
names=()
blocked=' '
code=0
passed=0
failed=0
skipped=0

table() {
  local name total
  printf '\n%-14s %9s  %s\n' block seconds result
  for name in "${names[@]}"; do
    printf '%-14s %9s  %s\n' "$name" "${seconds[$name]}" "${state[$name]}"
  done
  total=$(elapsed_since "$started")
  printf '%-14s %9s\n' total "$total"
  printf '\nblocks: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
}

now_ms() { printf '%s' $((${EPOCHREALTIME/[.,]/} / 1000)); }

elapsed_since() {
  local ms=$(($(now_ms) - $1))
  printf '%d.%d' $((ms / 1000)) $((ms % 1000 / 100))
}

# make stops its children itself on Ctrl-C; the table shows how far it came.
trap 'code=130; table; exit "$code"' INT
trap 'code=143; table; exit "$code"' TERM

started=$(now_ms)
for block in "$@"; do
  name=${block%%:*}
  names+=("$name")
  if [[ $blocked == *' * '* || $blocked == *" $name "* ]]; then
    seconds[$name]=-
    state[$name]=skipped
    skipped=$((skipped + 1))
    continue
  fi
  printf '\n=== %s\n' "$name"
  seconds[$name]=-
  state[$name]=interrupted
  block_started=$(now_ms)
  make "${block##*:}" </dev/null
  result=$?
  seconds[$name]=$(elapsed_since "$block_started")
  if [ "$result" -eq 0 ]; then
    state[$name]=passed
    passed=$((passed + 1))
  else
    state[$name]="failed ($result)"
    failed=$((failed + 1))
    blocked+=" ${needed_by[$name]:-} "
    [ "$code" -ne 0 ] || code=$result
  fi
done
table
exit "$code"
