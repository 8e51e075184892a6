# shellcheck shell=bash
# Sets up what a build needs: system packages, a .venv, LibTorch. Sourced by ../run, which has set
# ROOT and stands in it. Every step looks first and does nothing, offline too, where all is there.

readonly TORCH_MINIMUM=2.11
readonly VENV="$ROOT/.venv"
readonly PYTHON="$VENV/bin/python"
readonly BUILD_PACKAGES=(g++ git cmake ninja-build libgloo-dev libgtest-dev libgmock-dev
  libbenchmark-dev libcli11-dev nlohmann-json3-dev libssl-dev libxxhash-dev)
TORCH_ROOT=""  # the folder with LibTorch's include/ and lib/, set by find_torch

if [[ -t 2 ]]; then readonly BOLD=$'\e[1m' PLAIN=$'\e[0m'; else readonly BOLD="" PLAIN=""; fi
say() { printf '%s==> %s%s\n' "$BOLD" "$*" "$PLAIN" >&2; }
die() {
  printf '%serror:%s %s\n' "$BOLD" "$PLAIN" "$*" >&2
  exit 1
}

# ---- system packages -----------------------------------------------------------------------------

# A tool may come from elsewhere than its package (a cmake of the user's own): then it is not missing.
missing_packages() {
  local -A program=([g++]=g++ [ninja-build]=ninja [graphviz]=dot)
  local package installed
  installed=" $(dpkg-query -W -f '${db:Status-Status}/${Package} ' "$@" 2>/dev/null || true)"
  for package; do
    [[ $installed == *" installed/$package "* ]] ||
      command -v "${program[$package]:-$package}" >/dev/null || echo "$package"
  done
}

# need_packages <package>...: installs what is missing, or prints the line that would and stops.
need_packages() {
  if ! command -v apt-get >/dev/null; then
    say "This is not Debian or Ubuntu; please see for yourself that these are there: $*"
    return
  fi
  local missing sudo=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  command -v ccache >/dev/null || missing+=(ccache)  # makes rebuilds fast; not needed

  local by_hand="  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  if ((EUID != 0)); then
    sudo=(sudo)  # which may ask for a password, if there is somebody to answer
    sudo -n true 2>/dev/null || { [[ -t 0 && -t 2 ]] && command -v sudo >/dev/null; } ||
      die "system packages are missing. Please run, as a user who may:

$by_hand

and then start this again."
  fi
  say "Installing system packages: ${missing[*]}"
  "${sudo[@]}" apt-get -o DPkg::Lock::Timeout=300 -q update ||
    say "The package lists could not be updated; trying with those that are here."
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q \
    install -y --no-install-recommends "${missing[@]}" ||
    die "the packages could not be installed. The line was

$by_hand

On Ubuntu some of them are in 'universe': sudo add-apt-repository universe"
}

# ---- Python --------------------------------------------------------------------------------------

# Prints the Python that a .venv can be made with.
python_for_venv() {
  local python
  for python in python3 /usr/bin/python3; do
    "$python" -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    command -v "$python"
    return
  done
  return 1
}

make_venv() {
  "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("pip"))' 2>/dev/null &&
    return
  local python
  if ! python=$(python_for_venv); then
    need_packages python3 python3-venv
    python=$(python_for_venv) || die "Python 3.10 or later with its venv module is needed."
  fi
  say "Making .venv with $("$python" --version)"
  "$python" -m venv --clear "$VENV"
}

# install_requirements <file> <words> [with_torch]: what the file asks for goes into .venv, once for
# each content of the file. Where LibTorch comes from somewhere else, torch is left out unless said.
install_requirements() {
  local stamp wanted key
  make_venv
  stamp="$VENV/.installed-$(basename "$1" .txt)${3:+-$3}"
  wanted=$(grep -v '^#' "$1")
  [[ $TORCH_ROOT == "$VENV"/* || ${3:-} == with_torch ]] || wanted=$(grep -v '^torch=' <<<"$wanted")
  key=$({ echo "$wanted"; "$PYTHON" --version; } | sha256sum)
  [[ -f $stamp && $(<"$stamp") == "$key" ]] && return
  say "Installing into .venv: $2"
  # Modules are compiled when they are used: all of them would take a minute.
  "$PYTHON" -m pip install --no-compile --disable-pip-version-check -r <(echo "$wanted") ||
    die "pip could not install $1 (see above). With a working network, start this again."
  echo "$key" >"$stamp"
}

# ---- LibTorch ------------------------------------------------------------------------------------

is_torch() { [[ -f $1/include/ATen/ATen.h && -f $1/lib/libtorch_cpu.so ]]; }

# Where the .venv's Python has its packages.
packages_folder() { "$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# Sets TORCH_ROOT: from Torch_DIR or CMAKE_PREFIX_PATH, else from the active Python, else the place
# in .venv where requirements.txt puts it.
find_torch() {
  local prefixes prefix candidate version found too_old="" candidates=()
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    candidates+=("$prefix" "$prefix/../..")  # Python's torch names its share/cmake
  done
  if [[ -n ${Torch_DIR:-} ]]; then
    candidates=("$Torch_DIR/../../..")
    is_torch "${candidates[0]}" || die "Torch_DIR=$Torch_DIR is not the share/cmake/Torch folder of a LibTorch."
  fi
  # The torch of the Python on the PATH, found without importing it.
  read -r version found < <(python3 -c 'import importlib.metadata as m, importlib.util as u
print(m.version("torch"), u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) || true
  if [[ -n $found && $found != "$VENV"/* ]]; then
    if [[ $(printf '%s\n' "$TORCH_MINIMUM" "$version" | sort -V | head -n 1) == "$TORCH_MINIMUM" ]]; then
      candidates+=("$found")
    else
      too_old=$version
    fi
  fi
  for candidate in "${candidates[@]}"; do
    if is_torch "$candidate"; then
      TORCH_ROOT=$(realpath "$candidate")
      return
    fi
  done
  [[ -z $too_old ]] ||
    say "The active Python has torch $too_old; $TORCH_MINIMUM or later is needed, so .venv gets one."
  make_venv
  TORCH_ROOT=$(packages_folder)/torch
}

# Lets the .venv's Python import a torch that lives elsewhere, where it is of the same Python.
link_foreign_torch() {
  local link packages
  packages=$(packages_folder)
  link="$packages/zero_foreign_torch.pth"
  if [[ $TORCH_ROOT == "$VENV"/* || ! -f $TORCH_ROOT/__init__.py ||
        $TORCH_ROOT != */"$(basename "$(dirname "$packages")")"/* ]]; then
    rm -f "$link"
  elif [[ ! -f $link ]]; then
    dirname "$TORCH_ROOT" >"$link"
  fi
}

# ---- all together --------------------------------------------------------------------------------

# bootstrap [peers]: packages, LibTorch and .venv for a build; with "peers" also what the tests that
# compare with PyTorch and the data script need.
bootstrap() {
  need_packages "${BUILD_PACKAGES[@]}"
  find_torch
  local words="numpy and matplotlib; LibTorch is the one in $TORCH_ROOT"
  [[ $TORCH_ROOT != "$VENV"/* ]] ||
    words="LibTorch, numpy, matplotlib (about 3 GB to download, 6 GB on disk, some minutes; only once)"
  install_requirements requirements.txt "$words"
  link_foreign_torch
  [[ ${1:-} == peers ]] || return 0
  if ! "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))'; then
    install_requirements requirements.txt "PyTorch, for the tests that compare with it" with_torch
  fi
  install_requirements requirements-peers.txt "what tests and data preparation need (100 MB)"
}

# configure <preset> <folder> [cmake option]...: runs CMake for build/<folder>, where it has not run
# with these settings yet.
configure() {
  local preset=$1 folder="build/$2" key
  shift 2
  key="$ROOT $TORCH_ROOT $*"
  [[ -f $folder/build.ninja && -f $folder/.configured && $(<"$folder/.configured") == "$key" ]] &&
    return
  if [[ -f $folder/CMakeCache.txt ]] &&
     ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$folder/CMakeCache.txt"; then
    rm "$folder/CMakeCache.txt"  # the clone was moved
  fi
  say "Configuring $folder"
  cmake --preset "$preset" -B "$folder" -DZERO_TORCH_ROOT="$TORCH_ROOT" -DZERO_PYTHON="$PYTHON" \
    "$@" >&2
  echo "$key" >"$folder/.configured"
}

# How many files to compile at once: one needs up to 2 GB.
build_jobs() {
  local cores gigabytes
  cores=$(nproc)
  gigabytes=$(awk '/^MemAvailable/ {print int($2 / 2000000)}' /proc/meminfo)
  echo $((gigabytes < 1 ? 1 : gigabytes < cores ? gigabytes : cores))
}

# build <preset> [target]...
build() {
  local preset=$1 started=$SECONDS targets=("${@:2}")
  configure "$preset" "$preset"
  say "Building $preset${targets[*]:+: ${targets[*]}}"
  # One at a time: two of them in one folder spoil ninja's log.
  flock "build/$preset.lock" cmake --build --preset "$preset" --parallel "${ZERO_JOBS:-$(build_jobs)}" \
    ${targets[0]:+--target "${targets[@]}"} >&2
  say "Done in $((SECONDS - started)) s"
}
