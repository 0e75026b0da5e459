#!/bin/sh
# Shows Doxygen a header's plain comments as documentation: those at its top are about the file, those on lines of their
# own about what follows, those behind a declaration about it.
exec awk '
  /^#pragma once/ { body = 1 }
  !body && /^\/\// { print (begun ? "/// " : "/// \\file\n/// ") substr($0, 3); begun = 1; next }
  body && /^ *\/\/ / { sub(/\/\/ /, "/// ") ; print; next }
  body && /[;,{] +\/\/ / { sub(/ \/\/ /, " ///< "); print; next }
  { print }
' "$1"
