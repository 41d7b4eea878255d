#!/bin/sh
# bundle.sh PREFIX: makes an installation run on other distributions: strips its programs and libraries, and copies to
# PREFIX/lib what they need besides LibTorch, the C library and the runtime of the compiler. Prints what it copied.
set -eu
prefix=$1
find "$prefix" -type f \( -name '*.so*' -o -path "$prefix/bin/*" \) -exec sh -c '
  for file; do
    strip --strip-unneeded "$file"
    ldd "$file" 2>/dev/null
  done' sh {} + | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | while read -r name path; do
  case $path in "$prefix"/* | */torch/lib/* | */libtorch/lib/* | */nvidia/*) continue ;; esac
  case $name in
    ld-linux* | libc.so* | libm.so* | libmvec.so* | libdl.so* | librt.so* | libpthread.so* | libutil.so*) ;;
    libstdc++.so* | libgcc_s.so* | libgomp.so* | libz.so* | libtorch* | libc10* | libvernier*) ;;
    *)
      cp -L "$path" "$prefix/lib/$name"
      strip --strip-unneeded "$prefix/lib/$name"
      echo "$path"
      ;;
  esac
done
