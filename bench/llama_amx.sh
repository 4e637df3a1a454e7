#!/usr/bin/env bash
# A second build of the peer's CPU kernels, with AMX, for hosts that have it: PEERS/llama-amx/bin, which speed.sh picks up.
# usage: bench/llama_amx.sh PEERS          (a folder in which peers.sh has built llama; several minutes)
# As its sources stand, g++ 12 makes a program of them that dies at its first tile instruction (SIGILL or SIGSEGV, whatever lay on the
# stack): the compiler's _tile_loadconfig names only the first 8 bytes of the configuration as read, so that the stores to the other 56 are
# taken for dead. A barrier before the call keeps them. Nothing else is changed.
set -euo pipefail
peers=$(cd "$1" && pwd)
grep -qw amx_int8 /proc/cpuinfo || { echo "llama_amx.sh: this processor has no AMX" >&2; exit 1; }
work=$peers/llama-amx
mkdir -p "$work/bin"
cp -a "$peers/llama/ggml" "$work/"
sed -i 's|^ *_tile_loadconfig(&tc);|    asm volatile("" : : "r"(\&tc) : "memory");\n&|' "$work/ggml/src/ggml-cpu/amx/mmq.cpp"
grep -q 'asm volatile("" : : "r"(&tc)' "$work/ggml/src/ggml-cpu/amx/mmq.cpp" || { echo "llama_amx.sh: other sources than expected" >&2; exit 1; }
touch "$work/ggml/ggml.pc.in"  # the source archive lacks it
cmake -S "$work/ggml" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON -DGGML_BUILD_TESTS=OFF \
  -DGGML_BUILD_EXAMPLES=OFF -DCMAKE_CXX_FLAGS=-w -DCMAKE_C_FLAGS=-w >"$work/build.log"
cmake --build "$work/build" -j"$(nproc)" --target ggml-cpu >>"$work/build.log" 2>&1 || { tail -5 "$work/build.log" >&2; exit 1; }
cp -a "$peers/llama/build/bin/." "$work/bin/"
find "$work/build" -name 'libggml-cpu.so*' -exec cp -a {} "$work/bin/" \;
echo "built: $work/bin"
