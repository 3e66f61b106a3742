#!/bin/sh
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0

# libdmuon.so exports the functions of dmuon.h, every one, and nothing else.
# usage: exports_test.sh libdmuon.so dmuon.h
set -eu
exported=$(nm -D --defined-only "$1" | awk '{print $3}' | sed 's/@.*//' | sort -u)
declared=$(grep -o '\bdmuon_[a-z_]*(' "$2" | tr -d '(' | sort -u)
if [ "$exported" != "$declared" ]; then
  echo "exported:" $exported
  echo "declared:" $declared
  exit 1
fi
