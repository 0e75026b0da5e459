#!/usr/bin/env bash
# Copies the parts that a machine without a package registry may lack into a folder that can travel with the tree:
#
#   tools/collect-parts.sh .parts        here
#   TRIREME_PARTS=.parts make            there
set -euo pipefail
folder="${1:?usage: tools/collect-parts.sh FOLDER}"
mkdir -p "$folder/include" "$folder/lib"
for header in CLI yaml-cpp protozero nlohmann fmt xxhash.h; do
  cp -rL "/usr/include/$header" "$folder/include/"
done
cp -L "$(find /usr/lib -name libyaml-cpp.a | head -n 1)" "$folder/lib/"
du -sh "$folder"
