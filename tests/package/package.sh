#!/bin/sh
# package.sh CONFIG PREFIX EXAMPLE LIBTORCH WORK
#
# Packs what is installed in PREFIX as CONFIG says, unpacks the .tar.gz in another folder, runs the program there, and
# builds and tests the project EXAMPLE against it. Of the .deb it looks at the names: installing it takes root.
set -eu
config=$1 prefix=$2 example=$3 libtorch=$4 work=$5
unset VERNIER_PLUGIN_PATH
fail() { echo "$*"; exit 1; }

# pack GENERATOR FOLDER: the installation is in that folder of the package.
pack() {
  # An empty list of projects: nothing is built and installed again. Packing tighter takes longer and tests nothing.
  cpack --config "$config" -G "$1" -B "$work/packed" -D CPACK_INSTALL_CMAKE_PROJECTS= -D CPACK_DEBIAN_COMPRESSION_TYPE=none \
    -D "CPACK_INSTALLED_DIRECTORIES=$prefix;$2" >"$work/cpack.log" 2>&1 ||
    { cat "$work/cpack.log"; fail "cpack -G $1 failed"; }
}

rm -rf "$work"
mkdir -p "$work/another place"
pack TGZ .
(cd "$work/another place" && tar -xzf "$work"/packed/*.tar.gz --no-same-owner)
root=$(echo "$work/another place"/*)
vernier=$root/bin/vernier
"$vernier" plugins >"$work/said" 2>&1 && fail "it runs without LibTorch, so it found the builder's"
grep -q "LibTorch is not found .*; link the folder of LibTorch .* as $root/lib/libtorch" "$work/said" || fail "$(cat "$work/said")"
ln -s "$libtorch" "$root/lib/libtorch"
ls "$root"/lib/libspdlog.so.* >/dev/null || fail "the .tar.gz does not have the libraries of this distribution"
case $root in *-libtorch*-linux-*-glibc*) ;; *) fail "$root does not say for which system it is" ;; esac
"$vernier" version --json | grep -q '"name": "vernier"' || fail "the unpacked program does not say its version"
plugins=$("$vernier" plugins)
case $plugins in *refused*) echo "$plugins"; fail "the unpacked program refuses its own plugins" ;; esac
case $plugins in *adamw*) ;; *) fail "the unpacked program does not find its plugins" ;; esac

ctest --build-and-test "$example" "$work/example" --build-generator "$CMAKE_GENERATOR" \
  --build-options "-DCMAKE_PREFIX_PATH=$root" -DCMAKE_CXX_FLAGS_RELEASE=-O0 --test-command ctest --output-on-failure --no-tests=error
grep -q "LIBTORCH_ROOT:PATH=$root/lib/libtorch" "$work/example/CMakeCache.txt" || fail "it took another LibTorch"
grep -q "Vernier_DIR:PATH=$root/" "$work/example/CMakeCache.txt" || fail "it was built against another Vernier"

command -v dpkg-shlibdeps >/dev/null || exit 0
pack DEB usr
deb=$(echo "$work"/packed/*.deb)
grep -q "^ID=$(echo "$deb" | sed 's/.*~\([a-z]*\).*/\1/')$" /etc/os-release || fail "$deb does not say for which system it is"
depends=$(dpkg-deb --field "$deb" Depends) contents=$(dpkg-deb --contents "$deb")
for name in libc6 libstdc++6 libboost-filesystem; do
  case $depends in *$name*) ;; *) fail "$deb does not depend on $name: $depends" ;; esac
done
for file in usr/bin/vernier usr/bin/vernier-train usr/lib/libvernier_sdk.so usr/lib/libvernier_core.so \
  usr/lib/libvernier_data.so usr/lib/libvernier_trainer.so usr/include/vernier/trainer.h usr/lib/libvernier_c.so usr/include/vernier.h \
  usr/lib/vernier/plugins/optimizer/adamw.so \
  usr/lib/cmake/Vernier/VernierConfig.cmake usr/include/vernier/sdk.h usr/share/doc/vernier/LICENSE \
  usr/share/doc/vernier/docs/start/train-your-own.md usr/share/doc/vernier/docs/guides/recovery.md \
  usr/share/doc/vernier/configs/quickstart.toml; do
  case $contents in *" ./$file"*) ;; *) fail "$deb does not have $file" ;; esac
done
case $contents in *lib/libtorch*) fail "$deb has a link to the builder's LibTorch" ;; esac
