#!/usr/bin/env bash
# Prints the default training text: the King James Bible of Debian's package bible-kjv, one verse a line (public domain).
set -euo pipefail
bible -f gen1:1-rev22:21 </dev/null
